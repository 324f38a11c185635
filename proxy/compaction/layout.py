"""How a compacted request is put together, and the check that every such request passes.

Order: pinned system items, then the message that carries the checkpoint (the first kept user
message, or a user message of its own), then the other pinned items, then everything after the
cut. The instructions stand in front of all of it and are not part of a layout.

Some chat templates take no second system message, or no two user messages next to each other
even where a client had them. For their models a layout is `joined`: whatever could stand beside
the checkpoint's message is part of it.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.compaction import cutpoints
from proxy.compaction.measure import MESSAGE_OVERHEAD_TOKENS
from proxy.errors import InvariantBroken
from proxy.transcript import Caps, Carry, Item, Keep, Kind, Piece, Size, Transcript

PINNED_SYSTEM_SHARE = 0.10
"""Share of the trigger that pinned system items may take; older ones go to the ledger."""

PINNED_IMAGE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Cut:
    """Which items a checkpoint replaces: all before `length` except the listed ones."""

    length: int
    kept: tuple[int, ...] = ()
    """User messages of the turn that is cut through; they stay in front of what is kept."""
    front: tuple[int, ...] = ()
    """Pinned system and developer items."""
    pinned: tuple[int, ...] = ()
    """Other pinned items, and what upstreams refuse them without."""

    def replaced(self) -> tuple[int, ...]:
        """Return the indexes of the items that the checkpoint stands for."""
        stay = {*self.kept, *self.front, *self.pinned}
        return tuple(index for index in range(self.length) if index not in stay)


NO_CAPS: Mapping[int, Caps] = {}

_CONVERSATION = {Kind.USER, Kind.ASSISTANT, Kind.RESULT}
_SPEAKERS = frozenset({"user", "assistant", "tool", "function"})


def pin(items: Sequence[Item], length: int, kept: Sequence[int], trigger: int) -> Cut:
    """Decide which items before `length` stay, newest first within their shares of the trigger."""
    front = _newest_within(
        [i for i in range(length) if items[i].kind is Kind.INSTRUCTION],
        items,
        int(PINNED_SYSTEM_SHARE * trigger),
    )
    stay = [i for i in range(length) if items[i].kind is Kind.OPAQUE]
    stay += cutpoints.open_detached(items[:length])
    stay += _image_groups(items, kept[-1] + 1, length, trigger) if kept else []
    return Cut(length, tuple(kept), tuple(front), tuple(sorted(_bound(items[:length], stay))))


def _bound(items: Sequence[Item], indexes: Sequence[int]) -> set[int]:
    """Return `indexes` and all that cannot be left out when these stay."""
    stay = set(indexes)
    if not stay:
        return stay
    runs = cutpoints.led_runs(items)
    partners: dict[int, list[int]] = {}
    for asked, answer in cutpoints.answered_calls(items):
        partners.setdefault(asked, []).append(answer)
        partners.setdefault(answer, []).append(asked)
    todo = list(stay)
    while todo:
        index = todo.pop()
        start = runs[index]
        bound = [*partners.get(index, ()), *range(index if start is None else start, index)]
        if items[index].leads and cutpoints.goes_on(runs, index):
            bound.append(index + 1)
        todo += (new := [other for other in bound if other not in stay])
        stay.update(new)
    return stay


def _newest_within(indexes: Sequence[int], items: Sequence[Item], tokens: int) -> list[int]:
    chosen: list[int] = []
    for index in reversed(indexes):
        tokens -= items[index].tokens
        if tokens < 0:
            break
        chosen.append(index)
    return chosen[::-1]


def _image_groups(items: Sequence[Item], start: int, end: int, trigger: int) -> list[int]:
    # A result cannot stay without its call, so an image of the current turn that a tool gave
    # keeps its whole call group.
    groups: list[list[int]] = []
    for index in range(start, end):
        if items[index].kind is Kind.INSTRUCTION:
            continue
        follows = index > start and items[index - 1].kind is Kind.ASSISTANT
        if (items[index].kind is Kind.ASSISTANT and not follows) or not groups:
            groups.append([])
        groups[-1].append(index)
    chosen: list[int] = []
    left = int(PINNED_IMAGE_SHARE * trigger)
    for group in reversed(groups):
        if any(items[index].has_image for index in group):
            left -= sum(items[index].tokens for index in group)
            if left < 0:
                break
            chosen += group
    return chosen


def arrange(
    items: Sequence[Item],
    cut: Cut,
    text: str,
    caps: Mapping[int, Caps] = NO_CAPS,
    *,
    joined: bool = False,
) -> tuple[Piece, ...]:
    """Lay out the request that a checkpoint with rendering `text` makes of `items`.

    Args:
        items: of the request.
        cut: what the checkpoint replaces.
        text: its rendering.
        caps: how far items are clipped, by index.
        joined: pinned system items and the user messages that follow the checkpoint are one
            message with it.

    Raises:
        InvariantBroken: when nothing is kept after the cut.
    """
    if cut.length >= len(items):
        raise InvariantBroken("nothing is kept after the cut")

    def keep(index: int) -> Keep:
        return Keep(items[index], index, caps.get(index, Caps()))

    if joined:
        before, onto, stay = _joined_places(items, cut)
        return (
            *(keep(i) for i in before),
            Carry(text, tuple(keep(i) for i in onto), plain=True),
            *(keep(i) for i in stay),
        )
    onto, stay = _places(items, cut)
    carrier = Carry(text, tuple(keep(i) for i in onto))
    return (*(keep(i) for i in cut.front), carrier, *(keep(i) for i in stay))


def _places(items: Sequence[Item], cut: Cut) -> tuple[list[int], list[int]]:
    """Return what the checkpoint is merged onto, and what follows."""
    rest = list(range(cut.length, len(items)))
    early = _said_before_users(items, cut)
    pinned = [i for i in cut.pinned if i not in early]
    next_is_user = items[rest[0]].kind is Kind.USER
    onto: list[int] = []
    after = list(cut.kept)
    if early:
        # The record stands in front of what was said earlier than the first kept user message.
        after = [*early, *after]
    elif not after:
        # Pins stand behind the record, and before what may be the last message.
        onto = [rest.pop(0)] if next_is_user and not pinned else []
    elif next_is_user and not pinned:
        # A branch goes on with a user message right after the cut: the two become one, or we
        # would have made two user messages neighbours.
        onto, after = [*after, rest.pop(0)], []
    else:
        onto, after = after[:1], after[1:]
    return onto, [*after, *pinned, *rest]


def _joined_places(items: Sequence[Item], cut: Cut) -> tuple[list[int], list[int], list[int]]:
    """Return what stands before the checkpoint, what it is merged onto, and what follows."""
    before: list[int] = []
    if cut.pinned and all(_is_silent(items[i]) for i in cut.pinned):
        # Templates do not see these, so a user message behind them would follow the record's.
        before, cut = [*cut.pinned], Cut(cut.length, cut.kept, cut.front)
    onto, stay = _places(items, cut)
    while stay and items[stay[0]].kind is Kind.USER:
        onto.append(stay.pop(0))
    return before, [*cut.front, *onto], stay


def _is_silent(item: Item) -> bool:
    """Whether an item is nothing that anybody said."""
    return item.kind is Kind.OPAQUE and item.role not in _SPEAKERS


def _said_before_users(items: Sequence[Item], cut: Cut) -> list[int]:
    """Return the pins that stand before the first kept user message, if any of them was said."""
    first = cut.kept[0] if cut.kept else cut.length
    early = [index for index in cut.pinned if index < first]
    return early if any(items[index].kind in _CONVERSATION for index in early) else []


def whole(items: Sequence[Item], caps: Mapping[int, Caps] = NO_CAPS) -> tuple[Piece, ...]:
    """Lay out a request without a checkpoint."""
    return tuple(Keep(item, index, caps.get(index, Caps())) for index, item in enumerate(items))


def kept_of(pieces: Sequence[Piece]) -> list[Keep]:
    """Return every caller's item in a layout, in order."""
    kept: list[Keep] = []
    for piece in pieces:
        kept += piece.onto if isinstance(piece, Carry) else (piece,)
    return kept


