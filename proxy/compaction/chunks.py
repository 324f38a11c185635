"""Cutting what is to be summarised into chunks that fit one summariser call each.

Chunks are made of whole passages, in order, each passage in one chunk. What is a little too much
for one call is clipped until it fits, and what is more than that until it fits two. Of much more,
long passages are clipped as mildly as lets all of them go in a few calls; beyond a floor more
chunks are made instead. Only a passage that is too large for a chunk of its own is clipped
further.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from proxy.compaction.clip import MARKER, clip_text
from proxy.compaction.measure import CHARS_PER_TOKEN, text_tokens
from proxy.compaction.prompt import Passage, join

CAPS = ((8000, 16_000), (4096, 8192), (2048, 4096))
"""Characters of a tool result and of other text, step by step; the last is the floor."""

FINER_CAPS = ((1792, 3584), (1536, 3072), (1280, 2560), (1024, 2048))
"""Further steps that spare a second or third call."""

LITTLE = 2.0
"""So many times what one call holds is only a little too much: the ends of long passages say less
than another call costs."""

MORE = 3.0
"""The same of two calls: what an ordinary session has come to when it is first compacted."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one call reads."""

    text: str = field(repr=False)
    count: int
    """Passages in it; 0 when not even the heading of one fits."""
    tokens: int = 0
    """Estimate of the text."""


@dataclass(frozen=True, slots=True)
class Span:
    """Passages in the form in which they are read, and the estimated tokens of each."""

    parts: Sequence[Passage] = field(repr=False)
    costs: Sequence[int] = field(repr=False)

    def take(self, start: int, tokens: int) -> Chunk:
        """Return as many whole passages from `start` on as fit, at least one."""
        end, left = start, tokens
        while end < len(self.parts) and self.costs[end] <= left:
            left -= self.costs[end]
            end += 1
        if end > start:
            return Chunk(join(self.parts[start:end]), end - start, tokens - left)
        text = _squeezed(self.parts[start], tokens) if start < len(self.parts) else None
        return Chunk("", 0) if text is None else Chunk(text, 1, text_tokens(text))

    def chunks(self, first: int, later: int) -> Iterator[Chunk]:
        """Yield all chunks; stops early where a passage fits nowhere.

        Args:
            first: largest first chunk, tokens.
            later: the same of the others, which have a running summary beside them.
        """
        start, room = 0, first
        while start < len(self.parts):
            chunk = self.take(start, room)
            if not chunk.count:
                return
            yield chunk
            start, room = start + chunk.count, later


def fitted(parts: Sequence[Passage], first: int, later: int, calls: int) -> Span:
    """Clip passages as mildly as lets them go in one call, in two, or in so many.

    Args:
        parts: the passages, whole.
        first: largest first chunk, tokens.
        later: largest further chunk, tokens.
        calls: how many chunks there should be at most; there are more when the floor demands it.
    """
    span = _measured(parts)
    few = _in_few(span, first, later, 1, LITTLE)
    if few is None and calls > 1:
        few = _in_few(span, first, later, 2, MORE)
    return few or _clipped(span, CAPS, first, later, calls)


def in_one(parts: Sequence[Passage], tokens: int) -> Span | None:
    """Clip passages as mildly as lets them go in one call; None when they are too much for that."""
    return _in_few(_measured(parts), tokens, tokens, 1, LITTLE)


def _in_few(span: Span, first: int, later: int, calls: int, most: float) -> Span | None:
    if sum(span.costs) > most * first:
        return None
    few = _clipped(span, (*CAPS, *FINER_CAPS), first, later, calls)
    return few if _fit(few.costs, first, later, calls) else None


def _measured(parts: Sequence[Passage]) -> Span:
    return Span(parts, [_cost(part) for part in parts])


def _clipped(
    span: Span, steps: Sequence[tuple[int, int]], first: int, later: int, calls: int
) -> Span:
    """Take steps until all passages go in so many calls, or there are no more steps."""
    shown, costs = [*span.parts], [*span.costs]
    for result_cap, text_cap in steps:
        if _fit(costs, first, later, calls):
            break
        for index, part in enumerate(span.parts):
            cap = result_cap if part.is_result else text_cap
            if len(part.text) > cap:
                shown[index] = Passage(part.heading, clip_text(part.text, cap), part.is_result)
                costs[index] = _cost(shown[index])
    return Span(shown, costs)


def _fit(costs: Sequence[int], first: int, later: int, calls: int) -> bool:
    left = first
    for cost in costs:
        if cost > left:
            calls, left = calls - 1, later
        if cost > left or calls < 1:
            return False
        left -= cost
    return True


def _cost(part: Passage) -> int:
    # With the line break that joins it to the next.
    return text_tokens(join([part]) + "\n")


def _squeezed(part: Passage, tokens: int) -> str | None:
    """Clip one passage until it fits; None when its heading alone is too much."""
    length = min(len(part.text), int(tokens * CHARS_PER_TOKEN))
    while length > len(MARKER):
        text = join([Passage(part.heading, clip_text(part.text, length), part.is_result)])
        if text_tokens(text) <= tokens:
            return text
        # Dense script costs up to a token a character, so the length is found by measuring.
        length -= max(1, length // 8)
    text = join([Passage(part.heading, "", part.is_result)])
    return text if text_tokens(text) <= tokens else None
