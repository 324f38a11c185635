"""What stands behind a pasted log is kept, and is no rule."""

import pytest

from proxy.compaction.ledger import closings, quotes
from proxy.compaction.ledger.quotes import PLAIN, RULE, STATED
from tests import builders as b
from tests.agents import contents

LOG = "\n".join(f"2026-09-11T10:00:{n:02} INFO  [web] request {n} took 5ms" for n in range(30))
ORDER = "HARD CONSTRAINT: Do not push until Ann has seen it."


def _quote(text: str) -> quotes.Quote:
    (quote,) = quotes.collect(contents([b.user(text)]), [0])
    return quote


@pytest.mark.parametrize("said", [ORDER, f"Thanks.\n{ORDER}"])
def test_what_stands_behind_a_log_is_kept(said: str) -> None:
    quote = _quote(f"Here is the log of last night:\n{LOG}\n\n{said}")
    assert (quote.rank, quote.worth) == (STATED, RULE)
    assert ORDER in quotes.cut(quote, 120, 400)
    assert ORDER in quotes.essence(quote, 400, core=True)
    assert not quote.marks


@pytest.mark.parametrize(
    "text",
    [
        f"Here is the log:\n{LOG}\n{ORDER}",
        f"Here is the page:\n\nLots of text.\n\n{ORDER}",
        f"Here is the log:\n{LOG}\n\n> {ORDER}",
        f"Here is the log:\n{LOG}\n\n<mail>\n{ORDER}\n</mail>",
        f"Here is the log:\n```\n{LOG}\n\n{ORDER}\n```",
        f"Here is the log:\n{LOG}\n\n{ORDER}{' word' * 200}",
        "",
    ],
)
def test_other_ends_of_pastes_state_nothing(text: str) -> None:
    assert list(closings.statements(text, 1, 0)) == []


def test_it_marks_nothing_that_was_said_before() -> None:
    old, new = "Never spend more than $500 in total.", "RULE: Never spend more than $900 in total."
    pasted = f"Here is the log:\n{LOG}\n\n{new}"
    said = contents([b.user(old), b.assistant("ok"), b.user(pasted)])
    first, second = quotes.collect(said, [0, 2])
    assert first.marks == ()
    assert second.rank > PLAIN
