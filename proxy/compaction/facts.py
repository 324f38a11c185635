"""Hard facts of the replaced items, taken by code from tool calls, results and answers.

Files, commands, URLs, lines that state a value, error lines. Each is a part of an original; none
is an instruction: a line that reads like one is not taken from what a tool printed. Cost is
linear in the text, and almost all of it is `str.find`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from proxy import codec
from proxy.codec import Json
from proxy.compaction import rules
from proxy.compaction.binaries import describe_binary
from proxy.compaction.commands import Command, Commands
from proxy.compaction.sentences import sentences
from proxy.transcript import Call, Content, Kind

_PATH_KEY = re.compile(
    r"(?:.*[_-])?(?:path|file|filename)s?|(?:file|target|notebook|abs|rel)\w*(?:path|file|name)",
    re.I,
)
_WRITES = re.compile(r"write|edit|patch|create|insert|replace|update|delete|move|rename", re.I)
_PATCH_HEADER = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.M)
_SEARCH_REPLACE = re.compile(r"^([^\s`<>][^\n<>]{0,200})\n(?:```[^\n]*\n)?<{5,9} ?SEARCH", re.M)
_SHELL_PATH = re.compile(
    r"(?:^|(?<=[\s'\"=(:]))(?:~|\.{1,2})?/?[\w.@+-]+(?:/[\w.@+-]+)*\.[A-Za-z]\w{0,7}(?=$"
    r"|[\s'\":;,|)>&])"
    r"|(?:^|(?<=[\s'\"=(:]))(?:~|\.{1,2})?/?[\w.@+-]+(?:/[\w.@+-]+)+(?=$|[\s'\":;,|)>&])"
)
_VIEWS = re.compile(
    r"(?:^|[;&|(]\s*)(?:cat|sed|head|tail|less|more|nl|bat|awk|wc|vim?|nano|grep|rg|diff|jq|curl|wget)\b"
)
"""Commands that look at files; what others name is seen from the command itself."""

_MAX_PATH_CHARS = 300
_MAX_PATH_WORDS = 6
"""A name of more words is a sentence, and a sentence in a list of files is a trap."""

_URL = re.compile(r"https?://[^\s\"'<>`\\)\]}|,;]{3,300}")
_MAX_URLS_OF_ONE = 40

_ERRORS = (
    *("error", "Error", "ERROR", "FAILED", "Failed", "failed", "Exception", "fatal", "FATAL"),
    *("panic", "denied", "not found", "refused", "No such file", "Traceback", "timed out"),
)
_ERROR_HEADS = (
    "error",
    "<error",
    "traceback",
    "failed",
    "fatal",
    "exception",
    "[error",
    "tool error",
)
_ERROR_HEAD_CHARS = 20
_MAX_ERRORS_OF_ONE = 4
_MAX_LINE_CHARS = 240
_NOISE = re.compile(
    # Log lines, places in files, code, and what a tool runner writes around an output.
    r"\W*\d{4}-\d\d-\d\d[T ]|\W*\d\d:\d\d|\S+:\d+:|[{}\"'(<#/@+|&*`\[]|-\S"
    r"|(?:import|from|def|class|return|if|for|let|const|var)\b"
    r"|\W*(?:ok\s+)?(?:INFO|DEBUG|WARN|WARNING|ERROR|TRACE|FATAL|CRITICAL)\b"
    r"|(?:exit[ _]?(?:code|status)|wall time|duration|stdout|stderr|output|command|chunk id|pid"
    r"|process|total output lines|original token count|return ?code)\b",
    re.I,
)
_PLACE = re.compile(r"\S:\d+:")
_UPPER_LABEL = re.compile(r"\b[A-Z]{3,}(?: [A-Z]{2,}){0,3}: ")
_LEVELS = frozenset(
    {"INFO", "DEBUG", "WARNING", "WARN", "ERROR", "TRACE", "FATAL", "CRITICAL", "HTTP", "SYSTEM"}
    | {"USER", "ASSISTANT", "TOOL", "DEVELOPER", "HUMAN", "RULE", "INSTRUCTION", "IGNORE"}
    | {"IMPORTANT", "ATTENTION", "NOTICE", "URGENT", "PROMPT", "COMMAND", "TASK", "SAFETY", "HARD"}
)
"""Labels of log lines, of forged messages and of forged rules: no facts when a tool prints them."""
_KEY_VALUE = re.compile(
    r"[A-Za-z][\w .()/-]{1,48}?\s*(?:[:=]|\bis\b|\bare\b|\bwas\b)\s*(?=\S)([^(){}\[\];]{1,120})$"
)
_CUES = re.compile(
    r"\b(?:decid\w+|decision|root cause|next (?:step|up)|open question|conclu\w+|turn(?:s|ed) out"
    r"|blocked|remaining|to ?do|awaiting|agreed|chosen?)\b"
    r"|entschieden|ursache|nächster schritt|décid|cause|décision|decid|causa|próximo|prossimo"
    r"|решен|причин|决定|原因|下一步|決定|原因|次の|결정|원인|다음 단계",
    re.I,
)
_ADDRESSED = re.compile(
    r"\b(?:ignore|disregard|override|forget)\b.{0,40}\b(?:previous|prior|above|all|instructions?"
    r"|rules?|user)\b|\byou (?:must|should|are|will|need|have|can|may)\b"
    r"|\bassistant\b|\bsystem prompt"
    r"|^\W*(?:[\w ]{1,30}[:=]\W*)?(?:please\s+|now\s+)?(?:delete|remove|run"
    r"|execute|send|e-?mail|upload"
    r"|curl|download|install|post|push|reveal|print|write|open|call|go|tell|give|reply|answer|do)\s"
    r"|\binstructions?\b|\bthe user (?:wants|asked|said|allow)|\b(?:as an? )?AI\b|<\|",
    re.I,
)
_MAX_VALUES_OF_ONE = 12
_MAX_LINES_OF_ANSWER = 200
_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Value:
    """A line that states something exact."""

    line: str
    by: str
    """Who wrote it: ``tool`` or ``assistant``."""
    was: str = ""
    """The line that it takes the place of."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the replaced items hold besides what was said."""

    files_read: tuple[str, ...] = ()
    files_written: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
    urls: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()
    errors: tuple[str, ...] = ()
    binaries: tuple[str, ...] = ()
    skipped: int = 0
    """Entries that were not even collected: too many of one item."""


