"""Writing facts: by weight, what must not be lost first, nothing told twice, all counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger import ledger_facts
from proxy.compaction.ledger.commands import Command
from proxy.compaction.ledger.facts import Facts, Value
from proxy.compaction.ledger.ledger_facts import TELLING
from proxy.compaction.measure import exact_tokens
from proxy.compaction.policy import LedgerPolicy
from tests.strategies import texts

_LINES = st.lists(texts(200).map(lambda t: " ".join(t.split())).filter(bool), max_size=12)
_FACTS = st.builds(
    Facts,
    _LINES.map(tuple),
    _LINES.map(tuple),
    st.lists(st.builds(Command, texts(200), st.sampled_from(["", "0", "1"])), max_size=9).map(
        tuple
    ),
    _LINES.map(tuple),
    st.lists(st.builds(Value, texts(90), st.sampled_from(["tool", "assistant"]))).map(tuple),
    _LINES.map(tuple),
)
_WEIGHTS = st.builds(
    LedgerPolicy,
    failed_commands=st.integers(0, 100),
    tool_values=st.integers(0, 100),
    files_read=st.integers(0, 100),
    urls=st.integers(0, 100),
)


def _write(facts: Facts, tokens: float, said: str = "", **weights: int) -> tuple[str, int]:
    return ledger_facts.write(ledger_facts.sections(facts, LedgerPolicy(**weights)), tokens, said)


@given(_FACTS, _WEIGHTS, st.integers(0, 1500))
def test_it_stays_near_its_room_and_counts_what_is_left_out(
    facts: Facts, policy: LedgerPolicy, tokens: int
) -> None:
    found = ledger_facts.sections(facts, policy)
    text, omitted = ledger_facts.write(found, tokens, "")
    # The whole is judged by samples; the ledger as a whole is measured once more.
    assert exact_tokens(text) <= 1.2 * tokens + 1
    assert 0 <= omitted <= ledger_facts.count(found)
    if not text:
        assert omitted == ledger_facts.count(found)


def test_a_weight_of_nothing_leaves_a_kind_out_and_counts_it() -> None:
    facts = Facts(files_read=("a.py", "b.py"), urls=("https://a.example",))
    text, omitted = _write(facts, 1000, files_read=0)
    assert "a.py" not in text
    assert "https://a.example" in text
    assert omitted == 2


def test_weights_divide_what_is_too_little() -> None:
    facts = Facts(
        files_read=tuple(f"src/read_{n:03}/file.py" for n in range(200)),
        files_written=tuple(f"src/made_{n:03}/file.py" for n in range(200)),
    )
    even, _ = _write(facts, 600, files_read=10, files_written=10)
    assert abs(even.count("read_") - even.count("made_")) <= 2
    more, _ = _write(facts, 600, files_read=30, files_written=10)
    assert more.count("read_") > 2 * more.count("made_")


@pytest.mark.parametrize("by", ["tool", "assistant"])
def test_what_was_stated_under_a_label_comes_before_all_else(by: str) -> None:
    told = [Value(f"FACT: part {n} belongs to team {n}{n}.", by) for n in range(6)]
    other = [Value(f"key {n} of many others: {n}{n}", by) for n in range(70)]
    facts = Facts(
        values=(*told, *other),
        files_read=tuple(f"src/module_{n:03}/file.py" for n in range(300)),
        commands=tuple(Command(f"make part {n}", "1") for n in range(60)),
    )
    found = ledger_facts.sections(facts, LedgerPolicy())
    text, _ = ledger_facts.write(found, ledger_facts.cost(found, TELLING), "")
    assert all(value.line in text for value in told)
    assert "key" not in text


def test_what_tells_by_itself_that_it_matters_comes_first() -> None:
    told = Value("We keep the old queue until the merge.", "tool", telling=True)
    other = [Value(f"key {n} of many others: {n}{n}", "tool") for n in range(70)]
    text, omitted = _write(Facts(values=(told, *other)), 120)
    assert told.line in text
    assert omitted > 50


def test_what_an_output_holds_besides_crowds_out_no_path_and_no_label() -> None:
    told = Value("FACT: The owner is Ann.", "tool", telling=True)
    other = [Value(f"MAX_OF_{n} = {n}{n}", "tool") for n in range(70)]
    paths = tuple(f"src/area_{n}/module_{n}.py" for n in range(20))
    text, _ = _write(Facts(files_read=paths, values=(told, *other)), 330)
    assert told.line in text
    assert all(path in text for path in paths)


def test_how_and_where_a_command_ended() -> None:
    commands = (
        Command("make", "2", "error", "/srv/a"),
        Command("make", "error", "2", "/srv/b"),
        Command("test", "0", "1"),
        Command("ls", ""),
    )
    text, _ = _write(Facts(commands=commands), 500)
    assert "- exit 2: make (in /srv/a) (earlier: error)" in text
    assert "- error: make (in /srv/b) (earlier: exit 2)" in text
    assert "- test (earlier: exit 1)" in text
    assert "- ls\n" in text + "\n"


def test_an_entry_of_its_own_is_not_taken_for_told() -> None:
    facts = Facts(files_read=("a.py", "b.py", "log"), urls=("https://a.example/x",))
    text, _ = _write(facts, 500, said="See data.py, b.py and logs on https://a.example/x/y")
    assert "Files read: a.py, log" in text
    assert "https://a.example/x" in text


def test_that_a_file_was_written_is_told_even_if_the_user_named_it() -> None:
    text, _ = _write(Facts(files_written=("src/a.py",)), 500, said="Mend src/a.py")
    assert "Files written: src/a.py" in text


def test_a_url_within_a_value_is_told_once() -> None:
    url = "https://staging.example/v2"
    facts = Facts(values=(Value(f"FACT: staging is {url}.", "tool"),), urls=(url,))
    text, omitted = _write(facts, 500)
    assert text.count(url) == 1
    assert omitted == 0
