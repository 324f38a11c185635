"""Writing the ledger: within its budget, in order, by worth, everything left out counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger import ledger, ledger_facts, ledger_text
from proxy.compaction.ledger.commands import Command
from proxy.compaction.ledger.facts import Facts, Value
from proxy.compaction.ledger.ledger_messages import QUOTES_TITLE
from proxy.compaction.ledger.quotes import EXACT, RULE, Quote
from proxy.compaction.measure import exact_tokens
from proxy.transcript import Call, Content, Kind
from tests.strategies import texts

NO_FACTS = Facts()


def _rule(text: str) -> Quote:
    return Quote(text, answered=True, rank=RULE, keep=((0, len(text)),))


def test_the_whole_text() -> None:
    said = (
        Quote("fix it", answered=True),
        Quote("be brief", answered=False, role="developer"),
        Quote("Never push.", answered=True, rank=RULE),
        Quote("Never pull.", answered=True, rank=RULE, marks=("withdrawn in 5",), is_over=True),
        Quote("pull", answered=False, again=(7,)),
    )
    facts = Facts(
        ("b.py", "c d.py"),
        ("a.py",),
        (Command("make", "0", "2"), Command("test", "1"), Command("x", "error")),
        ("https://a.example",),
        (Value("n: 5", "tool", "n: 4"), Value("Root cause: Z9", "assistant")),
        ("error: y",),
        ("[image no longer visible: image/png]",),
        skipped=2,
    )
    assert ledger_text.write(said, facts, 1000) == (
        f"{QUOTES_TITLE}\n"
        "[1] fix it\n"
        "[2, developer message] be brief\n"
        "[3, rule] Never push.\n"
        "[4, withdrawn in 5] Never pull.\n"
        "[5, open, again in 7] pull\n\n"
        f"{ledger_facts.FACTS_TITLE}\n"
        "Commands that failed:\n- exit 1: test\n- error: x\n"
        "The assistant stated:\n- Root cause: Z9\n"
        "Tools printed:\n- n: 5 (superseded: 4)\n"
        'Files written: a.py\nFiles read: b.py, "c d.py"\n'
        "URLs:\n- https://a.example\n"
        "Error lines:\n- error: y\n"
        "Other commands:\n- make (earlier: exit 2)\n"
        "No longer visible:\n- [image no longer visible: image/png]",
        2,
    )
    assert ledger_text.write((), NO_FACTS, 1000) == ("", 0)


_QUOTES = st.lists(
    st.builds(
        Quote,
        texts(2500).filter(str.strip),
        st.booleans(),
        rank=st.integers(0, 3),
        marks=st.sampled_from([(), ("withdrawn in 9",)]),
        is_over=st.booleans(),
    ),
    max_size=12,
).map(tuple)
_ENTRIES = st.lists(texts(200).map(lambda t: " ".join(t.split())).filter(bool), max_size=12)
_FACTS = st.builds(
    Facts,
    _ENTRIES.map(tuple),
    _ENTRIES.map(tuple),
    st.lists(st.builds(Command, texts(200), st.sampled_from(["", "0", "1"])), max_size=9).map(
        tuple
    ),
    _ENTRIES.map(tuple),
    st.lists(st.builds(Value, texts(90), st.sampled_from(["tool", "assistant"]))).map(tuple),
    _ENTRIES.map(tuple),
)


@given(_QUOTES, _FACTS, st.integers(0, 3000))
def test_it_stays_within_its_budget_and_is_the_same_every_time(
    quotes: tuple[Quote, ...], facts: Facts, tokens: int
) -> None:
    text, omitted = ledger_text.write(quotes, facts, tokens)
    assert exact_tokens(text) <= tokens
    assert omitted >= 0
    assert (text, omitted) == ledger_text.write(quotes, facts, tokens)


@given(_QUOTES)
def test_with_room_every_message_is_there_word_for_word_and_in_order(
    quotes: tuple[Quote, ...],
) -> None:
    text, omitted = ledger_text.write(quotes, NO_FACTS, 100_000)
    assert omitted == 0
    at = 0
    for quote in dict.fromkeys(q.text for q in quotes):
        if "[" not in quote and "#" not in quote:
            at = text.index(quote, at) + len(quote)


@pytest.mark.parametrize("unit", ["word ", "修复错误", "A1"])
def test_a_first_message_of_any_script_survives_a_small_budget(unit: str) -> None:
    task = "TASK: " + unit * 2000
    said = (Quote(task, answered=False), Quote("later " * 40, answered=False))
    text, _ = ledger_text.write(said, NO_FACTS, 400)
    assert exact_tokens(text) <= 400
    assert task[:60] in text
    assert task[-30:] in text
    tiny, _ = ledger_text.write(said, NO_FACTS, 150)
    assert task[:20] in tiny


def test_the_last_message_is_shortened_half_as_much() -> None:
    said = tuple(Quote(letter * 12 + " " + "w " * 10_000, answered=True) for letter in "abcd")
    text, omitted = ledger_text.write(said, NO_FACTS, 4400)
    first, *middle, last = (len(part) for part in text.split("\n[")[1::2])
    assert omitted == 0
    assert first > last > 1.8 * max(middle)
    assert middle[0] == middle[1]


def test_too_many_messages_leave_the_first_and_the_newest() -> None:
    said = tuple(Quote(f"message number {n} " + "x " * 60, answered=True) for n in range(100))
    text, omitted = ledger_text.write(said, NO_FACTS, 500)
    kept = [n for n in range(100) if f"message number {n} " in text]
    assert 0 < omitted < 100
    assert kept == [0, *range(omitted + 1, 100)]
    assert f"[{omitted} messages left out]" in text


def test_rules_outlast_everything_but_the_first_and_the_last_message() -> None:
    plain = [Quote(f"message number {n} " + "x " * 60, answered=True) for n in range(60)]
    exact = Quote("The port is 8080.", answered=True, rank=EXACT)
    rules = [_rule(f"Never touch part {letter}.") for letter in "abcdef"]
    lifted = "Never pull. " + "y " * 60
    over = Quote(lifted, answered=True, rank=RULE, is_over=True, marks=("withdrawn in 9",))
    said = (plain[0], *rules, over, exact, *plain[1:])
    text, omitted = ledger_text.write(said, NO_FACTS, 225)
    assert omitted > 50
    assert all(rule.text in text for rule in rules)
    assert exact.text in text
    assert plain[-1].text in text
    assert "Never pull." not in text


def test_a_rule_inside_a_long_message_outlasts_the_rest_of_it() -> None:
    text = "start " + "p " * 10_000 + "Never push to main." + " q" * 10_000 + " end"
    at = text.index("Never")
    said = (
        Quote("the task", answered=True),
        Quote(text, answered=True, rank=RULE, keep=((at, at + 19),)),
        Quote("go on", answered=False),
    )
    written, omitted = ledger_text.write(said, NO_FACTS, 300)
    assert omitted == 0
    assert "Never push to main." in written
    assert "the task" in written
    assert "go on" in written


def test_rules_of_many_long_messages_outlast_all_else_of_them() -> None:
    said = [Quote("the task", answered=True)]
    for n in range(40):
        text = f"begin {n} " + "p " * 2000 + f"\nNever touch part {n}.\n" + "q " * 2000
        at = text.index("Never")
        said.append(Quote(text, answered=True, rank=RULE, keep=((at, at + 21),)))
    text, omitted = ledger_text.write((*said, Quote("go on", answered=False)), NO_FACTS, 900)
    assert omitted == 0
    assert all(f"Never touch part {n}." in text for n in range(40))
    assert "the task" in text
    assert "go on" in text


def test_rules_of_a_long_first_message_are_kept() -> None:
    rules = [f"Never touch part {n}." for n in range(20)]
    text = "The task. " + "".join(f"{'p ' * 700}\n{rule}\n" for rule in rules) + "The end."
    spans = tuple((text.index(rule), text.index(rule) + len(rule)) for rule in rules)
    said = (Quote(text, answered=True, rank=RULE, keep=spans), Quote("go on", answered=False))
    written, _ = ledger_text.write(said, NO_FACTS, 1000)
    assert all(rule in written for rule in rules)
    assert written.count("The task.") == written.count("The end.") == 1


def test_labelled_facts_come_before_ordinary_messages_and_after_rules() -> None:
    rules = [_rule(f"Never touch part {n}.") for n in range(8)]
    plain = [
        Quote(f"Please go on with the next step, number {n}.", answered=True) for n in range(40)
    ]
    values = tuple(Value(f"FACT: part {n} belongs to team {n}{n}.", "tool") for n in range(8))
    text, omitted = ledger_text.write((*rules, *plain), Facts(values=values), 320)
    assert all(rule.text in text for rule in rules)
    assert all(value.line in text for value in values)
    assert omitted > 25
    tight, _ = ledger_text.write((*rules, *plain), Facts(values=values), 190)
    assert all(rule.text in tight for rule in rules)


def test_what_must_not_be_lost_may_take_more_and_nothing_else_does() -> None:
    rules = tuple(_rule(f"Never touch part number {n} of it.") for n in range(20))
    values = tuple(Value(f"FACT: part {n} belongs to team {n}{n}.", "tool") for n in range(5))
    said = (*rules, Quote("go on", answered=True))
    short, out = ledger_text.write(said, Facts(values=values), 150)
    assert out > 5
    text, out = ledger_text.write(said, Facts(values=values), 150, 600)
    assert out == 0
    assert exact_tokens(text) < 500
    plain = tuple(Quote(f"message {n} " + "x " * 30, answered=True) for n in range(40))
    assert ledger_text.write(plain, NO_FACTS, 150, 600) == ledger_text.write(plain, NO_FACTS, 150)
    assert len(short) < len(text)


def test_facts_and_messages_share_what_is_too_little_for_both() -> None:
    said = tuple(Quote(f"message number {n} " + "x " * 60, answered=True) for n in range(100))
    facts = Facts(files_read=tuple(f"src/module_{n:03}/file.py" for n in range(300)))
    text, omitted = ledger_text.write(said, facts, 1000)
    assert exact_tokens(text) <= 1000
    assert omitted == 400 - text.count("message number") - text.count("src/module_")
    assert text.count("src/module_") > 30
    assert text.count("message number") > 5
    assert "src/module_299" in text


def test_failed_commands_go_before_others() -> None:
    commands = tuple(
        Command(f"run the part number {n} of all", "1" if n % 10 == 0 else "0") for n in range(60)
    )
    text, omitted = ledger_text.write((), Facts(commands=commands), 200)
    assert text.count("exit 1") == 6
    assert 0 < text.count("run the part") < 60
    assert omitted == 60 - text.count("run the part")


def test_a_changed_value_outlasts_newer_ones() -> None:
    values = [Value("coverage: 84", "tool", "coverage: 71")]
    values += [Value(f"key {n} of many others: {n}{n}", "tool") for n in range(60)]
    text, omitted = ledger_text.write((), Facts(values=tuple(values)), 120)
    assert omitted > 0
    assert "- coverage: 84 (superseded: 71)" in text
    assert "key 59 " in text
    assert "key 0 " not in text


def test_a_line_of_another_shape_is_told_whole_when_it_is_replaced() -> None:
    facts = Facts(values=(Value("FACT: The owner is Bo.", "tool", "FACT: The owner is Ann Lee."),))
    text, _ = ledger_text.write((), facts, 200)
    assert "- FACT: The owner is Bo. (superseded: FACT: The owner is Ann Lee.)" in text


def test_what_the_messages_hold_is_not_said_again() -> None:
    said = (Quote("Read https://a.example/x", answered=True),)
    text, _ = ledger_text.write(said, Facts(urls=("https://a.example/x",)), 500)
    assert text.count("https://a.example/x") == 1


def test_many_messages_are_written_in_linear_time() -> None:
    said = tuple(Quote(f"message {n} " + "word " * 40, answered=True) for n in range(4000))
    text, omitted = ledger_text.write(said, NO_FACTS, 1500)
    assert exact_tokens(text) <= 1500
    assert 0 < omitted < 4000
    assert "message 0 " in text
    assert "message 3999 " in text


@pytest.mark.parametrize("tokens", [80, 100, 150, 200, 400])
def test_what_was_said_comes_before_what_tools_were_asked(tokens: int) -> None:
    task = (
        "The nightly import drops rows since Tuesday. Find out why. Never touch the database "
        "schema, and keep the log format as it is."
    )
    contents = [Content("user", Kind.USER, (task,))]
    for number in range(13):
        arguments = f'{{"command":"python import.py orders_{number}.csv"}}'
        call = Call(f"c{number}", "run", arguments)
        printed = "importing orders.csv ... written=48210 skipped=0\nERROR row 12 bad\n"
        contents += [
            Content("assistant", Kind.ASSISTANT, ("Looking.",), calls=(call,)),
            Content("tool", Kind.RESULT, (printed,), answers=call.id),
        ]
    text, _ = ledger.render(ledger.build(contents, tuple(range(len(contents)))), tokens)
    assert task in text
