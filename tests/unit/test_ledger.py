"""What code carries over: quotes word for word, and files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import JsonObject
from proxy.compaction import ledger
from proxy.compaction.ledger import Ledger, Quote
from proxy.compaction.measure import text_tokens
from proxy.transcript import Binary, Call
from tests.builders import assistant, call, developer, result, text_part, user
from tests.strategies import IMAGE, contents_of, conversations, texts, to_transcript


def _build(*messages: JsonObject, replaced: list[int] | None = None) -> Ledger:
    contents = contents_of(to_transcript(messages).items)
    return ledger.build(contents, replaced if replaced is not None else [*range(len(contents))])


def test_users_and_mid_transcript_system_texts_are_quoted_in_order() -> None:
    built = _build(
        user(" fix it "),
        assistant(None, [call("1", "run", "{}")]),
        result("1", "ok"),
        assistant("done"),
        developer("be brief"),
        user([text_part("and "), text_part("test"), IMAGE]),
    )
    assert built.quotes == (
        Quote(" fix it ", answered=True),
        Quote("be brief", answered=False, role="developer"),
        Quote("and test\n[image no longer visible: image/png, 280x140]", answered=False),
    )


@pytest.mark.parametrize(
    ("later", "answered"),
    [
        ([assistant("yes")], True),
        ([assistant(None, [call("1", "run", "{}")]), result("1", "x")], False),
        ([assistant(None, [call("1", "run", "{}")]), result("1", "x"), assistant("so")], True),
        ([user("more"), assistant("yes")], False),
        ([assistant("  ")], False),
        ([assistant("let me look", [call("1", "run", "{}")]), result("1", "x")], False),
        ([], False),
    ],
)
def test_a_message_is_answered_by_a_text_before_the_next_one(
    later: list[JsonObject], answered: bool
) -> None:
    assert _build(user("a"), *later).quotes[0].answered is answered


def test_only_replaced_items_are_in_it() -> None:
    messages = [user("a"), assistant("b", [call("1", "read", {"path": "x.py"})]), user("c")]
    assert _build(*messages, replaced=[2]) == Ledger((Quote("c", answered=False),))


def test_files_are_read_or_written_and_the_newest_mention_stands_last() -> None:
    def uses(name: str, path: str) -> JsonObject:
        return assistant(None, [call("1", name, {"path": path})])

    built = _build(
        user("a"),
        uses("read_file", "a.py"),
        uses("read_file", "b.py"),
        uses("read_file", "c.py"),
        uses("read_file", "a.py"),
        uses("edit_file", "b.py"),
    )
    assert built.files_read == ("c.py", "a.py")
    assert built.files_written == ("b.py",)


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        ('{"path": " a.py "}', ["a.py"]),
        ('{"file_path": "a", "target_file": "b", "notebook_path": "c"}', ["a", "b", "c"]),
        ('{"paths": ["a", "b"], "edits": [{"filePath": "c"}]}', ["a", "b", "c"]),
        ('{"pattern": "a", "content": "b", "filter": "c"}', []),
        ('{"path": "two\\nlines"}', []),
        ('{"path": ""}', []),
        ('{"input": "*** Begin Patch\\n*** Update File: src/a.py\\n+x"}', ["src/a.py"]),
        (
            "*** Begin Patch\n*** Add File: new.md\n+x\n*** Delete File: old.md",
            ["new.md", "old.md"],
        ),
        ('{"path": "cut off', []),
        ('"just text"', []),
        ('{"path": "' + "x" * 301 + '"}', []),
    ],
)
def test_files_named_by_a_call(arguments: str, files: list[str]) -> None:
    assert ledger.files_of(Call("1", "tool", arguments)) == files


@pytest.mark.parametrize(
    ("binary", "line"),
    [
        (Binary("image", "image/png", 3, 4), "[image no longer visible: image/png, 3x4]"),
        (Binary("audio", "wav"), "[audio no longer visible: wav]"),
        (Binary("file"), "[file no longer visible: unknown type]"),
    ],
)
def test_a_binary_part_becomes_a_line(binary: Binary, line: str) -> None:
    assert ledger.describe_binary(binary) == line


def test_cutting_the_middle_keeps_both_ends() -> None:
    text = "a" * 60 + "b" * 60
    assert ledger.cut_middle(text, 30) == "a" * 20 + "\n[… 90 characters left out …]\n" + "b" * 10
    assert ledger.cut_middle(text, 120) == text


def test_the_whole_rendering() -> None:
    book = Ledger(
        (Quote("fix it", answered=True), Quote("be brief", answered=False, role="developer")),
        ("b.py", "c.py"),
        ("a.py",),
    )
    assert ledger.render(book, 1000) == (
        "## What was said to the assistant, verbatim, oldest first\n"
        "[1, answered]\nfix it\n"
        "[2, developer message]\nbe brief\n\n"
        "## Files named in tool calls\nwritten: a.py\nread: b.py, c.py",
        0,
    )
    assert ledger.render(Ledger(), 1000) == ("", 0)


@given(conversations(odd=True, max_chars=1500), st.integers(0, 3000))
def test_a_rendering_stays_within_its_budget(messages: list[JsonObject], tokens: int) -> None:
    book = _build(*messages)
    text, omitted = ledger.render(book, tokens)
    assert text_tokens(text) <= tokens
    entries = len(book.quotes) + len(book.files_read) + len(book.files_written)
    assert 0 <= omitted <= entries
    assert omitted == entries or text


@given(conversations(odd=True, max_chars=1500))
def test_with_room_every_message_is_there_word_for_word(messages: list[JsonObject]) -> None:
    book = _build(*messages)
    text, omitted = ledger.render(book, 100_000)
    assert omitted == 0
    at = 0
    for quote in book.quotes:
        at = text.index(quote.text, at) + len(quote.text)
    assert all(path in text for path in (*book.files_read, *book.files_written))


@given(
    st.lists(texts(2500).filter(str.strip), min_size=1, max_size=12),
    st.integers(150, 3000),
)
def test_the_first_message_is_verbatim_when_it_takes_at_most_its_share(
    said: list[str], tokens: int
) -> None:
    quotes = tuple(Quote(text, answered=True) for text in said)
    text, _ = ledger.render(Ledger(quotes), tokens)
    if text_tokens(said[0]) <= tokens * ledger.FIRST_SHARE - 20:
        assert f"[1, answered]\n{said[0]}" in text
    else:
        assert f"[1, answered]\n{said[0][:10]}" in text


@pytest.mark.parametrize("unit", ["word ", "修复错误", "A1"])
def test_a_first_message_of_any_script_survives_a_small_budget(unit: str) -> None:
    task = "TASK: " + unit * 2000
    quotes = (Quote(task, answered=False), Quote("later " * 40, answered=False))
    text, _ = ledger.render(Ledger(quotes), 400)
    assert text_tokens(text) <= 400
    assert task[:60] in text
    assert task[-30:] in text
    tiny, _ = ledger.render(Ledger(quotes), 150)
    assert task[:20] in tiny


def test_the_last_message_is_shortened_half_as_much() -> None:
    quotes = tuple(Quote(letter * 12 + " " + "w " * 10_000, answered=True) for letter in "abcd")
    text, omitted = ledger.render(Ledger(quotes), 4400)
    first, *middle, last = (len(part) for part in text.split("\n[")[1::2])
    assert omitted == 0
    assert first > last > 1.8 * max(middle)
    assert middle[0] == middle[1]


def test_too_many_messages_leave_the_first_and_the_newest() -> None:
    quotes = tuple(Quote(f"message number {n} " + "x " * 60, answered=True) for n in range(100))
    text, omitted = ledger.render(Ledger(quotes), 500)
    kept = [n for n in range(100) if f"message number {n} " in text]
    assert 0 < omitted < 100
    assert kept == [0, *range(omitted + 1, 100)]
    assert f"[{omitted} messages left out]" in text


def test_long_pastes_are_shortened_before_a_message_is_left_out() -> None:
    quotes = (
        Quote("the task", answered=True),
        Quote("start " + "p" * 20_000 + " end", answered=True),
        Quote("the last rule", answered=False),
    )
    text, omitted = ledger.render(Ledger(quotes), 700)
    assert omitted == 0
    assert "start ppp" in text
    assert "ppp end" in text
    assert "the task" in text
    assert "the last rule" in text


@given(st.integers(0, 2000))
def test_files_take_at_most_a_quarter(tokens: int) -> None:
    files = tuple(f"src/module_{n:03}/file.py" for n in range(300))
    text, omitted = ledger.render(Ledger(files_read=files[:150], files_written=files[150:]), tokens)
    # A long list is judged by samples.
    assert text_tokens(text) <= 1.06 * (tokens // 4)
    assert omitted == 300 - text.count("src/module_")


def test_of_many_files_the_newest_are_named() -> None:
    files = tuple(f"src/module_{n:03}/file.py" for n in range(300))
    text, omitted = ledger.render(Ledger(files_read=files), 1000)
    assert text_tokens(text) <= 1.06 * 250
    assert files[-1] in text
    assert files[0] not in text
    assert omitted == 300 - text.count("src/module_")


def test_rebuilding_from_the_originals_loses_nothing_over_generations() -> None:
    messages = [user(f"rule {n}: keep it") for n in range(20)]
    first, second = _build(*messages[:10]), _build(*messages)
    assert second.quotes[:10] == first.quotes


def test_arguments_that_are_not_text_are_read_too() -> None:
    message = assistant(None, [call("1", "write", codec.dumps({"path": ["a", "b"]}).decode())])
    assert _build(user("x"), message).files_written == ("a", "b")


def test_many_messages_are_dropped_without_writing_them_again_for_each() -> None:
    """The number of renderings grows with the logarithm of the messages, not with the messages."""
    quotes = tuple(Quote(f"message {n} " + "word " * 40, answered=True) for n in range(4000))
    text, omitted = ledger.render(Ledger(quotes), 1500)
    assert text_tokens(text) <= 1500
    assert 0 < omitted < 4000
    assert "message 0 " in text
    assert "message 3999 " in text


def test_arguments_nested_beyond_reason_name_no_files() -> None:
    deep = '{"path":' * 900 + '"a"' + "}" * 900
    assert ledger.files_of(Call("1", "read", deep)) == []
