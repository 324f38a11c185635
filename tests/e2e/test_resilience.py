"""Faults that a reader of the code would look for, provoked for real."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from proxy import codec
from proxy.codec import JsonObject
from proxy.compactor.memory import MAX_ANCHORS, SessionMemory
from proxy.errors import StoreUnavailable
from proxy.sessions.sqlite_store import SqliteStore
from proxy.sessions.state import AnchorState, Change, Struggle
from proxy.transcript import Item, Kind, Transcript
from tests import builders as b
from tests.e2e.running import Events, Running
from tests.upstream import Recorded, Reply, ScriptedUpstream

WINDOW = 8192


async def session(fold: Running, steps: int) -> str:
    """One growing session; the last forwarded body is the caller's to look at."""
    messages = b.tool_session(steps)
    marks = []
    async with aiohttp.ClientSession() as client:
        for end in [2, *range(4, len(messages) + 1, 2)]:
            url = f"{fold.url}/v1/chat/completions"
            async with client.post(url, data=b.chat_body(messages[:end])) as reply:
                assert reply.status == 200
                marks.append(reply.headers["x-foldgate-compaction"])
    return marks[-1]


async def test_a_runaway_summary_does_not_end_summaries(tmp_path: Path) -> None:
    runaway: JsonObject = {"goal": "g" * 100_000, "discoveries": ["d" * 1000] * 300}
    async with ScriptedUpstream(window=WINDOW) as up, Running(up.base_url, tmp_path) as fold:
        up.summary_replies.append(Reply(text=codec.dumps(runaway).decode()))
        await session(fold, 45)
    assert len(up.summaries) >= 3
    assert not up.violations
    assert not fold.events.of_type("compaction_failed")


async def test_an_extract_still_knows_what_a_model_wrote_before(tmp_path: Path) -> None:
    good: JsonObject = {"goal": "GOALMARK", "discoveries": ["DISCMARK: port is 7731"]}
    async with ScriptedUpstream(window=WINDOW) as up, Running(up.base_url, tmp_path) as fold:
        up.summary_replies.append(Reply(text=codec.dumps(good).decode()))
        up.summary_replies.extend(Reply(status=500, text="boom") for _ in range(9))
        await session(fold, 30)
    completed = fold.events.of_type("compaction_completed")
    assert [event.get("extractive") for event in completed][:2] == [None, True]
    last: Recorded = up.main[-1]
    assert b"GOALMARK" in last.body
    assert b"DISCMARK" in last.body


async def test_a_cancelled_commit_is_stored_later(tmp_path: Path) -> None:
    """The state is used as soon as it is committed, so it must reach the store."""
    store = SqliteStore(tmp_path / "s.db", retention_seconds=1e9, archive_bytes=1 << 30)
    await store.open()
    held, release = asyncio.Event(), asyncio.Event()

    class Slow:
        async def commit(self, change: Change) -> None:
            held.set()
            await release.wait()
            await store.commit(change)

    memory = SessionMemory(Slow(), Events(), lambda: 1.0)  # type: ignore[arg-type]
    change = Change(b"anchor", "s1", 1.0, struggle=Struggle(2, 3.0))
    commit = asyncio.get_running_loop().create_task(memory.commit(change))
    await held.wait()
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert memory.pending == 1
    release.set()
    await memory.close()
    assert memory.pending == 0
    assert (await store.find(b"anchor", [])).struggle == Struggle(2, 3.0)
    await store.close()


async def test_unsaved_state_is_not_evicted() -> None:
    """A store that answers reads and refuses writes must not make a fresh checkpoint vanish."""

    class ReadOnly:
        async def commit(self, _: Change) -> None:
            raise StoreUnavailable("read-only")

        async def find(self, *_: object) -> AnchorState:
            return AnchorState()

    def opening(number: int) -> Transcript:
        digest = b"anchor-%d" % number
        return Transcript((), (Item(Kind.USER, "user", b"{}", 0, 0, digest),))

    memory = SessionMemory(ReadOnly(), Events(), lambda: 1.0)  # type: ignore[arg-type]
    await memory.commit(Change(b"anchor-0", "s", 1.0, struggle=Struggle(7)))
    for number in range(1, MAX_ANCHORS + 10):
        await memory.find(opening(number))
    assert (await memory.find(opening(0))).struggle == Struggle(7)


async def test_an_absolute_request_target_names_no_other_host(tmp_path: Path) -> None:
    async with ScriptedUpstream() as up, Running(up.base_url, tmp_path) as fold:
        port = int(fold.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET http://evil.invalid/v1/models?a=1 HTTP/1.1\r\nHost: evil.invalid\r\n"
            b"Connection: close\r\n\r\n"
        )
        head = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 200 ")
    assert [r.path_qs for r in up.requests] == ["/v1/models?a=1"]


async def test_a_profile_of_another_upstream_has_no_window_from_the_default_one(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedUpstream() as default,
        ScriptedUpstream(window=WINDOW, model="other") as other,
        Running(
            default.base_url,
            tmp_path,
            **{"upstream.context_window": 131_072},
            profiles=[{"model": "other", "base_url": other.base_url}],
        ) as fold,
    ):
        body = b.chat_body(b.tool_session(30), model="other")
        url = f"{fold.url}/v1/chat/completions"
        async with aiohttp.ClientSession() as client, client.post(url, data=body) as reply:
            assert reply.status == 200
    assert fold.events.of_type("compaction_started")[0]["window"] == WINDOW
    assert not other.violations
