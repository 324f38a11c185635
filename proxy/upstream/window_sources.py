"""Where each kind of server tells the context window that it serves.

Readers turn a reply's JSON into a `Window`; `further` is the order in which to ask on when the
list of models did not say enough. All of it is pure: who asks, and for how long, is `windows`'
business. A trained maximum is never taken for a served window, and never an entry of another
model; only a server of a single model serves it whatever it is called.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction.policy import Window
from proxy.upstream.routes import Base
from proxy.upstream.window_names import listed, matching

MIN_TOKENS = 64
"""Less than that is no window but a mistake."""

UNKNOWN = Window()

PROVISIONAL = frozenset({"ollama_show", "lm_studio_max"})
"""Sources that tell what a model would be loaded with; once it is loaded there is a better one."""

_MAX_DIGITS = 12

_TOTALS = (
    ("max_model_len",),
    ("context_window",),
    ("context_length",),
    ("contextLength",),
    ("max_context_length",),
    ("meta", "n_ctx"),
    ("top_provider", "context_length"),
    ("limits", "max_context_length"),
    ("capabilities", "limits", "max_context_window_tokens"),
    ("loaded_context_length",),
)
"""Prompt and reply together: vLLM, SGLang; Groq, Vercel; OpenRouter, Together, Fireworks;
Mistral; llama.cpp; Cerebras; Copilot; LM Studio."""

_INPUTS = (
    ("max_input_tokens",),
    ("inputTokenLimit",),
    ("max_prompt_tokens",),
    ("limits", "max_input_tokens"),
    ("per_request_limits", "prompt_tokens"),
    ("capabilities", "limits", "max_prompt_tokens"),
)
"""The prompt alone: Anthropic, LiteLLM; Gemini; OpenRouter's endpoints; GitHub Models;
OpenRouter; Copilot."""

_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\d+)\s*$", re.MULTILINE)

_OWNERS = {
    "llamacpp": ("llama_cpp",),
    "library": ("ollama",),
    "organization_owner": ("lm_studio",),
    "openai": ("litellm",),
    "openai-internal": ("litellm",),
    "system": ("litellm",),
    "vllm": (),
    "sglang": (),
}
"""What to ask those that sign their models; LiteLLM signs all of them as OpenAI does."""

_BY_NAME = frozenset({"library", "organization_owner", "openai", "system"})
"""Those that serve by name, also when there is one model only."""

_NAMED_ONLY = frozenset({"ollama", "lm_studio", "litellm"})
"""What has nothing to say as long as no model is named."""


def number(value: Json) -> int | None:
    """Return a positive whole number, which may be written as a string."""
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def tighter(one: Window, other: Window) -> Window:
    """Return what two sources allow together; the first is named where they agree."""
    if one.trusted is None or other.trusted is None:
        return one if one.trusted is not None or other.tokens is None else other
    totals = [(window.total, window) for window in (one, other) if window.total is not None]
    if not totals:
        return one if one.trusted <= other.trusted else other
    total, window = min(totals, key=lambda known: known[0])
    limits = [known.input for known in (one, other) if known.input is not None]
    return _limited(window, total, min(limits, default=None))


def _limited(window: Window, total: int, limit: int | None) -> Window:
    # A limit that is no tighter says nothing: some write the window into both fields.
    return replace(window, input_limit=limit if limit is not None and limit < total else None)


def plausible(window: Window) -> Window:
    """Return a window without what is too small to be one."""
    limit = window.input_limit
    if limit is not None and limit < MIN_TOKENS:
        window = replace(window, input_limit=None)
    return window if window.tokens is None or window.tokens >= MIN_TOKENS else UNKNOWN


def _window(source: str, total: int | None, limit: int | None = None) -> Window:
    if total is None:
        return UNKNOWN if limit is None else Window(limit, source, input_only=True)
    return _limited(Window(total, source), total, limit)


def _tightest(windows: Iterable[Window]) -> Window:
    found = UNKNOWN
    for window in windows:
        found = tighter(found, window)
    return found


def of_entry(entry: JsonObject, source: str = "models") -> Window:
    """Return the tightest window that an entry names by one of the generic fields."""
    return _window(source, _least(entry, _TOTALS), _least(entry, _INPUTS))


def _least(entry: JsonObject, paths: Iterable[tuple[str, ...]]) -> int | None:
    found = (number(_at(entry, path)) for path in paths)
    return min((tokens for tokens in found if tokens and tokens >= MIN_TOKENS), default=None)


def _at(value: Json, path: Iterable[str]) -> Json:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def of_listing(reply: Json, model: str) -> Window:
    """Read `/v1/models`."""
    entries = listed(reply)
    return _tightest(_served(entry, entries) for entry in _of_the_list(entries, model))


def _served(entry: JsonObject, entries: Sequence[JsonObject]) -> Window:
    window = of_entry(entry)
    parent = codec.as_text(entry.get("parent"))
    if window.tokens is None and parent:
        # An adapter of vLLM or SGLang has the window of the model that it adapts.
        return _tightest(of_entry(base) for base in matching(entries, parent))
    return window


def _of_the_list(entries: Sequence[JsonObject], model: str) -> Sequence[JsonObject]:
    found = matching(entries, model)
    if found or len(entries) != 1:
        return found
    # llama.cpp's router, which serves by name, tells the status of its models.
    by_name = codec.as_text(entries[0].get("owned_by")) in _BY_NAME or "status" in entries[0]
    return () if by_name and model else entries


def of_props(reply: Json, _: str) -> Window:
    """Read llama.cpp's `/props`: what one slot has; a router has none of its own."""
    return _window("props", number(_at(reply, ("default_generation_settings", "n_ctx"))))


