"""Conversations that clients leave to the upstream: `previous_response_id`, `item_reference`."""

import asyncio
import gzip
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import aiohttp
import pytest
import zstandard

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps, loads
from proxy.sessions.sqlite_store import SqliteStore
from proxy.telemetry import COMPACTION_COMPLETED, COMPACTION_SKIPPED
from tests import items as b
from tests.e2e.chained import Chained, Turned
from tests.e2e.running import Running, Served
from tests.upstream import RESPONSES, Recorded, Reply, ScriptedUpstream
from tests.upstream_responses import item_texts

WINDOW = 8192
TASK = "Repair the import of TASK-7341 and say which line it was."
FIELD = "previous_response_id"
RESULT = "line of output 4711; " * 60
SUMMARY = dumps({"goal": TASK, "currentState": "some files were read"}).decode()


def calls_on(asked: Recorded) -> Reply:
    """Reply with one more call, numbered by what the upstream has seen."""
    number = len(asked_so_far(asked))
    arguments = dumps({"path": f"src/file_{number}.py"}).decode()
    call = (f"call_{asked_so_far.count()}", "read_file", arguments)
    return Reply(text="", reasoning=f"look at file {number}", tool_calls=[call])


class _Counter:
    """Numbers calls over the whole run, so that no id comes twice."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, asked: Recorded) -> Sequence[JsonObject]:
        return asked.messages

    def count(self) -> int:
        self._number += 1
        return self._number


asked_so_far = _Counter()


@pytest.fixture
async def up() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(window=WINDOW, reply=calls_on) as up:
        yield up


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


def result(number: int) -> str:
    return f"STEP-{number:03d} {RESULT}"


async def walk(client: Chained, steps: int, after: Turned | None = None) -> list[Turned]:
    """Ask the task, or go on after a response, and answer `steps` calls."""
    turned = after or await client.say([b.easy("user", TASK)])
    done = [] if after else [turned]
    start = len(client.turns)
    for number in range(start, start + steps):
        outputs = [b.output(call, result(number)) for call in turned.calls]
        turned = await client.say(outputs, turned.id)
        assert turned.status == 200, turned.response
        done.append(turned)
    return done


def texts(items: Sequence[JsonObject]) -> str:
    return "\n".join(text for item in items for text in item_texts(item))


def assert_all_was_read(client: Chained, turns: Sequence[Turned]) -> None:
    """The task was in every input, and each step's result in the input it belonged to."""
    for turned in turns:
        read = texts(client.read_by_the_model(turned))
        assert TASK in read
        for item in as_objects(loads(turned.sent)["input"]):  # type: ignore[index, call-overload]
            assert as_text(item.get("output")) in read


# --- an upstream that keeps responses, and some that do not ---


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["keeps", "rejects", "forgets", "ignores", "ignores all"])
async def test_sixty_steps(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path, kind: str, stream: bool
) -> None:
    if kind == "rejects":
        up.reject_params = {FIELD}
    up.keeps_chains = "ignores" not in kind
    # A lax server says nothing even of outputs whose calls it has never seen.
    up.strict_pairing = kind != "ignores all"
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up, stream=stream)
        turned = await client.say([b.easy("user", TASK)])
        for number in range(1, 61):
            if kind == "forgets":
                up.stored.responses.clear()
            outputs = [b.output(call, result(number)) for call in turned.calls]
            turned = await client.say(outputs, turned.id)
            assert turned.status == 200, turned.response
        assert len(up.violations) <= (2 if kind == "ignores" else 0)
        assert len(proxy.events.of_type(COMPACTION_COMPLETED)) >= 3
        assert not proxy.events.of_type(COMPACTION_SKIPPED)
        # That it ignores them is only seen once a reply reports too few tokens.
        late = 3 if kind == "ignores all" else 0
        assert_all_was_read(client, client.turns[late:])
        passed = [turned.passed for turned in client.turns]
        if kind == "keeps":
            # Below the trigger it is the upstream's business; above it never again.
            assert passed == sorted(passed, reverse=True)
            assert 4 < sum(passed) < 30
            assert not up.rejections
        else:
            assert sum(passed) <= 3
            assert len(up.rejections) <= 2
            assert all(FIELD not in t.arrived.json for t in client.turns[4:])


