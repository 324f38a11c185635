"""Where what the user stated and what was found later, or the other way round, differ.

A fact that the user stated may be out of date once a tool prints another value for it, and what a
tool printed once the user tells another. The older of the two is marked; a tool can only ever cast
doubt on a fact, never on a rule.
"""

from collections.abc import Sequence
from dataclasses import replace

from proxy.compaction.ledger import rules, said
from proxy.compaction.ledger.facts import Facts
from proxy.compaction.ledger.quotes import HINT, PLAIN, Quote
from proxy.compaction.ledger.values import Value

_WHO = {"tool": "what a tool printed later", "assistant": "what the assistant stated later"}


def mark(quotes: Sequence[Quote], facts: Facts) -> tuple[tuple[Quote, ...], Facts]:
    """Return both with the older of two differing statements of the same form marked."""
    stated = _stated(quotes)
    if not stated:
        return tuple(quotes), facts
    marked, values = list(quotes), list[Value]()
    for value in facts.values:
        number, text = stated.get(rules.pattern(value.line), (0, ""))
        is_other = bool(number) and rules.is_one_value(value.line, text) and value.line != text
        if not is_other:
            values.append(value)
        elif value.at < marked[number - 1].at:
            values.append(replace(value, over=f"superseded in {number}"))
        else:
            values.append(value)
            marked[number - 1] = _doubted(marked[number - 1], text, value.by)
    return tuple(marked), replace(facts, values=tuple(values))


def _stated(quotes: Sequence[Quote]) -> dict[str, tuple[int, str]]:
    """Return the newest statement of each form, with the number of its message."""
    stated: dict[str, tuple[int, str]] = {}
    for number, quote in enumerate(quotes, 1):
        if quote.rank == PLAIN or quote.is_over:
            continue
        for form, line in said.forms(quote.text):
            stated[form] = number, line
    return stated


def _doubted(quote: Quote, text: str, by: str) -> Quote:
    doubt = f"perhaps superseded by {_WHO[by]} {HINT}"
    is_all = text == quote.text.strip()
    note = doubt if is_all else f'{doubt}: "{text}"'
    return quote if note in quote.marks else replace(quote, marks=(*quote.marks, note))
