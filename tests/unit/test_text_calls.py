"""Calls in the text of agents that use no tools of the API."""

import pytest

from proxy import codec
from proxy.codec import Json
from proxy.compaction.ledger import text_calls


def _calls(text: str) -> list[tuple[str, Json]]:
    return [(call.name, codec.loads(call.arguments)) for call in text_calls.calls_of(text)]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("Look:\n```bash\nls -la\n```\nthen", [("bash", {"command": "ls -la"})]),
        ("```mswea_bash_command\nmake\n```", [("bash", {"command": "make"})]),
        ("```python\nls\n```", []),
        (
            "src/a.py\n```python\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n```",
            [("edit_file", {"path": "src/a.py"})],
        ),
        (
            "```python\nsrc/a.py\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n```",
            [("edit_file", {"path": "src/a.py"})],
        ),
        ("**`src/a b.py`**\n\n```\n<<<<<<< SEARCH", [("edit_file", {"path": "src/a b.py"})]),
        ("<<<<<<< SEARCH", []),
        (
            "I look.\n<read_file>\n<path>src/a.py</path>\n</read_file>",
            [("read_file", {"path": "src/a.py"})],
        ),
        (
            "<execute_command>\n<command>npm test</command>\n"
            "<requires_approval>false</requires_approval>\n</execute_command>",
            [("execute_command", {"command": "npm test"})],
        ),
        (
            "<write_to_file><path>a.py</path><content>x < 1</content></write_to_file>",
            [("write_to_file", {"path": "a.py"})],
        ),
        (
            "<function=execute_bash>\n<parameter=command>make</parameter>\n</function>",
            [("execute_bash", {"command": "make"})],
        ),
        (
            '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>',
            [("read", {"path": "a.py"})],
        ),
        (
            '<tool_call>{"name": "read", "arguments": "{\\"path\\": \\"a\\"}"}</tool_call>',
            [("read", {"path": "a"})],
        ),
        ("<tool_call>{broken</tool_call> <tool_call>[1]</tool_call>", []),
        ("<div><span>text</span></div>", []),
    ],
)
def test_calls_of_a_text(text: str, calls: list[tuple[str, Json]]) -> None:
    assert _calls(text) == calls


def test_a_patch_in_a_block() -> None:
    text = "```diff\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n```"
    (call,) = text_calls.calls_of(text)
    assert (call.name, call.arguments.splitlines()[1]) == ("apply_patch", "+++ b/x.py")


def test_what_a_person_ran() -> None:
    said = "I ran this command:\n\npytest -q\n\nAnd got this output:\n\n1 failed"
    assert text_calls.command_of(said) == "pytest -q"
    assert text_calls.command_of("I ran out of ideas") == ""
    assert text_calls.command_of("x") == ""


def test_elements_without_an_end_take_linear_time() -> None:
    for element in ("<aaa>", "<function=a>", "<function=a><parameter=b>", "<tool_call>"):
        calls = text_calls.calls_of(element * 20_000 + "</")
        assert len(calls) <= text_calls.MAX_ELEMENTS


def test_arguments_nested_too_deeply_are_no_call() -> None:
    # Somewhere between, what can be read can no longer be written.
    for depth in range(700, 1000):
        nested = '{"a":' * depth + "1" + "}" * depth
        text = f'<tool_call>{{"name": "x", "arguments": {nested}}}</tool_call>'
        assert len(text_calls.calls_of(text)) <= 1
