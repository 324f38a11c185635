"""Clipping, the one refusal, fixed overhead, images, and the switches of an operator or client."""

from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps
from proxy.compaction.clip import MARKER
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import Api
from tests.e2e.checks import Agent
from tests.e2e.running import Running
from tests.upstream import Reply, ScriptedUpstream

# aiohttp warns of large bodies given as bytes; the proxy has them as bytes anyway.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")

WINDOW = 4096
HUGE = b.prose(60_000, 42, "MARK-huge")
CALL = b.call("c1", "read_file", {"path": "src/a.py"})


def pair(number: int, text: str = "fine", **arguments: Json) -> list[JsonObject]:
    call = b.call(f"p{number}", "read_file", {"path": f"src/a{number}.py", **arguments})
    return [b.assistant(None, [call]), b.result(f"p{number}", text)]


HEAD: list[JsonObject] = [b.system(b.SYSTEM), b.user(b.TASK)]
PARTS = [b.text_part(HUGE[:30_000]), b.image_part("https://e.test/a.png"), b.text_part(HUGE)]

OVERSIZED: dict[str, list[JsonObject]] = {
    "only user message": [b.user(HUGE)],
    "last user message": [*HEAD, b.assistant("Yes?"), b.user(HUGE)],
    "last tool result": [*HEAD, *pair(1), *pair(2, HUGE)],
    "first tool result": [*HEAD, *pair(1, HUGE), *pair(2)],
    "first user message": [b.system(b.SYSTEM), b.user(HUGE), *pair(1), *pair(2)],
    "assistant text": [*HEAD, b.assistant(HUGE), b.user("Go on.")],
    "arguments of a call": [*HEAD, *pair(1, content=HUGE)],
    "nested arguments": [*HEAD, *pair(1, edits=[{"old": HUGE, "n": 1.5}, {"new": "x"}])],
    "part array": [*HEAD, b.assistant("Yes?"), b.user(PARTS)],
    "parts of a result": [*HEAD, b.assistant(None, [CALL]), b.result("c1", [b.text_part(HUGE)])],
    "parallel results": [
        *HEAD,
        b.assistant(None, [b.call(f"q{i}", "read_file", {"path": f"{i}"}) for i in range(5)]),
        *[b.result(f"q{i}", b.prose(9000, i)) for i in (3, 0, 4, 1, 2)],
    ],
    "Chinese": [*HEAD, b.assistant("Yes?"), b.user("\u6d4b\u8bd5\u6587\u672c\u3002" * 3000)],
    "base64 in text": [*HEAD, b.assistant("Yes?"), b.user("A" * 60_000)],
    "emoji": [*HEAD, *pair(1, "\U0001f600 ok " * 9000)],
}


