"""Hard facts of the replaced items, taken by code from tool calls, results and answers.

Files, commands, URLs, lines that state a value, error lines. Each is a part of an original; none
is an instruction: a line that reads like one is not taken from what a tool printed. Cost is
linear in the text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from proxy import codec
from proxy.codec import Json
from proxy.compaction.binaries import describe_binary
from proxy.compaction.ledger import commands, files, outcomes, shell, text_calls, urls
from proxy.compaction.ledger.addressed import hides_instruction, is_instruction
from proxy.compaction.ledger.commands import Command, Commands
from proxy.compaction.ledger.files import Files, renew
from proxy.compaction.ledger.values import Value, Values, holds_data
from proxy.transcript import Call, Content, Kind

__all__ = ["Command", "Facts", "Value", "collect"]

MAX_URLS_OF_ONE = 40
MANY_URLS = 12
"""More in one text are a list that somebody keeps: each matters less than one named alone."""

_ERRORS = (
    *("error", "Error", "ERROR", "FAILED", "Failed", "failed", "Exception", "fatal", "FATAL"),
    *("panic", "denied", "not found", "refused", "No such file", "Traceback", "timed out"),
)
_ERROR_HEAD = re.compile(
    r"[\[<]?(?:tool )?(?:error|traceback|failed|fatal|[a-z.]{0,12}exception)\b(?!\.\w)", re.I
)
_ERROR_HEAD_CHARS = 20
_MAX_ERRORS_OF_ONE = 4
_MAX_ERROR_CHARS = 240
_NO_ERROR = re.compile(
    r"(?:errors?|fail(?:ed|ures?))\W{1,4}(?:0|none|null)\b|\b(?:0|no|without) (?:errors?|fail)"
    r"|(?:error|failed)\W{1,3}$",
    re.I,
)
_NUMBER = re.compile(r"\d[\d.,]*")
_ID_KEY = re.compile(r".*(?:id|key|number|issue|pr|ref|sha)", re.I)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the replaced items hold besides what was said."""

    files_read: tuple[str, ...] = ()
    files_written: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
    urls: tuple[str, ...] = ()
    """The newest last; in front of all others those of long lists, code and data."""
    values: tuple[Value, ...] = ()
    errors: tuple[str, ...] = ()
    binaries: tuple[str, ...] = ()
    skipped: int = 0
    """Entries that were not even collected: too many of one item."""


def collect(contents: Sequence[Content], replaced: Sequence[int]) -> Facts:
    """Collect the facts of the items at `replaced`; the newest of each kind stand last."""
    calls_tools = any(call.name for index in replaced for call in contents[index].calls)
    collector = _Collector(writes_calls=not calls_tools)
    for index in replaced:
        collector.take(contents[index], index)
    return collector.facts()


