"""Writing the ledger within its budget.

What was said comes first, then the facts by kind. When all of it does not fit, messages without
a rule or a fact are cut and then left out, the oldest first; rules, the first and the last
message stay longest, and what a tool printed or the assistant stated under a label stays longer
than ordinary messages. What is left out is counted. Every line of the ledger's own begins at the
margin; lines of quotes that look like one are set off.
"""

import math
from collections.abc import Sequence

from proxy.compaction import ledger_facts
from proxy.compaction.facts import Facts
from proxy.compaction.ledger_facts import TELLING, Section
from proxy.compaction.ledger_facts import line_price as _price
from proxy.compaction.measure import exact_tokens
from proxy.compaction.policy import LedgerPolicy
from proxy.compaction.quotes import PLAIN, RULE, STATED, Quote, cut, essence, guarded

MESSAGE_CAPS = (8000, 4000, 2000, 1000, 500, 250, 120)
"""Long pastes are cut to these lengths, largest first."""

FIRST_SHARE = 0.6
RULES_SHARE = 0.5
SHORT_CHARS = 400
"""A message with a rule or a fact is whole up to this length as long as anything is left out."""

QUOTES_TITLE = (
    "## Said to the assistant, word for word, answered unless marked open; it holds over other "
    "parts, newer over older"
)

_LEFT_OUT = "[{} messages left out]"
_SPARE_TOKENS = 8
_SLACK_TOKENS = 12
_TRIES = 6
_SAFETY = 0.97
_PER_TOKEN = 4


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
    sections = ledger_facts.sections(facts, policy)
    if most is not None and most > tokens:
        tokens = max(tokens, min(most, math.ceil(_essentials(quotes, sections))))
    room, best = float(tokens), ("", len(_distinct(quotes)) + ledger_facts.count(sections))
    for _ in range(_TRIES):
        text, out = _write_within(quotes, sections, room, policy.facts_share)
        size = exact_tokens(text)
        if size > tokens:
            if best[0]:
                break
            room *= _SAFETY * tokens / size
            continue
        if out <= best[1]:
            best = text, out
        if not out or tokens - size < _SLACK_TOKENS:
            break
        # Each line is judged alone, and all together may come to less.
        room += tokens - size
    return best[0], best[1] + facts.skipped


def _essentials(quotes: Sequence[Quote], sections: Sequence[Section]) -> float:
    return _cost_of_essential(quotes, STATED) + ledger_facts.cost(sections, TELLING) + _SPARE_TOKENS


def _write_within(
    quotes: Sequence[Quote], sections: Sequence[Section], tokens: float, facts_share: float
) -> tuple[str, int]:
    wanted = ledger_facts.cost(sections)
    # What was said comes first; a little room spares it a cut for a rounding.
    whole = _cost_of(quotes) + _SPARE_TOKENS
    essential = _cost_of_essential(quotes, STATED) + _SPARE_TOKENS
    most = max(tokens - whole, facts_share * (tokens - essential), 0.0)
    if wanted > most:
        rules = _cost_of_essential(quotes, RULE) + _SPARE_TOKENS
        most = max(most, min(ledger_facts.cost(sections, TELLING), tokens - rules))
    share = min(wanted, most)
    said, out = _write_quotes(quotes, tokens - share)
    told, facts_out = ledger_facts.write(sections, share, said)
    if out and wanted:
        # What one did not need in the end goes to the other.
        said, out = _write_quotes(quotes, tokens - exact_tokens(told) - 1)
    more = tokens - exact_tokens(said) - 1
    if facts_out and more > share:
        told, facts_out = ledger_facts.write(sections, more, said)
    return "\n\n".join(part for part in (said, told) if part), out + facts_out


def _head(number: int, quote: Quote, *, brief: bool = False) -> str:
    words = [str(number)]
    if quote.role != "user":
        words.append(f"{quote.role} message")
    elif not quote.answered:
        words.append("open")
    named = any(mark.startswith("rule: ") for mark in quote.marks)
    if quote.rank == RULE and not quote.is_over and not brief and not named:
        words.append("rule")
    words += quote.marks
    if quote.again and not brief:
        words.append("again in " + " ".join(map(str, quote.again[-3:])))
    return f"[{', '.join(words)}] "


def _cost_of(quotes: Sequence[Quote]) -> float:
    lines = (_head(number, q) + guarded(q.text) for number, q in _distinct(quotes))
    return _price(QUOTES_TITLE) + sum(map(_price, lines))


