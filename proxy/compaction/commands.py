"""Commands that the assistant ran, and how each ended.

Read from the arguments of tool calls in the shapes of the common agents (a string or a list under
``command``, ``cmd`` or ``commands``; a shell wrapper around it), and from shell blocks in the
text of agents that have no tools. The exit status is read from the head and the end of the
result.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy import codec
from proxy.codec import Json
from proxy.transcript import Call

MAX_COMMAND_CHARS = 240
_LOOK_CHARS = 500
_KEYS = frozenset({"command", "cmd", "commands", "script", "shell_command", "code_command"})
_SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh", "powershell", "cmd"})
_SHELL_NAME = re.compile(r"(?:^|[_-])sh$|shell|bash|exec|terminal|command", re.I)
_STATUS = re.compile(
    r"(?:exit(?:ed)?[ _-]?(?:with )?(?:code|status)?|return ?code|status code|exitCode)"
    r"(?:\"|')?\s*[:=>]*\s*(?:was |of |with )?(-?\d{1,5})\b",
    re.I,
)
_STATUS_WORDS = ("xit code", "xit_code", "xit Code", "xited with", "xit status", "eturncode")
_TROUBLE = re.compile(
    r"\b(?:command not found|No such file or directory|Permission denied|Traceback \(most recent"
    r"|command failed|FAILED\b|fatal:|panic:|npm ERR!|error:|error\[E\d+\]|timed out)",
    re.I,
)
_BLOCK = re.compile(r"^```(?:bash|sh|shell|console|mswea_bash_command)\n(.*?)\n```", re.S | re.M)


@dataclass(frozen=True, slots=True)
class Command:
    """One command line and its newest outcome."""

    text: str
    status: str
    """The exit status, ``error`` when only the output tells, or empty when nothing does."""
    earlier: str = ""
    """An earlier outcome that differs."""

    @property
    def failed(self) -> bool:
        """Whether it is known to have gone wrong."""
        return self.status not in {"", "0"}


def of_call(call: Call) -> str:
    """Return the command line of a call, on one line; empty when it runs none."""
    try:
        value = codec.loads(call.arguments)
        found = next(_lines(value, top=True), "")
    except codec.MalformedJson:
        # A custom tool takes the command as it is.
        is_plain = _SHELL_NAME.search(call.name) and not call.arguments.lstrip().startswith("{")
        found = call.arguments if is_plain else ""
    return shortened(found)


def _lines(value: Json, *, top: bool) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    for key, member in value.items():
        if key in _KEYS:
            # Several commands are run one after the other; one command may be a list of words.
            line = _line(member, "; " if key == "commands" else " ")
            if line:
                yield line
        elif top and key in {"action", "input", "args", "arguments", "operation"}:
            yield from _lines(member, top=False)


def _line(value: Json, joint: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        return ""
    parts = [part for part in value if isinstance(part, str)]
    if len(parts) >= 3 and parts[0] in _SHELLS and parts[1].startswith(("-", "/")):
        return parts[-1]
    return joint.join(parts)


def of_text(text: str) -> list[str]:
    """Return the commands that stand in shell blocks of an assistant's text."""
    if "```" not in text:
        return []
    return [line for block in _BLOCK.findall(text) if (line := shortened(block))]


def shortened(command: str) -> str:
    """Put a command on one line; a long one keeps its beginning and its end."""
    line = " ".join(command.split())
    if len(line) <= MAX_COMMAND_CHARS:
        return line
    half = MAX_COMMAND_CHARS // 2
    return f"{line[:half]} … {line[-half:]}"


def status_of(result: str) -> str:
    """Return how a command ended, as its result tells it."""
    look = result
    if len(result) > 2 * _LOOK_CHARS:
        look = f"{result[:_LOOK_CHARS]}\n{result[-_LOOK_CHARS:]}"
    found = _STATUS.findall(look)
    if not found and look is not result:
        # Some put it between the outputs.
        found = [
            status
            for word in _STATUS_WORDS
            if (at := result.rfind(word)) >= 0
            for status in _STATUS.findall(result, max(0, at - 8), at + 60)
        ]
    if found:
        return str(found[-1]).lstrip("0") or "0"
    return "error" if _TROUBLE.search(look) else ""


class Commands:
    """Gathers commands in the order of their newest run."""

    def __init__(self) -> None:
        """Begin with none."""
        self._known: dict[str, Command] = {}
        self._open: dict[str, str] = {}

    def called(self, call: Call) -> str:
        """Note a call; returns the command line that it runs, if any."""
        line = of_call(call)
        if line:
            self._open[call.id] = line
            self._note(line, "")
        return line

    def written(self, text: str) -> None:
        """Note the commands in an assistant's text; the next user message may answer the last."""
        for line in of_text(text):
            self._open[""] = line
            self._note(line, "")

    def answered(self, call_id: str, text: str) -> bool:
        """Note the result of a call; returns whether it was a command that failed."""
        line = self._open.pop(call_id, None)
        if line is None:
            return False
        status = status_of(text)
        self._note(line, status)
        return Command(line, status).failed

    def _note(self, line: str, status: str) -> None:
        old = self._known.pop(line, None)
        earlier = ""
        if old is not None:
            status = status or old.status
            earlier = old.status if old.status != status else old.earlier
        self._known[line] = Command(line, status, earlier)

    def all(self) -> Sequence[Command]:
        """Return every command once, the one that ended last at the end."""
        return tuple(self._known.values())
