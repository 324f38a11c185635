"""Sessions as the common agents write them: their tools, argument forms and ways to tell failure.

Each agent answers `read`, `write`, `run` and `fetch` with the messages of one step. An agent of
the Responses API gives items instead of messages; `contents` decodes both.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects import response_items
from proxy.transcript import Content
from tests import builders as b
from tests import items
from tests.strategies import contents_of, to_transcript

Messages = list[JsonObject]
Arguments = Mapping[str, Json] | str


def contents(messages: Sequence[JsonObject]) -> list[Content]:
    """Decode messages of Chat Completions, or items of the Responses API."""
    if any("type" in message for message in messages):
        return [response_items.decode(codec.dumps(message)).content for message in messages]
    return contents_of(to_transcript(messages).items)


@dataclass
class Agent:
    """One way to write calls and results."""

    name: str
    reads: Callable[[str], tuple[str, Arguments]]
    writes: Callable[[str, str], tuple[str, Arguments]]
    runs: Callable[[str], tuple[str, Arguments]]
    ended: Callable[[str, str, int], str]
    """Of a command, its output and its exit code: the result."""
    fetches: Callable[[str], tuple[str, Arguments]] = lambda url: ("webfetch", {"url": url})
    responses: bool = False
    tells_status: bool = True
    """Whether the result holds the exit code itself."""
    count: int = field(default=0)

    def step(self, call: tuple[str, Arguments], printed: str) -> Messages:
        self.count += 1
        id = f"{self.name}_{self.count}"
        name, arguments = call
        if not self.responses:
            return [b.assistant(None, [b.call(id, name, arguments)]), b.result(id, printed)]
        if isinstance(arguments, str):
            return [items.custom_call(id, name, arguments), items.custom_output(id, printed)]
        return [items.call(id, name, arguments), items.output(id, printed)]

    def read(self, path: str, printed: str = "ok") -> Messages:
        return self.step(self.reads(path), printed)

    def write(self, path: str, text: str = "x = 1\n", printed: str = "Done.") -> Messages:
        return self.step(self.writes(path, text), printed)

    def run(self, command: str, code: int = 0, printed: str = "") -> Messages:
        return self.step(self.runs(command), self.ended(command, printed, code))

    def fetch(self, url: str, printed: str = "A page.") -> Messages:
        return self.step(self.fetches(url), printed)

    def parallel(self, calls: Iterable[tuple[tuple[str, Arguments], str]]) -> Messages:
        """Several calls of one turn, then their results."""
        pairs = [self.step(call, printed) for call, printed in calls]
        results = [pair[1] for pair in pairs]
        if self.responses:
            return [*(pair[0] for pair in pairs), *results]
        opened = [c for pair in pairs for c in codec.as_objects(pair[0]["tool_calls"])]
        return [b.assistant(None, opened), *results]


def patch(path: str, text: str) -> str:
    added = "\n".join(f"+{line}" for line in text.splitlines())
    return f"*** Begin Patch\n*** Add File: {path}\n{added}\n*** End Patch"


def _codex_now(command: str, printed: str, code: int) -> str:
    head = "Chunk ID: 6b6a0a\nWall time: 0.0512 seconds\n"
    return f"{head}Process exited with code {code}\nOriginal token count: 12\nOutput:\n{printed}"


def _codex_json(command: str, printed: str, code: int) -> str:
    told: JsonObject = {"exit_code": code, "duration_seconds": 0.3}
    return codec.dumps({"output": printed, "metadata": told}).decode()


def _qwen(command: str, printed: str, code: int) -> str:
    lines = [f"Command: {command}", "Directory: (root)", f"Output: {printed or '(empty)'}"]
    lines += ["Error: (none)", f"Exit Code: {code}", "Signal: (none)", "Process Group PGID: 4711"]
    return "\n".join(lines)


def _pi(command: str, printed: str, code: int) -> str:
    text = printed or "(no output)"
    return f"{text}\n\nCommand exited with code {code}" if code else text


def _opencode(command: str, printed: str, code: int) -> str:
    # It tells no exit code; what the command prints must do.
    program = command.split()[0]
    return f"{printed}\n{program}: error: it did not work" if code else printed


def agents() -> list[Agent]:
    """Every agent with native tool calls."""
    return [
        Agent(
            "codex",
            lambda path: ("exec_command", {"cmd": f"sed -n '1,200p' {path}", "workdir": "/repo"}),
            lambda path, text: ("apply_patch", patch(path, text)),
            lambda command: ("exec_command", {"cmd": command, "workdir": "/repo"}),
            _codex_now,
            responses=True,
        ),
        Agent(
            "codex_shell",
            lambda path: ("shell", {"command": ["bash", "-lc", f"cat {path}"], "workdir": "/repo"}),
            lambda path, text: (
                "shell",
                {"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{patch(path, text)}\nEOF\n"]},
            ),
            lambda command: ("shell", {"command": ["bash", "-lc", command], "workdir": "/repo"}),
            _codex_json,
            responses=True,
        ),
        Agent(
            "opencode",
            lambda path: ("read", {"filePath": path, "offset": 0, "limit": 2000}),
            lambda path, text: ("edit", {"filePath": path, "oldString": "a", "newString": text}),
            lambda command: ("bash", {"command": command, "description": "Runs it"}),
            _opencode,
            lambda url: ("webfetch", {"url": url, "format": "markdown"}),
            tells_status=False,
        ),
        Agent(
            "qwen",
            lambda path: ("read_file", {"absolute_path": path}),
            lambda path, text: ("write_file", {"file_path": path, "content": text}),
            lambda command: ("run_shell_command", {"command": command, "is_background": False}),
            _qwen,
            lambda url: ("web_fetch", {"url": url, "prompt": "What does it say?"}),
        ),
        Agent(
            "pi",
            lambda path: ("read", {"path": path}),
            lambda path, text: (
                "edit",
                {"path": path, "edits": [{"oldText": "", "newText": text}]},
            ),
            lambda command: ("bash", {"command": command, "timeout": 60}),
            _pi,
        ),
        Agent(
            "claude",
            lambda path: ("Read", {"file_path": path}),
            lambda path, text: ("MultiEdit", {"file_path": path, "edits": [{"new_string": text}]}),
            lambda command: ("Bash", {"command": command, "description": "Run it"}),
            lambda command, printed, code: f"Exit code {code}\n{printed}" if code else printed,
            lambda url: ("WebFetch", {"url": url, "prompt": "Summarise"}),
        ),
        Agent(
            "editor",
            lambda path: ("str_replace_editor", {"command": "view", "path": path}),
            lambda path, text: (
                "str_replace_editor",
                {"command": "create", "path": path, "file_text": text},
            ),
            lambda command: ("execute_bash", {"command": command, "is_input": "false"}),
            lambda command, printed, code: (
                f"{printed}\n[The command completed with exit code {code}.]"
                "\n[Current working directory: /repo]"
            ),
            lambda url: ("browse", {"code": f'goto("{url}")'}),
        ),
        Agent(
            "generic",
            lambda path: ("get_file", {"target_file": path, "should_read_entire_file": True}),
            lambda path, text: ("save", {"files": [{"path": path, "content": text}]}),
            lambda command: (
                "run_terminal_cmd",
                {"command": command.split()[0], "args": [*command.split()[1:]]},
            ),
            lambda command, printed, code: codec.dumps(
                {"stdout": printed, "stderr": "", "returncode": code}
            ).decode(),
            lambda url: ("http_request", {"method": "GET", "url": url}),
        ),
    ]
