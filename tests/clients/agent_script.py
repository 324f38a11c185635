"""The agent that the scripted upstream plays for a real client.

It works through numbered files whose contents nobody can know without reading them: every request
with tools is answered with a call that prints the next file, until all were seen. It keeps what it
has seen over the whole run, so it goes on where it was when a request holds less than the one
before. Requests without tools are a client's own side business and get a short text. It speaks
both APIs; in the Responses API it reasons before everything it says.
"""

import hashlib
import random
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps
from tests.upstream import RESPONSES, Recorded, Reply
from tests.upstream_responses import PAIRS, item_texts, type_of
from tests.upstream_rules import message_texts

SHELLS = (
    "run_step",
    "bash",
    "exec_command",
    "shell",
    "run_shell_command",
    "execute_command",
    "run_command",
    "run_terminal_cmd",
    "local_shell",
    "terminal",
    "exec",
)
"""Names of tools that run a command, the surest first."""

SIDE_TEXT = "Reading numbered files"
THOUGHT = "One file after the other."
_MARK = re.compile(r"step-\d+-[0-9a-f]{12}")
_COMMAND = re.compile(r"\b(command|cmd|shell|script|bash)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Step:
    """One file to print."""

    number: int
    mark: str
    output: str = field(repr=False)
    """The file's text: the mark, many lines that no other file has, the mark."""

    @property
    def file(self) -> str:
        return f"step-{self.number:02d}.txt"

    @property
    def command(self) -> str:
        return f"cat {self.file}"


@dataclass(frozen=True, slots=True)
class Script:
    """What the agent is to do in one run."""

    steps: Sequence[Step]

    @classmethod
    def draw(cls, count: int, output_chars: int) -> "Script":
        """Make one whose marks were never there before."""
        numbers = range(1, count + 1)
        marks = [f"step-{number:02d}-{secrets.token_hex(6)}" for number in numbers]
        return cls(
            [Step(n, m, _output(m, output_chars)) for n, m in zip(numbers, marks, strict=True)]
        )

    @property
    def task(self) -> str:
        """What the user asks for."""
        first, last = self.steps[0].file, self.steps[-1].file
        return (
            f"Print the files {first} to {last} of this folder with the shell, in order, one call "
            "for each.\nRead every line: the mark at a file's head and foot is what I need (§ 1), "
            "so never skip a file.\nWhen all are read, say so & give the digest."
        )

    @property
    def answer(self) -> str:
        """What the agent says in the end."""
        joined = "\n".join(step.mark for step in self.steps)
        digest = hashlib.sha256(joined.encode()).hexdigest()[:20]
        return f"all {len(self.steps)} steps are done: {digest}"

    def write(self, folder: Path) -> None:
        """Put the files where the client will run."""
        for step in self.steps:
            (folder / step.file).write_text(step.output + "\n", encoding="utf-8")

    def seen_in(self, messages: Iterable[JsonObject]) -> set[int]:
        """Return the steps whose mark is in a tool result."""
        return {step.number for step, _ in self.results(messages)}

    def read_in(self, messages: Iterable[JsonObject]) -> set[int]:
        """Return the steps whose output is in a tool result from its first byte to its last."""
        return {step.number for step, text in self.results(messages) if step.output in text}

    def results(self, messages: Iterable[JsonObject]) -> Iterator[tuple[Step, str]]:
        """Yield each tool result that holds a step's mark, a chat message or an item."""
        known = {step.mark: step for step in self.steps}
        for message in messages:
            text = "\n".join(_result_texts(message))
            marks = {found[0] for found in _MARK.finditer(text)}
            yield from ((known[mark], text) for mark in marks & known.keys())


def _result_texts(message: JsonObject) -> list[str]:
    if message.get("role") == "tool":
        return message_texts(message)
    return item_texts(message) if type_of(message) in PAIRS else []


def _output(mark: str, chars: int) -> str:
    dice = random.Random(mark)
    lines: list[str] = []
    written = 0
    while written < chars:
        words = (f"{dice.getrandbits(24):x}" for _ in range(8))
        lines.append(f"{len(lines) + 1:4} {' '.join(words)}")
        written += len(lines[-1])
    return "\n".join([mark, *lines, mark])


@dataclass(eq=False)
class ScriptedAgent:
    """Answers main requests; give it to `ScriptedUpstream.reply`."""

    script: Script
    seen: set[int] = field(default_factory=set)
    asked: int = 0

    def __call__(self, request: Recorded) -> Reply:
        reply = self._answer(request)
        return replace(reply, reasoning=THOUGHT) if request.api == RESPONSES else reply

    def _answer(self, request: Recorded) -> Reply:
        tools = tools_of(request)
        if not tools:
            return Reply(text=SIDE_TEXT)
        self.seen |= self.script.seen_in(request.messages)
        number = 1 + max(self.seen, default=0)
        if number > len(self.script.steps):
            return Reply(text=self.script.answer)
        self.asked += 1
        if self.asked > 2 * len(self.script.steps):
            return Reply(text=f"I give up: file {number} cannot be read.")
        name, arguments = shell_call(tools, self.script.steps[number - 1].command)
        # Models speak before some calls and not before others.
        text = f"Now file {number}." if number % 3 == 0 else ""
        call = (f"call_{self.asked:03d}", name, dumps(arguments).decode())
        return Reply(text=text, tool_calls=[call])


def tools_of(request: Recorded) -> list[JsonObject]:
    """Return the functions that a request offers; none for a client's side business."""
    tools = as_objects(request.json.get("tools"))
    if request.api == RESPONSES:
        return [tool for tool in tools if tool.get("type") == "function"]
    return [inner for tool in tools if isinstance(inner := tool.get("function"), dict)]


def shell_call(tools: Sequence[JsonObject], command: str) -> tuple[str, JsonObject]:
    """Return the name and the arguments of the call that runs a command.

    Raises:
        LookupError: when no tool looks like a shell.
    """
    named = {as_text(tool.get("name")): tool for tool in tools}
    for name in [*(shell for shell in SHELLS if shell in named), *named]:
        parameters = _members(named[name].get("parameters"))
        slot = _command_slot(parameters)
        if slot:
            return name, _arguments(parameters, slot, command)
    raise LookupError(f"no tool runs a command: {', '.join(named)}")


def _members(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _required(schema: JsonObject) -> dict[str, JsonObject]:
    names = schema.get("required")
    wanted = [as_text(name) for name in names] if isinstance(names, list) else []
    return {name: _members(_members(schema.get("properties")).get(name)) for name in wanted}


def _command_slot(schema: JsonObject) -> str:
    """Return the name of the parameter that takes a command; empty when there is none."""
    slots = {n: s for n, s in _required(schema).items() if _kind(s) in {"string", "array"}}
    by_name = (name for name in slots if _COMMAND.search(name))
    by_text = (n for n, s in slots.items() if _COMMAND.search(as_text(s.get("description"))))
    return next(by_name, "") or next(by_text, "")


def _arguments(schema: JsonObject, slot: str, command: str) -> JsonObject:
    filled = {name: _filling(member) for name, member in _required(schema).items()}
    taken: Json = ["bash", "-c", command]
    filled[slot] = taken if _kind(_required(schema)[slot]) == "array" else command
    return filled


def _kind(schema: JsonObject) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((as_text(one) for one in kind if one != "null"), "")
    choices = [*as_objects(schema.get("anyOf")), *as_objects(schema.get("oneOf"))]
    return as_text(kind) or next((_kind(c) for c in choices if _kind(c) != "null"), "")


def _filling(schema: JsonObject) -> Json:
    """Return a value that a schema allows."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    allowed = schema.get("enum")
    if isinstance(allowed, list) and allowed:
        return allowed[0]
    return _plain(schema)


def _plain(schema: JsonObject) -> Json:
    lowest = schema.get("minimum", 1)
    plain: Mapping[str, Json] = {
        "boolean": False,
        "integer": lowest,
        "number": lowest,
        "null": None,
        "object": {name: _filling(member) for name, member in _required(schema).items()},
    }
    kind = _kind(schema)
    if kind == "array":
        return [_filling(_members(schema.get("items")))] if schema.get("minItems") else []
    return plain.get(kind, "Print the next file")
