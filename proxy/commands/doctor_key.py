"""The doctor's question whether the upstream wants a key, and takes the one that is there."""

import re

from proxy.codec import JsonObject
from proxy.commands.doctor import DEFAULT_KEY
from proxy.commands.doctor_case import BUSY, REFUSED, Answer, Case, Findings, Key, NoAnswer
from proxy.commands.doctor_paths import find_api, has_chat, wrong_path
from proxy.commands.doctor_trouble import broken_off, odd_status
from proxy.sessions.store_check import Finding

_BAD_KEY = re.compile(
    r"(invalid|incorrect|missing|wrong|expired|no|provide an) (api|auth\w*|access)[ _-]?(key|token)"
    r"|api[ _-]?key (is |was )?(not |in)?(valid|required|missing|passed|provided|found|expired)"
    r"|api_key_invalid|invalid_api_key|authentication[ _]error|missing authorization"
)
"""How servers refuse a key that do it with another status than 401 and 403."""
_NO_MONEY = re.compile(
    r"insufficient[ _](quota|balance|credit|fund)|exceeded your (current )?quota|quota[ _]exceeded"
    r"|billing[ _](not[ _]active|hard[ _]limit)|payment (method|required)|out of credits"
)
_NOT_HERE = re.compile(
    r"(country|region|territory|location)\W.{0,40}(not|un)[ _]?supported|unsupported_country"
)
_OTHER_HEADERS = ("api-key", "x-api-key")
"""Those in which Azure and API gateways want a key."""
_MARKS = "\"'`"
_PLACEHOLDERS = ("$", "<", "{", "%")


async def check_key(case: Case) -> Findings:
    """See whether the upstream wants a key, and takes the one that is there."""
    try:
        if case.key is not None and (bad := misshapen(case.key)):
            yield bad
            return
        if case.chat is None:
            case.chat = await case.ask({})
        refused = _refused(case)
        if refused is not None and case.key is None and case.spare is not None:
            if bad := misshapen(case.spare):
                yield bad
                return
            case.use(case.spare)
            if case.listing is not None:
                case.listing = await case.get("/models", case.patience)
            case.chat = await case.ask({})
            refused = _refused(case)
        list_only = refused is case.listing and await _is_list_only(case)
    except NoAnswer as error:
        yield await broken_off(case, "completion", error.cause, "FAIL")
        return
    found = await _refusal(case, refused) if refused and not list_only else _taken(case, refused)
    if found is not None:
        yield found


def _taken(case: Case, locked_list: Answer | None) -> Finding | None:
    """Say that the key does for chat completions; None where there are none."""
    if locked_list is not None:
        text = f"the list of models wants a key ({locked_list.reason}), chat completions do not"
        fix = f"export {DEFAULT_KEY}=… for the list; without it, --model NAME and a window of yours"
        facts: JsonObject = {"http_status": locked_list.status, "variable": None}
        return Finding("key", "warn", text, fix, facts)
    if case.chat is None:
        return None
    if has_chat(case.chat):
        name = case.key.variable if case.key else ""
        text = f"that of {name} is taken, or none is asked for" if name else "none was asked for"
        return Finding("key", "ok", text, facts={"variable": name or None})
    if case.chat.status in BUSY:
        text, fix = odd_status(case, case.chat)
        return Finding("upstream", "FAIL", f"chat completions: {text}", fix)
    return None


async def _is_list_only(case: Case) -> bool:
    """Tell whether chat completions are to be had without the key that the list wants.

    Raises:
        NoAnswer: when no HTTP reply came.
    """
    if case.key is not None or case.free or case.listing is None:
        return False
    body: JsonObject = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 1}
    answer = await case.ask({"model": case.asked_model or "default", **body})
    return has_chat(answer) and not _is_refusal(answer)


def misshapen(key: Key) -> Finding | None:
    """Say what is wrong with the form of a key; None when it can be sent."""
    value = key.value.get_secret_value()
    if value != value.strip():
        text = "has white space around it"
    elif value[:1] in _MARKS or value[-1:] in _MARKS:
        text = "has quotation marks around it"
    elif value.lower().startswith("bearer "):
        text = "begins with the word Bearer, which is added to it anyway"
    elif value.startswith(_PLACEHOLDERS):
        text = "is a placeholder that nobody filled in"
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
    if answer.status in REFUSED:
        return True
    # Some say it with a 400, or even a 200 with an error in it.
    says_so = answer.status in {400, 422} or (answer.status == 200 and "error" in answer.members)
    return says_so and _BAD_KEY.search(answer.text) is not None


async def _refusal(case: Case, answer: Answer) -> Finding:
    """Say what a refusal means, after a look whether something else than the key is wrong."""
    if answer.status == 403 and answer is case.chat:
        # Some gateways say that of every path they do not know.
        found = await find_api(case)
        if found is not None and found[1].status not in REFUSED:
            return wrong_path(case, *found)
    if case.key is not None and answer is case.chat and not _is_basic(answer):
        name = await _other_header(case, case.key)
        if name is not None:
            text = f"the upstream wants the key as header {name}; Foldgate sends Authorization"
            fix = (
                f"have the client send {name}, which is passed on as it is, and leave "
                "upstream.key_variable out; Azure takes Authorization at …/openai/v1"
            )
            return Finding("key", "FAIL", text, fix, {"variable": case.key.variable})
    return key_finding(case, answer)


async def _other_header(case: Case, key: Key) -> str | None:
    """Return the header in which the key is taken after all."""
    try:
        for name in _OTHER_HEADERS:
            case.wire.credential = {name: key.value.get_secret_value()}
            answer = await case.ask({}, case.patience)
            if has_chat(answer) and not _is_refusal(answer):
                return name
    except NoAnswer:
        return None
    finally:
        case.use(key)
    return None


def _is_basic(answer: Answer) -> bool:
    return answer.headers.get("WWW-Authenticate", "").lower().startswith("basic")


def key_finding(case: Case, answer: Answer) -> Finding:
    """Say what a 401 or 403 means."""
    facts: JsonObject = {"http_status": answer.status, "variable": None}
    if _is_basic(answer):
        text = (
            f"something in front of the upstream wants a user name and password ({answer.reason})"
        )
        fix = "take the login away there, or have the client send it as Authorization: Basic …"
        return Finding("key", "FAIL", text, fix, facts)
    if _NO_MONEY.search(answer.text):
        text = f"the account's quota or balance does not allow it ({answer.reason})"
        fix = "see quota, balance and billing of the account; the key itself is known there"
        return Finding("key", "FAIL", text, fix, facts)
    if _NOT_HERE.search(answer.text):
        text = f"the upstream does not serve this country or network ({answer.reason})"
        fix = "another upstream, or a way there that it serves (upstream.http_proxy)"
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
