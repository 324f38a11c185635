"""What a message states behind a log that was pasted into it without a fence.

Who said it is not known: it may be the end of the paste. So it is no rule and marks nothing; but
what a message ends with is seldom the log, and it must not be lost with it.
"""

from collections.abc import Iterator

from proxy.compaction.ledger import rules
from proxy.compaction.ledger.paste_marks import LOG
from proxy.compaction.ledger.rules import Statement

MAX_CLOSING_CHARS = 600
"""A longer last paragraph is a part of the paste."""


def statements(text: str, number: int, after: int) -> Iterator[Statement]:
    """Yield what the last paragraph states, line by line, where a log stands before it.

    Args:
        text: a message.
        number: of the message.
        after: where the last of its author's own statements ends; behind it nothing is looked for.
    """
    end = len(text.rstrip())
    start = text.rfind("\n\n", 0, end) + 2
    closing = text[start:end]
    if start < max(after, 2) or len(closing) > MAX_CLOSING_CHARS:
        return
    if not closing[:1].isalnum() or "```" in closing or "<" in closing:
        return
    lines = closing.split("\n")
    if any(map(LOG.match, lines)) or not any(map(LOG.match, text[:start].split("\n"))):
        return
    for line in lines:
        if rules.is_labelled(line) or rules.is_rule(line):
            words = rules.subject(line)
            yield Statement(line, number, start, start + len(line), False, words, is_pasted=True)
        start += len(line) + 1
