"""Commands and how they ended, in the shapes of the common agents."""

import pytest

from proxy.compaction import commands
from proxy.compaction.commands import Command, Commands
from proxy.transcript import Call


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ('{"command": ["bash", "-lc", "pytest -q"], "workdir": "/w"}', "pytest -q"),
        ('{"cmd": "make test"}', "make test"),
        ('{"command": "ls -la\\n  /tmp"}', "ls -la /tmp"),
        ('{"type": "exec", "command": ["git", "status"]}', "git status"),
        ('{"action": {"commands": ["npm ci"]}}', "npm ci"),
        ('{"commands": ["cd a", "make"]}', "cd a; make"),
        ('{"script": "print(1)"}', "print(1)"),
        ('{"path": "a.py"}', ""),
        ('{"command": 5}', ""),
        ('{"command": [1, 2]}', ""),
        ("no json", "no json"),
        ('{"command": "cut', ""),
        ("[1]", ""),
        ('{"action":' * 900 + '"a"' + "}" * 900, ""),
    ],
)
def test_the_command_of_a_call(arguments: str, line: str) -> None:
    assert commands.of_call(Call("1", "shell", arguments)) == line


def test_a_custom_tool_takes_the_command_as_it_is() -> None:
    assert commands.of_call(Call("1", "sh", "ls\n/tmp")) == "ls /tmp"
    assert commands.of_call(Call("1", "notes", "ls /tmp")) == ""


def test_a_long_command_keeps_both_ends() -> None:
    line = commands.shortened("first " + "x" * 900 + " last")
    assert line.startswith("first ")
    assert line.endswith(" last")
    assert len(line) <= commands.MAX_COMMAND_CHARS + 3


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ('{"output":"x","metadata":{"exit_code":1,"duration_seconds":0.1}}', "1"),
        ("Exit code: 0\nWall time: 1s", "0"),
        ("Process exited with code 137\nOutput: x", "137"),
        ("<returncode>2</returncode>", "2"),
        ("Command: a\nExit Code: 00", "0"),
        ("Error: command failed with exit code 3", "3"),
        ("exit status 4", "4"),
        ("a" * 3000 + "\nExit code: 5\n" + "b" * 3000, "5"),
        ("bash: foo: command not found", "error"),
        ("Traceback (most recent call last):\n  x", "error"),
        ("all fine", ""),
        ("", ""),
    ],
)
def test_how_a_command_ended(result: str, status: str) -> None:
    assert commands.status_of(result) == status


def test_the_newest_outcome_counts_and_the_one_before_is_told() -> None:
    found = Commands()
    for number, code in enumerate([1, 0]):
        call = Call(str(number), "bash", '{"command": "make"}')
        assert found.called(call) == "make"
        assert found.answered(call.id, f"Exit code: {code}") is (code == 1)
    assert found.called(Call("9", "read", '{"path": "a"}')) == ""
    assert not found.answered("9", "Exit code: 1")
    assert found.all() == (Command("make", "0", "1"),)
    assert not found.all()[0].failed
    assert Command("a", "error").failed
    assert not Command("a", "").failed


def test_agents_without_tools_write_their_commands() -> None:
    found = Commands()
    found.written("I will look.\n```bash\nls\n```\nThen\n```python\nx\n```")
    assert found.answered("", "<returncode>1</returncode>")
    found.written("no block")
    assert not found.answered("", "something else")
    assert found.all() == (Command("ls", "1"),)
