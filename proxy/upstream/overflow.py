"""Whether an upstream's error says that the request is too long, and what it tells of the window.

Pure: a status and bytes go in, an `Overflow` comes out, or None for every other error. Evidence is
taken in this order: a status that is never an overflow, a code that always is one, the operator's
own rules, vetoes, the table (`overflow_table`), single words (`overflow_words`). Texts are read
only where servers put their own words; what they echo of a request is passed over as far as that
can be told.

Answers with status 200 are no errors and not for this module: a window that filled while the model
wrote (``finish_reason: length``), or a server that cut silently, shows in the usage report.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import Literal, TypeGuard

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.transcript import Record
from proxy.upstream.overflow_rules import OverflowRule
from proxy.upstream.overflow_table import (
    CODES,
    ECHO,
    ROWS,
    SERVER_CODES,
    VETO,
    VETOED_CODES,
    VETOED_STATUSES,
)
from proxy.upstream.overflow_words import says_too_long

Kind = Literal["input", "total"]

MAX_BYTES = 64 * 1024
"""A larger document is none of the errors known, which are short; of a text its begin is read."""

MAX_DEPTH = 8
MAX_CHARS = 16 * 1024
"""Characters that patterns are searched in, of all texts together."""

_MAX_TEXT = 4096
_MAX_NODES = 256
_MAX_MEMBERS = 32
_MAX_CODE = 100
_MAX_TOKENS = 10**9

_CODE_KEYS = ("code", "type", "status", "error_type", "error_code")
_TEXT_KEYS = ("error", "message", "detail", "errors", "msg", "external_model_error")
"""Where servers put their own words, besides OpenRouter's ``metadata.raw``."""

_ANY_WORDING = frozenset({400, 404, 413, 422})
_SPECIFIC_WORDING = frozenset({500, 503})
_NO_BODY = frozenset({400, 413})
_CLIENT_ERROR = 400
_SERVER_ERROR = 500
_STATUS = re.compile(r"[45]\d\d", re.ASCII)


class Overflow(Record, frozen=True):
    """A request was too long for its upstream."""

    kind: Kind
    """input: too long by itself; total: it fits, but not together with its output limit."""
    prompt: int | None = None
    """Tokens that the server counted for the prompt."""
    limit: int | None = None
    """The limit that it told, tokens."""
    excess: int | None = None
    """Tokens too many, where only that is told."""
    input_only: bool = False
    """The limit is one on the input alone, not the whole window."""
    at_least: bool = False
    """The server stopped counting at `prompt`: the real number may be larger (vLLM)."""


class _Said(Record, frozen=True):
    """What an error says, in lower case."""

    texts: list[str]
    codes: set[str]
    numbers: dict[str, int]
    """``n_prompt_tokens`` and ``n_ctx`` of llama.cpp."""


def classify(status: int, body: bytes, more: Sequence[OverflowRule] = ()) -> Overflow | None:
    """Tell whether an error reply says that the request is too long. Never raises.

    Args:
        status: of the reply.
        body: of the reply, decoded; what comes after the first 64 KB is not looked at.
        more: the operator's own rules, which come before vetoes and table.
    """
    known = status in _ANY_WORDING or status in _SPECIFIC_WORDING
    if status in VETOED_STATUSES or not (known or any(status in rule.statuses for rule in more)):
        return None
    if not body.strip():
        # Cerebras and Mistral answer so.
        return Overflow("input") if status in _NO_BODY else None
    said = _read_body(body)
    return None if said is None else _judge(status, said, [r for r in more if status in r.statuses])


def classify_event(event: bytes, more: Sequence[OverflowRule] = ()) -> Overflow | None:
    """Tell whether the data of a stream's event says that the request is too long. Never raises.

    Error frames of either API are read, and ``response.failed``; any other event costs a search
    for one word.

    Args:
        event: data of one server-sent event.
        more: the operator's own rules; their statuses count where the event tells one.
    """
    if b'"error"' not in event:
        return None
    try:
        frame = _error_of(event)
        document = codec.loads(frame) if len(frame) <= MAX_BYTES else None
    except codec.MalformedJson:
        return None
    if not document:
        return None
    said = _read({"error": document})
    status = _status_of(said)
    if status in VETOED_STATUSES:
        return None
    rules = [rule for rule in more if status is None or status in rule.statuses]
    server = (status or 0) >= _SERVER_ERROR or not said.codes.isdisjoint(SERVER_CODES)
    return _judge(_SERVER_ERROR if server else _CLIENT_ERROR, said, rules)


def _error_of(event: bytes) -> bytes:
    """Return the JSON of the error that an event holds, empty JSON when it holds none.

    A response that failed repeats its instructions and tools, so it is not decoded as a whole.
    """
    members = codec.split_object(event)
    if members.get("type") == b'"response.failed"':
        response = codec.split_object(members.get("response", b"{}"))
        return response.get("error", b"null")
    error = members.get("error", b"null")
    if error == b"null" and members.get("type") == b'"error"':
        return event
    return error


def _status_of(said: _Said) -> int | None:
    return max((int(code) for code in said.codes if _STATUS.fullmatch(code)), default=None)


