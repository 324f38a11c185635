"""Where a transcript may be cut.

A cut at `i` replaces `items[:i]` and keeps `items[i:]`. A cut is legal when no call is open at
`i`: upstream APIs reject a result without its call and a call without its result. A call that
is never answered stays open to the end, so nothing after it is a legal cut; only detached calls
bind nothing, since they are pinned for as long as they are open. Results that the client sent
without a call are the client's own: they bind nothing. Reasoning goes with the model output that
follows it without a break.

A turn runs from a user message that starts one to the next. Adjacent user messages belong
together. Nothing here knows about tokens.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.transcript import Item, Kind

_MESSAGE = "assistant"
_MAY_BE_LED = frozenset({Kind.ASSISTANT, Kind.OPAQUE})


def legal_cuts(items: Sequence[Item]) -> tuple[int, ...]:
    """Return every index at which `items` may be cut, ascending.

    Index 0 (cut nothing) is always legal, so the result is never empty. The end is legal when
    no call is open there.

    >>> legal_cuts(())
    (0,)
    """
    open_calls: dict[str, int] = {}
    cuts = [0]
    runs = led_runs(items)
    for index, item in enumerate(items):
        for call in () if item.detached else item.calls:
            open_calls[call] = open_calls.get(call, 0) + 1
        if item.answers is not None and item.answers in open_calls:
            open_calls[item.answers] -= 1
            if not open_calls[item.answers]:
                del open_calls[item.answers]
        if not open_calls and not goes_on(runs, index):
            cuts.append(index + 1)
    return tuple(cuts)


def led_runs(items: Sequence[Item]) -> list[int | None]:
    """Return for each item where the run of model output that it belongs to begins.

    A run begins with reasoning and ends before the next reasoning, or before what is not the
    model's. None for items that no reasoning led to. Items we cannot interpret may be the
    model's, so they do not end a run.
    """
    runs: list[int | None] = []
    start: int | None = None
    for index, item in enumerate(items):
        if item.leads:
            start = index if index == 0 or not items[index - 1].leads else start
        elif item.kind not in _MAY_BE_LED:
            start = None
        runs.append(start)
    return runs


def goes_on(runs: Sequence[int | None], index: int) -> bool:
    """Tell whether the run of the item at `index` goes on behind it."""
    return index + 1 < len(runs) and runs[index] is not None and runs[index] == runs[index + 1]


def answered_calls(items: Sequence[Item]) -> list[tuple[int, int]]:
    """Return the indexes of each call and its result; an id that is used again is a new call."""
    opened: dict[str, list[int]] = {}
    pairs = []
    for index, item in enumerate(items):
        if item.answers is not None and opened.get(item.answers):
            pairs.append((opened[item.answers].pop(), index))
        for call in item.calls:
            opened.setdefault(call, []).append(index)
    return pairs


def open_detached(items: Sequence[Item]) -> list[int]:
    """Return the indexes of items with detached calls that have no result, ascending."""
    calling = [index for index, item in enumerate(items) if item.detached]
    if not calling:
        return []
    answered = Counter(asked for asked, _ in answered_calls(items))
    return [index for index in calling if answered[index] < len(items[index].calls)]


def unanswered_call(items: Sequence[Item]) -> int | None:
    """Return the index of the first item with a call that has no result, or None.

    The last call group does not count: its results may still be on their way. Nor do detached
    calls.
    """
    opened: dict[str, list[int]] = {}
    run = last_group = 0
    for index, item in enumerate(items):
        if not index or not _side_by_side(items[index - 1], item):
            run = index
        for call in item.calls:
            last_group = run
            if not item.detached:
                opened.setdefault(call, []).append(index)
        if item.answers is not None and opened.get(item.answers):
            opened[item.answers].pop()
    waiting = [index for indexes in opened.values() for index in indexes if index < last_group]
    return min(waiting, default=None)


def between_outputs(items: Sequence[Item]) -> tuple[int, ...]:
    """Return every index, legal or not, that is not within what the model gave out at once."""
    runs = led_runs(items)
    return tuple(
        index
        for index, item in enumerate(items)
        if not index or not (goes_on(runs, index - 1) or _side_by_side(items[index - 1], item))
    )


def _side_by_side(before: Item, item: Item) -> bool:
    # Calls side by side are one group; those of a message are a group of their own.
    goes_along = bool(before.calls) or before.leads
    return item.kind is Kind.ASSISTANT and item.role != _MESSAGE and goes_along


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
