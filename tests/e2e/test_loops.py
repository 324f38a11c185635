"""Compaction never runs in a circle, whatever summariser, upstream and client do."""

from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import Api
from tests.e2e.checks import Agent
from tests.e2e.running import Running
from tests.upstream import Reply, ScriptedUpstream

WINDOW = 8192
BACKGROUND: dict[str, Json] = {"compaction.background": False}


CALLS = 4
"""So often the summariser is asked for one compaction at most, on a request's way."""


def asked(proxy: Running, up: ScriptedUpstream) -> int:
    """How many compactions were begun; none asks more of the summariser than it may."""
    begun = len(proxy.events.of_type("compaction_started"))
    # Finding out once what form of request the summariser takes does not count.
    assert len([call for call in up.summaries if call.outcome.status != 400]) <= CALLS * begun
    return begun


async def per_step(
    agent: Agent, proxy: Running, up: ScriptedUpstream, messages: Sequence[JsonObject]
) -> list[int]:
    """How many compactions were begun for each request of a session."""
    counts = []
    for step in checks.steps(messages):
        before = asked(proxy, up)
        await agent.say(step)
        counts.append(asked(proxy, up) - before)
    return counts


def large(tools: int) -> list[Json]:
    return [*b.catalogue(tools, 300)]


@pytest.mark.parametrize("tools", [0, 62, 90])
async def test_what_leaves_no_room_never_asks_the_summariser(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, tools: int
) -> None:
    """Catalogue and system prompt fill the window; the upstream's refusals are the client's."""
    checks.make_strict(up, WINDOW)
    up.overflow_in_stream = False
    system = b.prose(500 if tools else 33_000, 3)
    messages = [b.system(system), *b.tool_session(6, result_chars=900)[1:]]
    fields: dict[str, Json] = {"tools": large(tools)} if tools else {}
    async with Running(up.base_url, tmp_path, **BACKGROUND) as proxy:
        agent = Agent(client, proxy.url, up, None, api=api, **fields)
        await agent.play(messages)
        skipped = proxy.events.of_type("compaction_skipped")
        started = proxy.events.of_type("compaction_started")
    assert up.summaries == []
    assert started == []
    assert set(checks.reasons(skipped)) == {"fixed_overhead"}
    assert [e.arrived == e.sent for e in agent.exchanges] == [True] * len(agent.exchanges)
    assert len(up.main) == len(agent.exchanges)


