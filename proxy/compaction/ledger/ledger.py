"""What code carries over from the originals, so that no model has to remember it.

What was said, word for word, and the hard facts of tool calls, results and answers. It is always
built from the original items that the client resent, never from an earlier ledger, so the tenth
compaction knows as much as the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.compaction.ledger import differences, ledger_text, quotes
from proxy.compaction.ledger import facts as fact_finding
from proxy.compaction.ledger.facts import Facts
from proxy.compaction.ledger.quotes import Quote
from proxy.compaction.policy import LedgerPolicy
from proxy.transcript import Content


@dataclass(frozen=True, slots=True)
class Ledger:
    """Facts of the replaced items, taken by code."""

    quotes: tuple[Quote, ...] = ()
    facts: Facts = field(default_factory=Facts)


def build(contents: Sequence[Content], replaced: Sequence[int]) -> Ledger:
    """Collect the ledger of the items at `replaced` from the decoded originals.

    Args:
        contents: every item up to the cut.
        replaced: indexes of those that the checkpoint stands for, ascending.
    """
    said = quotes.collect(contents, replaced)
    return Ledger(*differences.mark(said, fact_finding.collect(contents, replaced)))


def render(
    ledger: Ledger, tokens: int, most: int | None = None, policy: LedgerPolicy | None = None
) -> tuple[str, int]:
    """Write the ledger within its budget; return the text and how many entries were left out.

    Args:
        ledger: what `build` collected.
        tokens: the budget.
        most: the budget where rules and what was stated under a label need more.
        policy: how the kinds of facts share their room.
    """
    return ledger_text.write(ledger.quotes, ledger.facts, tokens, most, policy)
