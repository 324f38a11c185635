"""Writing what was said: in order, by worth, each line measured once."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger.ledger_messages import QUOTES_TITLE, Messages
from proxy.compaction.ledger.quotes import EXACT, RULE, STATED, Quote
from proxy.compaction.measure import exact_tokens
from tests.strategies import texts

_QUOTES = st.lists(
    st.builds(
        Quote,
        texts(2500).filter(str.strip),
        st.booleans(),
        rank=st.integers(0, 3),
        is_over=st.booleans(),
    ),
    max_size=12,
)


@given(_QUOTES, st.integers(0, 2000))
def test_it_stays_within_its_room_and_says_what_is_left_out(
    quotes: list[Quote], tokens: int
) -> None:
    said = Messages(quotes)
    text, out = said.write(tokens)
    # Lines are judged one by one, and all together once more by the ledger.
    assert exact_tokens(text) <= 1.3 * tokens + 1
    assert 0 <= out <= len({quote.text for quote in quotes})
    assert (f"[{out} messages left out]" in text) == bool(text and out)


@given(_QUOTES)
def test_the_whole_fits_into_what_it_costs(quotes: list[Quote]) -> None:
    said = Messages(quotes)
    cost = said.cost(10**9)
    _, out = said.write(cost + 0.01)
    assert out == 0
    assert said.essentials(RULE) <= said.essentials(STATED)


def test_a_cost_above_what_matters_need_not_be_exact() -> None:
    said = Messages([Quote("word " * 4000, answered=True)])
    assert said.cost(100) > 100
    assert said.cost(10_000) >= 5000


def test_an_open_request_outlasts_answered_ones_and_facts_but_no_rule() -> None:
    plain = [Quote(f"message number {n} " + "x " * 40, answered=True) for n in range(30)]
    asked = Quote("And what about the reader? " + "y " * 40, answered=False)
    exact = Quote("The port is 8080. " + "z " * 40, answered=True, rank=EXACT)
    rule = Quote("Never push. " + "w " * 40, answered=True, rank=RULE)
    said = Messages([plain[0], asked, exact, rule, *plain[1:]])
    gone: dict[str, int] = {}
    for tokens in range(400, 60, -5):
        text, _ = said.write(tokens)
        for name in ("And what about", "The port is", "Never push", "number 10 "):
            if name not in text:
                gone.setdefault(name, tokens)
    assert gone["number 10 "] > gone["The port is"] > gone["And what about"] > gone["Never push"]


def test_where_rules_need_the_room_only_they_are_left_of_messages() -> None:
    before = "Look at the loader, then at the parser, and tell me what you find there. "
    rules = [f"Never touch file {n}." for n in range(20)]
    quotes = [
        Quote(
            f"{before}{rule} {before}",
            answered=True,
            rank=RULE,
            keep=((0, 2 * len(before) + len(rule)),),
            core=((len(before), len(before) + len(rule)),),
        )
        for rule in rules
    ]
    text, out = Messages(quotes).write(400)
    assert all(rule in text for rule in rules)
    assert out == 0
    text, _ = Messages(quotes).write(2000)
    assert text.count(before.strip()) == 2 * len(rules)


def test_where_room_is_short_an_echo_goes_before_the_rule_that_it_repeats() -> None:
    rules = [f"Never touch file {n} of the loader." for n in range(12)]
    told = [Quote(r, answered=True, rank=RULE, core=((0, len(r)),)) for r in rules]
    echo = Quote("Go on. " + rules[0], answered=True, rank=RULE, is_echo=True)
    echoes = [replace(echo, text=f"{echo.text} {n}") for n in range(40)]
    text, out = Messages([*told, *echoes]).write(260)
    assert all(rule in text for rule in rules)
    assert out > 0


def test_nothing_said_is_nothing_written() -> None:
    assert Messages([]).write(100) == ("", 0)
    text, out = Messages([Quote("a", answered=True)]).write(100)
    assert (text, out) == (f"{QUOTES_TITLE}\n[1] a", 0)