async def test_below_the_trigger_every_byte_passes(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up, metadata={"a": "1"}, temperature=1.0)
        turns = await walk(client, 4)
        assert all(turned.passed for turned in turns)
        assert [turned.marks for turned in turns] == [["none"]] * 5
        sizes = [turned.headers["x-foldgate-tokens"] for turned in turns]
        assert len(set(sizes)) == 5, "the whole conversation is measured, not what is new"
        assert not proxy.events


async def test_a_text_as_input_begins_and_continues_a_chain(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    up.reply = None
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        first = await client.say(TASK)
        second = await client.say("And the second one?", first.id)
        third = await client.say("Thanks.", second.id)
        read = client.read_by_the_model(third)
        assert [as_text(i["role"]) for i in read] == ["user", "assistant"] * 2 + ["user"]
        assert [texts([i]) for i in read] == [
            TASK,
            "ok 1",
            "And the second one?",
            "ok 2",
            "Thanks.",
        ]


async def test_instructions_are_not_inherited(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up, instructions="First.")
        first = await client.say([b.easy("developer", "Rule."), b.easy("user", TASK)])
        again = await client.say(
            [b.output(first.calls[0], "x")], first.id, instructions="Second.", tools=[]
        )
        body = again.arrived.json
        assert (body["instructions"], body["tools"]) == ("Second.", [])
        assert "Rule." in texts(client.read_by_the_model(again))


async def test_the_upstreams_other_errors_are_relayed(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        first = await client.say([b.easy("user", TASK)])
        wrong = await client.say([b.easy("user", "and?")], first.id)
        assert wrong.status == 400
        assert len(wrong.forwarded) == 1
        limited = "Rate limit reached for previous_response_id."
        up.replies.append(Reply(status=429, text=limited, headers={"retry-after": "7"}))
        refused = await client.say([b.output(first.calls[0], "x")], first.id)
        assert (refused.status, len(refused.forwarded)) == (429, 1)
        assert refused.headers["retry-after"] == "7"
        large = "x" * 200_000
        up.replies.append(Reply(status=400, text=large))
        refused = await client.say([b.output(first.calls[0], "x")], first.id)
        error = refused.response["error"]
        assert isinstance(error, dict)
        assert error["message"] == large


async def test_mistakes_of_one_client_change_nothing_for_others(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Each is told once, and the upstream is still trusted to keep what it keeps."""
    async with Running(up.base_url, tmp_path, **{"tenancy.source": "credential"}) as proxy:
        ann = Chained(http, proxy.url, up, key="sk-ann")
        bob = Chained(http, proxy.url, up, key="sk-bob")
        first = (await walk(ann, 2))[-1]
        known = (await walk(bob, 2))[-1]
        said = [b.easy("user", "and?")]
        wrong = [
            await bob.say(said, "resp_nowhere"),
            await bob.say(said, "resp_elsewhere"),
            await bob.say(said, "foo"),
            await bob.say([b.output("call_unknown", "x")], known.id),
            await bob.say([b.output("call_unknown", "x")], known.id),
            await bob.say([*said, {"type": "item_reference", "id": "msg_nowhere"}]),
        ]
        up.replies.append(Reply(status=500, text=f"{FIELD} {known.id}: internal error"))
        wrong.append(await bob.say([b.output(c, "x") for c in known.calls], known.id))
        up.replies.append(Reply(status=422, text=f"temperature, in a request with {FIELD}"))
        wrong.append(await bob.say([b.output(c, "x") for c in known.calls], known.id))
        up.reject_params = {"temperature"}
        wrong.append(await bob.say(said, known.id, temperature=9))
        up.reject_params = set()
        assert [t.status for t in wrong] == [400] * 5 + [404, 500, 422, 400]
        assert [len(t.forwarded) for t in wrong] == [1] * 9
        assert all(t.passed for t in wrong)
        later = await walk(ann, 3, first) + await walk(bob, 2, known)
        assert all(t.passed and len(t.forwarded) == 1 for t in later)


async def test_a_server_that_says_that_it_keeps_nothing(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    output: list[Json] = [b.answer("Which file?")]
    honest: JsonObject = {"id": "resp_h", "status": "completed", "store": False, "output": output}
    up.replies.append(Reply(raw_body=dumps(honest)))
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        await client.say(TASK)
        turned = await client.say("The first.", "resp_h")
        assert turned.status == 200
        assert texts(turned.arrived.messages) == f"{TASK}\nWhich file?\nThe first."


async def test_a_request_that_went_round_the_proxy_does_not_end_the_chain(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        turned = (await walk(client, 2))[-1]
        client.headers["x-foldgate-bypass"] = "1"
        turned = (await walk(client, 2, turned))[-1]
        client.headers.clear()
        turned = (await walk(client, 30, turned))[-1]
        assert not up.violations
        assert len(proxy.events.of_type(COMPACTION_COMPLETED)) >= 1
        assert_all_was_read(client, client.turns)


# --- branches, restarts, tenants ---


async def test_two_branches_from_one_response(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        trunk = (await walk(client, 6))[-1]
        left = await walk(client, 20, trunk)
        right = await walk(client, 20, trunk)
        assert not up.violations
        assert_all_was_read(client, client.turns)
        for mine, other in ((left, right), (right, left)):
            calls = [as_text(item.get("call_id")) for item in client.read_by_the_model(mine[-1])]
            assert not {call for turned in other for call in turned.calls} & {*calls}
        # The old branch goes on as if the other had never been.
        assert (await walk(client, 1, left[-1]))[0].status == 200
        assert not up.violations


@pytest.mark.parametrize("rejects", [False, True])
async def test_a_restart_in_the_middle(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path, rejects: bool
) -> None:
    up.reject_params = {FIELD} if rejects else set()
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        trunk = await walk(client, 8)
        later = await walk(client, 22, trunk[-1])
        bodies = [turned.arrived.body for turned in later[-2:]]
    async with Running(up.base_url, tmp_path) as proxy:
        client.url = proxy.url
        # What came last, again: the same bytes as before the restart.
        again = await client.say(
            as_objects(loads(later[-1].sent)["input"]),  # type: ignore[index, call-overload]
            later[-2].id,
        )
        assert again.status == 200
        assert again.arrived.body == bodies[-1]
        await walk(client, 5, later[-1])
        await walk(client, 5, trunk[3])
        assert not up.violations
        assert not proxy.events.of_type(COMPACTION_SKIPPED)
        assert_all_was_read(client, client.turns)


async def stored(folder: Path, count: int) -> None:
    """Return once so many responses are in the store of a folder."""
    path = folder / "foldgate.db"
    store = SqliteStore(path, retention_seconds=1e6, archive_bytes=1 << 30)
    await store.open()
    try:
        async with asyncio.timeout(20):
            while len([r async for r in store.responses.all_responses()]) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await store.close()


async def test_a_kill_loses_no_response_that_was_stored(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    async with Served(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up, stream=True)
        turned = (await walk(client, 12))[-1]
        await stored(tmp_path, 13)
        await proxy.kill()
    async with Served(up.base_url, tmp_path) as proxy:
        client.url = proxy.url
        again = (await walk(client, 1, turned))[0]
        assert_all_was_read(client, [again])


async def test_an_orderly_end_stores_what_was_relayed(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    async with Served(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up, stream=True)
        turned = (await walk(client, 3))[-1]
        assert await proxy.terminate() == 0
    async with Served(up.base_url, tmp_path) as proxy:
        client.url = proxy.url
        assert_all_was_read(client, await walk(client, 1, turned))


@pytest.mark.parametrize("rejects", [False, True])
@pytest.mark.slow
async def test_a_chain_that_two_processes_take_turns_at(
    up: ScriptedUpstream, tmp_path: Path, rejects: bool
) -> None:
    up.reject_params = {FIELD} if rejects else set()
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
        Served(up.base_url, tmp_path, args=["--workers", "2"]) as proxy,
    ):
        client = Chained(http, proxy.url, up, stream=True)
        await walk(client, 40)
        assert not up.violations
        assert_all_was_read(client, client.turns)


async def test_another_tenants_response_is_never_written_out(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    async with Running(up.base_url, tmp_path, **{"tenancy.source": "credential"}) as proxy:
        ann = Chained(http, proxy.url, up, key="sk-ann")
        bob = Chained(http, proxy.url, up, key="sk-bob")
        first = (await walk(ann, 3))[-1]
        stolen = await bob.say([b.easy("user", "What did they say?")], first.id)
        assert stolen.status == 400
        assert stolen.passed
        assert [turned.passed for turned in bob.turns] == [True]
        referred = await bob.say(
            [{"type": "item_reference", "id": first.output[0]["id"]}, b.easy("user", "And?")]
        )
        assert TASK not in referred.arrived.body.decode()
        assert referred.passed
        event = await proxy.wait_event(COMPACTION_SKIPPED)
        assert event["reason"] == "server_side_state"
        mine = await ann.say([b.output(call, "x") for call in first.calls], first.id)
        assert mine.status == 200


# --- what is not known ---


@pytest.mark.parametrize(
    "fields",
    [
        {FIELD: "resp_unknown"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "pmpt_1"}},
    ],
)
async def test_what_only_the_upstream_knows_passes_with_an_event(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path, fields: JsonObject
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        turned = await client.say([b.easy("user", "x" * 40_000)], **fields)
        assert turned.passed
        event = await proxy.wait_event(COMPACTION_SKIPPED)
        assert event["reason"] == "server_side_state"


async def test_a_response_that_is_not_stored_is_not_recorded(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        first = await client.say([b.easy("user", TASK)], store=False)
        turned = await client.say([b.output(first.calls[0], "x")], first.id)
        assert (turned.status, turned.passed) == (400, True)
        assert len(turned.forwarded) == 1


async def test_recording_can_be_turned_off(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path, **{"store.response_bytes": 0}) as proxy:
        client = Chained(http, proxy.url, up)
        turns = await walk(client, 3)
        assert all(turned.passed for turned in turns)
        assert len(proxy.events.of_type(COMPACTION_SKIPPED)) == 3


async def test_a_conversation_larger_than_the_limit_is_not_recorded(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path, **{"store.response_bytes": 4000}) as proxy:
        client = Chained(http, proxy.url, up)
        turns = await walk(client, 5)
        assert all(turned.passed for turned in turns)
        skipped = len(proxy.events.of_type(COMPACTION_SKIPPED))
        assert 0 < skipped < 5


@pytest.mark.parametrize("status", ["deleted", "unknown"])
async def test_a_deleted_response_is_let_go(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path, status: str
) -> None:
    up.reject_params = {FIELD}
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        turns = await walk(client, 2)
        gone = turns[1]
        if status == "unknown":
            up.stored.responses.clear()
        url = f"{proxy.url}/v1/responses/{gone.id}"
        async with http.get(url) as found:
            assert found.status == (200 if status == "deleted" else 404)
        async with http.delete(url, headers={"authorization": "Bearer sk-ann"}) as reply:
            assert reply.status == found.status
        after = await client.say([b.output(gone.calls[0], "x")], gone.id)
        assert (after.status, after.passed) == (400, True)
        # What came after it is whole still.
        assert (await walk(client, 2, turns[2]))[-1].status == 200
        assert_all_was_read(client, client.turns[-2:])


# --- items by reference ---


def referring(turned: Turned) -> list[JsonObject]:
    """As the AI SDK sends a stored turn of the model."""
    return [{"type": "item_reference", "id": item["id"]} for item in turned.output]


@pytest.mark.parametrize("knows", [True, False])
async def test_items_by_reference(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path, knows: bool
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        # What is not sealed, only a server that has kept it can read.
        client = Chained(http, proxy.url, up, stream=True, include=["reasoning.encrypted_content"])
        items: list[JsonObject] = [b.easy("user", TASK)]
        turned = await client.say(items)
        for number in range(1, 31):
            if not knows:
                up.stored.items.clear()
            items += referring(turned)
            items += [b.output(call, result(number)) for call in turned.calls]
            turned = await client.say(items)
            assert turned.status == 200, turned.response
        assert not up.violations or not knows
        assert len(proxy.events.of_type(COMPACTION_COMPLETED)) >= 1
        for number, turned in enumerate(client.turns):
            read = (
                texts(client.read_by_the_model(turned)) if knows else turned.arrived.body.decode()
            )
            assert TASK in read
            assert number == 0 or f"STEP-{number:03d}" in read
        if knows:
            assert client.turns[3].passed
        else:
            assert sum(turned.passed for turned in client.turns) <= 3


async def test_a_reference_to_nothing_known_passes(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        turned = await client.say([{"id": "msg_gone"}, b.easy("user", TASK)])
        assert (turned.status, turned.passed) == (404, True)
        event = await proxy.wait_event(COMPACTION_SKIPPED)
        assert event["reason"] == "server_side_state"


# --- replies ---


CODINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "br": bytes,
}


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("stream", [False, True])
async def test_compressed_replies(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path, coding: str, stream: bool
) -> None:
    """What an upstream compresses is recorded, unless it does so in a way that was not offered."""
    up.reject_params = {FIELD}
    said: list[Json] = [b.answer("Which one?")]
    response: JsonObject = {"id": "resp_c", "status": "completed", "output": said}
    plain = dumps(response)
    if stream:
        plain = b"data: " + dumps({"type": "response.completed", "response": response}) + b"\n\n"
    kind = "text/event-stream" if stream else "application/json"
    headers = {"content-encoding": coding, "content-type": kind}
    packed = CODINGS[coding](plain)
    up.replies.append(Reply(chunks=[packed[:7], packed[7:]], headers=headers))
    offered = {"accept-encoding": "gzip, deflate;q=0.5, br, zstd"}
    async with Running(up.base_url, tmp_path) as proxy:
        body = dumps({"model": "test-model", "input": TASK, "stream": stream})
        url = f"{proxy.url}/v1/responses"
        async with (
            aiohttp.ClientSession(auto_decompress=False) as raw,
            raw.post(url, data=body, headers=offered) as reply,
        ):
            assert reply.headers["content-encoding"] == coding
            assert await reply.read() == packed
        assert up.main[0].headers["accept-encoding"] == "gzip, deflate;q=0.5, zstd"
        # The proxy has read it once it is known; what it cannot read it never knows.
        client = Chained(http, proxy.url, up)
        later = await client.say("The first.", "resp_c")
        assert later.status == (400 if coding == "br" else 200)
        if coding != "br":
            assert texts(later.arrived.messages) == f"{TASK}\nWhich one?\nThe first."


async def test_where_nothing_is_recorded_every_coding_is_offered(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        client.headers["accept-encoding"] = "br, gzip"
        turned = await client.say(TASK, store=False)
        assert turned.arrived.headers["accept-encoding"] == "br, gzip"


async def test_a_reply_that_breaks_off_is_not_recorded(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up, stream=True)
        up.replies.append(Reply(text="half", cut=True))
        with pytest.raises(aiohttp.ClientError):
            await client.say([b.easy("user", TASK)])
        later = await client.say([b.easy("user", "And?")], f"resp_{1:032x}")
        assert (later.status, later.passed) == (400, True)


async def test_requests_at_once_stay_apart(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    async with Running(up.base_url, tmp_path) as proxy:
        clients = [Chained(http, proxy.url, up, key=f"sk-{n % 3}") for n in range(6)]

        async def play(client: Chained, number: int) -> str:
            turned = await client.say([b.easy("user", f"{TASK} MARK-{number}")])
            for step in range(1, 25):
                outputs = [b.output(call, result(step)) for call in turned.calls]
                turned = await client.say(outputs, turned.id)
                assert turned.status == 200
            return turned.id

        await asyncio.gather(*(play(client, n) for n, client in enumerate(clients)))
        whole = [request.body.decode() for request in up.main if FIELD not in request.json]
        marks = [{m for m in range(6) if f"MARK-{m}" in body} for body in whole]
        assert len(marks) > 100
        assert all(len(found) == 1 for found in marks)
        assert not up.violations


async def test_a_chat_upstream_of_both_apis_is_not_disturbed(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A field of the same name in a chat request means nothing."""
    up.reply = None
    async with Running(up.base_url, tmp_path) as proxy:
        message: JsonObject = {"role": "user", "content": "hi"}
        messages: list[Json] = [message]
        body: JsonObject = {"model": "m", "messages": messages, FIELD: "resp_1"}
        async with http.post(f"{proxy.url}/v1/chat/completions", data=dumps(body)) as reply:
            assert reply.status == 200
        assert [request.api for request in up.main] != [RESPONSES]
        assert up.main[0].body == dumps(body)


# --- what recording must not change ---


async def test_a_recorded_stream_arrives_byte_for_byte_and_at_once(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    up.replies.append(Reply(text="a long answer " * 400, gate=gate))
    async with Running(up.base_url, tmp_path) as proxy:
        body = dumps({"model": "test-model", "input": TASK, "stream": True})
        async with http.post(f"{proxy.url}/v1/responses", data=body) as reply:
            first = await reply.content.readany()
            assert first.startswith(b"event: response.created\n")
            gate.set()
            rest = await reply.read()
        assert up.main[0].body == body
        # The same answer, straight from the upstream.
        up.stored.numbers = 0
        up.replies.append(Reply(text="a long answer " * 400))
        async with http.post(f"{up.url}/v1/responses", data=body) as direct:
            assert first + rest == await direct.read()


@pytest.mark.parametrize("rejects", [False, True])
async def test_force_bypass_and_shadow(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path, rejects: bool
) -> None:
    up.reject_params = {FIELD} if rejects else set()
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        turned = (await walk(client, 14))[-1]
        outputs = [b.output(call, "x") for call in turned.calls]
        client.headers["x-foldgate-compact"] = "force"
        forced = await client.say(outputs, turned.id)
        assert (forced.status, forced.marks) == (200, ["compacted"])
        assert FIELD not in forced.arrived.json
        client.headers = {"x-foldgate-bypass": "1"}
        bypassed = await client.say(outputs, turned.id)
        assert (bypassed.passed, bypassed.status) == (True, 400 if rejects else 200)
    async with Running(up.base_url, tmp_path, **{"server.shadow": True}) as proxy:
        client.url, client.headers = proxy.url, {"x-foldgate-compact": "force"}
        shadowed = await client.say(outputs, turned.id)
        assert shadowed.marks == ["shadow"]
        assert [request.body for request in shadowed.forwarded] == [shadowed.sent]


async def test_a_client_is_kept_company_while_its_chain_is_compacted(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    settings: dict[str, Json] = {"server.keepalive_seconds": 0.02}
    async with Running(up.base_url, tmp_path, **settings) as proxy:
        client = Chained(http, proxy.url, up, stream=True)
        turned = (await walk(client, 8))[-1]
        while not up.summaries:
            up.summary_replies.append(Reply(text=SUMMARY, delay=0.2))
            turned = (await walk(client, 1, turned))[0]
        assert turned.headers["x-foldgate-compaction"] == "running"
        # It was recorded as any other.
        assert (await walk(client, 1, turned))[0].status == 200
        assert not up.violations


async def test_a_packed_request_is_written_out_plainly(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        first = await client.say([b.easy("user", TASK)])
        outputs: list[Json] = [b.output(call, "x") for call in first.calls]
        body = dumps({"model": "test-model", "input": outputs, FIELD: first.id})
        headers = {"content-encoding": "gzip", "authorization": "Bearer sk-ann"}
        async with http.post(
            f"{proxy.url}/v1/responses", data=gzip.compress(body), headers=headers
        ) as reply:
            assert reply.status == 200
        assert "content-encoding" not in up.main[-1].headers
        assert texts(up.main[-1].messages).startswith(TASK)


# --- when things fail ---


@pytest.mark.slow
async def test_a_store_that_is_gone_stops_no_chain(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.reject_params = {FIELD}
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        turned = (await walk(client, 2))[-1]
        with locked(tmp_path / "foldgate.db"):
            turned = (await walk(client, 3, turned))[-1]
            await proxy.wait_event("store_failed")
        await walk(client, 1, turned)
        await stored(tmp_path, 7)
    async with Running(up.base_url, tmp_path) as proxy:
        client.url = proxy.url
        await walk(client, 1, client.turns[4])
        assert_all_was_read(client, client.turns)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep everybody else from writing to a SQLite file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield
        db.execute("ROLLBACK")


async def test_an_upstream_that_leaves_at_the_second_try(
    up: ScriptedUpstream, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        client = Chained(http, proxy.url, up)
        first = await client.say([b.easy("user", TASK)])
        up.reject_params = {FIELD}
        up.replies.append(Reply(drop=True))
        broken = await client.say([b.output(first.calls[0], "x")], first.id)
        # What it said before says more than that it is gone.
        assert broken.status == 400
        assert FIELD in str(broken.response["error"])
        # Once more, since the connection had carried a request before.
        assert [FIELD in request.json for request in broken.forwarded] == [True, False, False]
        assert (await walk(client, 1, first))[0].status == 200
