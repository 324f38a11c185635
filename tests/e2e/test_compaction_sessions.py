"""Whole agent sessions through a strict upstream: every request answered, the task never lost."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import JsonObject, as_objects, as_text, dumps, loads
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import APIS, CHAT, RESPONSES, Api, Responses
from tests.e2e.checks import PEERS, Agent
from tests.e2e.running import Running
from tests.upstream import ScriptedUpstream

WINDOW = 16_384

Session = Callable[[], list[JsonObject]]


def one_turn() -> list[JsonObject]:
    """45 requests of one user turn."""
    return b.tool_session(44, result_chars=2048)


def many_turns() -> list[JsonObject]:
    """21 turns of 3 calls; ends where the last answer is asked for."""
    return b.turn_session(21, 3, result_chars=2048)[:-1]


def with_text_between() -> list[JsonObject]:
    messages = b.tool_session(44, result_chars=1800)
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            message["content"] = b.prose(250, number, f"thought {number}")
    return messages


def parallel() -> list[JsonObject]:
    return b.turn_session(14, 5, result_chars=1400, parallel=True)[:-1]


def parallel_shuffled() -> list[JsonObject]:
    """Results come back in another order than their calls."""
    messages = b.turn_session(14, 4, result_chars=1700, parallel=True)[:-1]
    rng = random.Random(7)
    start = 0
    while start < len(messages):
        end = start
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results = messages[start:end]
        rng.shuffle(results)
        messages[start:end] = results
        start = end + 1
    return messages


def mixed_sizes(seed: int) -> Session:
    def build() -> list[JsonObject]:
        rng = random.Random(seed)
        messages = b.tool_session(44, seed=seed)
        for message in messages:
            if message["role"] == "tool":
                size = rng.choice([40, 300, 900, 2500, 7000])
                message["content"] = b.prose(size, seed, f"size{rng.random()}")
        return messages

    return build


def reused_ids() -> list[JsonObject]:
    """Some clients number calls from 1 in every turn."""
    messages = b.turn_session(21, 3, result_chars=2048)[:-1]
    number = 0
    for message in messages:
        if message["role"] == "user":
            number = 0
        for call in as_objects(message.get("tool_calls")):
            number += 1
            call["id"] = f"call_{number}"
        if message["role"] == "tool":
            message["tool_call_id"] = f"call_{number}"
    return messages


def no_system() -> list[JsonObject]:
    return b.tool_session(44, result_chars=2048, system=None)


def developer_first() -> list[JsonObject]:
    return [b.developer(b.SYSTEM), *one_turn()[1:]]


def part_lists() -> list[JsonObject]:
    """Every text as an array of parts."""
    messages = one_turn()
    for message in messages:
        text = as_text(message.get("content"))
        if text and message["role"] != "system":
            half = len(text) // 2
            message["content"] = [b.text_part(text[:half]), b.text_part(text[half:])]
    return messages


def first_task(messages: Sequence[JsonObject]) -> str:
    first = next(m for m in messages if m["role"] == "user")
    if isinstance(first["content"], str):
        return first["content"]
    return as_text(as_objects(first["content"])[-1]["text"])


SESSIONS: list[tuple[Session, int, int]] = [
    (one_turn, 3, 3),
    (many_turns, 3, 4),
    (with_text_between, 3, 3),
    (parallel, 3, 3),
    (parallel_shuffled, 3, 3),
    (reused_ids, 3, 4),
    (no_system, 3, 3),
    (developer_first, 3, 3),
    (part_lists, 3, 3),
    (mixed_sizes(1), 6, 6),
    (mixed_sizes(2), 6, 6),
    (mixed_sizes(3), 6, 6),
]
"""Each with the most summaries that it may need, in either API: reasoning makes it longer."""

CASES = [
    pytest.param(api, session, most, id=f"{api}-{session.__name__}")
    for session, *mosts in SESSIONS
    for api, most in zip(APIS, mosts, strict=True)
]
CASES += [
    pytest.param(Responses(sealed_bytes=0), one_turn, 3, id="without reasoning"),
    pytest.param(Responses(ids=False), one_turn, 3, id="without ids"),
    pytest.param(Responses(sealed_bytes=1500), one_turn, 4, id="much reasoning"),
]


@pytest.mark.parametrize(("api", "session", "summaries"), CASES)
async def test_a_session_outlives_its_window(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    session: Session,
    summaries: int,
) -> None:
    checks.make_strict(up, WINDOW)
    messages = session()
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        exchanges = await Agent(client, proxy.url, up, api=api).play(messages)
    checks.assert_fine(exchanges, up)
    checks.assert_in_every(first_task(messages), exchanges)
    checks.assert_stable(exchanges)
    assert 1 <= len(up.summaries) <= summaries
    assert len(checks.rewrites(exchanges)) <= summaries
    assert len(checks.compactions(exchanges)) == len(up.summaries)
    assert {r.path for r in up.summaries} == {api.path}
    assert len({e.session for e in exchanges if e.session}) == 1
    completed = proxy.events.of_type("compaction_completed")
    assert [e for e in completed if "partial" in e or "extractive" in e] == []
    assert checks.reasons(completed) == ["threshold"] * len(up.summaries)
    assert proxy.events.of_type("compaction_skipped") == []


async def test_the_numbers_of_the_45_request_session(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """Facts/peers.md: at most two summaries, and much context stays visible."""
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        exchanges = await Agent(client, proxy.url, up, api=api).play(one_turn())
    checks.assert_fine(exchanges, up)
    assert len(exchanges) == 45
    assert len(up.summaries) <= 2
    checks.assert_in_every(b.TASK, exchanges)
    for number, exchange in enumerate(exchanges[1:]):
        assert b.marker(0, number) in exchange.text
    first, *later = checks.compactions(exchanges)
    assert checks.rewrites(exchanges) == [first, *later]
    assert len(later) <= 1
    assert {tuple(e.marks) for e in exchanges[:first]} == {("none",)}
    for exchange in exchanges:
        before, after = exchange.tokens
        assert (after < before) == (exchange.marks != ["none"])
        assert bool(exchange.session) == (exchange.marks != ["none"])
    completed = proxy.events.of_type("compaction_completed")
    assert all(int(str(e["tokens_after"])) <= 0.9 * int(str(e["tokens_before"])) for e in completed)
    assert {e["session"] for e in completed} == {exchanges[-1].session}
    sizes = [e.tokens[1] for e in exchanges[first:]]
    # The scripted summaries are short, so less stays than a real model would leave.
    assert sum(sizes) / len(sizes) >= 6000


@pytest.mark.parametrize("session", [one_turn, many_turns])
async def test_streaming_sessions(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    session: Session,
) -> None:
    checks.make_strict(up, WINDOW)
    messages = session()
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        options: JsonObject = {api.stream_option: True}
        agent = Agent(client, proxy.url, up, api=api, stream=True, stream_options=options)
        exchanges = await agent.play(messages)
    checks.assert_fine(exchanges, up)
    checks.assert_stable(exchanges)
    checks.assert_in_every(first_task(messages), exchanges)
    assert all(api.events(e.reply) for e in exchanges)
    assert 1 <= len(up.summaries) <= 4


@pytest.mark.parametrize("window", [2048, 4096])
@pytest.mark.parametrize("result_chars", [300, 1200])
async def test_small_windows(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    window: int,
    result_chars: int,
) -> None:
    checks.make_strict(up, window)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        single = await agent.play(b.tool_session(30, result_chars=result_chars))
        turns = await agent.play(b.turn_session(12, 2, result_chars=result_chars, seed=4)[:-1])
    for exchanges in (single, turns):
        checks.assert_fine(exchanges, up)
        checks.assert_stable(exchanges)
        assert checks.compactions(exchanges) or sum(e.tokens[0] for e in exchanges[-1:]) < window
    checks.assert_in_every(b.TASK, single)


async def test_a_result_that_fills_a_small_window(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 2048)
    messages = b.tool_session(24, result_chars=2500)
    for message in messages[9::8]:
        message["content"] = b.prose(30_000, 3)
    async with Running(up.base_url, tmp_path) as proxy:
        exchanges = await Agent(client, proxy.url, up, api=api).play(messages)
    checks.assert_fine(exchanges, up)
    checks.assert_in_every(b.TASK, exchanges)


async def test_bodies_with_white_space(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    messages = one_turn()
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        for step in checks.steps(messages):
            body = api.body(step, temperature=0.5, tools=[*b.catalogue(4)])
            await agent.post(checks.pretty(body))
    checks.assert_fine(agent.exchanges, up)
    checks.assert_in_every(b.TASK, agent.exchanges)
    checks.assert_stable(agent.exchanges)
    assert len(up.summaries) <= 3


def respelled(body: bytes, api: Api) -> bytes:
    """Null and empty fields, ids and arguments as a client writes them that keeps objects."""
    request = loads(body)
    assert isinstance(request, dict)
    elements = as_objects(request[api.member])
    for element in elements:
        if api is RESPONSES:
            element.pop("id", None)
            element.pop("status", None)
        if element.get("role") == "assistant" and api is CHAT:
            element |= {"content": element["content"] or "", "refusal": None, "annotations": []}
        elif element.get("role") == "assistant":
            element["content"] = as_objects(element["content"])[0]["text"]
        if element.get("type") == "message":
            del element["type"]
        if "arguments" in element:
            element["arguments"] = as_text(element["arguments"]).replace('":', '" : ')
            element |= {"namespace": None, "caller": None}
    request[api.member] = [*elements]
    return checks.pretty(dumps(request))


async def test_a_session_that_changes_its_spelling(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """A client that re-serialises its history (null and empty fields, ids) is the same client."""
    checks.make_strict(up, WINDOW)
    messages = one_turn()[:70]
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        last = (await agent.play(messages))[-1]
        summaries = len(up.summaries)
        exchange = await agent.post(respelled(last.sent, api))
    assert summaries == len(up.summaries) > 0
    assert exchange.marks == ["reused"]
    assert checks.record_of(exchange) == checks.record_of(last)
    checks.assert_fine(agent.exchanges, up)


ODD_CHAT = rb"""{"stream": false,"temperature":1.0 , "model":"test-model","seed": 1e5,"n":1,
 "metadata":{"big":123456789012345678901234567890,"x":[1.50,-0.0,1E+2]},
 "messages":[{"role":"system","content":"Be careful."},
 {"content":"Caf\u00e9 \u4f60\u597d \ud83d\ude00 \/ \u0041","role":"user","x_unknown":{"a":1.0}},
 {"role":"assistant","content":null,"reasoning_content":"hm \u2026","tool_calls":[{"id":"a","type":
 "function","function":{"name":"f","arguments":"{\"v\": 1.0, \"w\": 1e5}"},"index":0}]},
 {"role":"tool","tool_call_id":"a","content":"ok\u0021","score":1e5}],"tool_choice":"auto" ,
 "x_vendor": {"deep":[[],{},null,true]}}"""
ODD_ITEMS = rb"""{"stream": false,"temperature":1.0 , "model":"test-model",
 "instructions":"Caf\u00e9 \/",
 "metadata":{"big":123456789012345678901234567890,"x":[1.50,-0.0,1E+2]},"client_metadata":{"a":1},
 "input":[{"content":"Caf\u00e9 \u4f60 \ud83d\ude00 \/ \u0041","role":"user","x_mine":{"a":1.0}},
 {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"AbC+\/="},
 {"call_id":"a","type":"function_call","name":"f","arguments":"{\"v\": 1.0}","id":"fc_1"},
 {"output":"ok\u0021","call_id":"a","type":"function_call_output","score":1e5},
 {"type":"configuration_update","text":{ }}],"tool_choice":"auto" ,
 "x_vendor": {"deep":[[],{},null,true]}}"""
TEXT = rb'{"input" : "Caf\u00e9 \/ hi","model":"test-model" }'


@pytest.mark.parametrize(
    ("api", "bodies"),
    [
        (CHAT, [ODD_CHAT, ODD_CHAT.replace(b"Be careful.", b"Be careful. " * 400)]),
        (RESPONSES, [TEXT, ODD_ITEMS, ODD_ITEMS.replace(b"hi", b"hi " * 2000)]),
    ],
    ids=[*map(str, APIS)],
)
async def test_what_needs_nothing_arrives_with_the_same_bytes(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    bodies: list[bytes],
) -> None:
    large = api.body(b.tool_session(20), tools=[*b.catalogue(10)], temperature=1.0)
    bodies = [*bodies, large, large[:-1] + b' ,"a":1.0\n}\n']
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        for body in [body for body in bodies for _ in range(2)]:
            exchange = await agent.post(body)
            assert exchange.status == 200
            assert exchange.arrived == body
            assert exchange.marks == ["none"]
    assert len(up.summaries) == 0


OLD = b.turn_session(6, 2, result_chars=1500, seed=9)
ODD_USER = (
    rb'{"role":"user" , "content":"Caf\u00e9 \ud83d\ude00 \/ one","x_mine":{"a":1.0,"b":1e5}}'
)
ODD_KEPT: list[tuple[Api, bytes, list[bytes]]] = [
    (
        CHAT,
        b'{"model":"test-model","top_p":1.0,"messages":[%b],"seed":1e1,"x":{"y":1.0}}',
        [
            ODD_USER,
            rb'{"content":"","tool_calls":[{"index":0,"id":"o1","type":"function","extra_content":'
            rb'{"google":{"thought_signature":"AbC+\/="}},"function":{"name":"f","arguments":'
            rb'"{\"a\": 1.0,  \"b\":1e5}"}}],"role":"assistant","reasoning_content":"so\u2026"}',
            rb'{"role":"tool","tool_call_id":"o1","content":"1.0 \u00e9 1e5","score":-0.0,"n":1E3}',
            rb'{"role":"assistant","content":"Done \u0041.","x":[1.50,12345678901234567890123]}',
            rb'{"role":"user","content":"Next \u4f60","name":"Ada"}',
        ],
    ),
    (
        RESPONSES,
        b'{"model":"test-model","top_p":1.0,"input":[%b],"x":{"y":1.0},"instructions":"\\u0041"}',
        [
            ODD_USER,
            rb'{"summary":[],"type":"reasoning","encrypted_content":"AbC+\/=","id":"rs_o"}',
            rb'{"type":"function_call","name":"f","call_id":"o1","id":"fc_o","arguments":'
            rb'"{\"a\": 1.0,  \"b\":1e5}"}',
            rb'{"type":"function_call_output","call_id":"o1","output":"1.0 \u00e9 1e5","n":1E3}',
            rb'{"role":"user","content":"Next \u4f60","x":12345678901234567890123}',
        ],
    ),
]


@pytest.mark.parametrize(("api", "body", "odd"), ODD_KEPT, ids=[*map(str, APIS)])
async def test_odd_spelling_survives_in_what_is_kept(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    body: bytes,
    odd: list[bytes],
) -> None:
    """Unknown fields, number spellings and escapes of kept items and of the request."""
    checks.make_strict(up, 4096)
    up.alternate = False
    old = [dumps(element) for group in api.spelled(OLD) for element in group]
    async with Running(up.base_url, tmp_path, **{"compaction.keep_turns": 1}) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = await agent.post(body % b", ".join([*old, *odd]))
        second = await agent.post(body % b" ,\n".join([*old, *odd]))
    checks.assert_fine([first, second], up)
    assert (first.marks, second.marks) == (["compacted"], ["reused"])
    for exchange in (first, second):
        arrived = checks.raw_messages(exchange.arrived)
        carrier = arrived[-len(odd)]
        assert checks.carries(carrier)
        assert arrived[1 - len(odd) :] == odd[1:]
        assert b'"x_mine":{"a":1.0,"b":1e5}' in carrier
        assert checks.others(exchange.arrived) == checks.others(body % b"")


async def test_developer_messages_stay_verbatim(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """Leading and mid-transcript ones keep their role, bytes and order."""
    checks.make_strict(up, 8192)
    up.one_system = False
    messages = [b.developer("Rule one."), *b.turn_session(10, 2, result_chars=2000)[1:-1]]
    messages.insert(8, b.developer("From here on answer in French."))
    async with Running(up.base_url, tmp_path) as proxy:
        exchanges = await Agent(client, proxy.url, up, api=api).play(messages)
    checks.assert_fine(exchanges, up)
    assert checks.compactions(exchanges)
    last = checks.raw_messages(exchanges[-1].arrived)
    assert last[:2] == [dumps(api.spelled([messages[n]])[0][0]) for n in (0, 8)]
    assert checks.carries(last[2])
