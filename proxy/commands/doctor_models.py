"""The doctor's checks of models and context windows."""

import time
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase

from proxy import codec
from proxy.codec import JsonObject
from proxy.commands.doctor_answers import complete, user
from proxy.commands.doctor_case import Case, Findings, NoAnswer, seconds_text
from proxy.commands.doctor_paths import listed, model_name
from proxy.compaction.policy import Window
from proxy.sessions.store_check import Finding, counted
from proxy.settings.model import PREFIX, Settings
from proxy.upstream.client import TransportOptions, UpstreamClient
from proxy.upstream.routes import Route
from proxy.upstream.window_names import matching
from proxy.upstream.window_sources import number, of_lm_studio_v0, of_ollama_ps
from proxy.upstream.windows import WindowProbe

_SHOWN = 5
_SMALL = 2048
_FAR_BELOW = 4
_LOOK_SECONDS = 5.0
_OWNERS = {
    "llamacpp": "llama.cpp",
    "vllm": "vLLM",
    "library": "Ollama",
    "organization_owner": "LM Studio",
}
_PORTS = {11434: "Ollama", 1234: "LM Studio"}
_NO_CHAT = ("embed", "whisper", "tts", "dall-e", "image", "moderation", "rerank", "bge-")
_LOAD = {
    "Ollama": "`ollama pull MODEL`",
    "LM Studio": "`lms load MODEL`",
    "llama.cpp": "start llama-server with -m MODEL.gguf",
}
_SETTING = f"{PREFIX}UPSTREAM__CONTEXT_WINDOW"
_LARGER = {
    "llama.cpp": "start llama-server with a larger -c",
    "Ollama": "start Ollama with a larger OLLAMA_CONTEXT_LENGTH (or num_ctx in the Modelfile)",
    "LM Studio": "load the model with a larger context: `lms load MODEL --context-length N`",
    "vLLM": "start vLLM with a larger --max-model-len",
}


async def check_models(case: Case) -> Findings:
    """Say which models there are, and choose the one to try."""
    found = listed(case.listing)
    case.models = found or ()
    await _know_server(case)
    names = [model_name(entry) for entry in case.models]
    case.model = case.asked_model or _first_chat(names)
    facts: JsonObject = {"models": len(names), "names": [*names[:_SHOWN]], "server": case.server}
    if found is None:
        yield _no_list(case, f"the upstream lists no models (/models: {_what_came(case)})", facts)
        return
    if not names:
        load = _LOAD.get(case.server, "load a model on the server")
        text = "the upstream lists its models, and there is none"
        if case.asked_model is None and await _answers_anyway(case):
            yield _no_list(case, "the upstream's list of models is empty, but it answers", facts)
        elif case.asked_model is None:
            yield Finding("models", "FAIL", text, f"{load}; or name one with --model", facts)
        else:
            yield Finding("models", "warn", text, f"{load}, if {case.asked_model} fails", facts)
        return
    if case.asked_model is not None and not _is_listed(case.asked_model, names):
        yield _not_listed(case, names, facts)
        return
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    tried = f"; {case.model} is tried (--model)" if len(names) > 1 else ""
    yield Finding("models", "ok", f"{counted(len(names), 'model')}: {shown}{tried}", facts=facts)


def _what_came(case: Case) -> str:
    """Say what came instead of a list."""
    answer = case.listing
    if answer is None:
        return f"no answer within {case.patience:g} s"
    if answer.status != 200:
        return str(answer.status)
    return "a web page" if answer.is_page else "200, but no list"


async def _answers_anyway(case: Case) -> bool:
    """Tell whether the upstream needs no name of a model."""
    if case.free:
        return False
    try:
        answer = await complete(case, [user("Say hello.")])
    except NoAnswer:
        return False
    return answer.status == 200 and "choices" in answer.members


def _no_list(case: Case, text: str, facts: JsonObject) -> Finding:
    if case.asked_model is not None:
        fix = f"none needed while {case.asked_model} is what the server calls it"
        return Finding("models", "warn", text, fix, facts)
    return Finding("models", "warn", text, "name the model with --model NAME", facts)