class _Collector:
    """Goes through the items once, in order; keeps each fact at its newest place."""

    def __init__(self, *, writes_calls: bool) -> None:
        self._writes_calls = writes_calls
        self._files = Files()
        self._commands = Commands()
        self._urls: dict[str, None] = {}
        self._listed_urls: dict[str, None] = {}
        self._values = Values()
        self._errors: dict[str, str] = {}
        self._binaries: dict[str, None] = {}
        self._sources: dict[str, tuple[str, str]] = {}
        self._source = ""
        """What the result that is gone through speaks of."""
        self._uncaptioned = ""
        self._skipped = 0

    def take(self, content: Content, index: int) -> None:
        """Take the facts of one item; `index` is its place."""
        self._values.at = index
        for call in content.calls:
            self._take_call(call)
        text = content.text
        match content.kind:
            case Kind.RESULT:
                text = self._take_result(content, text)
            case Kind.ASSISTANT:
                self._take_answer(text)
            case Kind.USER:
                self._take_said(text)
            case Kind.INSTRUCTION | Kind.OPAQUE:
                return
        self._take_urls(text, is_printed=content.kind is Kind.RESULT)
        if content.notes:
            self._take_urls(content.notes, is_printed=True)

    def facts(self) -> Facts:
        """Return everything that was found."""
        read, written = self._files.all()
        listed = [url for url in self._listed_urls if url not in self._urls]
        return Facts(
            read,
            written,
            tuple(self._commands.all()),
            (*listed, *self._urls),
            self._values.all(),
            tuple(self._errors.values()),
            tuple(self._binaries),
            self._skipped,
        )

    def _take_call(self, call: Call) -> None:
        command = self._commands.called(call)
        line = commands.line_of(call) if command else ""
        named = files.of_call(call, line)
        root = commands.place_of(call) or shell.directory_of(line)
        self._files.take(named, root)
        paths = named.read or named.written
        label = command or " ".join([call.name, *paths[-1:]])
        self._sources[call.id] = label, _source(call, command, paths)
        if "http" in call.arguments or "://" in call.arguments:
            self._take_urls(_plain(call.arguments))

    def _take_result(self, content: Content, text: str) -> str:
        told = f"{text}\n{content.notes}" if content.notes else text
        failed = self._commands.answered(content.answers or "", told)
        label, source = self._sources.pop(content.answers or "", ("", ""))
        self._source = source
        for binary in content.binaries:
            if binary.kind != "sealed":
                note = f", from {_one_line(label)}" if label else ""
                self._uncaptioned = describe_binary(binary)[:-1] + note + "]"
                renew(self._binaries, self._uncaptioned)
        printed = outcomes.unwrapped(text)
        if failed or _is_error(printed):
            self._take_errors(printed)
        self._values.take_output(printed, source or "tool:")
        return printed

    def _take_answer(self, text: str) -> None:
        if self._uncaptioned and text.strip():
            # What the assistant says next tells what it saw.
            del self._binaries[self._uncaptioned]
            renew(self._binaries, f"{self._uncaptioned} {_one_line(text)}")
            self._uncaptioned = ""
        for call in text_calls.calls_of(text):
            # Beside tools of the API, a block of shell is advice; an edit is one all the same.
            if self._writes_calls or call.name == text_calls.EDIT:
                self._take_call(call)
        self._values.take_answer(text)

    def _take_said(self, text: str) -> None:
        # Where calls stand in the text, what a user message holds may be their result.
        ran = text_calls.command_of(text)
        failed = self._commands.ran(ran, text) if ran else self._commands.answered("", text)
        if failed:
            self._take_errors(text)

    def _take_urls(self, text: str, *, is_printed: bool = False) -> None:
        found = [u for u in urls.find(text) if not (is_printed and hides_instruction(u))]
        is_listed = len(found) > MANY_URLS or (
            # What stands in code or data is seldom what the session is about.
            is_printed and bool(found) and holds_data(text, self._source)
        )
        target = self._listed_urls if is_listed else self._urls
        for url in found[:MAX_URLS_OF_ONE]:
            renew(target, url)
        self._skipped += max(0, len(found) - MAX_URLS_OF_ONE)

    def _take_errors(self, text: str) -> None:
        for line in _error_lines(text):
            if not is_instruction(line):
                # The same message about another line or at another time is the same error.
                key = _NUMBER.sub("#", line)
                self._errors.pop(key, None)
                self._errors[key] = line


def _source(call: Call, command: str, paths: Sequence[str]) -> str:
    """Tell apart what results speak of: a file, a command with its operands, a tool's object."""
    if command and not (shell.is_view(command) and paths):
        return f"run:{shell.operands_of(command)}"
    if paths:
        return f"file:{' '.join(paths)}"
    return f"tool:{call.name} {' '.join(_told(call.arguments))}"


def _told(arguments: str) -> Iterator[str]:
    try:
        value = codec.loads(arguments)
    except codec.MalformedJson:
        return
    for key, member in value.items() if isinstance(value, dict) else ():
        # A number alone counts how often or how much is asked.
        if isinstance(member, str) or (_ID_KEY.fullmatch(key) and isinstance(member, int)):
            yield f"{key}={str(member)[:100]}"


def _plain(arguments: str) -> str:
    """Return the texts in the arguments of a call, without the escapes of JSON."""
    if "\\" not in arguments:
        return arguments
    try:
        return "\n".join(_leaves(codec.loads(arguments)))
    except (codec.MalformedJson, RecursionError):
        return arguments


def _leaves(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for member in value:
            yield from _leaves(member)
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _leaves(member)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:120]


def _is_error(text: str) -> bool:
    # A result that begins with an error is one; others may only tell of errors.
    head = text.lstrip()[:_ERROR_HEAD_CHARS]
    return bool(_ERROR_HEAD.match(head)) and not _NO_ERROR.match(head)


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
    lines = [text[at : min(starts[at], at + _MAX_ERROR_CHARS)].strip() for at in sorted(starts)]
    told = [line for line in lines if line and not _NO_ERROR.search(line)]
    yield from told[-_MAX_ERRORS_OF_ONE:]