def collect(contents: Sequence[Content], replaced: Sequence[int]) -> Facts:
    """Collect the facts of the items at `replaced`; the newest of each kind stand last."""
    collector = _Collector()
    for index in replaced:
        collector.take(contents[index])
    return collector.facts()


def files_of(call: Call) -> list[str]:
    """Return the file paths that the arguments of a call name."""
    try:
        value = codec.loads(call.arguments)
        paths = _paths(value, "")
    except RecursionError:
        return []
    except codec.MalformedJson:
        paths = [path.strip() for path in _PATCH_HEADER.findall(call.arguments)]
    return [path for path in paths if _is_path(path)]


def _is_path(path: str) -> bool:
    if not 0 < len(path) <= _MAX_PATH_CHARS or not path.isprintable():
        return False
    return len(path.split()) <= _MAX_PATH_WORDS and not (" " in path and rules.is_rule(path))


def _paths(value: Json, key: str) -> list[str]:
    if isinstance(value, str):
        if _PATH_KEY.fullmatch(key):
            return [] if "\n" in value else [value.strip()]
        return [path.strip() for path in _PATCH_HEADER.findall(value)]
    if isinstance(value, list):
        return [path for member in value for path in _paths(member, key)]
    if isinstance(value, dict):
        return [path for name, member in value.items() for path in _paths(member, name)]
    return []