def of_ollama_ps(reply: Json, model: str) -> Window:
    """Read Ollama's `/api/ps`: what the loaded model was given."""
    found = matching(listed(reply), model)
    return _tightest(_window("ollama_ps", number(e.get("context_length"))) for e in found)


def of_ollama_show(reply: Json, _: str) -> Window:
    """Read Ollama's `/api/show`: what the Modelfile asks for, which loading cuts to the trained."""
    parameters = codec.as_text(_at(reply, ("parameters",)))
    asked = [number(value) for value in _NUM_CTX.findall(parameters)]
    if not asked or asked[-1] is None:
        return UNKNOWN
    facts = _at(reply, ("model_info",))
    trained = (
        number(value)
        for name, value in (facts.items() if isinstance(facts, dict) else ())
        if name.endswith(".context_length")
    )
    return _window("ollama_show", min([asked[-1], *(tokens for tokens in trained if tokens)]))


def of_lm_studio(reply: Json, model: str) -> Window:
    """Read LM Studio's `/api/v1/models`: the loaded instance, else the most it would load."""
    entries = listed(reply)
    instances = [(e, i) for e in entries for i in codec.as_objects(e.get("loaded_instances"))]
    named = matching([instance for _, instance in instances], model)
    found = matching(entries, model)
    # One model may be loaded several times, under names of their own.
    loaded = named or [i for e, i in instances if any(e is entry for entry in found)]
    window = _tightest(
        _window("lm_studio", number(_at(instance, ("config", "context_length"))))
        for instance in loaded
    )
    return window if window.tokens is not None else _not_loaded(found)


def of_lm_studio_v0(reply: Json, model: str) -> Window:
    """Read LM Studio's `/api/v0/models`."""
    found = matching(listed(reply), model)
    loaded = [number(entry.get("loaded_context_length")) for entry in found]
    window = _tightest(_window("lm_studio", tokens) for tokens in loaded)
    return window if window.tokens is not None else _not_loaded(found)


def _not_loaded(entries: Iterable[JsonObject]) -> Window:
    return _tightest(_window("lm_studio_max", number(e.get("max_context_length"))) for e in entries)


def of_openrouter(reply: Json, _: str) -> Window:
    """Read OpenRouter's `/models/{id}/endpoints`: any of them may get the request."""
    endpoints = codec.as_objects(_at(reply, ("data", "endpoints")))
    return _tightest(of_entry(endpoint, "openrouter") for endpoint in endpoints)


