"""The doctor's first questions to the upstream: is it there, does it take the key, and where."""

import re
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

from proxy.codec import JsonObject, as_objects, as_text
from proxy.commands.doctor_case import (
    BUSY,
    REFUSED,
    Answer,
    Case,
    Findings,
    Key,
    NoAnswer,
    seconds_text,
)
from proxy.commands.doctor_here import is_foldgate
from proxy.commands.doctor_trouble import odd_status, other_servers, tls_instead, trouble
from proxy.sessions.store_check import Finding
from proxy.upstream.routes import Base

_USUAL = (
    "/v1",
    "/api/v1",
    "/openai/v1",
    "/v1beta/openai",
    "/inference/v1",
    "/compatible-mode/v1",
    "/engines/v1",
    "/api/v3",
    "/api/paas/v4",
    "/api",
    "/openai",
    "",
)
_ENDPOINT = re.compile(r"/(chat/completions|completions|chat|models|responses|embeddings)/*$")
_ABSENT = frozenset({404, 405, 410, 501})
_NO_SUCH_PATH = (
    "unexpected endpoint",
    "unknown endpoint",
    "no such endpoint",
    "invalid url",
    "unknown_url",
    "request url",
    "cannot post",
)
_NO_SUCH_MODEL = re.compile(r"\bmodel\b|model_not_found|deployment")
_BAD_KEY = ("api key not valid", "invalid api key", "incorrect api key", "api_key_invalid")
"""How servers refuse a key that do it with a 400."""
_MAX_ROOTS = 4
_CANDIDATE_SECONDS = 5.0
_LIVE_SECONDS = 5.0
_MARKS = "\"'`"


async def check_reach(case: Case) -> Findings:
    """See whether something answers HTTP there, and that it is neither Foldgate nor a detour."""
    if not _is_url(case.base.origin):
        fix = "write it as http://HOST:PORT/v1 (--upstream, upstream.base_url)"
        yield Finding("upstream", "FAIL", f"{case.base.url} is no usable URL", fix)
        return
    try:
        # First, since anything else might go round in that circle for good.
        is_loop = await _is_loop(case)
        if not is_loop:
            case.listing = await case.get("/models")
    except NoAnswer as error:
        yield await trouble(case, error.cause)
        return
    if is_loop or case.listing is None:
        fix = "--upstream URL of the model server, not of Foldgate"
        found = await other_servers(case)
        fix += f", for example {found[0].url}: {found[0].name} answers there" if found else ""
        text = f"{case.base.url} is Foldgate itself: requests would go round in a circle"
        yield Finding("upstream", "FAIL", text, fix)
        return
    wrong = await _wrong(case, case.listing)
    if wrong is not None:
        yield Finding("upstream", "FAIL", *wrong, {"url": case.base.url})
        return
    signature = case.listing.signature
    who = f", {signature}" if signature else ""
    text = f"{case.base.origin} answers ({seconds_text(case.listing.seconds)}{who})"
    yield Finding("upstream", "ok", text, facts={"url": case.base.url})


