"""How a command ended, as its result tells it.

Agents say it in the first lines, in the last, or in a member of JSON. What the program itself
printed counts only where the agent says nothing, and only in forms that programs use to report
trouble: a count of zero failures is none.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from proxy import codec
from proxy.codec import Json

ERROR = "error"
"""The status when only the output tells that something went wrong."""

_LOOK_CHARS = 700
_END_CHARS = 1_000
_LINES = 8
_MAX_LINE_CHARS = 160
_MAX_REST_CHARS = 24
_STATUS = re.compile(
    r"(?:exit(?:ed)?(?:[ _-]*(?:with[ _-]+)?(?:non-zero )?(?:exit[ _-])?(?:code|status|value)"
    r"|[ ]with|\s*[:=])|(?<=[\[(])exit|return(?:ed)?[ _-]*(?:with[ _-]+)?(?:non-zero )?"
    r"(?:exit[ _-])?(?:code|status)|\brc\s*[:=])"
    r"[\"'>]?\s*(?:[:=>]|is |was |of )*\s*\"?(-?\d{1,10})\b(?!\.?\d)",
    re.I,
)
_WORDS = ("xit code", "xit_code", "xit Code", "xited with", "xit status", "eturncode", "xitCode")
_EXPECTED = re.compile(r"\b(?:expect|should|want|assert|would)", re.I)
_OUTPUT = re.compile(r"(?:output|stdout|<output>|<stdout>)\b", re.I)
_WHOLE = re.compile(
    r"\W*(?:error: )?(?:(?:the )?(?:command|process|shell|script) )?(?:has )?(?:failed |exited"
    r" |finished |completed |terminated )?(?:with )?$",
    re.I,
)
_SIGNAL = re.compile(r"^Signal: (?!\(none\)|0\b|null\b|none\b)\S", re.M)
_RUNNING = re.compile(
    r"\b(?:running|started|moved|continues?)\b[^\n]{0,40}?\b(?:session|shell|process|task|job"
    r"|terminal|background)\b"
    r"(?: (?:session|shell|process|task|job|terminal))?(?:[ _]id)?(?: with)?(?: id)?"
    r"[:= \"'#]{1,4}([\w-]{1,64})",
    re.I,
)
_RUNNING_CHARS = 400

_OWN_TROUBLE = re.compile(
    r"fatal: |[\w.-]{1,40}: (?:[^\n]{0,160}: )?(?:no such file or directory|permission denied"
    r"|is a directory|cannot \w+|(?:unrecognized|invalid|illegal|unknown) option)",
    re.I,
)
_TROUBLE = re.compile(
    r"^\S{1,200}: (?:[^\n]{0,160}: )?(?:command not found|not found|no such file or directory"
    r"|permission denied|cannot (?:access|stat|open)\b[^\n]*|is a directory|not a directory"
    r"|connection refused|(?:unrecognized|invalid|illegal|unknown) option\b[^\n]*)\s*$"
    r"|^traceback \(most recent call last\)"
    r"|^(?:\S{1,200}: )?(?:fatal |compile |syntax )?error(?:\[\w+\]| [A-Z]{1,4}\d+)?: "
    r"(?!0\b|no\b|none\b|null\b|\(none\))"
    r"|^(?:fatal|panic): |^npm err(?:!|or\b)|^make(?:\[\d+\])?: \*\*\* |^fail(?:ed)?\b(?![ :=]*0\b)"
    r"|\bbuild failed\b|\bsegmentation fault\b|^killed\b|\bcore dumped\b"
    r"|\bcommand (?:timed out|aborted|failed|was cancelled)|^(?:operation )?timed out\b"
    r"|\bterminated command after\b|^an error occurred\b",
    re.I | re.M,
)
_TROUBLE_WORDS = (
    *("error", "fail", "fatal", "panic", "exception", "not found", "no such", "denied", "refused"),
    *("traceback", "killed", "dumped", "npm err", ": ***", "cannot ", "directory", " option"),
    *("segmentation", "timed out", "terminated", "aborted", "cancelled"),
)
_FAILURE_WORDS = ("fail", "error")
_NAMED_ERROR = re.compile(r"^(?:[a-z]\w*\.)*[A-Z]\w*(?:Error|Exception)(?::|$)", re.M)
_FAILURES = re.compile(
    r"(?<![\d./:-])[1-9]\d* (?:[a-z]+ )?(?:failed|failing|failures?|errors?)\b"
    r"(?! \(?\d+ fixed)|\b(?:failures|errors|failed)[:=] ?[1-9]",
    re.I,
)
_STATUS_KEYS = frozenset({"exitcode", "returncode", "exitstatus"})
_SHORT_STATUS_KEYS = frozenset({"exit", "rc", "code"})
"""Count only beside what a command printed."""

_STATUS_TEXT = re.compile(r"-?\d{1,10}")
_STREAM_KEYS = frozenset({"output", "stdout", "stderr"})
_INNER_KEYS = ("metadata", "meta", "result", "data", "details", "output", "response", "outcome")
_MAX_LEVELS = 8
_TEXT_KEYS = ("output", "stdout", "stderr", "content", "text", "result", "message", "error")


def status_of(result: str, *, is_view: bool = False) -> str:
    """Return the exit status that a result tells, `ERROR`, or nothing when all seems well.

    Args:
        result: the text of the result, as the model saw it.
        is_view: whether the command shows what is in files; then words in it tell nothing.
    """
    value = _object(result)
    if value is not None:
        told = _told_by(value)
        if told:
            return told
        result = unwrapped(result)
    told = _told_around(result)
    if told:
        return told
    if _SIGNAL.search(result, max(0, len(result) - _LOOK_CHARS)):
        return ERROR
    return ERROR if _is_trouble(result, is_view=is_view) else ""


def running_as(result: str) -> str:
    """Return the name under which a command goes on running; empty when it has ended."""
    found = _RUNNING.search(result, 0, _RUNNING_CHARS)
    return found[1] if found else ""


def unwrapped(result: str) -> str:
    """Return what a result in JSON prints; other results are returned as they are."""
    value = _object(result)
    if value is None:
        return result
    texts = list(_texts(value))
    return "\n".join(texts) if texts else result


def _object(result: str) -> Mapping[str, Json] | None:
    if result.lstrip()[:1] != "{":
        return None
    try:
        value = codec.loads(result)
    except codec.MalformedJson:
        return None
    return value if isinstance(value, dict) else None


def _texts(value: Mapping[str, Json], levels: int = _MAX_LEVELS) -> Iterator[str]:
    for key in _TEXT_KEYS:
        member = value.get(key)
        if isinstance(member, str) and member.strip():
            yield member
        elif isinstance(member, list):
            parts = (part.get("text") for part in codec.as_objects(member))
            yield from (part for part in parts if isinstance(part, str))
        elif isinstance(member, dict) and levels:
            yield from _texts(member, levels - 1)


def _told_by(value: Mapping[str, Json]) -> str:
    keys = _STATUS_KEYS
    if not _STREAM_KEYS.isdisjoint(value):
        keys |= _SHORT_STATUS_KEYS
    inner = [m for key in _INNER_KEYS if isinstance(m := value.get(key), dict)]
    for members in [value, *inner]:
        for key, member in members.items():
            if key.lower().replace("_", "").replace("-", "") in keys:
                status = _number(member)
                if status:
                    return status
    if value.get("success") is False or value.get("ok") is False:
        return ERROR
    if any(value.get(key) is True for key in ("is_error", "isError", "timed_out", "timedOut")):
        return ERROR
    if value.get("status") in {"error", "failed", "failure"}:
        return ERROR
    return "0" if value.get("success") is True else ""


def _number(value: Json) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and _STATUS_TEXT.fullmatch(value):
        return str(int(value))
    return ""


def _told_around(result: str) -> str:
    head = result[:_LOOK_CHARS].split("\n", _LINES)[:_LINES]
    for position, line in enumerate(head):
        found = _in_line(line)
        if found and (position == 0 and _WHOLE.match(line[: found.start()])):
            return _code(found)
        if _OUTPUT.match(line):
            told = [f for earlier in head[:position] if (f := _in_line(earlier))]
            if told:
                return _code(told[-1])
            break
    for line in reversed(result[-_LOOK_CHARS:].rstrip().split("\n")[-_LINES:]):
        found = _in_line(line)
        if found:
            return _code(found)
    for line in head:
        found = _in_line(line)
        if found:
            return _code(found)
    return _told_between(result) if len(result) > _LOOK_CHARS else ""


def _told_between(result: str) -> str:
    # Some put it between the outputs.
    for word in _WORDS:
        at = result.rfind(word)
        if at >= 0:
            start, end = result.rfind("\n", 0, at) + 1, result.find("\n", at)
            end = len(result) if end < 0 else end
            found = _in_line(result[start : min(end, start + 2 * _MAX_LINE_CHARS)])
            if found:
                return _code(found)
    return ""


def _in_line(line: str) -> "re.Match[str] | None":
    line = line.strip()
    if not 0 < len(line) <= _MAX_LINE_CHARS or line.startswith("Command:"):
        return None
    low = line.lower()
    if "exit" not in low and "return" not in low and "rc" not in low:
        return None
    found = _STATUS.search(line)
    if found is None or len(line) - found.end() > _MAX_REST_CHARS:
        return None
    return None if _EXPECTED.search(line, 0, found.start()) else found


def _code(found: "re.Match[str]") -> str:
    return str(int(found[1]))


def _is_trouble(result: str, *, is_view: bool) -> bool:
    if is_view:
        # What it shows may speak of any trouble; its own begins with its name and is short.
        look = result.strip()
        return len(look) < _MAX_LINE_CHARS * 2 and bool(_OWN_TROUBLE.match(look))
    look = result
    if len(result) > _LOOK_CHARS + _END_CHARS:
        look = f"{result[:_LOOK_CHARS]}\n{result[-_END_CHARS:]}"
    lines = list(_lines_with(_TROUBLE_WORDS, look))
    if any(_TROUBLE.search(line) or _NAMED_ERROR.search(line) for line in lines):
        return True
    end = look[-_END_CHARS:]
    return any(map(_FAILURES.search, _lines_with(_FAILURE_WORDS, end)))


def _lines_with(words: Sequence[str], text: str) -> Iterator[str]:
    # To look for words is much cheaper than for patterns.
    low = text.lower()
    if len(low) != len(text):
        # A few letters become two, and places would differ.
        low = text
    starts: dict[int, None] = {}
    for word in words:
        at = low.find(word)
        while at >= 0:
            start, end = low.rfind("\n", 0, at) + 1, low.find("\n", at)
            starts[start] = None
            at = low.find(word, end) if end >= 0 else -1
    for start in starts:
        end = text.find("\n", start)
        yield text[start : len(text) if end < 0 else end]
