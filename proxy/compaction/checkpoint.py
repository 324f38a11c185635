"""The checkpoint: the record that stands for replaced items.

It is written once, rendered once and then reused byte for byte. The rendering is worded as a
record and fenced with a tag that carries a nonce drawn once per checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from proxy.codec import Json
from proxy.compaction.guard import TAG as TAG
from proxy.compaction.guard import as_entry, guarded
from proxy.compaction.guard import neutralise as neutralise
from proxy.compaction.measure import exact_tokens

SCHEMA_VERSION = 1


def _as_line(value: Json) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list | tuple):
        return "\n".join(filter(None, map(_as_line, value)))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_as_line(member)}" for key, member in value.items())
    return "" if value is None else str(value)


def _as_lines(value: Json) -> list[str]:
    # Tuples come from our own code and from `model_dump`.
    if isinstance(value, list | tuple):
        return [line for line in map(_as_line, value) if line]
    line = _as_line(value)
    return [line] if line else []


Line = Annotated[str, BeforeValidator(_as_line)]
Lines = Annotated[tuple[str, ...], BeforeValidator(_as_lines)]


class Sections(BaseModel):
    """The seven sections of a structured checkpoint (specification, "Checkpoint sections").

    Models bend shapes: a list where a string is asked for, or the other way, is accepted.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    goal: Line = ""
    instructions: Lines = ()
    discoveries: Lines = ()
    accomplished: Lines = ()
    current_state: Line = Field(default="", alias="currentState")
    next_steps: Lines = Field(default=(), alias="nextSteps")
    relevant_files: Lines = Field(default=(), alias="relevantFiles")

    def is_empty(self) -> bool:
        """Tell whether no section says anything."""
        return not any(getattr(self, name) for name in type(self).model_fields)


SECTION_NAMES = tuple(member.alias or name for name, member in Sections.model_fields.items())
"""The JSON names, in the order they are asked for."""

TITLES = {
    "goal": "Goal",
    "instructions": "User instructions and constraints",
    "discoveries": "Discoveries",
    "accomplished": "Accomplished",
    "current_state": "Current state",
    "next_steps": "Next steps (the assistant's own plan; only as far as the user asked for it)",
    "relevant_files": "Relevant files",
}
_DROP_ORDER = ("relevant_files", "discoveries", "accomplished", "next_steps", "current_state")
NEWEST_SHARE = 0.4
"""Share of the room beside the ledger that excerpts may take from the summary."""

_SECTION_CAPS = (6000, 3000, 1500, 800, 400, 200, 100)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An immutable record of one compaction, as it is stored."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64"
    )
    # Digests are bytes; this is how they are written when the record is stored as JSON.

    id: str
    session: str
    cut_digest: bytes
    """Fingerprint of the prefix it stands for."""
    cut_length: int
    kept: tuple[int, ...]
    front: tuple[int, ...]
    pinned: tuple[int, ...]
    frontier: bytes
    """Fingerprint of the last legal cut when it was made: nothing new before that moves on."""
    parent: str | None
    rendered: str = field(repr=False)
    chars: int
    tokens: int
    sections: dict[str, Json] | None = field(repr=False)
    """The structured form, or None for a text-only or extractive checkpoint."""
    text: str = field(repr=False)
    partial: bool
    extractive: bool
    tokens_before: int
    tokens_after: int
    span_items: int
    span_tokens: int
    omitted: int
    """Ledger entries that did not fit."""
    model: str
    created: float
    """Seconds since the epoch."""
    schema_version: int = SCHEMA_VERSION
    covered: int | None = None
    """So many of the first items are in the summary, when that is not all of them."""

    @property
    def is_unfinished(self) -> bool:
        """Whether a model has not read all that it stands for."""
        return self.extractive or self.covered is not None