def _is_url(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


async def _is_loop(case: Case) -> bool:
    try:
        live = await case.wire.get(case.base.resolve("/_foldgate/live"), _LIVE_SECONDS)
    except NoAnswer as error:
        if isinstance(error.cause, TimeoutError):
            return False
        raise
    return is_foldgate(live)


async def _wrong(case: Case, answer: Answer) -> tuple[str, str] | None:
    if answer.status in {301, 302, 303, 307, 308}:
        return _redirect(case, answer)
    if answer.status == 407:
        return odd_status(case, answer)
    if answer.status in BUSY:
        return await _busy(case, answer)
    if answer.status == 400 and answer.says("https") and case.base.origin.startswith("http:"):
        return await tls_instead(case)
    return None


async def _busy(case: Case, answer: Answer) -> tuple[str, str] | None:
    """A gateway may have no `/models` behind it and still be of use."""
    try:
        chat = await case.ask({})
    except NoAnswer:
        return odd_status(case, answer)
    return None if has_chat(chat) or chat.status in REFUSED else odd_status(case, answer)


def _redirect(case: Case, answer: Answer) -> tuple[str, str]:
    elsewhere = "--upstream with the URL of the API itself; that one is a page, or a login"
    try:
        location = answer.headers.get("Location", "")
        target = urlsplit(urljoin(f"{case.base.url}/models", location))
        url = f"{target.scheme}://{target.hostname or ''}"
        url += f":{target.port}" if target.port else ""
    except ValueError:
        return f"it sends us on ({answer.status}), nobody knows where to", elsewhere
    path = target.path.rstrip("/")
    text = f"it sends us on ({answer.status}) to {url}{path}; Foldgate does not follow"
    if path.endswith("/models") and f"{url}{path}" != f"{case.base.url}/models":
        return text, f"--upstream {url}{path.removesuffix('/models')}"
    return text, elsewhere


async def check_key(case: Case) -> Findings:
    """See whether the upstream wants a key, and takes the one that is there."""
    try:
        if case.key is not None and (bad := misshapen(case.key)):
            yield bad
            return
        case.chat = await case.ask({})
        refused = _refused(case)
        if refused is not None and case.key is None and case.spare is not None:
            if bad := misshapen(case.spare):
                yield bad
                return
            case.use(case.spare)
            case.listing, case.chat = await case.get("/models"), await case.ask({})
            refused = _refused(case)
    except NoAnswer as error:
        yield await trouble(case, error.cause)
        return
    if refused is not None:
        yield key_finding(case, refused)
    elif case.chat.status in BUSY and not has_chat(case.chat):
        text, fix = odd_status(case, case.chat)
        yield Finding("upstream", "FAIL", f"chat completions: {text}", fix)
    elif has_chat(case.chat):
        name = case.key.variable if case.key else ""
        text = f"that of {name} is taken, or none is asked for" if name else "none is asked for"
        yield Finding("key", "ok", text, facts={"variable": name or None})


def misshapen(key: Key) -> Finding | None:
    """Say what is wrong with the form of a key; None when it can be sent."""
    value = key.value.get_secret_value()
    if value != value.strip():
        text = "has white space around it"
    elif value[:1] in _MARKS or value[-1:] in _MARKS:
        text = "has quotation marks around it"
    elif not value.isascii() or not value.isprintable() or " " in value:
        text = "has characters in it that no key has"
    else:
        return None
    fix = f"export {key.variable}=… anew, with the bare key"
    return Finding("key", "FAIL", f"the key in {key.variable} {text}", fix)


def _refused(case: Case) -> Answer | None:
    chat, listing = case.chat, case.listing
    if chat is not None and _is_refusal(chat):
        return chat
    if listing is None or not _is_refusal(listing):
        return None
    # The list may be for administrators only.
    is_list_only = listing.status == 403 and chat is not None and has_chat(chat)
    return None if is_list_only else listing


def _is_refusal(answer: Answer) -> bool:
    if answer.status == 403 and answer.is_page:
        # A page is not the API's refusal: it is a wrong path, or a wall in front.
        return False
    return answer.status in REFUSED or (answer.status == 400 and answer.says(*_BAD_KEY))


def key_finding(case: Case, answer: Answer) -> Finding:
    """Say what a 401 or 403 means."""
    facts: JsonObject = {"http_status": answer.status, "variable": None}
    basic = answer.headers.get("WWW-Authenticate", "").lower().startswith("basic")
    if basic:
        text = (
            f"something in front of the upstream wants a user name and password ({answer.reason})"
        )
        fix = "take the login away there, or have the client send it as Authorization: Basic …"
        return Finding("key", "FAIL", text, fix, facts)
    hint = " (that of `llama-server --api-key`)" if answer.signature == "llama.cpp" else ""
    if case.key is None:
        text = f"the upstream wants a key, and none was given ({answer.reason})"
        fix = (
            f"export OPENAI_API_KEY=…{hint}, or name the variable that holds the key: "
            "--key-variable NAME here, upstream.key_variable for Foldgate to send it "
            "(FOLDGATE_UPSTREAM__KEY_VARIABLE=NAME)"
        )
        return Finding("key", "FAIL", text, fix, facts)
    name = case.key.variable
    facts["variable"] = name
    if answer.status == 403:
        text = f"the upstream does not allow it to the key in {name} ({answer.reason})"
        fix = f"give the key in {name} the permission, or export {name}=… another one{hint}"
        return Finding("key", "FAIL", text, fix, facts)
    text = f"the key in {name} was refused ({answer.reason})"
    fix = f"export {name}=… the right key{hint}, or name another variable: --key-variable NAME"
    return Finding("key", "FAIL", text, fix, facts)


def has_chat(answer: Answer) -> bool:
    """Tell whether the reply to an empty request is that of a chat completions endpoint."""
    if answer.is_page or 300 <= answer.status < 400 or answer.status in BUSY:
        return False
    if answer.says(*_NO_SUCH_PATH):
        return False
    if answer.status in _ABSENT:
        # A model that is not there is looked for where a path that is not there is not.
        named = _NO_SUCH_MODEL.search(answer.text) is not None
        return answer.status == 404 and bool(answer.members) and named
    if answer.status == 200:
        wrong = "error" in answer.members and answer.says("messages", "model")
        return wrong or "choices" in answer.members
    return True


def listed(answer: Answer | None) -> tuple[JsonObject, ...] | None:
    """Return the models of a reply to `/models`; None when it is no such list."""
    if answer is None or answer.status != 200:
        return None
    document = answer.document
    if isinstance(document, dict):
        for name in ("data", "models"):
            if isinstance(document.get(name), list):
                return _named(document[name])
        # Ollama without models says {"object": "list", "data": null}.
        return () if document.get("object") == "list" else None
    return _named(document) if isinstance(document, list) else None


def _named(entries: object) -> tuple[JsonObject, ...]:
    found = as_objects(entries) if isinstance(entries, list) else ()
    return tuple(entry for entry in found if model_name(entry))


def model_name(entry: JsonObject) -> str:
    """Return what a model of a list is called."""
    return as_text(entry.get("id")) or as_text(entry.get("name")) or as_text(entry.get("model"))


async def check_path(case: Case) -> Findings:
    """See whether the base URL is that of the API; when it is not, find the one that is."""
    if case.chat is not None and has_chat(case.chat):
        yield Finding("path", "ok", f"{urlsplit(case.base.url).path}/chat/completions is there")
        return
    text = f"there is no chat completions API at {case.base.url}{_what_came(case)}"
    found = await _find(case)
    if found is None:
        fix = "--upstream with the base URL that the server's documentation names"
        others = await other_servers(case)
        fix += f"; {others[0].name} answers at {others[0].url}" if others else ""
        yield Finding("path", "FAIL", text, fix)
        return
    path, answer = found
    url = f"{case.base.origin}{path}"
    also = "; it wants a key too" if answer.status in REFUSED and case.key is None else ""
    if Base.of(url).url == url:
        yield Finding("path", "FAIL", text, f"--upstream {url}{also}", {"right_url": url})
        return
    own = case.settings.server
    clients = f"http://{own.host}:{own.port}{path}"
    fix = (
        f"--upstream {case.base.origin}, and {clients} as the clients' base URL: the API is at "
        f"{url}, without a version in its path; checkpoints are then written by code{also}"
    )
    yield Finding("path", "FAIL", text, fix, {"right_url": url})


def _what_came(case: Case) -> str:
    if listed(case.listing) is not None:
        return " (it lists models only)"
    seen = case.chat or case.listing
    if seen is None:
        return ""
    what = "a web page" if seen.is_page else "an answer" if seen.status == 200 else "nothing"
    return f" ({what} is there, {seen.status})"


async def _find(case: Case) -> tuple[str, Answer] | None:
    """Return the path at which chat completions are; one that takes us in before all others."""
    locked: tuple[str, Answer] | None = None
    here = case.base.url.removeprefix(case.base.origin)
    for path in _candidates(case.base):
        if path == here:
            continue
        url = f"{case.base.origin}{path}/chat/completions"
        try:
            answer = await case.wire.post(url, {}, _CANDIDATE_SECONDS)
        except NoAnswer:
            continue
        if not has_chat(answer):
            continue
        if answer.status not in REFUSED:
            return path, answer
        locked = locked or (path, answer)
    return locked


def _candidates(base: Base) -> Iterator[str]:
    """Yield the paths at which the API may be, each once, the likeliest first."""
    given = (base.versioned or base.root).partition("?")[0]
    while (shorter := _ENDPOINT.sub("", given)) != given:
        given = shorter
    roots = [given]
    while roots[-1] and len(roots) < _MAX_ROOTS:
        roots.append(roots[-1].rpartition("/")[0])
    seen = set[str]()
    wanted = [given, *(f"{root}{usual}" for usual in _USUAL for root in roots)]
    # What Foldgate can use as it is comes first.
    versioned = [path for path in wanted if Base.of(base.origin + path).versioned]
    for path in [*versioned, *wanted]:
        if path not in seen:
            seen.add(path)
            yield path