def _first_chat(names: list[str]) -> str:
    chat = (name for name in names if not any(word in name.lower() for word in _NO_CHAT))
    return next(chat, names[0] if names else "")


def _is_listed(model: str, names: list[str]) -> bool:
    # Ollama means `:latest` by a bare name; LiteLLM lists patterns such as `openai/*`.
    return any(
        model == name or f"{model}:latest" == name or ("*" in name and fnmatchcase(model, name))
        for name in names
    )


def _not_listed(case: Case, names: list[str], facts: JsonObject) -> Finding:
    asked = case.asked_model or ""
    by_lower = {name.lower(): name for name in names}
    near = [by_lower[name] for name in get_close_matches(asked.lower(), by_lower, 3, 0.5)]
    near = near or [name for name in names if asked.lower() in name.lower()][:3]
    text = f"the upstream lists no model {asked}"
    fix = f"--model {near[0]}" if near else f"--model {case.model and _first_chat(names)}"
    fix += f" (or {', '.join(near[1:])})" if near[1:] else ""
    if case.server == "llama.cpp" and len(names) == 1:
        text += f"; llama.cpp serves {names[0]} whatever it is called"
        return Finding("models", "warn", text, fix, facts)
    return Finding("models", "FAIL", text, fix, facts)


async def _know_server(case: Case) -> None:
    """Find out which server it is, as far as advice depends on that."""
    owners = (codec.as_text(entry.get("owned_by")) for entry in case.models)
    case.server = next((_OWNERS[owner] for owner in owners if owner in _OWNERS), "")
    if case.listing is not None and case.listing.signature.startswith("llama.cpp"):
        case.server = "llama.cpp"
    if case.server in {"", "llama.cpp"}:
        props = await _asked(case, f"{case.root}/props")
        if "chat_template" in props or "default_generation_settings" in props:
            case.props, case.server = props, "llama.cpp"
    case.server = case.server or _PORTS.get(case.port, "")
    if not case.server and "version" in await _asked(case, f"{case.root}/api/version"):
        case.server = "Ollama" if await _is_ollama(case) else ""


async def _is_ollama(case: Case) -> bool:
    try:
        return (await case.wire.get(f"{case.root}/", _LOOK_SECONDS)).says("ollama is running")
    except NoAnswer:
        return False


async def _asked(case: Case, url: str) -> JsonObject:
    """Return the object at a URL outside the versioned API; nothing when there is none."""
    try:
        answer = await case.wire.get(url, _LOOK_SECONDS)
    except NoAnswer:
        return {}
    return answer.members if answer.status == 200 else {}


async def check_window(case: Case) -> Findings:
    """Say how large the context window is, who says so, and whether that can be right."""
    setting = _setting(case.settings, case.model)
    start = time.monotonic()
    # Where the list hangs, so would this.
    reported = await _probe(case) if case.listing is not None else Window()
    took = time.monotonic() - start
    loaded = None if reported.tokens is not None else await _loaded(case)
    limit = reported.tokens or loaded
    if setting is not None and limit is not None and setting > limit:
        text = f"set to {setting:,} tokens, but the server takes {limit:,}: requests will overflow"
        fix = f"{_SETTING}={limit} (upstream.context_window), or {_larger(case)}"
        yield Finding("window", "FAIL", text, fix, {"window": setting, "reported": limit})
        return
    window = Window(setting, "settings") if setting is not None else reported
    if window.tokens is None:
        yield _unknown(case, loaded)
        return
    for finding in _known(case, window, reported):
        yield finding
    if took > case.settings.upstream.probe_seconds and setting is None:
        text = f"the server took {seconds_text(took)} to tell it"
        fix = f"upstream.probe_seconds above {took:.0f}, or {_SETTING}={window.tokens}"
        yield Finding("window", "warn", text, fix)


def _setting(settings: Settings, model: str) -> int | None:
    for profile in settings.profiles:
        if fnmatchcase(model, profile.model):
            if profile.context_window is not None:
                return profile.context_window
            return None if profile.base_url is not None else settings.upstream.context_window
    return settings.upstream.context_window


