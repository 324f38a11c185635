"""Lines that state something, told apart from logs, code and what runs the tools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger import statements


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("- limit: 500", ["limit: 500"]),
        ('  12\tversion = "1.2"', ['version = "1.2"']),
        ("Output: size: 5", ["size: 5"]),
        ('{"coverage": 71.2, "name": "x"}', ['"coverage": 71.2']),
        ("TOTAL   120   48   71%", ["TOTAL   120   48   71%"]),
        ("1 failed\n=== 2 failed, 3 passed ===", ["2 failed, 3 passed"]),
        ("see FACT: The owner is Ann.", ["FACT: The owner is Ann."]),
        ("FACT: " + "word " * 400, ["FACT: " + ("word " * 400)[:74].strip()]),
        ("INFO: 5 rows\nlimit = load(5)\na.py:3: x = 5\n{\n}", []),
        ("MEMBER: join(items(x))", []),
        ("HEAD: list[str] = [load(1), load(2)]", []),
        ("self = <Test object at 0x7f32>, n = 2", []),
        ("2026-09-14T05:27:48Z WARN  [web] job 6 finished with 0 errors", []),
        ('{"a": 1, "notes": ["FACT: The owner is Ann."]}', ["FACT: The owner is Ann."]),
        ('    "FACT: The owner is Ann.",', ["FACT: The owner is Ann."]),
        ("| 6 | web | FACT: The owner is Ann. | open |", ["FACT: The owner is Ann."]),
    ],
)
def test_what_a_tool_printed(text: str, lines: list[str]) -> None:
    assert [stated.line for stated in statements.of_output(text)] == lines


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("The coverage is now 71%", "coverage"),
        ("Coverage: 71 percent", "coverage"),
        ("port 8080 of web: 3", "port 8080 of web"),
        ("締切\uff1a5月14日", "締切"),
    ],
)
def test_the_subject_of_a_line(line: str, subject: str) -> None:
    (stated,) = statements.of_output(line)
    assert stated.subject == subject


CODE = """import re

TRACE: Final[str] = load("trace")
MODES: list[str] = [
MAX_ROWS = 40
# TODO: read the 3 other files, too

def load(name: str) -> str:
    \"\"\"Check whether one `item` is a Top-K item at `key`.

    According to RFC 7616, it is in the protection space.
    \"\"\"
    return name
"""


@pytest.mark.parametrize(
    "code",
    [
        CODE,
        "\n".join(f"{n:6}\t{line}" for n, line in enumerate(CODE.splitlines(), 1)),
        "\n".join(f"src/a.py:{n}:{line}" for n, line in enumerate(CODE.splitlines(), 1)),
        "@@ -1,9 +1,9 @@\n" + "\n".join(f"+{line}" for line in CODE.splitlines()),
    ],
    ids=["file", "numbered", "search", "patch"],
)
def test_source_code_states_what_stands_under_a_label_and_nothing_else(code: str) -> None:
    fact = "FACT: The owner is Priya Natarajan."
    assert list(statements.of_output(code)) == []
    assert [s.line for s in statements.of_output(f"{code}\n{fact}\n{code}")] == [fact]
    told = [s.line for s in statements.of_output(f"x = load(1)\n{fact}", is_code=True)]
    assert told == [fact]


def test_how_far_something_is_may_change() -> None:
    first, second = (
        list(statements.of_answer(f"We go on. GOAL: We are in phase {n} of 6 of the move."))[-1]
        for n in (2, 4)
    )
    assert first.subject == second.subject != ""


def test_short_sentences_behind_a_label_go_on_with_it() -> None:
    goal = "GOAL: Steps 1-3 of 5 are done. Next step is token refresh."
    before, after = "I read the loader.", "The parser takes 500 rows for each batch. " * 3
    found = [stated.line for stated in statements.of_answer(f"{before} {goal} {after}")]
    assert found[0].startswith(goal)
    assert len(found[0]) <= statements.MAX_GOES_ON_CHARS


def test_what_an_assistant_said() -> None:
    text = (
        "It does no I/O. GOAL STATE: migrating auth.\nIs the limit 5 MB?\n"
        "We decided on Postgres. It rained.\n"
        "The limit is 9 MB. See src/a.py:12: there.\n" + "x" * 5000 + " is 5"
    )
    assert [stated.line for stated in statements.of_answer(text)] == [
        "GOAL STATE: migrating auth.",
        "We decided on Postgres.",
        "The limit is 9 MB.",
    ]


@given(st.text(alphabet='Aa1 :=.\n"{}-T%', max_size=200))
def test_every_line_is_part_of_the_text(text: str) -> None:
    for stated in [*statements.of_output(text), *statements.of_answer(text)]:
        assert stated.line in text
