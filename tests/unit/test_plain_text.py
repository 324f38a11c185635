"""What is read from a summary in plain text, and what is put in front of it."""

import pytest

from proxy.compaction.checkpoint import Sections
from proxy.compaction.plain_text import sections_in, with_kept

KEPT = Sections(
    instructions=("Never push to main.",),
    next_steps=("run the tests", "tell the user"),
    relevant_files=("src/a.py", "Makefile"),
)


def test_what_is_put_in_front_is_read_again() -> None:
    text = with_kept("And so on.", KEPT)
    assert text.endswith("\n\nAnd so on.")
    assert sections_in(text) == KEPT
    assert with_kept("And so on.", Sections()) == "And so on."


@pytest.mark.parametrize(
    "text",
    [
        "## Next steps\n- run the tests\n- tell the user\n\nIt goes on.",
        "**Next steps:**\n1. run the tests\n2. tell the user",
        "Remaining work:\n* run the tests\n* tell the user\nDone:\n* nothing",
        "N\u00e4chste Schritte:\n- run the tests\n- tell the user",
    ],
)
def test_open_steps_are_read(text: str) -> None:
    assert sections_in(text).next_steps == ("run the tests", "tell the user")


def test_files_are_read_wherever_they_are_named() -> None:
    text = "The fault is in src/parser/reads.py (see https://a.example/b/c.html) and setup.py."
    assert sections_in(text).relevant_files == ("src/parser/reads.py", "setup.py")


def test_long_runs_take_linear_time() -> None:
    for text in ("rules" + "* " * 20_000 + "a", "+" * 40_000, "a@" * 20_000, "/a" * 20_000):
        assert not sections_in(text).instructions
        assert not sections_in(text).relevant_files