def size_of_layout(pieces: Sequence[Piece], checkpoint: Size, clipped: Mapping[int, Size]) -> Size:
    """Measure a layout.

    Args:
        pieces: the layout.
        checkpoint: size of the rendered checkpoint, when one is carried.
        clipped: sizes of the items that are clipped, by index.
    """
    chars = tokens = 0
    for piece in pieces:
        if isinstance(piece, Carry):
            chars += checkpoint.chars
            tokens += checkpoint.tokens + (0 if piece.onto else MESSAGE_OVERHEAD_TOKENS)
            for kept in piece.onto:
                size = clipped.get(kept.index)
                chars += kept.item.chars if size is None else size.chars
                tokens += kept.item.tokens if size is None else size.tokens
        else:
            size = clipped.get(piece.index)
            chars += piece.item.chars if size is None else size.chars
            tokens += piece.item.tokens if size is None else size.tokens
    return Size(chars, tokens)


def validate(transcript: Transcript, pieces: Sequence[Piece]) -> None:
    """Check a layout against the request it was made from (design section 1, rule 2).

    Raises:
        InvariantBroken: naming the rule, never the content.
    """
    items = transcript.items
    kept = kept_of(pieces)
    indexes = [k.index for k in kept]
    if not kept or indexes[-1] != len(items) - 1:
        raise InvariantBroken("the last message is not the client's")
    _check_order(kept)
    _check_pairs(items, set(indexes))
    _check_roles(transcript, pieces)


