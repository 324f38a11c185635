"""Commands that the assistant ran, and how each ended.

Read from the arguments of tool calls in the shapes of the common agents: a string or a list under
a member named for a command, with a shell wrapper around it or its words in a member beside it;
a call inside another. A command that goes on running gets the outcome of the later call that
names its session. The exit status is read by `outcomes`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from proxy import codec
from proxy.codec import Json
from proxy.compaction.ledger import outcomes, shell
from proxy.compaction.ledger.findings import Findings
from proxy.transcript import Call

MAX_COMMAND_CHARS = 240
_KEYS = frozenset(
    {"command", "cmd", "commands", "commandline", "script", "shellcommand", "codecommand"}
    | {"bashcommand", "terminalcommand", "shellcmd"}
)
_PLAIN_KEYS = frozenset({"input", "code", "query", "text", "bash"})
"""Where a tool that is a shell may take its command."""

_INNER_KEYS = frozenset(
    {"action", "input", "args", "arguments", "operation", "parameters", "params", "calls"}
    | {"tool_uses", "invocations"}
)
_WORD_KEYS = ("args", "arguments")
_PLACE_KEYS = ("workdir", "cwd", "directory", "working_directory", "workingDirectory", "dir_path")
_SHELL = re.compile(r"(?:.*[/\\])?(?:(?:ba|z|da|fi|k)?sh|pwsh|powershell|cmd)(?:\.exe)?", re.I)
_SHELL_SWITCH = re.compile(r"-\w*c|/c|-command|-encodedcommand", re.I)
_SHELL_NAME = re.compile(r"(?:^|[_-])sh$|shell|bash|exec|terminal|command", re.I)
_SHELL_ONLY = re.compile(r"(?:^|[_-])(?:(?:ba|z|power)?sh|shell|terminal|cmd)$", re.I)
_OTHER_SCRIPT = re.compile(r"browser|javascript|_js$|page|evaluate|sql|python", re.I)
_ONE_WORD = re.compile(r"\w+")
_PATH_KEY = re.compile(r".*(?:path|file)", re.I)
_SESSION_KEY = re.compile(r"(?:\w*(?:[_-]id|Id)|id|pid|session|shell|terminal)")
MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Command:
    """One command line and its newest outcome."""

    text: str
    status: str
    """The exit status, ``error`` when only the output tells, or empty when nothing does."""
    earlier: str = ""
    """An earlier outcome that differs."""
    where: str = ""
    """The directory it ran in, where the same line ran in several."""

    @property
    def failed(self) -> bool:
        """Whether it is known to have gone wrong."""
        return self.status not in {"", "0"}


def line_of(call: Call) -> str:
    """Return the command that a call runs, as the model wrote it; empty when it runs none."""
    return _RUNS.of(call.name, call.arguments)[0]


def _run(name: str, arguments: str) -> tuple[str, str]:
    """Return the command that a call runs, and the directory that it names to run in."""
    try:
        value = codec.loads(arguments)
    except codec.MalformedJson:
        # A custom tool takes the command as it is.
        is_plain = _SHELL_NAME.search(name) and not arguments.lstrip().startswith("{")
        return (arguments if is_plain else ""), ""
    given = (value.get(key) for key in _PLACE_KEYS) if isinstance(value, dict) else ()
    place = next((place for place in given if isinstance(place, str)), "")
    return _line_in(value, name), place


def _line_in(value: Json, name: str) -> str:
    found = "; ".join(dict.fromkeys(_lines(value, name, 0)))
    if not found and isinstance(value, dict) and _SHELL_ONLY.search(name):
        given = [m for key, m in value.items() if key in _PLAIN_KEYS and isinstance(m, str)]
        found = given[0] if given else ""
    return found


def of_call(call: Call) -> str:
    """Return the command line of a call, on one line; empty when it runs none."""
    return shortened(line_of(call))


def place_of(call: Call) -> str:
    """Return the directory that a call names to run in, if any."""
    return _RUNS.of(call.name, call.arguments)[1]


_RUNS = Findings(lambda texts: _run(*texts), lambda run: len(run[0]) + len(run[1]), 2**19)
_OUTCOMES = Findings(lambda texts: outcomes.status_of(*texts), len, 2**18)
_OUTCOMES_OF_VIEWS = Findings(lambda texts: outcomes.status_of(*texts, is_view=True), len, 2**18)
"""All that is remembered for ledgers takes 8 MiB at most."""


def _lines(value: Json, name: str, depth: int) -> Iterator[str]:
    if isinstance(value, list) and 0 < depth < MAX_DEPTH:
        for member in value:
            yield from _lines(member, name, depth + 1)
    if not isinstance(value, dict) or _is_operation(value, name):
        return
    for key, member in value.items():
        plain = key.lower().replace("_", "").replace("-", "")
        if plain in _KEYS and not (plain == "script" and _OTHER_SCRIPT.search(name)):
            # Several commands are run one after the other; one command may be a list of words.
            line = _line(member, "; " if plain == "commands" else " ")
            if line:
                yield _with_words(line, value, key)
            elif isinstance(member, list):
                yield from _lines(member, name, depth + 1)
        elif key in _INNER_KEYS and depth < MAX_DEPTH:
            yield from _lines(member, name, depth + 1)


def _is_operation(value: Mapping[str, Json], name: str) -> bool:
    # Editors call what they do with a file a command.
    command = value.get("command")
    if not isinstance(command, str) or not _ONE_WORD.fullmatch(command):
        return False
    return not _SHELL_ONLY.search(name) and any(map(_PATH_KEY.fullmatch, value))


def _with_words(line: str, value: Mapping[str, Json], key: str) -> str:
    if " " in line or key == "commands":
        return line
    for beside in _WORD_KEYS:
        words = value.get(beside)
        if isinstance(words, list) and words:
            parts = [part for part in words if isinstance(part, str)]
            return _line([line, *parts], " ")
    return line


def _line(value: Json, joint: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        return ""
    parts = [part for part in value if isinstance(part, str)]
    start = 1 if parts and parts[0] in {"env", "/usr/bin/env", "sudo"} else 0
    if len(parts) >= start + 3 and _SHELL.fullmatch(parts[start]):
        for position, part in enumerate(parts[start + 1 : -1], start + 1):
            if _SHELL_SWITCH.fullmatch(part):
                return " ".join(parts[position + 1 :])
    return joint.join(parts)


def shortened(command: str) -> str:
    """Put a command on one line without its here-documents; a long one keeps both its ends."""
    line = " ".join(shell.without_documents(command).split())
    if len(line) <= MAX_COMMAND_CHARS:
        return line
    half = MAX_COMMAND_CHARS // 2
    return f"{line[:half]} … {line[-half:]}"


class Commands:
    """Gathers commands in the order of their newest run."""

    def __init__(self) -> None:
        """Begin with none."""
        self._known: dict[tuple[str, str], Command] = {}
        self._open: dict[str, tuple[str, str]] = {}
        self._sessions: dict[str, tuple[str, str]] = {}

    def called(self, call: Call) -> str:
        """Note a call; returns the command line that it runs, if any."""
        line = of_call(call)
        if line:
            self._open[call.id] = line, place_of(call)
            self._note(self._open[call.id])
        elif self._sessions:
            session = self._session_of(call)
            if session is not None:
                self._open[call.id] = session
        return line

    def ran(self, command: str, printed: str) -> bool:
        """Note a command that a person ran; returns whether it failed."""
        self._open[""] = shortened(command), ""
        return self.answered("", printed)

    def answered(self, call_id: str, text: str) -> bool:
        """Note the result of a call; returns whether it was a command that failed."""
        run = self._open.pop(call_id, None)
        if run is None:
            return False
        name = outcomes.running_as(text)
        status = (_OUTCOMES_OF_VIEWS if shell.is_view(run[0]) else _OUTCOMES).of(text)
        if name and status in {"", outcomes.ERROR}:
            # Its outcome is told later.
            self._sessions[name] = run
            return False
        self._note(run, status, is_told=True)
        return Command(run[0], status).failed

    def all(self) -> Sequence[Command]:
        """Return every command once, the one that ended last at the end."""
        places: dict[str, int] = {}
        for line, _ in self._known:
            places[line] = places.get(line, 0) + 1
        return tuple(
            replace(command, where=where) if places[line] > 1 else command
            for (line, where), command in self._known.items()
        )

    def _session_of(self, call: Call) -> tuple[str, str] | None:
        try:
            value = codec.loads(call.arguments)
        except codec.MalformedJson:
            return None
        for key, member in value.items() if isinstance(value, dict) else ():
            if _SESSION_KEY.fullmatch(key) and isinstance(member, str | int):
                session = self._sessions.get(str(member))
                if session is not None:
                    return session
        return None

    def _note(self, run: tuple[str, str], status: str = "", *, is_told: bool = False) -> None:
        old = self._known.pop(run, None)
        earlier = ""
        if old is not None:
            # Without a word of trouble it went well this time.
            status = status if is_told else old.status
            earlier = old.status if old.status != status else old.earlier
        self._known[run] = Command(run[0], status, earlier)
