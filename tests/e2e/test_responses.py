"""What only the Responses API has: its items, endpoints and streams."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, dumps
from tests import builders as b
from tests import items as i
from tests.e2e import checks
from tests.e2e.apis import APIS, STATELESS
from tests.e2e.checks import PEERS, Agent, ItemAgent
from tests.e2e.raw import RawUpstream, exchange, reply, request
from tests.e2e.running import Running
from tests.upstream import RESPONSES, Recorded, Reply, ScriptedUpstream
from tests.upstream_responses import RESPONSES_PATH

WINDOW = 16_384
STEPS = 24
"""Enough calls of 2 KB for one compaction."""

SKIPPED = "compaction_skipped"


def agent_of(
    client: aiohttp.ClientSession,
    proxy: Running,
    up: ScriptedUpstream,
    headers: dict[str, str] | None = None,
    **fields: Json,
) -> ItemAgent:
    return ItemAgent(client, proxy.url, up, headers, **{**STATELESS, **fields})


async def test_items_that_define_tools_or_settings_stay(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, 8192)
    up.one_system = False
    search: list[JsonObject] = [
        i.reasoning("search"),
        {"type": "tool_search_call", "call_id": "s1", "arguments": {}, "execution": "client"},
        {"type": "tool_search_output", "call_id": "s1", "tools": [], "execution": "client"},
    ]
    setting: JsonObject = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    items = i.tool_session(20, result_chars=2000)
    items[5:5] = [*search, setting]
    async with Running(up.base_url, tmp_path) as proxy:
        exchanges = await agent_of(client, proxy, up).play(items)
    checks.assert_fine(exchanges, up)
    assert checks.compactions(exchanges)
    arrived = checks.raw_messages(exchanges[-1].arrived)
    assert [raw for raw in map(dumps, [*search, setting]) if raw not in arrived] == []


async def test_a_whole_turn_goes_although_something_of_it_stays(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """All of it but an item that defines tools, which stands before the only message left."""
    checks.make_strict(up, 4096)
    # Where templates want turns to alternate, nobody knows of such items.
    up.one_system = up.alternate = False
    tools = i.DEFINITIONS[0]
    work = i.tool_session(40, result_chars=2000)
    place = next(n for n in range(20, 99) if work[n - 1]["type"] == "function_call_output")
    items = [*work[:place], tools, *work[place:], i.answer("Done."), i.user("And now?")]
    values: dict[str, Json] = {"compaction.background": False}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = agent_of(client, proxy, up)
        first = await agent.say(items)
        more = await agent.say([*items, i.answer("Well.", "msg_2"), i.user("Go on.")])
    checks.assert_fine([first, more], up)
    assert (first.marks, more.marks) == (["compacted", "partial"], ["reused"])
    arrived = checks.raw_messages(first.arrived)
    assert checks.carries(arrived[0])
    assert arrived[1:] == [dumps(tools), dumps(items[-1])]
    assert checks.raw_messages(more.arrived)[:3] == arrived


async def test_the_upstreams_own_compaction_is_still_asked_for(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """What asks for it must stay the last item; its result stays where it is kept."""
    checks.make_strict(up, 8192)
    sealed: JsonObject = {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2VhbGVk"}
    items = [i.user(b.TASK), sealed, *i.tool_session(20, result_chars=2000)]
    trigger: JsonObject = {"type": "compaction_trigger"}
    async with Running(up.base_url, tmp_path) as proxy:
        agent = agent_of(client, proxy, up)
        few = await agent.say([*items[:20], trigger])
        many = await agent.say([*items, trigger])
    checks.assert_fine([few, many], up)
    assert few.arrived == few.sent
    assert many.marks == ["compacted"]
    assert checks.raw_messages(many.arrived)[-1] == dumps(trigger)


async def test_a_patch_that_fills_a_small_window(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """What was written with a function or a tool of the API is shortened, as results are."""
    checks.make_strict(up, 3000)
    patch = b.prose(30_000, 1, "*** Begin Patch")
    built: JsonObject = {"type": "apply_patch_call", "call_id": "c2", "status": "completed"}
    done: JsonObject = {"type": "apply_patch_call_output", "call_id": "c2", "status": "completed"}
    tails: list[list[JsonObject]] = [
        [i.call("c2", "write_file", {"path": "a", "content": patch}), i.output("c2", "ok")],
        [{**built, "operation": {"type": "update_file", "path": "a", "diff": patch}}, done],
    ]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = agent_of(client, proxy, up)
        for tail in tails:
            await agent.say([*i.tool_session(3, result_chars=300), *tail])
    checks.assert_fine(agent.exchanges, up)
    assert {tuple(e.marks) for e in agent.exchanges} <= {("clipped",), ("compacted", "clipped")}


async def test_large_instructions_count_wherever_they_stand(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Small steps, so that little is new in each request."""
    checks.make_strict(up, WINDOW)
    instructions = b.prose(24_000, 1)
    items = i.joined(b.tool_session(90, result_chars=350), sealed_bytes=0)
    async with Running(up.base_url, tmp_path) as proxy:
        for first in (True, False):
            agent = ItemAgent(client, proxy.url, up)
            for step in list(checks.steps(items))[40:]:
                body = i.body(step, instructions=instructions)
                if first:
                    head = dumps({"model": "test-model", "instructions": instructions})
                    body = head[:-1] + b',"input":' + dumps([*step]) + b"}"
                await agent.post(body)
            checks.assert_fine(agent.exchanges, up)
            assert "reused" in agent.exchanges[-1].marks