def _check_order(kept: Sequence[Keep]) -> None:
    # Pinned system and opaque items have places of their own, each kind in its order.
    for kinds in ({Kind.INSTRUCTION}, {Kind.OPAQUE}, _CONVERSATION):
        order = [k.index for k in kept if k.item.kind in kinds]
        if any(a >= b for a, b in itertools.pairwise(order)):
            raise InvariantBroken("items changed their order")


def _check_pairs(items: Sequence[Item], kept: set[int]) -> None:
    for asked, answer in cutpoints.answered_calls(items):
        if (asked in kept) != (answer in kept):
            raise InvariantBroken("a call was separated from its result")
    if not any(item.leads for item in items):
        return
    runs = cutpoints.led_runs(items)
    for index in range(len(items)):
        if not cutpoints.goes_on(runs, index):
            continue
        # What was led to needs all before it; reasoning also needs what comes right after it.
        here, next_ = index in kept, index + 1 in kept
        if (next_ and not here) or (here and not next_ and items[index].leads):
            raise InvariantBroken("reasoning was separated from what it produced")


def _check_roles(transcript: Transcript, pieces: Sequence[Piece]) -> None:
    before: tuple[str, int] | None = None
    first = True
    for piece in pieces:
        head, last = _ends(piece)
        role = piece.item.role if isinstance(piece, Keep) else "user"
        is_system = isinstance(piece, Keep) and piece.item.kind is Kind.INSTRUCTION
        is_silent = isinstance(piece, Keep) and _is_silent(piece.item)
        if first and not (is_system or is_silent):
            first = False
            if role != "user" and not (head == 0 or _first_was(transcript, head)):
                raise InvariantBroken("the first message is not a user message")
        if (
            before is not None
            and not is_system
            and role == before[0]
            and role in {"user", "assistant"}
            and before[1] + 1 != head
        ):
            raise InvariantBroken("two messages of one role became neighbours")
        before = (role, last)


def _ends(piece: Piece) -> tuple[int, int]:
    if isinstance(piece, Keep):
        return piece.index, piece.index
    users = [kept.index for kept in piece.onto if kept.item.kind is Kind.USER]
    return (users[0], users[-1]) if users else (-2, -2)


def _first_was(transcript: Transcript, index: int) -> bool:
    return all(item.kind is Kind.INSTRUCTION for item in transcript.items[:index])
