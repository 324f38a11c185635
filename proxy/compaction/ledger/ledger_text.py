"""Writing the ledger within its budget.

What was said comes first, then the facts by kind. When all of it does not fit, what a tool printed
or the assistant stated under a label stays longer than ordinary messages, and rules longer than
that. What is left out is counted. Every line of the ledger's own begins at the margin; lines of
quotes that look like one are set off.
"""

import math
from collections.abc import Sequence

from proxy.compaction.ledger import ledger_facts
from proxy.compaction.ledger.facts import Facts
from proxy.compaction.ledger.ledger_facts import TELLING, Section
from proxy.compaction.ledger.ledger_messages import Messages
from proxy.compaction.ledger.quotes import RULE, STATED, Quote
from proxy.compaction.measure import exact_tokens
from proxy.compaction.policy import LedgerPolicy

_SPARE_TOKENS = 8
_SLACK_TOKENS = 12
_TRIES = 6
_SAFETY = 0.97


def write(
    quotes: Sequence[Quote],
    facts: Facts,
    tokens: int,
    most: int | None = None,
    policy: LedgerPolicy | None = None,
) -> tuple[str, int]:
    """Write quotes and facts within a budget; return the text and how many entries are left out.

    Args:
        quotes: what was said.
        facts: what was found.
        tokens: the budget.
        most: the budget where rules and what was stated under a label need more.
        policy: how facts share their room.
    """
    policy = policy or LedgerPolicy()
    said, sections = Messages(quotes), ledger_facts.sections(facts, policy)
    if most is not None and most > tokens:
        needed = said.essentials(STATED) + ledger_facts.cost(sections, TELLING) + _SPARE_TOKENS
        tokens = max(tokens, min(most, math.ceil(needed)))
    best, out = "", len(said.entries) + ledger_facts.count(sections)
    room = float(tokens)
    for _ in range(_TRIES):
        text, omitted = _write_within(said, sections, room, policy.facts_share)
        size = exact_tokens(text)
        if size <= tokens:
            if omitted <= out:
                best, out = text, omitted
            if not omitted or room > tokens or tokens - size < _SLACK_TOKENS:
                break
            # Each line is judged alone, and all together may come to less.
            room = tokens + (tokens - size)
        elif room > tokens + _SLACK_TOKENS:
            room -= (room - tokens) / 2
        elif room > tokens:
            break
        else:
            room *= _SAFETY * tokens / size
    return best, out + facts.skipped


def _write_within(
    said: Messages, sections: Sequence[Section], tokens: float, facts_share: float
) -> tuple[str, int]:
    wanted = ledger_facts.cost(sections)
    # What was said comes first; a little room spares it a cut for a rounding.
    whole = said.cost(tokens) + _SPARE_TOKENS
    essential = said.essentials(STATED) + _SPARE_TOKENS
    most = max(tokens - whole, facts_share * (tokens - essential), 0.0)
    if wanted > most:
        rules = said.essentials(RULE) + _SPARE_TOKENS
        most = max(most, min(ledger_facts.cost(sections, TELLING), tokens - rules))
    share = min(wanted, most)
    quoted, out = said.write(tokens - share)
    told, facts_out = ledger_facts.write(sections, share, quoted)
    if out and wanted:
        # What one did not need in the end goes to the other.
        quoted, out = said.write(tokens - exact_tokens(told) - 1)
    more = tokens - exact_tokens(quoted) - 1
    if facts_out and more > share:
        told, facts_out = ledger_facts.write(sections, more, quoted)
    return "\n\n".join(part for part in (quoted, told) if part), out + facts_out