async def test_the_apis_share_nothing(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """The same conversation in both."""
    checks.make_strict(up, WINDOW)
    chat = b.tool_session(STEPS, result_chars=2048)
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        agents = [Agent(client, proxy.url, up, api=api) for api in APIS]
        for agent in agents:
            await agent.play(chat)
    records = [checks.record_id(checks.record_of(a.exchanges[-1])) for a in agents]
    assert all(records)
    assert len({a.exchanges[-1].session for a in agents}) == 2
    for agent, other in zip(agents, records[::-1], strict=True):
        checks.assert_fine(agent.exchanges, up)
        assert [e for e in agent.exchanges if other.encode() in e.arrived] == []
    assert [r.path for r in up.summaries] == [api.path for api in APIS]


# What is left alone


TEXT = rb'{"input" : "Caf\u00e9 \/ hi","model":"test-model" }'


@pytest.mark.parametrize(
    ("path", "arrives"),
    [
        ("/responses", RESPONSES_PATH),
        ("/v1//responses/", RESPONSES_PATH),
        ("/v1/responses?beta=true", RESPONSES_PATH + "?beta=true"),
        ("/openai/responses?api-version=preview", "/openai/responses?api-version=preview"),
    ],
)
async def test_paths_of_all_kinds(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, path: str, arrives: str
) -> None:
    """Requests and summaries go to the one that the client means."""
    up.window, up.responses_path = WINDOW, arrives.partition("?")[0]
    up.apis = frozenset({RESPONSES})
    body = i.body(i.tool_session(30))
    async with (
        Running(up.base_url, tmp_path, **PEERS) as fold,
        client.post(fold.url + path, data=body) as response,
    ):
        assert response.status == 200
        assert response.headers["x-foldgate-compaction"] == "compacted"
    posted = [r.path_qs for r in up.requests if r.method == "POST"]
    # Before that it was asked whether it can count.
    assert [path for path in posted if not path.endswith("/input_tokens")] == [arrives, arrives]
    assert up.violations == []


async def test_what_is_no_request_is_the_upstreams_to_judge(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    bodies = [b"", b"{", b"[]", b"{}", b'{"model":"m","input":{}}', b'{"model":"m","input":[1]}']
    bodies += [b'{"model":"m","input":[]}', b'{"model":"m","input":null}', b'{"input":[{}]}']
    async with Running(up.base_url, tmp_path) as proxy:
        agent = agent_of(client, proxy, up)
        for body in bodies:
            done = await agent.post(body)
            assert done.arrived == body
            assert "failed-open" not in done.headers.get("x-foldgate-compaction", "")
    assert proxy.events.of_type("compaction_failed") == []


SSE = ("Content-Type", "text/event-stream")
EVENTS = b"".join(
    [
        b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n',
        b": hello\n\n:\n\nevent: response.x\r\ndata: {\r\ndata: }\r\n\r\n",
        b'event: error\ndata: {"type":"error","error":{"message":"late"}}\n\nid: 7\n\n',
        b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":1}}}',
    ]
)


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_streams_arrive_byte_for_byte(tmp_path: Path, size: int) -> None:
    async with (
        RawUpstream() as raw,
        Running(raw.base_url, tmp_path, **{"upstream.context_window": 9000}) as fold,
    ):
        head = reply("200 OK", None, SSE, ("Transfer-Encoding", "chunked"))
        pieces = [EVENTS[n : n + size] for n in range(0, len(EVENTS), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        raw.replies.append(head + body + b"0\r\n\r\n")
        answer = await exchange(
            fold.url, request("POST", RESPONSES_PATH, i.body("hi", stream=True))
        )
    assert answer.body == EVENTS
    assert answer.all("Content-Type") == ["text/event-stream"]


async def test_the_first_event_arrives_before_the_last(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    up.replies.append(Reply(text="one two three four", gate=gate))
    values: dict[str, Json] = {"upstream.context_window": 9000}
    async with (
        Running(up.base_url, tmp_path, **values) as fold,
        client.post(fold.url + RESPONSES_PATH, data=i.body("hi", stream=True)) as response,
    ):
        first = await asyncio.wait_for(response.content.readany(), 5)
        assert first.startswith(b"event: response.created\n")
        assert not up.main[0].outcome.finished
        gate.set()
        rest = await response.read()
    assert b"event: response.completed\n" in rest


OTHERS = [
    ("GET", "/v1/responses/resp_1?include=x&stream=true&starting_after=3", b""),
    ("DELETE", "/v1/responses/resp_1", b""),
    ("GET", "/v1/responses/resp_1/input_items?limit=2&order=asc", b""),
    ("POST", "/v1/responses/resp_1/cancel", b""),
    ("POST", "/v1/responses/compact", i.body(i.tool_session(60))),
    ("POST", "/v1/responses/input_tokens", i.body(i.tool_session(60))),
    ("POST", "/v1/conversations", b'{"items": []}'),
]


@pytest.mark.parametrize(("method", "target", "body"), OTHERS, ids=lambda value: str(value)[:40])
async def test_other_endpoints_pass_untouched(
    tmp_path: Path, method: str, target: str, body: bytes
) -> None:
    async with (
        RawUpstream() as raw,
        Running(raw.base_url, tmp_path, **{"upstream.context_window": 9000}) as fold,
    ):
        raw.replies.append(reply("418 Teapot", b'{"x" : 1.0}', ("X-Odd", "1")))
        answer = await exchange(fold.url, request(method, target, body or None))
    assert len(raw.requests) == 1
    assert (raw.last.method, raw.last.target, bytes(raw.last.body)) == (method, target, body)
    assert (answer.status, bytes(answer.body)) == (418, b'{"x" : 1.0}')
    assert [name for name, _ in answer.headers if name.lower().startswith("x-foldgate")] == []
    assert fold.events == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_overflow_is_relayed_as_it_is(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, stream: bool
) -> None:
    """Where nothing could be done about it: compaction is off."""
    up.window = 4000
    body = i.body(i.tool_session(20), stream=stream)
    async with Running(up.base_url, tmp_path, **{"compaction.auto": False}) as proxy:
        through = await agent_of(client, proxy, up).post(body, {"x-foldgate-bypass": "1"})
    async with client.post(up.url + RESPONSES_PATH, data=body) as direct:
        assert through.reply == await direct.read()
        assert through.status == direct.status == (200 if stream else 400)
    assert b"context_length_exceeded" in through.reply


# Switches and usage


async def test_a_text_has_nothing_to_compact(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        done = await agent_of(client, proxy, up).post(TEXT, {"x-foldgate-compact": "force"})
    assert (done.status, done.marks) == (200, ["none"])
    assert done.arrived == done.sent
    assert checks.reasons(proxy.events.of_type(SKIPPED)) == ["not_enough_history"]


async def test_usage_teaches_how_far_the_estimate_is_off(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A model that counts twice as many tokens as estimated is compacted twice as early."""
    values: dict[str, Json] = {**PEERS, "upstream.context_window": WINDOW}
    first: list[int] = []
    for stream, told in ((False, None), (False, twice), (True, None), (True, twice)):
        up.reply = told
        folder = tmp_path / str(len(first))
        folder.mkdir()
        async with Running(up.base_url, folder, **values) as proxy:
            agent = agent_of(client, proxy, up, stream=stream)
            await agent.play(i.tool_session(44, result_chars=2048))
        first.append(checks.compactions(agent.exchanges)[0])
    assert first[1] <= 0.75 * first[0]
    assert first[3] <= 0.75 * first[2]


def twice(asked: Recorded) -> Reply:
    usage: JsonObject = {"input_tokens": len(asked.body) // 2, "output_tokens": 1}
    response: JsonObject = {"object": "response", "status": "completed", "usage": usage}
    if asked.json["stream"] is False:
        return Reply(raw_body=dumps(response))
    event = dumps({"type": "response.completed", "response": response})
    return Reply(chunks=[b"event: response.completed\n", b"data: " + event + b"\n\n"])
