"""The doctor's first question to the upstream: does something answer HTTP there at all."""

from urllib.parse import urlsplit

import aiohttp

from proxy.commands.doctor_case import BUSY, REFUSED, Answer, Case, Findings, NoAnswer, seconds_text
from proxy.commands.doctor_here import is_foldgate
from proxy.commands.doctor_paths import REDIRECTS, has_chat, redirect
from proxy.commands.doctor_trouble import odd_status, other_servers, tls_instead, trouble
from proxy.sessions.store_check import Finding

_LIVE_SECONDS = 3.0
_CHAT_SECONDS = 5.0


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
            await _ask(case)
    except NoAnswer as error:
        yield await trouble(case, error.cause)
        return
    if is_loop:
        fix = "--upstream URL of the model server, not of Foldgate"
        found = await other_servers(case)
        fix += f", for example {found[0].url}: {found[0].name} answers there" if found else ""
        text = f"{case.base.url} is Foldgate itself: requests would go round in a circle"
        yield Finding("upstream", "FAIL", text, fix)
        return
    seen = case.listing or case.chat
    wrong = await _wrong(case, case.listing) if case.listing is not None else None
    if wrong is not None:
        yield Finding("upstream", "FAIL", *wrong, {"url": case.base.url})
        return
    who = f", {seen.signature}" if seen is not None and seen.signature else ""
    took = seconds_text(seen.seconds if seen is not None else 0.0)
    text = f"{case.base.origin} answers ({took}{who})"
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
    if live.status != 200 or not is_foldgate(live):
        return is_foldgate(live)
    # Some servers say of every path that they are well.
    try:
        other = await case.wire.get(case.base.resolve("/_foldgate/no-such-page"), _LIVE_SECONDS)
    except NoAnswer:
        return True
    return other.document != live.document


async def _ask(case: Case) -> None:
    """Ask for the list of models; when that hangs, see whether chat completions do too."""
    try:
        case.listing = await case.get("/models", case.patience)
    except NoAnswer as error:
        cause = error.cause
        if not isinstance(cause, TimeoutError) or isinstance(cause, aiohttp.ConnectionTimeoutError):
            raise
        case.chat = await case.ask({}, min(case.patience, _CHAT_SECONDS))


async def _wrong(case: Case, answer: Answer) -> tuple[str, str] | None:
    if answer.status == 407:
        return odd_status(case, answer)
    if answer.status in REDIRECTS and not await _chats(case):
        return await redirect(case, answer, "/models")
    if answer.status in BUSY | {500} and not await _chats(case):
        return odd_status(case, answer)
    if answer.status == 400 and answer.says("https") and case.base.origin.startswith("http:"):
        return await tls_instead(case)
    return None


async def _chats(case: Case) -> bool:
    """Tell whether chat completions are there without a list of models, or are locked."""
    try:
        chat = await case.ask({}, case.patience)
    except NoAnswer:
        return False
    return chat.status in REFUSED or (has_chat(chat) and chat.status != 500)