def _judge(status: int, said: _Said, rules: Sequence[OverflowRule]) -> Overflow | None:
    if not said.codes.isdisjoint(CODES):
        return _by_table(said, specific=False) or _overflow("input", None, said)
    for rule in rules:
        match = _first(rule.pattern, said.texts)
        if match is not None:
            return _overflow(rule.kind, match, said, input_only=rule.input_only)
    if not said.codes.isdisjoint(VETOED_CODES) or _first(VETO, [*said.texts, *said.codes]):
        return None
    if status in _ANY_WORDING:
        known = _by_table(said, specific=False)
        # No table knows all wordings. To be wrong costs one try; to be deaf, the session.
        return known or (Overflow("input") if says_too_long(said.texts) else None)
    return _by_table(said, specific=True) if status in _SPECIFIC_WORDING else None


def _by_table(said: _Said, *, specific: bool) -> Overflow | None:
    texts = [*said.texts, *said.codes]
    for row in ROWS:
        match = _first(row.pattern, texts)
        if match is not None and (row.specific or not specific or _compares(match)):
            kind: Kind = "total" if row.total else "input"
            return _overflow(kind, match, said, input_only=row.input_only)
    return None


def _first(pattern: re.Pattern[str], texts: Sequence[str]) -> re.Match[str] | None:
    return next((match for text in texts if (match := pattern.search(text))), None)


def _compares(match: re.Match[str]) -> bool:
    """Whether a wording tells the limit and what it was compared with."""
    numbers = match.groupdict()
    return bool(numbers.get("L")) and any(numbers.get(name) for name in ("N", "T"))


def _overflow(
    kind: Kind, match: re.Match[str] | None, said: _Said, *, input_only: bool = False
) -> Overflow:
    groups = match.groupdict() if match is not None else {}
    numbers = {name: _tokens(text) for name, text in groups.items()}
    limit = said.numbers.get("n_ctx") or numbers.get("L")
    prompt = said.numbers.get("n_prompt_tokens") or numbers.get("N")
    total, output = numbers.get("T"), numbers.get("M")
    if prompt is None and total and output and total > output:
        prompt = total - output
    if kind == "total" and prompt and limit and prompt >= limit:
        # No output limit is low enough.
        kind = "input"
    return Overflow(
        kind,
        prompt,
        limit,
        numbers.get("X"),
        input_only=input_only and limit is not None,
        at_least=bool(groups.get("least")),
    )


def _tokens(text: str | None) -> int | None:
    digits = (text or "").replace(",", "")
    # A group of an operator's rule may hold anything.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(_MAX_TOKENS))):
        return None
    number = int(digits)
    return number if 0 < number <= _MAX_TOKENS else None


def _read_body(body: bytes) -> _Said | None:
    head = body[:MAX_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    document: Json
    try:
        document = codec.loads(head)
    except codec.MalformedJson:
        if head[:1] in {b"{", b"["}:
            # As a text it would be read with all that it echoes.
            return None
        document = head.decode("utf-8", "replace")
    return _read({"error": document})


def _read(document: JsonObject) -> _Said:
    """Collect what an error says, outer words first, within fixed bounds."""
    said = _Said([], set(), {})
    # The member that holds the document is no level of its own.
    waiting: deque[tuple[Json, int]] = deque([(document, -1)])
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        value, depth = waiting.popleft()
        if isinstance(value, str):
            inner = _take_text(value, said)
        elif isinstance(value, dict):
            inner = _take_object(value, said)
        else:
            inner = value[:_MAX_MEMBERS] if isinstance(value, list) else []
        if depth < MAX_DEPTH:
            waiting.extend((member, depth + 1) for member in inner)
    return said


def _take_object(value: JsonObject, said: _Said) -> list[Json]:
    for key in _CODE_KEYS:
        code = value.get(key)
        if isinstance(code, str):
            said.codes.add(code[:_MAX_CODE].strip().lower())
        elif _is_count(code):
            said.codes.add(str(code))
    for key in ("n_prompt_tokens", "n_ctx"):
        number = value.get(key)
        if _is_count(number):
            said.numbers.setdefault(key, number)
    inner = [value[key] for key in _TEXT_KEYS if key in value]
    metadata = value.get("metadata")
    return [*inner, metadata.get("raw")] if isinstance(metadata, dict) else inner


def _is_count(value: Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_TOKENS


def _take_text(text: str, said: _Said) -> list[Json]:
    """Take a text; return the JSON document inside it, if there is one, instead of its bytes."""
    start, end = _document_in(text)
    # After words like "invalid value:" a document is a quotation from the request.
    if 0 <= start < end and not _quotes(text[:start]):
        try:
            document = codec.loads(text[start:end])
        except codec.MalformedJson:
            pass
        else:
            _add(text[:start], said)
            _add(text[end:], said)
            return [document]
    _add(text, said)
    return []


def _document_in(text: str) -> tuple[int, int]:
    brackets = "[]" if text.lstrip().startswith("[") else "{}"
    return text.find(brackets[0]), text.rfind(brackets[1]) + 1


def _quotes(text: str) -> bool:
    words = _words(text, _MAX_TEXT)
    return ECHO.search(words) is not None or VETO.search(words) is not None


def _words(text: str, most: int) -> str:
    return " ".join(text[: min(_MAX_TEXT, most)].split()).lower()


def _add(text: str, said: _Said) -> None:
    words = _words(text, MAX_CHARS - sum(map(len, said.texts)))
    echo = ECHO.search(words)
    words = words[: echo.start()] if echo is not None else words
    if words:
        said.texts.append(words)
