"""Commands and how they ended, in the shapes of the common agents."""

import pytest

from proxy import codec
from proxy.compaction.ledger import commands
from proxy.compaction.ledger.commands import Command, Commands
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
        ('{"command": ["bash", "-l", "-c", "make x"]}', "make x"),
        ('{"command": ["/usr/bin/env", "zsh", "-lc", "make x"]}', "make x"),
        ('{"command": ["cmd.exe", "/c", "dir", "src"]}', "dir src"),
        ('{"command": ["powershell", "-NoProfile", "-Command", "ls a"]}', "ls a"),
        ('{"command": ["git", "commit", "-c", "x"]}', "git commit -c x"),
        ('{"CommandLine": "make"}', "make"),
        ('{"shell_command": "make"}', "make"),
        ('{"command": "npm", "args": ["run", "test"]}', "npm run test"),
        ('{"commands": [{"command": "ls"}, {"command": "pwd"}]}', "ls; pwd"),
        ('{"tool_uses": [{"parameters": {"command": "make"}}]}', "make"),
        ('{"input": "make x"}', "make x"),
        ('{"command": "cat > a <<\'E\'\\n' + "x" * 99 + '\\nE\\nmake"}', "cat > a <<'E' … E make"),
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


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("str_replace_editor", '{"command": "view", "path": "a.py"}'),
        ("memory", '{"command": "create", "file_path": "a.md"}'),
        ("browser_execute", '{"script": "return document.title"}'),
        ("query", '{"input": "select 1"}'),
        ("python", '{"code": "print(1)"}'),
    ],
)
def test_what_is_no_command(name: str, arguments: str) -> None:
    assert commands.of_call(Call("1", name, arguments)) == ""


def _run(found: Commands, id: str, line: str, printed: str, **more: str) -> bool:
    text = codec.dumps({"command": line, **more}).decode()
    found.called(Call(id, "bash", text))
    return found.answered(id, printed)


def test_a_run_without_a_word_of_trouble_went_well() -> None:
    found = Commands()
    assert _run(found, "1", "npm test", "Error: it broke")
    assert not _run(found, "2", "npm test", "all fine")
    assert found.all() == (Command("npm test", "", "error"),)


def test_parallel_calls_and_results_out_of_order() -> None:
    found = Commands()
    for id, line in (("1", "make a"), ("2", "make b")):
        found.called(Call(id, "bash", codec.dumps({"command": line}).decode()))
    assert found.answered("2", "Exit code: 3")
    assert not found.answered("1", "Exit code: 0")
    assert found.all() == (Command("make b", "3"), Command("make a", "0"))


def test_the_same_line_in_two_directories_is_two_commands() -> None:
    found = Commands()
    _run(found, "1", "npm test", "Exit code: 1", workdir="/r/a")
    _run(found, "2", "npm test", "Exit code: 0", workdir="/r/b")
    _run(found, "3", "make", "Exit code: 0", workdir="/r/b")
    assert found.all() == (
        Command("npm test", "1", where="/r/a"),
        Command("npm test", "0", where="/r/b"),
        Command("make", "0"),
    )


@pytest.mark.parametrize(
    ("started", "key"),
    [
        ("Process running with session ID 4711\nOutput:\nerror: warming up", "session_id"),
        ("Command running in background with ID: 4711", "bash_id"),
    ],
)
def test_a_session_tells_its_outcome_later(started: str, key: str) -> None:
    found = Commands()
    assert not _run(found, "1", "make server", started)
    assert found.all() == (Command("make server", ""),)
    for id, printed in (("2", started), ("3", "Process exited with code 2")):
        found.called(Call(id, "write_stdin", codec.dumps({key: 4711, "chars": ""}).decode()))
        assert found.answered(id, printed) is (id == "3")
    assert found.all() == (Command("make server", "2"),)
    found.called(Call("4", "write_stdin", codec.dumps({key: 9, "chars": ""}).decode()))
    assert not found.answered("4", "Process exited with code 3")


def test_what_a_person_ran() -> None:
    found = Commands()
    assert found.ran("pytest -q", "1 failed, 2 passed")
    assert found.all() == (Command("pytest -q", "error"),)