@dataclass(frozen=True, slots=True)
class Fold:
    """A running summary of the first items of a conversation, kept to go on from."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64"
    )

    digest: bytes
    """Fingerprint of the prefix that it covers."""
    form: str
    """Names the prompt that it was made with; another prompt does not go on from it."""
    covered: int
    """Length of that prefix."""
    left_out: tuple[int, ...]
    """Items of the prefix that were not read, since they stayed in the request."""
    sections: dict[str, Json] | None = field(repr=False)
    """The structured form, or None when the model wrote plain text."""
    text: str = field(repr=False)
    partial: bool
    """Whether an answer on the way was cut."""
    created: float
    """Seconds since the epoch."""
    schema_version: int = SCHEMA_VERSION

    @property
    def key(self) -> bytes:
        """What it is stored under: the prefix and the form."""
        return self.digest + self.form.encode()


MAX_LINE_CHARS = 4000
MAX_LINES_CHARS = 8000


def bound(sections: Sections) -> Sections:
    """Cut every section to what a record could ever show.

    A later summary is given these sections, so a runaway answer must not fill its window.
    """
    changes: dict[str, str | tuple[str, ...]] = {}
    for name in TITLES:
        value: str | tuple[str, ...] = getattr(sections, name)
        changes[name] = value[:MAX_LINE_CHARS] if isinstance(value, str) else _bound_lines(value)
    return sections.model_copy(update=changes)


def _bound_lines(lines: Sequence[str]) -> tuple[str, ...]:
    kept, left = [], MAX_LINES_CHARS
    for line in lines:
        if left <= 0:
            break
        kept.append(line[: min(left, MAX_LINE_CHARS)])
        left -= len(kept[-1])
    return tuple(kept)


def carried(cut: Sections, before: Sections) -> Sections:
    """Fill the sections that a cut answer did not come to from what it was to go on from."""
    missing = {name: getattr(before, name) for name in TITLES if not getattr(cut, name)}
    return cut.model_copy(update=missing)


def sections_text(sections: Sections, tokens: int) -> str:
    """Write the sections within `tokens`, the way a record shows them."""
    return _fit_body(sections, tokens)[0]


def render(
    *,
    nonce: str,
    body: Sections | str,
    ledger: str,
    replaced: int,
    tokens: int,
    newest: str = "",
) -> tuple[str, int]:
    """Write the whole record within `tokens`; return it and the number of sections left out.

    Args:
        nonce: drawn once per checkpoint.
        body: the summariser's sections, or plain text.
        ledger: the rendered ledger.
        replaced: how many messages the record stands for.
        tokens: upper bound; what does not fit is shortened, then left out.
        newest: excerpts of what the body does not cover; they stand behind it.
    """
    less = 0
    while True:
        text, dropped = _written(nonce, body, ledger, replaced, tokens - less, newest)
        over = exact_tokens(text) - tokens
        if over <= 0 or less >= tokens:
            return text, dropped
        # Together they may count as denser text than apart; each step doubles the distance.
        less += less + over


def _written(
    nonce: str, body: Sections | str, ledger: str, replaced: int, tokens: int, newest: str
) -> tuple[str, int]:
    """Write the record of parts that are within `tokens` together, each judged alone."""
    frame_open = (
        f'<{TAG} id="{nonce}">\n'
        f"Record of {replaced} earlier messages that are no longer shown. It is a record, not a "
        "request: do not answer it or repeat finished work; go on from the messages that follow.\n"
    )
    frame_close = f'</{TAG} id="{nonce}">\n\n'
    # One token is left over for a tag that only the joint of body and ledger makes.
    room = tokens - exact_tokens(f"{frame_open}\n\n\n\n{frame_close}") - 1
    ledger = _cut_to(neutralise(ledger), room)
    room -= exact_tokens(ledger)
    # Without a summary they have its room.
    newest = _cut_to(neutralise(newest), int((NEWEST_SHARE if body else 1) * room))
    text, dropped = _fit_body(body, room - exact_tokens(newest), ledger)
    middle = neutralise("\n\n".join(part for part in (text, newest, ledger) if part))
    return f"{frame_open}\n{middle}\n{frame_close}", dropped


def _fit_body(body: Sections | str, tokens: int, ledger: str = "") -> tuple[str, int]:
    for cap in _SECTION_CAPS:
        text = _section_text(body, cap, ())
        if exact_tokens(text) <= tokens:
            return text, 0
        if isinstance(body, Sections) and body.instructions:
            # What the ledger quotes need not be said twice where there is no room for it.
            fresh = tuple(entry for entry in body.instructions if entry not in ledger)
            body = body.model_copy(update={"instructions": fresh})
    if isinstance(body, str):
        return _cut_to(neutralise(guarded(body)), tokens), 0
    for count in range(1, len(_DROP_ORDER) + 1):
        text = _section_text(body, _SECTION_CAPS[-1], _DROP_ORDER[:count])
        if exact_tokens(text) <= tokens:
            return text, count
    return "", len(TITLES)


def _cut_to(text: str, tokens: int) -> str:
    # Dense script costs up to a token a character, so the length is found by measuring.
    length = len(text)
    while length and exact_tokens(text[:length]) > tokens:
        length -= max(1, length // 8)
    return text[:length]


def _section_text(body: Sections | str, cap: int, without: Sequence[str]) -> str:
    if isinstance(body, str):
        return neutralise(guarded(body if len(body) <= cap else body[: cap - 1] + "…"))
    parts = []
    for name, title in TITLES.items():
        value: str | tuple[str, ...] = getattr(body, name)
        if value and name not in without:
            parts.append(f"## {title}\n{_shorten(value, cap)}")
    return neutralise("\n".join(parts))


def _shorten(value: str | tuple[str, ...], cap: int) -> str:
    # A heading or an entry of the ledger in what a model wrote would be taken for ours.
    if isinstance(value, str):
        return guarded(value if len(value) <= cap else value[: cap - 1] + "…")
    lines: list[str] = []
    for entry in value:
        line = "- " + as_entry(entry if len(entry) <= cap // 2 else entry[: cap // 2 - 1] + "…")
        if lines and sum(map(len, lines)) + len(line) > cap:
            lines.append(f"- ({len(value) - len(lines)} more left out)")
            break
        lines.append(line)
    return "\n".join(lines)
