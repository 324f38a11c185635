"""Copying all sessions and recorded responses from one store to another, through the ports alone.

Both stores may be in use. What is there already stays as it is, so a copy may be interrupted and
repeated at will; what was used in the source since is then copied too. Nothing is ever deleted.
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from proxy import codec
from proxy.codec import JsonObject
from proxy.errors import StateCorrupt
from proxy.sessions import state
from proxy.sessions.response_copy import ResponseCopy
from proxy.sessions.responses import RecordedResponse
from proxy.sessions.state import Change, Unreadable
from proxy.sessions.store import SessionStore, WholeStore
from proxy.sessions.store_check import unreadable_facts
from proxy.telemetry import Event

EVENTS_AT_ONCE = 500
SHOWN_SESSIONS = 20

Stage = Literal["copying", "responses", "verifying"]
Show = Callable[[Stage, int, int | None], None]
"""Takes how many sessions of how many are done; how many responses there are nobody knows."""

TENANCY = "tenancy"
"""Name of the secret that sessions are found with."""

KeyFate = Literal["none", "copied", "kept", "other"]
"""What became of the tenancy key: the source has none; it is in the target now, or was there
before; the target has another one."""


@dataclass(slots=True)
class Tally:
    """What was copied so far."""

    total: int = 0
    """Sessions in the source when it began."""
    sessions: int = 0
    checkpoints: int = 0
    clip_decisions: int = 0
    archived: int = 0
    events: int = 0
    responses: int = 0
    """Responses that the target has now."""
    bytes: int = 0
    """Checkpoints, archived messages and items of responses, before they are compressed."""
    unreadable: Counter[Unreadable] = field(default_factory=Counter)
    verified: int = 0
    """Sessions whose checkpoints and clips are equal in the target."""
    out_of_reach: int = 0
    """Checkpoints that the target did not keep, and that the source finds no more either."""
    different: list[str] = field(default_factory=list)
    """Sessions that are not equal in the target."""
    different_responses: int = 0
    """Responses that the target did not take or that are not equal there."""

    @property
    def left_behind(self) -> int:
        """How many values were left out that are not damaged."""
        return sum(n for value, n in self.unreadable.items() if value.why != "damaged")

    def note(self, value: Unreadable) -> None:
        """Count a value that was left out."""
        self.unreadable[value] += 1

    def add(self, change: Change) -> None:
        """Count a change."""
        if change.checkpoint is not None:
            self.checkpoints += 1
            self.bytes += len(state.checkpoint_json(change.checkpoint))
        if change.clip_set is not None:
            self.clip_decisions += len(change.clip_set.clips)
        self.archived += len(change.archive)
        self.bytes += sum(len(item.raw) for item in change.archive)
        self.events += len(change.events)

    def add_response(self, response: RecordedResponse, *, taken: bool) -> None:
        """Count a response."""
        self.responses += taken
        self.different_responses += not taken
        self.bytes += sum(len(item) for item in response.items)

    def to_json(self) -> JsonObject:
        """Return it as a JSON object."""
        return {
            "total": self.total,
            "sessions": self.sessions,
            "checkpoints": self.checkpoints,
            "clip_decisions": self.clip_decisions,
            "archived": self.archived,
            "events": self.events,
            "responses": self.responses,
            "bytes": self.bytes,
            "unreadable": unreadable_facts(self.unreadable),
            "verified": self.verified,
            "out_of_reach": self.out_of_reach,
            "different": [*self.different[:SHOWN_SESSIONS]],
            "different_responses": self.different_responses,
        }


@dataclass(slots=True)
class _Records:
    """Digests of what one session has, by name."""

    anchor: bytes = b""
    checkpoints: dict[str, bytes] = field(default_factory=dict)
    clips: dict[str, bytes] = field(default_factory=dict)

    def add(self, change: Change) -> None:
        self.anchor = change.anchor
        if change.checkpoint is not None:
            told = state.checkpoint_json(change.checkpoint)
            self.checkpoints[change.checkpoint.id] = _digest(told)
        if change.clip_set is not None:
            name = f"{change.clip_set.digest.hex()} {change.clip_set.checkpoint}"
            self.clips[name] = _digest(repr(sorted(change.clip_set.clips.items())).encode())


class Migration:
    """One copy of everything."""

    def __init__(self, source: WholeStore, target: WholeStore | None, show: Show) -> None:
        """Copy from `source` to `target`; without a target everything is read and counted only."""
        self._source = source
        self._target = target
        self._responses = ResponseCopy(source.responses, target.responses if target else None)
        self._show = show
        self._copied: dict[str, _Records] = {}
        self.tally = Tally()

    async def copy(self) -> None:
        """Copy every session, then every recorded response.

        Raises:
            StoreError: when a store fails; what was copied until then stays.
        """
        tally = self.tally
        tally.total = len([session async for session in self._source.all_sessions()])
        self._show("copying", 0, tally.total)
        async for session in self._source.all_sessions():
            if session not in self._copied:
                self._copied[session] = await self._copy(session)
                tally.sessions += 1
                # Some may have come meanwhile.
                tally.total = max(tally.total, tally.sessions)
                self._show("copying", tally.sessions, tally.total)
        await self._responses.copy(tally.note, self._count)

    async def verify(self) -> None:
        """Read what was copied from the target and compare.

        Raises:
            StoreError: when a store fails.
        """
        if self._target is None:
            return
        total = len(self._copied)
        self._show("verifying", 0, total)
        for number, (session, records) in enumerate(self._copied.items(), 1):
            if await self._is_there(self._target, session, records):
                self.tally.verified += 1
            else:
                self.tally.different.append(session)
            self._show("verifying", number, total)
        self.tally.different_responses += await self._responses.verify()

    def _count(self, response: RecordedResponse, taken: bool) -> None:
        self.tally.add_response(response, taken=taken)
        self._show("responses", self.tally.responses, None)

    async def _copy(self, session: str) -> _Records:
        records = _Records()
        changes = self._source.export(session, self.tally.note)
        while (change := await self._next(changes)) is not None:
            if self._target is not None:
                async for part in _parts(self._target, change):
                    await self._target.commit(part)
            self.tally.add(change)
            records.add(change)
        return records

    async def _next(self, changes: AsyncIterator[Change]) -> Change | None:
        try:
            return await anext(changes, None)
        except StateCorrupt:
            # What the store keeps of this session is damaged as a whole; the others are not.
            self.tally.note(Unreadable("damaged"))
            return None

    async def _is_there(self, target: SessionStore, session: str, wanted: _Records) -> bool:
        found = _Records()
        async for change in target.export(session):
            found.add(replace(change, archive=(), events=()))
        if wanted.clips.items() <= found.clips.items() and (
            wanted.checkpoints.items() <= found.checkpoints.items()
        ):
            return True
        # Every store keeps or looks at the newest checkpoints and clips of a conversation only.
        state_ = await self._source.find(wanted.anchor, ())
        reached = set(state_.cuts.values())
        missing = [
            id_
            for id_, told in wanted.checkpoints.items()
            if found.checkpoints.get(id_, b"") != told
        ]
        self.tally.out_of_reach += len([id_ for id_ in missing if id_ not in reached])
        clips_are_there = wanted.clips.items() <= found.clips.items()
        return clips_are_there and not reached.intersection(missing)


async def carry_key(source: SessionStore, target: SessionStore | None) -> KeyFate:
    """Take the key that sessions are found with along; without a target only look."""
    key = await source.known_secret(TENANCY)
    if key is None:
        return "none"
    if target is None:
        return "copied"
    known = await target.known_secret(TENANCY)
    if await target.adopt_secret(TENANCY, key) != key:
        return "other"
    return "copied" if known is None else "kept"


async def _parts(target: SessionStore, change: Change) -> AsyncIterator[Change]:
    """Yield a change in parts of bearable size, without events that the target has."""
    events = await _new_events(target, change) if change.events else ()
    for start in range(0, len(events), EVENTS_AT_ONCE):
        part = tuple(events[start : start + EVENTS_AT_ONCE])
        yield Change(change.anchor, change.session, change.time, events=part)
    yield replace(change, events=())


async def _new_events(target: SessionStore, change: Change) -> Sequence[Event]:
    """Return the events behind the last one that the target has.

    Only these: a store may have dropped its oldest, which would come back as the newest.
    """
    known = set(await target.events(change.session))
    for end in range(len(change.events), 0, -1):
        if codec.dumps(change.events[end - 1].to_json()).decode() in known:
            return change.events[end:]
    return change.events


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