def of_litellm(reply: Json, model: str) -> Window:
    """Read LiteLLM's `/model/info`; its `max_tokens` is the reply's limit."""
    infos = [_at(entry, ("model_info",)) for entry in matching(listed(reply), model)]
    return _tightest(of_entry(info, "litellm") for info in infos if isinstance(info, dict))


def of_tgi(reply: Json, _: str) -> Window:
    """Read TGI's `/info`; it serves one model."""
    total, limit = _at(reply, ("max_total_tokens",)), _at(reply, ("max_input_tokens",))
    return _window("tgi", number(total), number(limit))


def of_catalogue(reply: Json, model: str) -> Window:
    """Read the catalogue of GitHub Models, which lies outside its API."""
    return _tightest(of_entry(entry) for entry in matching(listed(reply), model))


@dataclass(frozen=True, slots=True)
class Question:
    """A request to a server, and the reader of its reply."""

    url: str
    read: Callable[[Json, str], Window]
    body: JsonObject | None = None
    """To be posted; None gets the URL."""
    follows: bool = False
    """Whether it is for those only that answered the question before."""


Questions = tuple[Question, ...]
"""What to ask one kind of server, in order, until it tells."""


def further(reply: Json, base: Base, model: str, found: Window) -> Sequence[Questions]:
    """Return what to ask after the list of models, one kind of server beside the other.

    Args:
        reply: the list of models; None when there was none.
        base: the upstream.
        model: the model asked for; empty when none was named.
        found: what the list said.
    """
    entries = listed(reply)
    kinds = _kinds(entries, base)
    if found.trusted is not None:
        # What lists a model's possible size says elsewhere what it is loaded with.
        kinds = [kind for kind in kinds if kind in {"ollama", "lm_studio"}]
        kinds = kinds if _signed(entries) else []
        routed = any("top_provider" in entry for entry in matching(entries, model))
        kinds += ["openrouter"] if routed else []
    if not model:
        kinds = [kind for kind in kinds if kind not in _NAMED_ONLY]
    return [_questions(kind, base, model) for kind in kinds]


def _kinds(entries: Sequence[JsonObject], base: Base) -> list[str]:
    if base.root.endswith("/inference") and not base.versioned:
        return ["catalogue"]
    signed = _signed(entries)
    if signed is not None:
        return list(signed)
    if any(entry.get("owned_by") == entry.get("id") for entry in entries):
        return ["tgi"]
    return ["llama_cpp", "ollama", "lm_studio", "tgi", "litellm"]


def _signed(entries: Sequence[JsonObject]) -> tuple[str, ...] | None:
    owners = (codec.as_text(entry.get("owned_by")) for entry in entries)
    return next((_OWNERS[owner] for owner in owners if owner in _OWNERS), None)


def _questions(kind: str, base: Base, model: str) -> Questions:
    root = base.origin + base.root
    if kind == "llama_cpp":
        # A router's answer is about itself; one about a model must not load it.
        of_model = f"{root}/props?model={quote(model, safe='')}&autoload=false"
        routed = (Question(of_model, of_props, follows=True),) if model else ()
        return (Question(f"{root}/props", of_props), *routed)
    if kind == "ollama":
        return (
            Question(f"{root}/api/ps", of_ollama_ps),
            Question(f"{root}/api/show", of_ollama_show, {"model": model}, follows=True),
        )
    if kind == "lm_studio":
        return (
            Question(f"{root}/api/v1/models", of_lm_studio),
            Question(f"{root}/api/v0/models", of_lm_studio_v0),
        )
    if kind == "litellm":
        return (
            Question(base.resolve("/v1/model/info"), of_litellm),
            Question(f"{root}/model/info", of_litellm),
        )
    if kind == "tgi":
        return (Question(f"{root}/info", of_tgi),)
    if kind == "catalogue":
        return (Question(f"{base.origin}/catalog/models", of_catalogue),)
    return (
        Question(base.resolve(f"/v1/models/{quote(model, safe='/:')}/endpoints"), of_openrouter),
    )
