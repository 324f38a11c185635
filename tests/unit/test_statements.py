"""Lines that state something, told apart from logs, code and what runs the tools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction import statements


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


def test_what_an_assistant_said() -> None:
    text = (
        "GOAL STATE: migrating auth.\nIs the limit 5 MB?\nWe decided on Postgres. It rained.\n"
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