async def test_over_the_trigger_alone_the_last_moment_counts(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """Two thirds of the window are tools: the session lives on what is left of it."""
    checks.make_strict(up, WINDOW)
    tools = large(40)
    async with Running(up.base_url, tmp_path, **BACKGROUND) as proxy:
        agent = Agent(client, proxy.url, up, api=api, tools=tools)
        counts = await per_step(agent, proxy, up, b.tool_session(24, result_chars=700))
    checks.assert_fine(agent.exchanges, up)
    assert max(counts) == 1
    # Not after every step: each compaction makes room for several.
    assert 1 <= sum(counts) <= 10


USELESS = {
    "huge": "The import of src/parser fails because the parser reads and " + b.prose(80_000, 8),
    "empty": "",
    "a refusal": "I'm sorry, but I can't help with that.",
}


@pytest.mark.parametrize("name", USELESS)
async def test_a_summariser_that_is_of_no_use(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_text = USELESS[name]
    async with Running(up.base_url, tmp_path, **BACKGROUND) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        counts = await per_step(agent, proxy, up, b.tool_session(40, result_chars=1800))
        again = asked(proxy, up)
        for _ in range(3):
            await agent.say(b.tool_session(40, result_chars=1800))
    checks.assert_fine(agent.exchanges, up)
    assert asked(proxy, up) == again
    assert max(counts) == 1
    assert sum(counts) <= 12
    # After three failures in a row it rests, and what is compacted meanwhile asks nobody.
    assert name == "huge" or len(up.summaries) <= CALLS * 3


async def test_a_session_that_gains_nothing_is_tried_once_for_what_is_new(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """The task alone fills the window, and no cut can do anything about it."""
    up.window = None
    values: dict[str, Json] = {**BACKGROUND, "upstream.context_window": WINDOW}
    messages = [
        b.system(b.SYSTEM),
        b.user([b.image_part(b.data_url(b.png(4000, 4000, 64))) for _ in range(4)]),
        *b.tool_session(10, result_chars=300)[2:],
    ]
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        counts = await per_step(agent, proxy, up, messages)
        before = asked(proxy, up)
        for _ in range(4):
            await agent.say(messages)
    assert [e.status for e in agent.exchanges] == [200] * len(agent.exchanges)
    assert asked(proxy, up) == before
    assert max(counts) <= 1
    assert sum(counts) <= 2


async def test_an_upstream_that_finds_everything_too_long(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """Whatever is sent; the client tries the same again and again."""
    error = b'{"error":{"message":"context length exceeded","code":"context_length_exceeded"}}'
    up.reply = lambda request: Reply(status=400, raw_body=error)
    messages = b.tool_session(12, result_chars=2000)
    values: dict[str, Json] = {**BACKGROUND, "upstream.context_window": 12_000}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        statuses, counts = [], []
        for _ in range(6):
            before = asked(proxy, up)
            statuses.append((await agent.say(messages)).status)
            counts.append(asked(proxy, up) - before)
    assert statuses == [400] * 6
    assert len(up.main) <= 3 * 6
    # What was made stays; only a cut nearer to the end is ever made anew.
    assert sum(counts) <= 3
    assert counts[3:] == [0, 0, 0]


@pytest.mark.parametrize("useless", [False, True])
async def test_a_client_that_forces_every_request(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, useless: bool
) -> None:
    checks.make_strict(up, 30_000)
    up.summary_text = USELESS["huge"] if useless else None
    async with Running(up.base_url, tmp_path, **BACKGROUND) as proxy:
        agent = Agent(client, proxy.url, up, {"x-foldgate-compact": "force"}, api=api)
        messages = b.turn_session(8, 1, result_chars=900)[:-1]
        counts = await per_step(agent, proxy, up, messages)
        before = asked(proxy, up)
        for _ in range(5):
            await agent.say(messages)
    checks.assert_fine(agent.exchanges, up)
    assert max(counts) <= 1
    assert asked(proxy, up) <= before + 1


async def test_a_refused_request_that_is_sent_again(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """The budget is tried once per last item, however often the client asks."""
    up.window = None
    values: dict[str, Json] = {**BACKGROUND, "limits.max_context_chars": 9000}
    messages = [
        *b.turn_session(6, 1, result_chars=900),
        b.user("Now think."),
        b.assistant("So.", [b.call("z", "f", {})], reasoning_content=b.prose(30_000, 1)),
        b.result("z", "ok"),
    ]
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = await agent.say(messages)
        before = asked(proxy, up)
        later = [await agent.say(messages) for _ in range(5)]
    assert [e.status for e in (first, *later)] == [400] * 6
    assert before <= 2
    assert asked(proxy, up) == before


async def test_a_call_group_that_grows_is_tried_once(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """Results of calls side by side arrive one by one; nothing is complete meanwhile."""
    up.strict_pairing = False
    up.window = None
    values: dict[str, Json] = {**BACKGROUND, "upstream.context_window": 4000}
    calls = [b.call(f"c{n}", "read_file", "{}") for n in range(10)]
    messages = [*b.tool_session(3, result_chars=700), b.assistant(None, calls)]
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        counts = []
        for number in range(10):
            messages.append(b.result(f"c{number}", b.prose(1500, number)))
            before = asked(proxy, up)
            await agent.say(messages)
            counts.append(asked(proxy, up) - before)
    assert [e.status for e in agent.exchanges] == [200] * 10
    assert sum(counts) <= 2


async def test_models_with_different_windows_take_turns(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.window = None
    values: dict[str, Json] = {
        **BACKGROUND,
        "upstream.context_window": 16_000,
    }
    async with Running(up.base_url, tmp_path, **values) as proxy:
        wide = Agent(client, proxy.url, up, api=api)
        narrow = Agent(client, proxy.url, up, {"x-foldgate-context-window": "5000"}, api=api)
        counts = []
        messages = b.turn_session(24, 1, result_chars=1200)[:-1]
        for number, step in enumerate(checks.steps(messages)):
            before = asked(proxy, up)
            await (narrow if number % 2 else wide).say(step)
            counts.append(asked(proxy, up) - before)
    assert max(counts) <= 1
    assert sum(counts) <= 12


async def test_a_system_prompt_that_grows_with_every_turn(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.window = None
    values: dict[str, Json] = {**BACKGROUND, "upstream.context_window": WINDOW}
    turns = b.turn_session(36, 1, result_chars=700, system=None)[:-1]
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        counts = []
        for number, step in enumerate(checks.steps(turns)):
            before = asked(proxy, up)
            await agent.say([b.system(b.prose(480 * number + 40, 3)), *step])
            counts.append(asked(proxy, up) - before)
        skipped = checks.reasons(proxy.events.of_type("compaction_skipped"))
    assert max(counts) <= 1
    assert sum(counts) <= 16
    over = len(counts) - skipped.count("fixed_overhead")
    assert 0 < over < len(counts)
    assert sum(counts[over:]) == 0


@pytest.mark.parametrize("explicit", [False, True])
async def test_instructions_over_the_limit_of_characters(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, explicit: bool
) -> None:
    """No compaction helps against them; only a limit that was set refuses in a known window."""
    checks.make_strict(up, 200_000)
    chars = 20_000 if explicit else 800_000
    values: dict[str, Json] = {**BACKGROUND, "limits.max_context_chars": chars}
    if not explicit:
        values.pop("limits.max_context_chars")
        up.window = 1_000_000
    messages = [b.system(b.prose(chars + 1000, 2)), *b.tool_session(5, result_chars=900)[1:]]
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(messages)
        skipped = proxy.events.of_type("compaction_skipped")
    assert {e.status for e in agent.exchanges} == ({400} if explicit else {200})
    assert up.summaries == []
    assert [(e["reason"], e["rule"]) for e in skipped] == [("fixed_overhead", "characters")] * 6