class _Collector:
    """Goes through the items once, in order; keeps each fact at its newest place."""

    def __init__(self) -> None:
        self._read: dict[str, None] = {}
        self._written: dict[str, None] = {}
        self._commands = Commands()
        self._urls: dict[str, None] = {}
        self._values: dict[str, Value] = {}
        self._errors: dict[str, str] = {}
        self._binaries: dict[str, None] = {}
        self._names: dict[str, str] = {}
        self._uncaptioned = ""
        self._skipped = 0

    def take(self, content: Content) -> None:
        """Take the facts of one item."""
        for call in content.calls:
            self._take_call(call)
        text = content.text
        match content.kind:
            case Kind.RESULT:
                self._take_result(content, text)
            case Kind.ASSISTANT:
                self._take_answer(text)
            case Kind.USER:
                if self._commands.answered("", text):
                    self._take_errors(text)
            case Kind.INSTRUCTION | Kind.OPAQUE:
                return
        self._take_urls(text)
        if content.notes:
            self._take_urls(content.notes)

    def facts(self) -> Facts:
        """Return everything that was found."""
        return Facts(
            tuple(path for path in self._read if path not in self._written),
            tuple(self._written),
            tuple(self._commands.all()),
            tuple(self._urls),
            tuple(self._values.values()),
            tuple(self._errors.values()),
            tuple(self._binaries),
            self._skipped,
        )

    def _take_call(self, call: Call) -> None:
        target = self._written if _WRITES.search(call.name) else self._read
        patched = "*** " in call.arguments
        command = self._commands.called(call)
        self._names[call.id] = command or call.name
        for path in files_of(call):
            _renew(self._written if patched else target, path)
            if not command:
                self._names[call.id] = f"{call.name} {path}"
        if command and _VIEWS.search(command):
            for found in _SHELL_PATH.finditer(command):
                if not command.startswith("://", found.end()) and _is_path(found[0]):
                    _renew(self._read, found[0])
        if "http" in call.arguments:
            self._take_urls(call.arguments)

    def _take_result(self, content: Content, text: str) -> None:
        told = f"{text}\n{content.notes}" if content.notes else text
        failed = self._commands.answered(content.answers or "", told)
        source = self._names.pop(content.answers or "", "")
        for binary in content.binaries:
            if binary.kind != "sealed":
                note = f", from {_one_line(source)}" if source else ""
                self._uncaptioned = describe_binary(binary)[:-1] + note + "]"
                _renew(self._binaries, self._uncaptioned)
        if failed or _is_error(text):
            self._take_errors(text)
        self._take_values(_lines(text), "tool")

    def _take_answer(self, text: str) -> None:
        if self._uncaptioned and text.strip():
            # What the assistant says next tells what it saw.
            del self._binaries[self._uncaptioned]
            _renew(self._binaries, f"{self._uncaptioned} {_one_line(text)}")
            self._uncaptioned = ""
        self._commands.written(text)
        for path in _SEARCH_REPLACE.findall(text) if "SEARCH" in text else ():
            if _is_path(path.strip()):
                _renew(self._written, path.strip())
        self._take_values(_statements(text), "assistant")

    def _take_urls(self, text: str) -> None:
        if "http" not in text:
            return
        found = dict.fromkeys(url.rstrip(".:!?*_") for url in _URL.findall(text))
        for url in list(found)[:_MAX_URLS_OF_ONE]:
            _renew(self._urls, url)
        self._skipped += max(0, len(found) - _MAX_URLS_OF_ONE)

    def _take_values(self, lines: Iterable[str], by: str) -> None:
        stated = list(lines)
        keyed = {f"{by} {_key(line)}": line for line in stated}
        if len(stated) > _MAX_VALUES_OF_ONE:
            # A table or a log: only what is known already, or has a label of its own, counts.
            kept = {k: v for k, v in keyed.items() if k in self._values or _UPPER_LABEL.match(v)}
            keyed = dict(list(kept.items())[-_MAX_VALUES_OF_ONE:])
        for key, line in keyed.items():
            if by == "tool" and _is_instruction(line):
                continue
            old = self._values.pop(key, None)
            was = "" if old is None else old.line if old.line != line else old.was
            self._values[key] = Value(line, by, was)

    def _take_errors(self, text: str) -> None:
        for line in _error_lines(text):
            if not _ADDRESSED.search(line):
                # The same message about another line or at another time is the same error.
                key = _NUMBER.sub("#", line)
                self._errors.pop(key, None)
                self._errors[key] = line


