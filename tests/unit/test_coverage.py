"""What a summary may claim, and what it cannot lose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction import coverage, quotes
from proxy.compaction.checkpoint import Sections
from proxy.compaction.coverage import cover
from proxy.compaction.quotes import Quote
from tests.builders import assistant, user
from tests.strategies import contents_of, texts, to_transcript


def _said(*texts: str) -> tuple[Quote, ...]:
    messages = [m for text in texts for m in (user(text), assistant("ok"))]
    contents = contents_of(to_transcript(messages).items)
    return quotes.collect(contents, range(len(contents)))


@pytest.mark.parametrize(
    ("entry", "instruction"),
    [
        ("Never push to main.", "Never push to main."),
        ("never  push, to MAIN", "Never push to main."),
        ("push to main", "Never push to main."),
        ("main. Always test.", "Never push to main. Always test."),
        ("Always test", "Always test."),
    ],
)
def test_instructions_are_whole_sentences_of_what_was_said(entry: str, instruction: str) -> None:
    found = cover(Sections(instructions=(entry,)), _said("Never push to main. Always test."), None)
    assert found.instructions == (instruction,)
    assert found.discoveries == ()


@pytest.mark.parametrize("entry", ["Always push.", "The user allows pushing.", "Run as root."])
def test_what_quotes_nobody_becomes_a_discovery(entry: str) -> None:
    found = cover(Sections(instructions=(entry,)), _said("Never push to main."), None)
    assert found.instructions == ()
    assert found.discoveries == (entry,)


def test_what_was_pasted_is_no_instruction() -> None:
    said = _said("Summarise this:\n```\nRun as root.\n```")
    found = cover(Sections(instructions=("Run as root.",)), said, None)
    assert found.instructions == ()


def test_a_withdrawn_or_replaced_rule_is_no_instruction() -> None:
    said = _said(
        "Never push to main.",
        "The budget is $300. Always test.",
        "You may push to main now.",
        "The budget is $500.",
    )
    stated = ("Never push to main.", "The budget is $300.", "Always test.", "The budget is $500.")
    previous = Sections(instructions=stated)
    for summary in (Sections(instructions=stated), Sections()):
        found = cover(summary, said, previous)
        assert found.instructions == ("Always test.", "The budget is $500.")


def test_a_rule_stated_again_after_its_withdrawal_holds() -> None:
    said = _said("Never push to main.", "You may push to main now.", "So: never push to main.")
    found = cover(Sections(instructions=("never push to main",)), said, None)
    assert found.instructions == ("So: never push to main.",)


def test_what_the_summary_dropped_is_put_back() -> None:
    said = _said("Never push to main.", "Use tabs.")
    previous = Sections(
        instructions=("Never push to main.",),
        next_steps=("write the migration script", "run the unit tests", "tell the user"),
        relevant_files=("src/a.py", "src/b.py"),
    )
    summary = Sections(
        instructions=("Use tabs.",),
        accomplished=("wrote the whole migration script",),
        current_state="ready to run the unit tests",
        relevant_files=("src/b.py", "src/c.py"),
    )
    found = cover(summary, said, previous)
    assert found.instructions == ("Use tabs.", "Never push to main.")
    assert found.next_steps == ("tell the user",)
    assert found.relevant_files == ("src/a.py", "src/b.py", "src/c.py")


def test_nothing_is_put_back_twice() -> None:
    said = _said("Never push to main.")
    full = Sections(instructions=("Never push to main.",), relevant_files=("a.py",), goal="g")
    assert cover(full, said, full) == full


def test_files_do_not_grow_without_end() -> None:
    previous = Sections(relevant_files=tuple(f"src/{n:03}.py" for n in range(500)))
    found = cover(Sections(relevant_files=("src/new.py",)), (), previous)
    assert len(found.relevant_files) == coverage.MAX_FILES + 1
    assert found.relevant_files[0] == "src/440.py"


@given(st.lists(texts(300), max_size=4).map(tuple), st.lists(texts(300), max_size=4))
def test_instructions_are_nothing_but_words_that_were_said(
    entries: tuple[str, ...], said: list[str]
) -> None:
    quoted = _said(*said)
    summary = Sections(instructions=entries)
    found = cover(summary, quoted, None)
    assert set(found.discoveries) <= set(summary.instructions)
    for instruction in found.instructions:
        words = coverage.squash(instruction)
        assert any(words in coverage.squash(quote.text) for quote in quoted)
    assert cover(Sections(instructions=entries), (), None).instructions == ()
