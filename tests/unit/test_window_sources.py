"""Where each kind of server tells its window: the readers, on the replies of the servers."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.codec import Json, JsonObject
from proxy.compaction.policy import Window
from proxy.upstream import window_sources as sources
from proxy.upstream.routes import Base
from proxy.upstream.window_sources import (
    UNKNOWN,
    further,
    number,
    of_entry,
    of_listing,
    plausible,
    tighter,
)


def listing(*entries: JsonObject) -> JsonObject:
    return {"object": "list", "data": [*entries]}


def card(id: str, owner: str, **more: Json) -> JsonObject:
    return {"id": id, "object": "model", "created": 1795000000, "owned_by": owner, **more}


LLAMA_META: JsonObject = {
    "vocab_type": 2,
    "n_vocab": 49152,
    "n_ctx": 2048,
    "n_ctx_train": 8192,
    "n_embd": 576,
    "n_params": 134515008,
    "size": 96576768,
    "ftype": "Q4_1",
}
LLAMA = listing(card("/models/smol.gguf", "llamacpp", meta=LLAMA_META))
LLAMA["models"] = [{"name": "/models/smol.gguf", "model": "/models/smol.gguf"}]
LLAMA_OLD = listing(card("smol", "llamacpp", meta={"n_ctx_train": 8192}))
ROUTER = listing(
    card("org/a:Q4", "llamacpp", status={"value": "loaded", "args": ["-c", "99999"]}),
)
VLLM = listing(
    card("Qwen/Qwen3", "vllm", root="/m/qwen", parent=None, max_model_len=32768),
    card("sql-lora", "vllm", root="/l/sql", parent="Qwen/Qwen3"),
)
SGLANG = listing(
    card("qwen", "sglang", root="qwen", parent=None, max_model_len=40960),
    card("lora0", "sglang", root="/l/0", parent="qwen", max_model_len=None),
)
OLLAMA = listing(card("qwen3:latest", "library"), card("llama3:8b", "library"))
LM_STUDIO = listing(card("qwen3-4b", "organization_owner"))
OPENROUTER = listing(
    {
        "id": "openai/gpt-4o",
        "name": "OpenAI: GPT-4o",
        "context_length": 128000,
        "top_provider": {"context_length": 100000, "max_completion_tokens": 16384},
        "per_request_limits": None,
    },
    {"id": "x/free:free", "context_length": 9000, "top_provider": {"context_length": None}},
)
LITELLM = listing(
    card("gpt-5", "openai", max_input_tokens=272000, max_output_tokens=128000, mode="chat"),
    card("local", "openai"),
)
GROQ = listing(card("llama", "Meta", active=True, context_window=131072, max_completion_tokens=8))
MISTRAL = listing(
    card("mistral-large-2411", "mistralai", max_context_length=131072, aliases=["mistral-large"])
)
TOGETHER: Json = [{"id": "meta/llama", "object": "model", "context_length": 8192}]
FIREWORKS = listing(card("accounts/f/models/qwen", "fireworks", context_length=262144))
CEREBRAS = listing(card("llama", "Cerebras", limits={"max_context_length": 65536}))
GITHUB: Json = [
    {"id": "openai/gpt-4.1", "limits": {"max_input_tokens": 1048576, "max_output_tokens": 32768}}
]
ANTHROPIC = listing({"type": "model", "id": "claude", "max_input_tokens": 200000, "max_tokens": 9})
GEMINI: Json = {
    "models": [{"name": "models/gemini", "inputTokenLimit": 1048576, "outputTokenLimit": 65536}]
}
VERCEL = listing(card("openai/gpt-4o", "openai", context_window=128000, max_tokens=16384))
OPENAI = listing(card("gpt-5", "openai"), card("gpt-4o", "system"))


@pytest.mark.parametrize(
    ("reply", "model", "tokens", "input_only"),
    [
        (LLAMA, "/models/smol.gguf", 2048, False),
        (LLAMA, "gpt-4o", 2048, False),
        (LLAMA, "", 2048, False),
        (LLAMA_OLD, "smol", None, False),
        (listing(card("smol", "llamacpp", meta=None)), "smol", None, False),
        (ROUTER, "org/a:Q4", None, False),
        (VLLM, "Qwen/Qwen3", 32768, False),
        (VLLM, "sql-lora", 32768, False),
        (VLLM, "other", None, False),
        (SGLANG, "lora0", 40960, False),
        (OLLAMA, "qwen3", None, False),
        (LM_STUDIO, "qwen3-4b", None, False),
        (OPENROUTER, "openai/gpt-4o", 100000, False),
        (OPENROUTER, "x/free:free", 9000, False),
        (LITELLM, "gpt-5", 272000, True),
        (LITELLM, "local", None, False),
        (GROQ, "llama", 131072, False),
        (MISTRAL, "mistral-large", 131072, False),
        (TOGETHER, "meta/llama", 8192, False),
        (FIREWORKS, "accounts/f/models/qwen", 262144, False),
        (CEREBRAS, "llama", 65536, False),
        (GITHUB, "openai/gpt-4.1", 1048576, True),
        (ANTHROPIC, "claude", 200000, True),
        (GEMINI, "gemini", 1048576, True),
        (VERCEL, "openai/gpt-4o", 128000, False),
        (OPENAI, "gpt-5", None, False),
    ],
)
def test_the_list_of_models(reply: Json, model: str, tokens: int | None, input_only: bool) -> None:
    expected = UNKNOWN if tokens is None else Window(tokens, "models", input_only=input_only)
    assert of_listing(reply, model) == expected


@pytest.mark.parametrize(
    ("owner", "extra", "tokens"),
    [
        ("llamacpp", {}, 9000),
        ("tabbyAPI", {}, 9000),
        ("openai", {}, None),
        ("library", {}, None),
        ("organization_owner", {}, None),
        ("llamacpp", {"status": {"value": "unloaded"}}, None),
    ],
)
def test_a_lone_entry_counts_for_any_name_unless_its_server_serves_by_name(
    owner: str, extra: JsonObject, tokens: int | None
) -> None:
    reply = listing(card("m", owner, context_length=9000, **extra))
    assert of_listing(reply, "other").tokens == tokens
    assert of_listing(reply, "m").tokens == 9000


@pytest.mark.parametrize("parent", ["gone", "", None, 7])
def test_an_adapter_without_its_model_has_no_window(parent: Json) -> None:
    entries = listing(card("base", "vllm", max_model_len=4096), card("lora", "vllm", parent=parent))
    assert of_listing(entries, "lora") == UNKNOWN


def test_deployments_of_one_name_have_the_smallest_window() -> None:
    entries = listing(card("m", "x", context_length=9000), card("m", "x", context_length=8000))
    assert of_listing(entries, "m") == Window(8000, "models")


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"context_length": "32768"}, Window(32768, "models")),
        ({"context_length": 32768.0}, Window(32768, "models")),
        ({"context_length": 200000, "max_model_len": 100}, Window(100, "models")),
        ({"context_length": 400000, "max_input_tokens": 272000}, (400000, 272000)),
        ({"context_length": 128000, "max_input_tokens": 128000}, Window(128000, "models")),
        ({"per_request_limits": {"prompt_tokens": "5000"}, "context_length": 9000}, (9000, 5000)),
        ({"context_length": 63, "max_model_len": 8192}, Window(8192, "models")),
        (
            {"capabilities": {"limits": {"max_context_window_tokens": 9000}}},
            Window(9000, "models"),
        ),
    ],
)
def test_an_entry(entry: JsonObject, window: Window | tuple[int, int]) -> None:
    if isinstance(window, tuple):
        window = Window(window[0], "models", input_limit=window[1])
    assert of_entry(entry) == window


@pytest.mark.parametrize(
    "value", [None, True, 0, -1, 1.5, "", "-5", "8k", "1" * 5000, [8192], {"n": 1}, float("inf")]
)
def test_what_is_no_number_of_tokens(value: Json) -> None:
    assert number(value) is None
    assert of_entry({"context_length": value, "meta": value}) == UNKNOWN


def props(n_ctx: Json, **more: Json) -> JsonObject:
    return {"default_generation_settings": {"n_ctx": n_ctx, "params": {}}, **more}


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        (props(1024, total_slots=2, chat_template="…", model_path="/m/smol.gguf"), 1024),
        (props(0, role="router", model_path="none"), None),
        ({"default_generation_settings": None}, None),
        (None, None),
    ],
)
def test_props_of_llama_cpp_are_per_slot(reply: Json, tokens: int | None) -> None:
    expected = UNKNOWN if tokens is None else Window(tokens, "props")
    assert sources.of_props(reply, "m") == expected


PS: JsonObject = {
    "models": [
        {
            "name": "qwen3:latest",
            "model": "qwen3:latest",
            "size": 5618579456,
            "digest": "dae1",
            "details": {"family": "qwen3", "context_length": 40960},
            "expires_at": "2027-01-01T00:00:00Z",
            "size_vram": 5618579456,
            "context_length": 4096,
        }
    ]
}


def show(parameters: Json, trained: int = 40960) -> JsonObject:
    return {
        "modelfile": "FROM qwen3",
        "parameters": parameters,
        "details": {"family": "qwen3"},
        "model_info": {"general.architecture": "qwen3", "qwen3.context_length": trained},
    }


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("qwen3", 4096), ("qwen3:latest", 4096), ("Qwen3", 4096), ("qwen3:4b", None), ("", None)],
)
def test_ollama_tells_what_a_model_is_loaded_with(model: str, tokens: int | None) -> None:
    expected = UNKNOWN if tokens is None else Window(tokens, "ollama_ps")
    assert sources.of_ollama_ps(PS, model) == expected
    assert sources.of_ollama_ps({"models": []}, model) == UNKNOWN


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        (
            show(
                'num_ctx                        8192\nstop                           "<|im_end|>"'
            ),
            8192,
        ),
        (show('stop    "num_ctx 5"\nnum_ctx 16384'), 16384),
        (show('stop "<|im_end|>"'), None),
        (show(None), None),
        (show("num_ctx 65536"), 40960),
        ({"parameters": "num_ctx 8192"}, 8192),
        (None, None),
    ],
)
def test_ollama_tells_what_a_modelfile_asks_for_and_never_the_trained_size(
    reply: Json, tokens: int | None
) -> None:
    expected = UNKNOWN if tokens is None else Window(tokens, "ollama_show")
    assert sources.of_ollama_show(reply, "m") == expected


def instance(id: str, tokens: int) -> JsonObject:
    return {"id": id, "config": {"context_length": tokens, "flash_attention": True}}


def lm_models(*instances: JsonObject) -> JsonObject:
    model: JsonObject = {
        "type": "llm",
        "publisher": "qwen",
        "key": "qwen/qwen3-4b",
        "loaded_instances": [*instances],
        "max_context_length": 131072,
    }
    other: JsonObject = {"key": "google/gemma", "loaded_instances": [instance("google/gemma", 999)]}
    return {"models": [other, model]}


@pytest.mark.parametrize(
    ("reply", "model", "window"),
    [
        (lm_models(instance("qwen/qwen3-4b", 4864)), "qwen/qwen3-4b", Window(4864, "lm_studio")),
        (lm_models(instance("qwen/qwen3-4b", 4864)), "qwen3-4b", Window(4864, "lm_studio")),
        (lm_models(instance("a", 8000), instance("b", 4000)), "b", Window(4000, "lm_studio")),
        (lm_models(instance("a", 8000), instance("b", 4000)), "a", Window(8000, "lm_studio")),
        (
            lm_models(instance("a", 8000), instance("b", 4000)),
            "qwen/qwen3-4b",
            Window(4000, "lm_studio"),
        ),
        (lm_models(), "qwen/qwen3-4b", Window(131072, "lm_studio_max")),
        (lm_models(), "other", UNKNOWN),
        ({"error": "Unexpected endpoint or method. (GET /api/v1/models)"}, "m", UNKNOWN),
    ],
)
def test_lm_studio_tells_the_loaded_size(reply: Json, model: str, window: Window) -> None:
    assert sources.of_lm_studio(reply, model) == window


@pytest.mark.parametrize(
    ("more", "window"),
    [
        ({"state": "loaded", "loaded_context_length": 4864}, Window(4864, "lm_studio")),
        ({"state": "not-loaded"}, Window(32768, "lm_studio_max")),
    ],
)
def test_the_older_api_of_lm_studio(more: JsonObject, window: Window) -> None:
    reply = listing({"id": "qwen", "type": "llm", "max_context_length": 32768, **more})
    assert sources.of_lm_studio_v0(reply, "qwen") == window
    assert sources.of_lm_studio_v0(reply, "other") == UNKNOWN


def test_openrouter_has_the_smallest_of_its_endpoints() -> None:
    endpoints: list[Json] = [
        {"name": "A", "context_length": 131072, "max_completion_tokens": 8192},
        {"name": "B", "context_length": 65536, "max_prompt_tokens": 60000},
    ]
    reply: Json = {"data": {"id": "x/y", "endpoints": endpoints}}
    expected = Window(65536, "openrouter", input_limit=60000)
    assert sources.of_openrouter(reply, "x/y") == expected
    assert sources.of_openrouter({"data": {"endpoints": []}}, "x/y") == UNKNOWN


def test_litellm_tells_by_the_names_of_its_deployments() -> None:
    def deployment(name: str, **info: Json) -> JsonObject:
        return {"model_name": name, "litellm_params": {"model": "x"}, "model_info": {**info}}

    reply = listing(
        deployment("gpt", max_tokens=16384, max_input_tokens=128000, max_output_tokens=16384),
        deployment("gpt", max_input_tokens=64000),
        deployment("local", max_tokens=4096, max_input_tokens=None),
    )
    assert sources.of_litellm(reply, "gpt") == Window(64000, "litellm", input_only=True)
    assert sources.of_litellm(reply, "local") == UNKNOWN
    assert sources.of_litellm(reply, "other") == UNKNOWN


def test_tgi_tells_a_window_and_a_limit_of_the_input() -> None:
    reply: Json = {"model_id": "x", "max_input_tokens": 4095, "max_total_tokens": 8192}
    assert sources.of_tgi(reply, "tgi") == Window(8192, "tgi", input_limit=4095)
    assert sources.of_tgi({"max_input_tokens": 4095}, "") == Window(4095, "tgi", input_only=True)
    assert sources.of_tgi({"version": "1"}, "tgi") == UNKNOWN


# --- two sources together


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (Window(9000, "a"), Window(8000, "b"), Window(8000, "b")),
        (Window(8000, "a"), Window(8000, "b"), Window(8000, "a")),
        (UNKNOWN, Window(8000, "b"), Window(8000, "b")),
        (Window(8000, "a"), UNKNOWN, Window(8000, "a")),
        (Window(10**9, "a"), Window(8000, "b"), Window(8000, "b")),
        (Window(10**9, "a"), UNKNOWN, Window(10**9, "a")),
        (UNKNOWN, Window(10**9, "b"), Window(10**9, "b")),
        (
            Window(9000, "a", input_only=True),
            Window(8000, "b", input_only=True),
            Window(8000, "b", input_only=True),
        ),
        (
            Window(7000, "a", input_only=True),
            Window(8000, "b"),
            Window(8000, "b", input_limit=7000),
        ),
        (Window(9000, "a", input_only=True), Window(8000, "b"), Window(8000, "b")),
        (
            Window(9000, "a", input_limit=5000),
            Window(8000, "b", input_limit=6000),
            Window(8000, "b", input_limit=5000),
        ),
    ],
)
def test_the_tighter_of_two(one: Window, other: Window, both: Window) -> None:
    assert tighter(one, other) == both


@st.composite
def windows(draw: st.DrawFn) -> Window:
    tokens = draw(st.none() | st.integers(64, 3_000_000))
    limit = draw(st.none() | st.integers(64, 3_000_000))
    return Window(tokens, "x", draw(st.booleans()), None if tokens is None else limit)


@given(windows(), windows())
def test_two_sources_never_allow_more_than_either(one: Window, other: Window) -> None:
    both = tighter(one, other)
    known = [w.trusted for w in (one, other) if w.trusted is not None]
    assert both.trusted == (min(known) if known else None)
    totals = [w.total for w in (one, other) if w.total is not None]
    assert both.total == (min(totals) if totals else None)


def test_what_is_too_small_is_no_window() -> None:
    assert plausible(Window(63, "x")) == UNKNOWN
    assert plausible(Window(64, "x")) == Window(64, "x")
    assert plausible(Window(8192, "x", input_limit=1)) == Window(8192, "x")


# --- what is asked after the list of models


def asked(reply: Json, url: str, model: str = "m") -> list[list[str]]:
    base = Base.of(url)
    kinds = further(reply, base, model, plausible(of_listing(reply, model)))
    return [[q.url.removeprefix(base.origin) for q in questions] for questions in kinds]


LLAMA_ASKED = ["/props", "/props?model=m&autoload=false"]
OLLAMA_ASKED = ["/api/ps", "/api/show"]
LM_STUDIO_ASKED = ["/api/v1/models", "/api/v0/models"]
LITELLM_ASKED = ["/v1/model/info", "/model/info"]
ALL_ASKED = [LLAMA_ASKED, OLLAMA_ASKED, LM_STUDIO_ASKED, ["/info"], LITELLM_ASKED]


@pytest.mark.parametrize(
    ("reply", "questions"),
    [
        (LLAMA, []),
        (GROQ, []),
        (listing(card("m", "llamacpp", meta=None)), [LLAMA_ASKED]),
        (listing(card("m:latest", "library")), [OLLAMA_ASKED]),
        (listing(card("m", "organization_owner")), [LM_STUDIO_ASKED]),
        (listing(card("m", "openai")), [LITELLM_ASKED]),
        (listing(card("m", "vllm")), []),
        (listing(card("org/m", "org/m")), [["/info"]]),
        (listing(card("m", "somebody")), ALL_ASKED),
        (listing(card("m", "library", context_length=131072)), [OLLAMA_ASKED]),
        (
            listing({"id": "m", "context_length": 9000, "top_provider": {}}),
            [["/v1/models/m/endpoints"]],
        ),
        (None, ALL_ASKED),
    ],
)
def test_only_what_the_kind_of_server_may_have_is_asked(
    reply: Json, questions: list[list[str]]
) -> None:
    assert asked(reply, "http://h:1/v1") == questions


def test_without_a_name_only_servers_of_one_model_are_asked() -> None:
    assert asked(None, "http://h:1", "") == [["/props"], ["/info"]]


def test_paths_follow_the_base_url() -> None:
    assert asked(listing(card("m", "openai")), "https://h/api/v1") == [
        ["/api/v1/model/info", "/api/model/info"]
    ]
    reply = listing({"id": "a/b c:free", "context_length": 9000, "top_provider": {}})
    assert asked(reply, "https://h/api/v1", "a/b c:free") == [
        ["/api/v1/models/a/b%20c:free/endpoints"]
    ]
    assert asked(None, "http://h/llm/v1", "a/b&c?")[0][1] == (
        "/llm/props?model=a%2Fb%26c%3F&autoload=false"
    )
    assert asked(None, "https://h/inference") == [["/catalog/models"]]
    assert len(asked(None, "https://h/inference/v1")) == 5


def test_only_ollama_is_posted_to_and_only_when_it_is_there() -> None:
    kinds = further(None, Base.of("http://h"), "m", UNKNOWN)
    posts = [q for questions in kinds for q in questions if q.body is not None]
    assert [(q.url, q.body, q.follows) for q in posts] == [
        ("http://h/api/show", {"model": "m"}, True)
    ]


_JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["data", "models", "id", "meta", "n_ctx", "context_length", "parameters", "parent"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "read",
    [
        of_listing,
        sources.of_props,
        sources.of_ollama_ps,
        sources.of_ollama_show,
        sources.of_lm_studio,
        sources.of_lm_studio_v0,
        sources.of_openrouter,
        sources.of_litellm,
        sources.of_tgi,
        sources.of_catalogue,
    ],
)
@given(reply=_JSON, model=st.text(max_size=4))
def test_no_reply_upsets_a_reader(
    read: Callable[[Json, str], Window], reply: Json, model: str
) -> None:
    window = read(reply, model)
    assert window.tokens is None or window.tokens > 0