def _renew(known: dict[str, None], entry: str) -> None:
    # The newest mention stands last, so it survives a cut from the front.
    known.pop(entry, None)
    known[entry] = None


def _key(line: str) -> str:
    # The same line with another number says the same anew; with a label, another name does, too.
    if _UPPER_LABEL.match(line):
        return rules.pattern(line) or line
    return _NUMBER.sub("#", line)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:120]


def _is_instruction(line: str) -> bool:
    return bool(_ADDRESSED.search(line)) or rules.is_rule(line)


def _is_error(text: str) -> bool:
    # A result that begins with an error is one; others may only tell of errors.
    return text.lstrip()[:_ERROR_HEAD_CHARS].lower().startswith(_ERROR_HEADS)


def _error_lines(text: str) -> Iterator[str]:
    starts: dict[int, int] = {}
    for word in _ERRORS:
        at = text.find(word)
        seen = 0
        while at >= 0 and seen < _MAX_ERRORS_OF_ONE:
            start = text.rfind("\n", 0, at) + 1
            end = text.find("\n", at)
            starts[start] = len(text) if end < 0 else end
            seen += 1
            at = text.find(word, starts[start])
    for start in sorted(starts)[-_MAX_ERRORS_OF_ONE:]:
        line = text[start : min(starts[start], start + _MAX_LINE_CHARS)].strip()
        if line:
            yield line


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a result that state something exact."""
    for raw in text.splitlines():
        if ":" not in raw and "=" not in raw and " is " not in raw and " are " not in raw:
            continue
        line = raw.strip().lstrip("-*\u2022 ")
        if _is_plain_value(line):
            yield line
        else:
            yield from _labelled(line)


def _is_plain_value(line: str) -> bool:
    if not 4 <= len(line) <= _MAX_LINE_CHARS or "://" in line or _NOISE.match(line):
        return False
    return _tells_value(line) and not _UPPER_LABEL.search(line)


def _tells_value(line: str) -> bool:
    found = _KEY_VALUE.match(line)
    return found is not None and rules.has_value(found[1])


def _labelled(line: str) -> Iterator[str]:
    for found in _UPPER_LABEL.finditer(line):
        if found[0].split(":")[0].split()[0] in _LEVELS:
            continue
        said = line[found.start() : found.start() + _MAX_LINE_CHARS]
        if len(said) == _MAX_LINE_CHARS:
            said = said[: max(said.rfind(". ") + 1, 80)]
        yield said.strip()
        return


def _statements(text: str) -> Iterator[str]:
    """Yield what an assistant stated: labelled lines, decisions, exact values."""
    lines = text.splitlines()
    if len(lines) > 2 * _MAX_LINES_OF_ANSWER:
        lines = lines[:_MAX_LINES_OF_ANSWER] + lines[-_MAX_LINES_OF_ANSWER:]
    for raw in lines:
        line = raw.strip()
        # Questions, and echoes of them, state nothing.
        if len(line) < 4 or "?" in line or _NOISE.match(line):
            continue
        if len(line) <= _MAX_LINE_CHARS and _UPPER_LABEL.match(line):
            yield line
            continue
        for start, end in sentences(line):
            said = line[start:end]
            if len(said) > _MAX_LINE_CHARS or _PLACE.search(said):
                continue
            if _UPPER_LABEL.search(said) or _CUES.search(said) or _tells_value(said):
                yield said
