"""The doctor's look for the path at which the chat completions API is."""

import contextlib
import re
from collections.abc import Iterator
from urllib.parse import SplitResult, urljoin, urlsplit

from proxy.codec import JsonObject, as_objects, as_text
from proxy.commands.doctor_case import BUSY, REFUSED, Answer, Case, Findings, NoAnswer
from proxy.commands.doctor_trouble import is_wall, other_servers, wall
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
    "/llm/v1",
    "/ai/v1",
    "/ollama/v1",
    "/vllm/v1",
    "/proxy/v1",
    "/api/openai/v1",
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
    "unknown route",
    "unknown path",
    "no route",
    "route not found",
    "no static resource",
)
_NO_SUCH_MODEL = re.compile(r"\bmodel\b|model_not_found|deployment")
_NO_CHATTING = ("does not support completions", "--embedding", "--rerank")
_MAX_ROOTS = 4
_CANDIDATE_SECONDS = 5.0
REDIRECTS = frozenset({301, 302, 303, 307, 308})


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
    entries = entries if isinstance(entries, list) else []
    # Some servers list bare names.
    found = as_objects([{"id": entry} if isinstance(entry, str) else entry for entry in entries])
    return tuple(entry for entry in found if model_name(entry))


def model_name(entry: JsonObject) -> str:
    """Return what a model of a list is called."""
    return as_text(entry.get("id")) or as_text(entry.get("name")) or as_text(entry.get("model"))


async def check_path(case: Case) -> Findings:
    """See whether the base URL is that of the API; when it is not, find the one that is."""
    if case.chat is not None and has_chat(case.chat):
        yield Finding("path", "ok", f"{urlsplit(case.base.url).path}/chat/completions is there")
        return
    if case.chat is not None and case.chat.status == 501 and case.chat.says(*_NO_CHATTING):
        text = f"the server there makes embeddings or rankings only ({case.chat.reason})"
        fix = "start llama-server without --embeddings and --reranking, or --upstream another one"
        yield Finding("path", "FAIL", text, fix)
        return
    if case.chat is not None and case.chat.status in REDIRECTS:
        yield Finding("path", "FAIL", *await redirect(case, case.chat, "/chat/completions"))
        return
    found = await find_api(case)
    if found is not None:
        yield wrong_path(case, *found)
        # Without a version there is nothing better; what comes now looks where clients will.
        if _is_passed_on(case, found[0]):
            case.base, case.chat = Base(case.base.origin, "", found[0]), found[1]
            with contextlib.suppress(NoAnswer):
                case.listing = await case.get("/models", case.patience)
        return
    if case.chat is not None and is_wall(case.chat):
        yield Finding("path", "FAIL", *wall(case.chat))
        return
    fix = "--upstream with the base URL that the server's documentation names"
    others = await other_servers(case)
    fix += f"; {others[0].name} answers at {others[0].url}" if others else ""
    yield Finding("path", "FAIL", _nothing_there(case), fix)


def _nothing_there(case: Case) -> str:
    return f"there is no chat completions API at {case.base.url}{_what_came(case)}"


def wrong_path(case: Case, path: str, answer: Answer) -> Finding:
    """Return the finding for an API that is at another path."""
    url = f"{case.base.origin}{path}"
    text = _nothing_there(case)
    also = "; it wants a key too" if answer.status in REFUSED and case.key is None else ""
    if Base.of(url).url == url:
        return Finding("path", "FAIL", text, f"--upstream {url}{also}", {"right_url": url})
    own = case.settings.server
    clients = f"http://{own.host}:{own.port or 'PORT'}{path}"
    fix = (
        f"--upstream {case.base.origin}, and {clients} as the clients' base URL: the API is at "
        f"{url}, without a version in its path; checkpoints are then written by code{also}"
    )
    if _is_passed_on(case, path):
        text = f"the API is at {url}, without a version in its path"
        fix = f"{clients} as the clients' base URL; checkpoints are written by code{also}"
        return Finding("path", "warn", text, fix, {"right_url": url})
    return Finding("path", "FAIL", text, fix, {"right_url": url})


def _is_passed_on(case: Case, path: str) -> bool:
    """Tell whether the upstream is set such that clients reach a path without a version."""
    base = case.base
    is_versioned = Base.of(base.origin + path).versioned != ""
    return bool(path) and not is_versioned and not base.versioned and not base.root


async def redirect(case: Case, answer: Answer, endpoint: str) -> tuple[str, str]:
    """Return what to say of an endpoint that sends us on."""
    elsewhere = "--upstream with the URL of the API itself; that one is a page, or a login"
    asked = f"{case.base.url}{endpoint}"
    try:
        target = urlsplit(urljoin(asked, answer.headers.get("Location", "")))
        url = _shown(target)
    except ValueError:
        return f"it sends us on ({answer.status}), nobody knows where to", elsewhere
    text = f"it sends us on ({answer.status}) to {url}; Foldgate does not follow"
    if url == f"{asked}/":
        fix = "have the server, or what is in front of it, take paths without a / at the end"
        return text, fix
    right = url.rstrip("/")
    if right.endswith(endpoint) and right != asked:
        return text, f"--upstream {right.removesuffix(endpoint)}"
    found = await find_api(case) if url.startswith(f"{case.base.origin}/") else None
    if found is not None:
        return text, wrong_path(case, *found).fix
    return text, elsewhere


def _shown(target: SplitResult) -> str:
    """Return a URL without what may be secret in it."""
    port = f":{target.port}" if target.port else ""
    return f"{target.scheme}://{target.hostname or ''}{port}{target.path}"


def _what_came(case: Case) -> str:
    if listed(case.listing) is not None:
        return " (it lists models only)"
    seen = case.chat or case.listing
    if seen is None:
        return ""
    what = "a web page" if seen.is_page else "an answer" if seen.status == 200 else "nothing"
    return f" ({what} is there, {seen.status})"


async def find_api(case: Case) -> tuple[str, Answer] | None:
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