def _cost_of_essential(quotes: Sequence[Quote], least: int) -> float:
    """Return what messages of this rank and above cost at their shortest, and the ends."""
    lines = (
        _head(number, q, brief=True) + cut(q, SHORT_CHARS, SHORT_CHARS)
        for number, q in _distinct(quotes)
        if (q.rank >= least and not q.is_over) or number in {1, len(quotes)}
    )
    titles = _price(QUOTES_TITLE) + _price(_LEFT_OUT.format(len(quotes)))
    return titles + sum(map(_price, lines))


def _distinct(quotes: Sequence[Quote]) -> list[tuple[int, Quote]]:
    seen = set[str]()
    kept = []
    for number, quote in enumerate(quotes, 1):
        if quote.text not in seen:
            seen.add(quote.text)
            kept.append((number, quote))
    return kept


def _write_quotes(quotes: Sequence[Quote], tokens: float) -> tuple[str, int]:
    entries = _distinct(quotes)
    room = tokens - _price(QUOTES_TITLE)
    if not entries or room <= 0:
        return "", len(entries)
    last = entries[-1][0]
    lines: list[str] = []
    costs: list[float] = []
    for cap in MESSAGE_CAPS:
        shorter = [_line(number, q, cap, last, room) for number, q in entries]
        # Most lines are as they were with the larger cap, and are not measured again.
        costs = [
            costs[i] if lines and lines[i] == line else _price(line)
            for i, line in enumerate(shorter)
        ]
        lines = shorter
        if sum(costs) <= room:
            return "\n".join([QUOTES_TITLE, *lines]), 0
    lines = [_brief(number, q, last, room) for number, q in entries]
    return _chosen(entries, lines, list(map(_price, lines)), room)


def _chosen(
    entries: Sequence[tuple[int, Quote]], lines: list[str], costs: list[float], room: float
) -> tuple[str, int]:
    """Leave out what matters least until the rest fits."""
    spare = room - _price(_LEFT_OUT.format(len(entries)))
    kept = set[int]()
    for position in _by_worth(entries):
        if costs[position] <= spare:
            spare -= costs[position]
            kept.add(position)
        elif position == 0:
            lines[0] = _fitting(entries[0][1], _head(*entries[0]), spare)
            if lines[0]:
                spare -= _price(lines[0])
                kept.add(0)
    if not kept:
        return "", len(entries)
    written, gap = [QUOTES_TITLE], False
    for position, line in enumerate(lines):
        if position in kept:
            written.append(line)
        elif not gap:
            gap = True
            written.append(_LEFT_OUT.format(len(entries) - len(kept)))
    return "\n".join(written), len(entries) - len(kept)


def _by_worth(entries: Sequence[tuple[int, Quote]]) -> list[int]:
    def worth(position: int) -> tuple[int, int, int]:
        quote = entries[position][1]
        ends = 0 if position == 0 else 1 if position == len(entries) - 1 else 2
        if ends == 2 and quote.is_over:
            return 3, 0, -position
        return ends, -quote.rank, -position

    return sorted(range(len(entries)), key=worth)


def _line(number: int, quote: Quote, cap: int, last: int, room: float) -> str:
    keep = 0
    if quote.rank != PLAIN and not quote.is_over:
        keep = int(RULES_SHARE * room * _PER_TOKEN)
        cap = max(cap, SHORT_CHARS if len(quote.text) <= SHORT_CHARS else cap)
    if number == 1:
        cap = max(cap, _first_cap(quote, room, keep))
    elif number == last:
        cap *= 2
    return _head(number, quote) + guarded(cut(quote, cap, keep))


def _brief(number: int, quote: Quote, last: int, room: float) -> str:
    """Write a message as short as can be; a long one with rules is these alone."""
    head = _head(number, quote, brief=True)
    keep = int(RULES_SHARE * room * _PER_TOKEN) if quote.rank == RULE else 0
    if keep and number not in {1, last} and len(quote.text) > SHORT_CHARS:
        return head + guarded(essence(quote, keep))
    cap = MESSAGE_CAPS[-1] if quote.rank == PLAIN else SHORT_CHARS
    return head + guarded(cut(quote, 2 * cap if number == last else cap, keep))


def _first_cap(quote: Quote, tokens: float, keep: int) -> int:
    # Dense script costs up to a token a character, so the length is found by measuring.
    share = tokens * FIRST_SHARE
    cap = min(len(quote.text), math.ceil(share * _PER_TOKEN))
    while cap and exact_tokens(cut(quote, cap, keep)) > share:
        cap -= max(1, cap // 8)
    return cap


def _fitting(quote: Quote, head: str, tokens: float) -> str:
    cap = min(len(quote.text), max(0, int(tokens * _PER_TOKEN)))
    while cap:
        line = head + guarded(cut(quote, cap // 2, cap // 2))
        if _price(line) <= tokens:
            return line
        cap -= max(1, cap // 8)
    return ""