async def _probe(case: Case) -> Window:
    upstream = case.settings.upstream
    client = UpstreamClient(
        TransportOptions(upstream.connect_seconds, case.timeout, upstream.ca_file, case.wire.proxy)
    )
    probe = WindowProbe(client, time.monotonic, case.timeout)
    try:
        return await probe.window(Route(case.base, case.model, case.headers(), None))
    finally:
        await probe.close()
        await client.close()


async def _loaded(case: Case) -> int | None:
    """Return the window of a loaded model where the server tells it elsewhere."""
    if case.server == "Ollama":
        running = await _asked(case, f"{case.root}/api/ps")
        return of_ollama_ps(running, case.model).tokens
    if case.server == "LM Studio":
        models = await _asked(case, f"{case.root}/api/v0/models")
        return of_lm_studio_v0(models, case.model).tokens
    return None


def _larger(case: Case) -> str:
    return _LARGER.get(case.server, "start the server with a larger one")


def _unknown(case: Case, loaded: int | None) -> Finding:
    number = str(loaded) if loaded is not None else "N"
    set_it = f"{_SETTING}={number}, or upstream.context_window in the config file"
    facts: JsonObject = {"window": None, "window_source": "unknown", "loaded": loaded}
    if case.server == "Ollama":
        seen = f" (it is loaded with {loaded:,} now)" if loaded else ""
        text = f"unknown: Ollama does not tell it{seen}, and drops what is too long without a word"
        fix = f"{set_it}, and the same for Ollama: OLLAMA_CONTEXT_LENGTH={number} (or num_ctx)"
        return Finding("window", "warn", text, fix, facts)
    text = "unknown: the server does not tell it"
    if case.server == "LM Studio" and loaded:
        text = f"unknown at /v1/models; LM Studio has the model loaded with {loaded:,}"
    return Finding("window", "warn", text, f"{set_it} (N: tokens)" if not loaded else set_it, facts)


def _known(case: Case, window: Window, reported: Window) -> Iterator[Finding]:
    tokens = window.tokens or 0
    text = f"{tokens:,} tokens, from {window.source}"
    if window.source == "settings" and reported.tokens is not None:
        same = reported.tokens == tokens
        text += ", as the server says" if same else f"; the server takes {reported.tokens:,}"
    trained = _trained(case)
    if trained is not None and trained >= tokens * _FAR_BELOW:
        text += f"; the model was made for {trained:,}"
    facts: JsonObject = {
        "window": tokens,
        "window_source": window.source,
        "reported": reported.tokens,
        "trained": trained,
    }
    if tokens < _SMALL:
        text += ": too small for most clients"
        fix = f"{_larger(case)}, {max(8192, tokens)} or more"
        if window.source == "settings" and (reported.tokens or 0) > tokens:
            fix = f"{_SETTING}={reported.tokens} (upstream.context_window), as the server says"
        yield Finding("window", "warn", text, fix, facts)
    else:
        yield Finding("window", "ok", text, facts=facts)
    yield from _slots(case, reported.tokens)


def _slots(case: Case, per_slot: int | None) -> Iterator[Finding]:
    slots = number(case.props.get("total_slots"))
    if per_slot is None or slots is None or slots < 2:
        return
    whole = per_slot * slots
    text = (
        f"llama.cpp has {slots} slots, so each conversation gets {per_slot:,} tokens: "
        f"{whole:,} in all, unless they share one cache (--kv-unified)"
    )
    fix = (
        "start llama-server with `--parallel 1`, and one conversation gets all of it; or with a "
        f"larger -c, which the slots divide: `-c {whole * slots}` for {whole:,} each"
    )
    yield Finding("slots", "warn", text, fix, {"slots": slots, "per_slot": per_slot})


def _trained(case: Case) -> int | None:
    entries = matching(case.models, case.model) or case.models
    meta = entries[0].get("meta") if entries else None
    return number(meta.get("n_ctx_train")) if isinstance(meta, dict) else None
