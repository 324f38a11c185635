"""Shortening single messages so that a request fits.

Rounds of descending caps; within a round the largest message first, ties by position; the walk
stops as soon as the whole fits, so the fewest changes are made. Only text is shortened, never
ids, roles, order, reasoning or binary parts. The last resort are string leaves inside the
arguments of answered calls, where the JSON stays valid.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from proxy import codec
from proxy.codec import Json
from proxy.compaction.measure import text_tokens
from proxy.transcript import Caps, Size

MARKER = "… [truncated by context budget]"

RESULT_CAPS = (8000, 4096, 2048, 1024, 512)
TEXT_CAPS = (16_000, 8192, 4096, 2048, 1024)
ARGUMENT_CAPS = (1024, 256)


@dataclass(frozen=True, slots=True)
class Clippable:
    """A message that may be shortened."""

    index: int
    is_result: bool
    """A tool result; otherwise a user or assistant text."""
    texts: tuple[str, ...]
    size: Size
    """Size of the whole message, unclipped."""
    arguments: tuple[str, ...] = ()
    """Arguments of its calls, when all of them are answered."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """The decision for one message: how far, and what it measures then."""

    caps: Caps
    size: Size


def clip_text(text: str, cap: int) -> str:
    """Shorten `text` to exactly `cap` characters, marker included; shorter text stays as it is.

    >>> len(clip_text("x" * 2000, 512)), clip_text("short", 512)
    (512, 'short')
    """
    if len(text) <= cap:
        return text
    return text[: cap - len(MARKER)] + MARKER


def clip_texts(texts: Sequence[str], cap: int) -> list[str]:
    """Shorten text parts so that together they hold `cap` characters; emptied parts are dropped."""
    joined = "".join(texts)
    if len(joined) <= cap:
        return list(texts)
    left = cap - len(MARKER)
    parts: list[str] = []
    for text in texts:
        if len(text) >= left:
            parts.append(text[:left] + MARKER)
            break
        parts.append(text)
        left -= len(text)
    return parts


def clip_arguments(arguments: str, cap: int) -> str:
    """Shorten each long string leaf of a JSON argument string; anything but JSON stays as it is."""
    try:
        value = codec.loads(arguments)
    except codec.MalformedJson:
        return arguments
    try:
        if isinstance(value, str) or not any(len(leaf) > cap for leaf in _leaves(value)):
            return arguments
        return codec.dumps(_clip_leaves(value, cap)).decode()
    except (RecursionError, codec.MalformedJson):
        return arguments


def _leaves(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for member in value:
            yield from _leaves(member)
    elif isinstance(value, dict):
        for member in value.values():
            yield from _leaves(member)


def _clip_leaves(value: Json, cap: int) -> Json:
    if isinstance(value, str):
        return clip_text(value, cap)
    if isinstance(value, list):
        return [_clip_leaves(member, cap) for member in value]
    if isinstance(value, dict):
        return {key: _clip_leaves(member, cap) for key, member in value.items()}
    return value


def clip(
    messages: Sequence[Clippable],
    total: Size,
    fits: Callable[[Size], bool],
    before: Mapping[int, Clipped] | None = None,
) -> dict[int, Clipped]:
    """Clip until `fits` accepts the total, or nothing more can be clipped.

    Args:
        messages: what may be clipped.
        total: size of everything counted, with the clips of `before` applied.
        fits: whether a total is small enough.
        before: earlier decisions; they are kept or tightened, never undone.

    Returns:
        All decisions, those of `before` included.
    """
    done = dict(before or {})
    for step in _steps(messages, done):
        if fits(total):
            break
        message, caps = step
        clipped = Clipped(caps, _size(message, caps))
        old = done[message.index].size if message.index in done else message.size
        total = Size(
            total.chars - old.chars + clipped.size.chars,
            total.tokens - old.tokens + clipped.size.tokens,
        )
        done[message.index] = clipped
    return done


def _steps(
    messages: Sequence[Clippable], done: Mapping[int, Clipped]
) -> Iterator[tuple[Clippable, Caps]]:
    for result_cap, text_cap in zip(RESULT_CAPS, TEXT_CAPS, strict=True):
        lengths = {m.index: _current_length(m, done) for m in messages}
        for message in sorted(messages, key=lambda m: (-lengths[m.index], m.index)):
            cap = result_cap if message.is_result else text_cap
            if lengths[message.index] > cap:
                yield message, replace(_caps(message, done), text=cap)
    for cap in ARGUMENT_CAPS:
        sizes = {m.index: sum(map(len, m.arguments)) for m in messages}
        for message in sorted(messages, key=lambda m: (-sizes[m.index], m.index)):
            if any(clip_arguments(a, cap) != a for a in message.arguments):
                yield message, replace(_caps(message, done), arguments=cap)


def _caps(message: Clippable, done: Mapping[int, Clipped]) -> Caps:
    return done[message.index].caps if message.index in done else Caps()


def _current_length(message: Clippable, done: Mapping[int, Clipped]) -> int:
    length = sum(map(len, message.texts))
    cap = _caps(message, done).text
    return length if cap is None else min(length, cap)


def _size(message: Clippable, caps: Caps) -> Size:
    chars, tokens = message.size.chars, message.size.tokens
    if caps.text is not None:
        shorter = clip_texts(message.texts, caps.text)
        chars -= sum(map(len, message.texts)) - sum(map(len, shorter))
        tokens -= sum(map(text_tokens, message.texts)) - sum(map(text_tokens, shorter))
    if caps.arguments is not None:
        for arguments in message.arguments:
            shorter_arguments = clip_arguments(arguments, caps.arguments)
            chars -= len(arguments) - len(shorter_arguments)
            tokens -= text_tokens(arguments) - text_tokens(shorter_arguments)
    return Size(chars, tokens)