@pytest.mark.parametrize("name", OVERSIZED)
async def test_a_message_larger_than_the_window(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    messages = OVERSIZED[name]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = await agent.say(messages)
        again = await agent.say(messages)
        more = await agent.say([*messages, *pair(8), *pair(9)])
        reduced = proxy.events.of_type("context_reduced")
    checks.assert_fine(agent.exchanges, up)
    assert again.arrived == first.arrived
    before = checks.raw_messages(first.arrived)
    assert checks.raw_messages(more.arrived)[: len(before)] == before
    assert first.tokens[1] < WINDOW
    if first.marks == ["compacted"]:
        # Standing before the last turn or call group, it is part of what the record stands for.
        assert "MARK-huge" not in first.text
        return
    assert first.marks == ["clipped"]
    assert MARKER in first.arrived.decode()
    assert reduced
    assert int(str(reduced[0]["messages"])) >= 1
    sent, arrived = map(checks.raw_messages, (first.sent, first.arrived))
    assert [skeleton(raw) for raw in arrived] == [skeleton(raw) for raw in sent]


def skeleton(raw: bytes) -> list[Json]:
    """What no clip may touch."""
    message = checks.decoded(raw)
    calls = as_objects(message.get("tool_calls"))
    names = ("type", "role", "id", "call_id", "tool_call_id")
    return [message.get(name) for name in names] + [call["id"] for call in calls]


async def test_a_clipped_message_stays_as_it_is_while_the_session_goes_on(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """And what fits is never clipped."""
    checks.make_strict(up, 16_384)
    messages = b.tool_session(30, result_chars=1500)
    messages[7]["content"] = b.prose(100_000, 4, "MARK-huge")
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(messages)
    checks.assert_fine(agent.exchanges, up)
    checks.assert_in_every(b.TASK, agent.exchanges)
    changed = set(checks.rewrites(agent.exchanges)) - set(checks.compactions(agent.exchanges))
    assert changed <= {3}
    for exchange in agent.exchanges[:3]:
        assert exchange.marks == ["none"]


@pytest.mark.parametrize("steps", [12, 40])
async def test_a_huge_tail_does_not_keep_the_rest_from_being_compacted(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, steps: int
) -> None:
    """Next to it the rest looks like no gain, but clipping alone cannot make it fit."""
    checks.make_strict(up, 2048)
    messages = b.tool_session(steps, result_chars=700)
    messages[-1]["content"] = b.prose(900_000, 3, "MARK-huge")
    values: dict[str, Json] = {"compaction.background": False}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = await agent.say(messages)
        again = await agent.say(messages)
        for number in range(6):
            messages += pair(90 + number, b.prose(700, number))
            await agent.say(messages)
    checks.assert_fine(agent.exchanges, up)
    checks.assert_in_every(b.TASK, agent.exchanges)
    # The longer one is more than the calls hold that a request waits for.
    assert first.marks == ["compacted", *["partial"][: steps // 40], "clipped"]
    assert again.arrived == first.arrived
    compactions = len(checks.compactions(agent.exchanges))
    assert compactions <= 5
    assert len(up.summaries) <= 4 * compactions


async def test_a_branch_that_fits_is_not_clipped(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    base = [*HEAD, *pair(1, b.prose(6000, 1)), *pair(2, b.prose(3000, 2))]
    # A checkpoint would hold for the branch, too.
    values: dict[str, Json] = {"compaction.auto": False}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        before = await agent.say(base)
        over = await agent.say([*base, *pair(3, HUGE)])
        other = await agent.say([*base, *pair(4)])
    checks.assert_fine(agent.exchanges, up)
    assert "clipped" in over.marks
    assert before.arrived == before.sent
    assert other.arrived == other.sent


async def test_an_unknown_window_has_the_default_limit(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.advertise_window = False
    messages = [*HEAD, b.assistant("Yes?"), b.user("word " * 200_000)]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        fits = await agent.say([*HEAD, b.assistant("Yes?"), b.user("word " * 120_000)])
        over = await agent.say(messages)
    checks.assert_fine(agent.exchanges, up)
    assert fits.arrived == fits.sent
    assert "clipped" in over.marks
    assert len(over.text) <= 800_000


async def test_an_unknown_window_triggers_by_characters(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.advertise_window = False
    async with Running(up.base_url, tmp_path, **{"limits.max_context_chars": 40_000}) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(b.tool_session(30, result_chars=2000))
        started = proxy.events.of_type("compaction_started")
    checks.assert_fine(agent.exchanges, up)
    checks.assert_stable(agent.exchanges)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert set(checks.reasons(started)) <= {"characters", "unknown_window"}
    assert 1 <= len(up.summaries) <= 4
    for exchange in agent.exchanges:
        assert len(exchange.text) < 40_000


MANY: list[JsonObject] = [
    *HEAD,
    *[m for i in range(12) for m in (b.assistant(b.prose(1500, i)), b.user(b.prose(1500, -i)))],
]
UNANSWERED = [HEAD[0], b.user("go"), b.assistant(None, [CALL]), *MANY[1:], *pair(3)]
REASONING = [
    *b.turn_session(6, 1, result_chars=900),
    b.user("Now think."),
    b.assistant("Thinking.", [b.call("z", "f", {})], reasoning_content=b.prose(30_000, 1)),
    b.result("z", "ok"),
]

REFUSED: dict[str, tuple[list[JsonObject], dict[str, Json], str]] = {
    "instructions": (
        [b.system(b.prose(20_000, 1)), b.user("hi")],
        {},
        "was skipped because there is no safe boundary to summarize",
    ),
    "uncertain": (UNANSWERED, {}, "was skipped because a tool result is uncertain"),
    "disabled": (MANY, {"compaction.auto": False}, "is disabled"),
    "failed": (MANY, {"compaction.fallback": "none"}, "failed (http_500)"),
    "not enough": (REASONING, {}, "ran but could not reduce it enough"),
}


@pytest.mark.parametrize("window", [None, 100_000])
@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_shrink_is_refused_once_and_clearly(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    name: str,
    window: int | None,
) -> None:
    messages, values, why = REFUSED[name]
    up.window, up.strict_pairing = window, False
    if name == "failed":
        up.summary_replies.extend(Reply(status=500, text="boom") for _ in range(9))
    values = {"limits.max_context_chars": 9000, **values}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        stream = Agent(client, proxy.url, up, api=api, stream=True)
        exchanges = [
            await agent.say(messages),
            await agent.say(messages),
            await stream.say(messages),
        ]
    for exchange in exchanges:
        assert exchange.status == 400
        assert exchange.forwarded is None
        assert exchange.headers["x-should-retry"] == "false"
        assert exchange.headers["content-type"].startswith("application/json")
        error = exchange.error
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"
        assert set(error) == {"message", "type", "param", "code"}
        message = as_text(error["message"])
        assert message.startswith("Context budget exceeded (approximately ")
        assert "characters of conversation; limit 9000)." in message
    said = [as_text(exchange.error["message"]) for exchange in exchanges]
    if name == "failed":
        # By the third time it cools down.
        assert "Automatic compaction failed (cooldown)." in said.pop()
    # A client that sends it again is told the same.
    for message in said:
        assert f"Automatic compaction {why}." in message
    assert up.main == []
    assert len(up.summaries) <= 4


async def test_a_refused_request_is_served_once_the_summariser_recovers(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.strict_pairing, up.window = False, None
    up.summary_replies.extend(Reply(status=500, text="boom") for _ in range(2))
    values: dict[str, Json] = {"limits.max_context_chars": 9000, "compaction.fallback": "none"}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        refused = await agent.say(MANY)
        served = await agent.say(MANY)
    assert (refused.status, served.status) == (400, 200)
    assert served.marks[0] == "compacted"
    checks.assert_faithful(served)


async def test_after_a_refusal_a_shorter_request_is_served(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.strict_pairing = False
    values: dict[str, Json] = {"limits.max_context_chars": 9000, "compaction.auto": False}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        refused = await agent.say(MANY)
        served = await agent.say(MANY[:6])
    assert (refused.status, served.status) == (400, 200)
    checks.assert_faithful(served)


async def test_a_default_character_limit_never_refuses_with_a_known_window(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 400_000)
    messages = [b.system("word " * 170_000), b.user("hi")]
    async with Running(up.base_url, tmp_path) as proxy:
        exchange = await Agent(client, proxy.url, up, api=api).say(messages)
    assert exchange.status == 200
    assert exchange.arrived == exchange.sent


async def test_a_catalogue_counts_for_the_trigger_but_not_for_the_hard_limit(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 20_000)
    tools: list[Json] = [*b.catalogue(100, 300)]
    assert 9000 <= len(dumps(tools)) // 4 <= 13_000
    messages = b.tool_session(14, result_chars=2000)
    async with Running(up.base_url, tmp_path, **{"limits.max_context_chars": 36_000}) as proxy:
        plain = await Agent(client, proxy.url, up, api=api).say(messages[:26])
        assert plain.arrived == plain.sent
        agent = Agent(client, proxy.url, up, api=api, tools=tools)
        small = await agent.say(messages[:6])
        large = await agent.say(messages[:26])
        started = proxy.events.of_type("compaction_started")
    checks.assert_fine([plain, *agent.exchanges], up)
    assert small.arrived == small.sent
    assert large.marks == ["compacted"]
    assert checks.reasons(started) == ["threshold"]


async def test_a_fixed_part_above_every_trigger_is_left_alone(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.window = None
    tools: list[Json] = [*b.catalogue(60, 300)]
    values: dict[str, Json] = {"upstream.context_window": WINDOW}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api, tools=tools)
        await agent.play(b.tool_session(8, result_chars=600))
        skipped = proxy.events.of_type("compaction_skipped")
    checks.assert_fine(agent.exchanges, up)
    assert all(e.arrived == e.sent for e in agent.exchanges)
    assert set(checks.reasons(skipped)) == {"fixed_overhead"}
    assert up.summaries == []


async def test_a_large_fixed_part_does_not_make_it_thrash(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """Instructions of two thirds of the window: the trigger moves, the session goes on."""
    checks.make_strict(up, 8192)
    messages = [b.system(b.prose(20_000, 3)), *b.tool_session(24, result_chars=700)[1:]]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(messages)
    checks.assert_fine(agent.exchanges, up)
    checks.assert_stable(agent.exchanges)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert 1 <= len(up.summaries) <= 8


async def test_automatic_compaction_off_still_applies_what_is_stored(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 8192)
    messages = b.tool_session(30, result_chars=2000)
    steps = list(checks.steps(messages))
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        for step in steps[:18]:
            await agent.say(step)
    summaries = len(up.summaries)
    assert summaries == 1
    async with Running(up.base_url, tmp_path, **{"compaction.auto": False}) as proxy:
        later = Agent(client, proxy.url, up, api=api)
        same = await later.say(steps[17])
        for step in steps[18:]:
            await later.say(step)
        assert len(up.summaries) == summaries
        forced = await later.say(steps[-1], **{"x-foldgate-compact": "force"})
        failed = proxy.events.of_type("compaction_failed")
        completed = proxy.events.of_type("compaction_completed")
    checks.assert_fine([*agent.exchanges, *later.exchanges], up)
    assert same.arrived == agent.exchanges[-1].arrived
    assert later.exchanges[-2].marks == ["reused", "clipped"]
    assert forced.marks == ["compacted"]
    assert len(completed) == 1
    assert failed == []


async def test_a_client_may_force_a_compaction(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 16_384)
    messages = b.turn_session(6, 2, result_chars=1500)[:-1]
    force = {"x-foldgate-compact": "force"}
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        short = await agent.say([b.user("hi")], **force)
        forced = await agent.say(messages, **force)
        later = await agent.say(messages)
        again = await agent.say(messages, **force)
        started = proxy.events.of_type("compaction_started")
    checks.assert_fine(agent.exchanges, up)
    assert short.arrived == short.sent
    assert forced.marks == ["compacted"]
    assert forced.tokens[1] <= 0.9 * forced.tokens[0]
    assert later.arrived == forced.arrived
    assert again.marks in (["reused"], ["compacted"])
    assert checks.reasons(started)[0] == "force"
    assert all(
        e.forwarded and "x-foldgate-compact" not in e.forwarded.headers for e in agent.exchanges
    )


@pytest.mark.parametrize("switch", ["bypass", "compact"])
async def test_request_headers_can_be_switched_off(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, switch: str
) -> None:
    checks.make_strict(up, 8192)
    messages = b.tool_session(16, result_chars=2000)
    headers = {"x-foldgate-bypass": "1", "x-foldgate-compact": "force"}
    values: dict[str, Json] = {"server.request_headers": [switch]}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        bypassed = await agent.say(messages, **{"x-foldgate-bypass": "1"})
        forced = await agent.say(messages[:14], **{"x-foldgate-compact": "force"})
    if switch == "bypass":
        assert bypassed.arrived == bypassed.sent
        assert forced.marks == ["none"]
    else:
        assert bypassed.marks == ["compacted"]
        assert forced.marks == ["compacted"]
    for exchange in agent.exchanges:
        assert exchange.forwarded is not None
        assert not set(headers) & {n.lower() for n in exchange.forwarded.headers}


async def test_a_bypassed_request_is_left_alone(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.window = 8192
    messages = b.tool_session(30, result_chars=2000)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        exchange = await agent.say(messages, **{"x-foldgate-bypass": "true"})
        assert exchange.arrived == exchange.sent
        assert exchange.status == 400  # the upstream's own overflow error
        assert exchange.error == up.rejections[0].error
        assert list(proxy.events) == []
        normal = await agent.say(messages)
    assert normal.status == 200
    assert normal.marks[0] == "compacted"


async def test_shadow_changes_nothing(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.window = None
    values: dict[str, Json] = {"server.shadow": True, "upstream.context_window": 8192}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(b.tool_session(20, result_chars=2000))
        await agent.say([b.user(HUGE)])
        started = proxy.events.of_type("compaction_started")
        completed = proxy.events.of_type("compaction_completed")
    assert all(e.status == 200 and e.arrived == e.sent for e in agent.exchanges)
    assert {tuple(e.marks) for e in agent.exchanges} == {("shadow",)}
    assert up.summaries == []
    assert started
    assert all(e["shadow"] is True for e in started)
    assert completed == []


async def test_shadow_of_a_session_that_was_compacted_before(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 8192)
    messages = b.tool_session(20, result_chars=2000)
    async with Running(up.base_url, tmp_path) as proxy:
        await Agent(client, proxy.url, up, api=api).say(messages)
    summaries = len(up.summaries)
    assert summaries > 0
    up.window = None
    values: dict[str, Json] = {"server.shadow": True, "upstream.context_window": 8192}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        exchange = await Agent(client, proxy.url, up, api=api).say(messages)
    assert exchange.arrived == exchange.sent
    assert len(up.summaries) == summaries


async def test_reply_headers_can_be_switched_off(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 8192)
    async with Running(up.base_url, tmp_path, **{"server.reply_headers": False}) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(b.tool_session(18, result_chars=2000))
    assert len(up.summaries) == 1
    for exchange in agent.exchanges:
        assert not [name for name in exchange.headers if name.lower().startswith("x-foldgate")]


# Images

PICTURE = b.data_url(b.png(800, 600, 768 * 1024))


async def test_a_large_image_counts_by_its_pixels(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    assert len(PICTURE) > 1_000_000
    turns = [b.user([b.text_part("What is this?"), b.image_part(PICTURE)]), b.assistant("A map.")]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.say(turns[:1])
        await agent.say([*turns, b.user("Where?")])
    checks.assert_fine(agent.exchanges, up)
    assert all(e.marks == ["none"] and e.arrived == e.sent for e in agent.exchanges)
    assert all(400 < e.tokens[0] < 1500 for e in agent.exchanges)
    assert up.summaries == []


SHOTS = [b.data_url(b.png(800, 600, 150_000)), "https://e.test/shot.png"]


@pytest.mark.parametrize("url", SHOTS, ids=["data", "remote"])
async def test_an_image_stays_while_its_turn_is_current(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, url: str
) -> None:
    """Also when the turn is cut through; it never reaches the summariser."""
    checks.make_strict(up, 16_384)
    messages = b.tool_session(40, result_chars=2000)
    messages[1] = b.user([b.text_part(b.TASK), b.image_part(url, "high")])
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(messages)
        current = [*agent.exchanges]
        turns = b.turn_session(16, 2, result_chars=2000, seed=5, system=None)
        await agent.say([*messages, b.assistant("Done."), *turns[:-1]])
    checks.assert_fine(agent.exchanges, up)
    assert len(checks.compactions(current)) >= 1
    for exchange in current:
        assert exchange.arrived.count(dumps(api.part(b.image_part(url, "high")))) == 1
    assert url not in agent.exchanges[-1].arrived.decode()
    for call in up.summaries:
        assert url.encode()[:200] not in call.decoded
        assert b"base64" not in call.decoded
        assert len(call.decoded) < 100_000


async def test_an_image_in_a_result_of_the_current_turn(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 16_384)
    messages = b.tool_session(60, result_chars=2000)
    shot = b.image_part(b.data_url(b.png(320, 200, 200_000)))
    messages[5]["content"] = [b.text_part("a screenshot"), shot]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(messages)
    checks.assert_fine(agent.exchanges, up)
    assert len(checks.compactions(agent.exchanges)) >= 2
    groups = api.spelled(messages)
    for exchange in agent.exchanges[2:]:
        for item in (*groups[4], *groups[5]):
            assert dumps(item) in exchange.arrived
    for call in up.summaries:
        assert b"base64" not in call.decoded


async def test_an_image_of_an_old_turn_leaves_a_line_behind(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 8192)
    old = [b.user([b.text_part("MARK-look at it"), b.image_part(PICTURE)]), b.assistant("A map.")]
    messages = [b.system(b.SYSTEM), *old, *b.turn_session(9, 2, result_chars=2000)[1:-1]]
    async with Running(up.base_url, tmp_path) as proxy:
        exchange = await Agent(client, proxy.url, up, api=api).say(messages)
    checks.assert_fine([exchange], up)
    assert exchange.marks == ["compacted"]
    assert "[image no longer visible: image/png, 800x600, " in exchange.text
    assert "MARK-look at it" in exchange.text
    assert len(exchange.arrived) < 100_000
