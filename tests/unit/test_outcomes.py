"""How results tell that a command failed, and what only looks like it."""

import pytest

from proxy.compaction.ledger import outcomes

LONG = "a line of output\n" * 200


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ('{"output":"x","metadata":{"exit_code":1,"duration_seconds":0.1}}', "1"),
        ('{"output":"exit code 7","metadata":{"exit_code":0}}', "0"),
        ('{"stdout": "", "stderr": "boom", "returncode": 3}', "3"),
        ('{"exitCode": "2"}', "2"),
        ('{"success": false, "error": "x"}', "error"),
        ('{"success": true, "output": "Error: 3 things"}', "0"),
        ('{"isError": true, "content": [{"type": "text", "text": "x"}]}', "error"),
        ('{"status": "failed"}', "error"),
        ('{"timedOut": true}', "error"),
        ('{"name": "x", "exits": 2}', ""),
        ('{"output": "x", "exit": 2}', "2"),
        ('{"errors": [], "failed": 0, "data": {"exit": 5, "code": 7}}', ""),
        ('{"broken": ', ""),
        ("Exit code: 0\nWall time: 1s\nOutput:\nchild exited with code 1", "0"),
        ("Chunk ID: 1\nWall time: 0.1 s\nProcess exited with code 137\nOutput:\nx", "137"),
        ("<returncode>2</returncode>\n<output>\nexit code 0\n</output>", "2"),
        ("Command: exit 3; exit code 9\nOutput: exit code: 5\nExit Code: 0\nSignal: (none)", "0"),
        ("Command: a\nOutput: x\nExit Code: (none)\nSignal: SIGKILL", "error"),
        ("Exit Code: 00", "0"),
        ("Error: command failed with exit code 3", "3"),
        ("Exit code 1\nnpm test", "1"),
        (f"{LONG}\n\nCommand exited with code 2", "2"),
        (f"{LONG}\n[The command completed with exit code 1.]\n[Current directory: /x]", "1"),
        ("output\n[exit 1]", "1"),
        ("output\n(exit code 4)", "4"),
        ("x\nEXIT:5", "5"),
        ("x\nrc=6", "6"),
        ("x\nexit status 4", "4"),
        ("subprocess.CalledProcessError: Command 'x' returned non-zero exit status 9.", "9"),
        ("x\n<exit_code>8</exit_code>", "8"),
        (f"{LONG}Exit code: 5\n{LONG}", "5"),
        ("Process exited with code -1073741819", "-1073741819"),
        ("x\nThe process finished with exit code 0.", "0"),
        ("Command timed out after 60 seconds", "error"),
        ("(no output)\n\nCommand aborted", "error"),
        ("bash: foo: command not found", "error"),
        ("ls: cannot access 'x': No such file or directory", "error"),
        ("Traceback (most recent call last):\n  x\nValueError: y", "error"),
        ("ModuleNotFoundError: No module named 'x'", "error"),
        ("src/x.c:3:5: error: bad", "error"),
        ("src/a.ts(3,4): error TS2304: Cannot find name", "error"),
        ("error[E0308]: mismatched types", "error"),
        ("npm ERR! code ELIFECYCLE", "error"),
        ("make: *** [all] Error 2", "error"),
        ("fatal: not a git repository", "error"),
        ("Segmentation fault (core dumped)", "error"),
        ("FAILED tests/a.py::b - assert 1", "error"),
        ("===== 3 failed, 41 passed in 2.1s =====", "error"),
        ("Tests run: 5, Failures: 1, Errors: 0", "error"),
        ("Found 3 errors in 2 files", "error"),
        ("BUILD FAILED in 3s", "error"),
        ("bash tool terminated command after exceeding timeout 5000 ms", "error"),
        ("An error occurred (AccessDenied) when calling ListObjects", "error"),
        ("all fine", ""),
        ("web-1 0/1 Error\nweb-2 1/1 Running", ""),
        ("", ""),
        ("0 failed, 12 passed", ""),
        ("test result: ok. 10 passed; 0 failed; 0 ignored", ""),
        ("Tests run: 5, Failures: 0, Errors: 0", ""),
        ("error: 0, warnings: 0", ""),
        ("errors: none", ""),
        ("no errors found", ""),
        ("tests/a.py::test_error_handling PASSED", ""),
        ("Found 2 errors (2 fixed, 0 remaining).\nAll good: 0 errors", ""),
        ("HTTP/1.1 404\nstatus code: 404", ""),
        ('{"status_code": 404}', ""),
        ("ok: expected exit code 2", ""),
        ("version 1.3.0 exits 2.5 times", ""),
    ],
)
def test_how_a_command_ended(result: str, status: str) -> None:
    assert outcomes.status_of(result) == status


def test_what_a_viewer_shows_is_not_its_own_trouble() -> None:
    log = "error: disk full\nTraceback (most recent call last):\n" + LONG + "3 failed"
    assert outcomes.status_of(log) == "error"
    assert outcomes.status_of(log, is_view=True) == ""
    assert outcomes.status_of("error: disk full\nBUILD FAILED", is_view=True) == ""
    missing = "cat: a.py: No such file or directory"
    assert outcomes.status_of(missing, is_view=True) == "error"
    assert outcomes.status_of("x\nExit code: 1", is_view=True) == "1"


@pytest.mark.parametrize(
    ("result", "name"),
    [
        ("Wall time: 10 s\nProcess running with session ID 4711\nOutput:\nx", "4711"),
        ("Command running in background with ID: bash_1", "bash_1"),
        ("Started background task id: t-9", "t-9"),
        ("The server is running on port 80", ""),
        ("done", ""),
    ],
)
def test_commands_that_go_on_running(result: str, name: str) -> None:
    assert outcomes.running_as(result) == name


def test_what_a_result_in_json_prints() -> None:
    assert outcomes.unwrapped('{"output": "a\\nb", "metadata": {}}') == "a\nb"
    assert outcomes.unwrapped('{"stdout": "a", "stderr": "b"}') == "a\nb"
    assert outcomes.unwrapped('{"content": [{"type": "text", "text": "a"}]}') == "a"
    assert outcomes.unwrapped('{"result": {"output": "a"}}') == "a"
    assert outcomes.unwrapped('{"coverage": 3}') == '{"coverage": 3}'
    assert outcomes.unwrapped("{x") == "{x"
    assert outcomes.unwrapped("plain") == "plain"


@pytest.mark.parametrize(
    "told", ['"--5"', '"-"', '"\u00b2"', "9" * 5000, '"' + "9" * 5000 + '"', "1.5"]
)
def test_what_is_no_exit_code_tells_nothing(told: str) -> None:
    assert outcomes.status_of(f'{{"output": "x", "exit_code": {told}}}') == ""
