"""Where a transcript may be cut.

A cut at `i` replaces `items[:i]` and keeps `items[i:]`. A cut is legal when no call is open at
`i`: upstream APIs reject a result without its call and a call without its result. A call that
is never answered stays open to the end, so nothing after it is a legal cut. Results that the
client sent without a call are the client's own: they bind nothing. Reasoning that leads goes with
the model output that follows it without a break.

A turn runs from a user message that starts one to the next. Adjacent user messages belong
together. Nothing here knows about tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.transcript import Item, Kind


def legal_cuts(items: Sequence[Item]) -> tuple[int, ...]:
    """Return every index at which `items` may be cut, ascending.

    Index 0 (cut nothing) is always legal, so the result is never empty. The end is legal when
    no call is open there.

    >>> legal_cuts(())
    (0,)
    """
    open_calls: dict[str, int] = {}
    cuts = [0]
    led = False
    for index, item in enumerate(items):
        led = item.leads or (led and item.kind is Kind.ASSISTANT)
        for call in item.calls:
            open_calls[call] = open_calls.get(call, 0) + 1
        if item.answers is not None and item.answers in open_calls:
            open_calls[item.answers] -= 1
            if not open_calls[item.answers]:
                del open_calls[item.answers]
        if not open_calls and not (led and _goes_on(items, index)):
            cuts.append(index + 1)
    return tuple(cuts)


def _goes_on(items: Sequence[Item], index: int) -> bool:
    """Whether the model output that was led to goes on behind an item."""
    following = items[index + 1] if index + 1 < len(items) else None
    if following is None or following.kind is not Kind.ASSISTANT:
        return following is not None and items[index].leads
    return items[index].leads or not following.leads


def unanswered_call(items: Sequence[Item]) -> int | None:
    """Return the index of the first item with a call that has no result, or None.

    The last call group does not count: its results may still be on their way.
    """
    opened: dict[str, list[int]] = {}
    run = last_group = 0
    for index, item in enumerate(items):
        if item.kind is not Kind.ASSISTANT or index == 0 or not items[index - 1].calls:
            # Calls side by side are one group, whether they share an item or not.
            run = index
        for call in item.calls:
            opened.setdefault(call, []).append(index)
            last_group = run
        if item.answers is not None and opened.get(item.answers):
            opened[item.answers].pop()
    waiting = [index for indexes in opened.values() for index in indexes if index < last_group]
    return min(waiting, default=None)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as a range of indexes; the last one of a transcript is the open turn."""

    start: int
    body: int
    """First index after the user messages that start the turn."""
    end: int


def turns(items: Sequence[Item]) -> tuple[Turn, ...]:
    """Split `items` into turns that cover them without a gap.

    What stands before the first user message belongs to a turn without user messages.

    >>> turns(())
    ()
    """
    starts = [
        index
        for index, item in enumerate(items)
        if item.kind is Kind.USER and (index == 0 or items[index - 1].kind is not Kind.USER)
    ]
    if items and (not starts or starts[0] != 0):
        starts.insert(0, 0)
    ends = [*starts[1:], len(items)][: len(starts)]
    return tuple(
        Turn(start, _body(items, start, end), end) for start, end in zip(starts, ends, strict=True)
    )


def _body(items: Sequence[Item], start: int, end: int) -> int:
    body = start
    while body < end and items[body].kind is Kind.USER:
        body += 1
    return body


def turn_cuts(items: Sequence[Item], legal: Sequence[int]) -> tuple[int, ...]:
    """Return the legal cuts in front of whole turns, the one that keeps least first.

    The first of them keeps the open turn alone, the next one complete turn more, and so on.
    """
    allowed = set(legal)
    return tuple(t.start for t in reversed(turns(items)) if t.start > 0 and t.start in allowed)


def split_cuts(items: Sequence[Item], legal: Sequence[int]) -> tuple[int, ...]:
    """Return the legal cuts inside the open turn, ascending.

    Each keeps at least the last call group, begins with model output, and replaces at least
    one item of the turn besides its user messages.
    """
    all_turns = turns(items)
    if not all_turns:
        return ()
    body = all_turns[-1].body
    groups = (index for index in range(body, len(items)) if items[index].calls)
    last = max(groups, default=len(items) - 1)
    return tuple(cut for cut in legal if body < cut <= last and items[cut].kind is Kind.ASSISTANT)


def open_user_run(items: Sequence[Item]) -> range:
    """Return the indexes of the user messages that started the open turn."""
    all_turns = turns(items)
    return range(all_turns[-1].start, all_turns[-1].body) if all_turns else range(0)


def frontier(legal: Sequence[int], length: int) -> int:
    """Return the last legal cut that still leaves an item: how far history is complete."""
    return max((cut for cut in legal if cut < length), default=0)
