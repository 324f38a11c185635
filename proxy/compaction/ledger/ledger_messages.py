"""Writing what was said within its budget, numbered, in order.

When not all of it fits, messages without a rule or a fact are cut and then left out, the oldest
first; rules, the first and the last message stay longest. What is left out is counted.
"""

import math
from collections.abc import Sequence

from proxy.compaction.guard import guarded
from proxy.compaction.ledger.ledger_facts import line_price
from proxy.compaction.ledger.quotes import EXACT, PLAIN, RULE, STATED, Quote, cut, essence, noted
from proxy.compaction.measure import CHARS_PER_TOKEN, exact_tokens

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
_OPEN = (EXACT + STATED) / 2
"""What an unanswered message is worth at least."""

_PER_TOKEN = int(CHARS_PER_TOKEN)


class Messages:
    """What was said, to be written in several lengths; a line is measured once."""

    def __init__(self, quotes: Sequence[Quote]) -> None:
        """Take the quotes in order; each text is written where it was said first."""
        first: dict[str, tuple[int, Quote]] = {}
        for number, quote in enumerate(quotes, 1):
            first.setdefault(quote.text, (number, quote))
        self.entries = list(first.values())
        self._lengths = [len(quote.text) for _, quote in self.entries]
        self._last = self.entries[-1][0] if self.entries else 0
        self._prices: dict[str, float] = {}
        self._essentials: dict[int, float] = {}
        self._title = line_price(QUOTES_TITLE)

    def cost(self, enough: float) -> float:
        """Return what all of it costs, tokens; something above `enough` when it is more."""
        least = self._least(max(self._lengths, default=0))
        if least > enough:
            return least
        lines = (_head(number, q) + guarded(noted(q)) for number, q in self.entries)
        return self._title + sum(map(self._price, lines))

    def essentials(self, least: int) -> float:
        """Return what messages of a rank and above cost at their shortest, and the ends."""
        if least not in self._essentials:
            lines = (
                self._tersest(number, q)
                for number, q in self.entries
                if (_worth(q) >= least and not (q.is_over or q.is_echo))
                or number in {1, self._last}
            )
            titles = self._title + line_price(_LEFT_OUT.format(len(self.entries)))
            self._essentials[least] = titles + sum(map(self._price, lines))
        return self._essentials[least]

    def write(self, tokens: float) -> tuple[str, int]:
        """Write within `tokens`; return the text and how many messages are left out."""
        room = tokens - self._title
        if not self.entries or room <= 0:
            return "", len(self.entries)
        for cap in MESSAGE_CAPS:
            if self._least(cap) > room:
                continue
            lines = [self._line(number, q, cap, room) for number, q in self.entries]
            if sum(map(self._price, lines)) <= room:
                return "\n".join([QUOTES_TITLE, *lines]), 0
        lines = [self._brief(number, q, room) for number, q in self.entries]
        wanted = (
            self._price(line)
            for line, (_, q) in zip(lines, self.entries, strict=True)
            if _worth(q) >= STATED and not q.is_over
        )
        if sum(wanted) > room:
            lines = [self._tersest(number, q) for number, q in self.entries]
            return self._chosen(lines, room, is_terse=True)
        return self._chosen(lines, room)

    def _least(self, cap: int) -> float:
        # No text costs less than a quarter of its characters.
        return sum(min(length, cap) for length in self._lengths) / CHARS_PER_TOKEN

    def _price(self, line: str) -> float:
        price = self._prices.get(line)
        if price is None:
            price = self._prices[line] = line_price(line)
        return price

    def _chosen(self, lines: list[str], room: float, *, is_terse: bool = False) -> tuple[str, int]:
        """Leave out what matters least until the rest fits."""
        spare = room - line_price(_LEFT_OUT.format(len(lines)))
        kept = set[int]()
        order = sorted((self._worth(i, is_terse=is_terse), i) for i in range(len(lines)))
        for _, position in order:
            price = self._price(lines[position])
            if price <= spare:
                spare -= price
                kept.add(position)
            elif position == 0:
                lines[0] = _fitting(self.entries[0][1], _head(*self.entries[0]), spare)
                if lines[0]:
                    spare -= self._price(lines[0])
                    kept.add(0)
        if not kept:
            return "", len(lines)
        written, gap = [QUOTES_TITLE], False
        for position, line in enumerate(lines):
            if position in kept:
                written.append(line)
            elif not gap:
                gap = True
                written.append(_LEFT_OUT.format(len(lines) - len(kept)))
        return "\n".join(written), len(lines) - len(kept)

    def _worth(self, position: int, *, is_terse: bool) -> tuple[int, float, int]:
        quote = self.entries[position][1]
        ends = 0 if position == 0 else 1 if position == len(self.entries) - 1 else 2
        if ends == 2 and quote.is_over:
            return 3, 0, -position
        is_open = quote.role == "user" and not quote.answered
        rank = PLAIN if is_terse and quote.is_echo else _worth(quote)
        return ends, -max(rank, _OPEN if is_open else PLAIN), -position

    def _line(self, number: int, quote: Quote, cap: int, room: float) -> str:
        keep = 0
        if quote.rank != PLAIN and not quote.is_over:
            keep = int(RULES_SHARE * room * _PER_TOKEN)
            cap = max(cap, SHORT_CHARS if len(quote.text) <= SHORT_CHARS else cap)
        if number == 1:
            cap = max(cap, _first_cap(quote, room, keep))
        elif number == self._last:
            cap *= 2
        return _head(number, quote) + guarded(cut(quote, cap, keep))

    def _tersest(self, number: int, quote: Quote) -> str:
        """Write nothing of a message but its rules and labelled statements, or its beginning."""
        head = _head(number, quote, brief=True)
        if not quote.core:
            cap = MESSAGE_CAPS[-1] * (1 if quote.rank == PLAIN or quote.is_echo else 2)
            return head + guarded(cut(quote, cap))
        told = essence(quote, SHORT_CHARS * 2, core=True)
        return head + guarded(told if len(told) < len(quote.text) else noted(quote))

    def _brief(self, number: int, quote: Quote, room: float) -> str:
        """Write a message as short as can be; a long one with rules is these alone."""
        head = _head(number, quote, brief=True)
        keep = int(RULES_SHARE * room * _PER_TOKEN) if quote.rank == RULE else 0
        if keep and number not in {1, self._last} and len(quote.text) > SHORT_CHARS:
            return head + guarded(essence(quote, keep))
        cap = MESSAGE_CAPS[-1] if quote.rank == PLAIN else SHORT_CHARS
        return head + guarded(cut(quote, 2 * cap if number == self._last else cap, keep))


def _worth(quote: Quote) -> int:
    return max(quote.rank, quote.worth)


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
        if line_price(line) <= tokens:
            return line
        cap -= max(1, cap // 8)
    return ""
