"""What the user stated against what was found, the older one marked."""

import pytest

from proxy.codec import JsonObject
from proxy.compaction.ledger import ledger
from tests.builders import assistant, call, result, user
from tests.strategies import contents_of, to_transcript

BY_TOOL = "perhaps superseded by what a tool printed later where they conflict"


def _text(*messages: JsonObject) -> str:
    contents = contents_of(to_transcript(messages).items)
    return ledger.render(ledger.build(contents, range(len(contents))), 2000)[0]


def _printed(line: str, number: int = 1) -> list[JsonObject]:
    id = f"c{number}"
    return [assistant(None, [call(id, "read", {"path": f"{id}.md"})]), result(id, line)]


def test_a_fact_that_a_tool_told_otherwise_later_is_marked() -> None:
    old, new = "FACT: The deadline is 2027-05-07.", "FACT: The deadline is 2027-01-27."
    text = _text(
        user(old), assistant("Noted."), *_printed(new), assistant("I see."), user("Go on.")
    )
    assert f"[1, {BY_TOOL}] {old}" in text
    assert f"- {new}" in text


def test_one_statement_of_several_is_named() -> None:
    said = "Look at the reader.\nFACT: The port is 8080.\nThanks."
    text = _text(user(said), assistant("Yes."), *_printed("FACT: The port is 9090."), user("And?"))
    assert f'{BY_TOOL}: "FACT: The port is 8080."' in text


def test_what_a_tool_told_before_is_marked_when_the_user_says_otherwise() -> None:
    old, new = "FACT: The owner is Ann Lee.", "FACT: The owner is Bo Ray."
    text = _text(user("Go."), *_printed(old), assistant("I see."), user(new), assistant("Noted."))
    assert f"- {old} (superseded in 2)" in text
    assert f"[2] {new}" in text


def test_what_the_assistant_stated_later_casts_doubt() -> None:
    old, new = "STATE: The phase is 2 of 5.", "STATE: The phase is 3 of 5."
    text = _text(user(old), assistant(f"Done.\n{new}"), user("Go on."))
    assert "superseded by what the assistant stated later where they conflict" in text


@pytest.mark.parametrize(
    "line",
    [
        "RULE: Never use port 9090.",
        "LIMIT: The budget must never be more than $900.",
        "Never use more than 900 tokens.",
    ],
)
def test_a_tool_cannot_touch_a_rule(line: str) -> None:
    said = line.replace("9090", "8080").replace("900", "500")
    text = _text(user(said), assistant("Noted."), *_printed(line), user("Go on."))
    assert f"rule] {said}" in text
    assert "superseded" not in text


@pytest.mark.parametrize(
    "line", ["FACT: The port is 8080.", "FACT: The host is db9.", "The port of Ann is 9 or 10."]
)
def test_what_says_the_same_or_something_else_marks_nothing(line: str) -> None:
    text = _text(user("FACT: The port is 8080."), assistant("Noted."), *_printed(line))
    assert "superseded" not in text


def test_nothing_is_marked_where_nothing_was_said() -> None:
    assert "superseded" not in _text(*_printed("FACT: The port is 8080."))
