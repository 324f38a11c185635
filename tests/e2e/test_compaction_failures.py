"""A summariser that fails in every way: no request fails, no history is lost without a record."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_text, dumps
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import APIS, CHAT, RESPONSES, Api, Responses, event
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running
from tests.upstream import Reply, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

WINDOW = 8192
FAST: dict[str, Json] = {
    "compaction.first_byte_seconds": 0.5,
    "compaction.idle_seconds": 0.5,
    "compaction.deadline_seconds": 20.0,
    "compaction.background": False,
}
"""Nothing is made good behind the back of these tests."""

COOKING = (
    "A good risotto begins with a warm broth and a wide pan. Melt butter, soften an onion, toast "
    "the rice until its edge turns glassy, then pour in white wine. Ladle by ladle the liquid is "
    "absorbed while one stirs patiently; parmesan and cold butter finish the dish at the table."
)
FULL = dumps(
    {
        "goal": "Repair the nightly import.",
        "instructions": ["Keep the public interface."],
        "discoveries": ["The parser rejects an empty batch."],
        "accomplished": ["Read the importer."],
        "currentState": "Reading the scheduler.",
        "nextSteps": ["Run the tests."],
        "relevantFiles": ["src/importer/reads_1.py"],
    }
).decode()


@dataclass(frozen=True)
class Failing:
    """Replies that cannot become a checkpoint."""

    reply: Callable[[Api], Reply]
    reason: str
    calls: int = 1
    """Summariser calls that one compaction makes."""
    values: dict[str, Json] = field(default_factory=dict)
    apis: Sequence[Api] = APIS
    """Where such a reply can be had."""


ITEMS_ONLY = (RESPONSES,)
FAILED: JsonObject = {"error": {"code": "server_error", "message": "overloaded"}}


def page(status: int, text: bytes) -> Reply:
    return Reply(status=status, raw_body=text, headers={"Content-Type": "text/html"})


FAILING: dict[str, Failing] = {
    "500": Failing(lambda _: Reply(status=500, text="boom"), "http_500"),
    "503 page": Failing(lambda _: page(503, b"<html>down</html>"), "http_503"),
    "429": Failing(
        lambda _: Reply(status=429, text="slow", headers={"Retry-After": "60"}), "http_429"
    ),
    "401": Failing(lambda _: Reply(status=401, text="no"), "http_401"),
    "400": Failing(lambda _: Reply(status=400, text="something else is wrong"), "http_400", 2),
    "hang": Failing(lambda _: Reply(hang=True), "timeout"),
    # Sent once more, since its connection had carried a request before.
    "drop": Failing(lambda _: Reply(drop=True), "broken_stream", 2),
    "silence after the head": Failing(
        lambda api: Reply(chunks=[b": wait\n\n", api.end("")], gate=asyncio.Event()), "timeout"
    ),
    "late first byte against the deadline": Failing(
        lambda _: Reply(hang=True),
        "timeout",
        values={"compaction.first_byte_seconds": 30.0, "compaction.deadline_seconds": 0.5},
        apis=(CHAT,),
    ),
    "empty": Failing(lambda _: Reply(text=""), "empty", 2),
    "white space": Failing(lambda _: Reply(text=" \n\t "), "empty", 2),
    "only thoughts": Failing(lambda _: Reply(text="<think>" + COOKING + "</think>"), "empty", 2),
    "reasoning channel": Failing(
        lambda api: Reply(chunks=[api.thought(FULL), api.end("")]), "empty", 2
    ),
    "only a reasoning item": Failing(
        lambda _: Reply(text="", reasoning=FULL), "empty", 2, apis=ITEMS_ONLY
    ),
    "unrelated": Failing(lambda _: Reply(text=COOKING), "unrelated", 2),
    "short": Failing(lambda _: Reply(text="The user works on the importer."), "too_short", 2),
    "refusal": Failing(
        lambda _: Reply(text="I'm sorry, but I can't help with that. " * 9), "refusal", 2
    ),
    "error text": Failing(
        lambda _: Reply(text="Error: the model is overloaded. " * 9), "error_text", 2
    ),
    "tool call": Failing(
        lambda _: Reply(text="", tool_calls=[("c1", "read_file", '{"path":"src/a.py"}')]),
        "tool_call",
        2,
    ),
    "custom tool call": Failing(
        lambda _: Reply(text="", custom_calls=[("c1", "patch", "*** x")]),
        "tool_call",
        2,
        apis=ITEMS_ONLY,
    ),
    "tool call as text": Failing(
        lambda _: Reply(
            text='<tool_call>{"name":"read_file","arguments":{"path":"a"}}</tool_call>'
        ),
        "tool_call",
        2,
    ),
    "bare tool call": Failing(
        lambda _: Reply(text='{"name": "read_file", "arguments": {"path": "src/a.py"}}'),
        "tool_call",
        2,
    ),
    "other JSON": Failing(lambda _: Reply(text='{"answer": "yes"}'), "malformed_json", 2),
    "empty sections": Failing(
        lambda _: Reply(text='{"goal": "", "instructions": [], "nextSteps": []}'),
        "malformed_json",
        2,
    ),
    "cut before anything": Failing(
        lambda _: Reply(text='{"go', finish_reason="length"), "truncated", 2
    ),
    "spent on thinking": Failing(
        lambda _: Reply(text="<think>Let me see", finish_reason="length"), "truncated", 2
    ),
    "malformed SSE": Failing(
        lambda _: Reply(chunks=[b"data: {not json\n\n"]), "malformed_reply", 2
    ),
    "not SSE at all": Failing(lambda _: page(200, b"<html>ok</html>"), "malformed_reply", 2),
    "error in the stream": Failing(
        lambda api: Reply(chunks=[api.failure("overloaded")]), "error_in_stream"
    ),
    "an error after an empty beginning": Failing(
        lambda api: Reply(chunks=[api.delta(""), api.failure("overloaded")]), "error_in_stream"
    ),
    "a flat error in the stream": Failing(
        lambda _: Reply(chunks=[event("error", code="server_error", message="overloaded")]),
        "error_in_stream",
        apis=ITEMS_ONLY,
    ),
    "failed in the stream": Failing(
        lambda _: Reply(chunks=[event("response.failed", response={"status": "failed", **FAILED})]),
        "error_in_stream",
        apis=ITEMS_ONLY,
    ),
    "failed as a whole": Failing(
        lambda _: Reply(raw_body=dumps({"object": "response", "status": "failed", **FAILED})),
        "error_in_stream",
        apis=ITEMS_ONLY,
    ),
    "error object with 200": Failing(lambda _: Reply(raw_body=dumps(FAILED)), "malformed_reply", 2),
    "nothing": Failing(lambda _: Reply(chunks=[]), "broken_stream"),
    "only its beginning": Failing(
        lambda _: Reply(chunks=[event("response.created")]), "broken_stream", apis=ITEMS_ONLY
    ),
}


def session(number: int = 30) -> list[JsonObject]:
    return b.tool_session(number, result_chars=2000)


async def play_until(agent: Agent, messages: Sequence[JsonObject], compactions: int) -> Exchange:
    """Go on with the session until so many compactions were made; returns the last exchange."""
    for step in list(checks.steps(messages))[len(agent.exchanges) :]:
        exchange = await agent.say(step)
        if len(checks.compactions(agent.exchanges)) == compactions:
            return exchange
    raise AssertionError("the session ended before it was compacted")


@pytest.mark.parametrize(
    ("api", "name"),
    [
        pytest.param(api, name, id=f"{api}-{name}")
        for name, failing in FAILING.items()
        for api in failing.apis
    ],
)
async def test_a_failing_summariser(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    """An extract takes its place; the next compaction is a full one again."""
    failing = FAILING[name]
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **{**FAST, **failing.values}) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        up.summary_replies.extend(failing.reply(api) for _ in range(8))
        extract = await play_until(agent, session(), 1)
        # A form that the upstream does not take is not one of its answers.
        before = len(up.summaries)
        calls = before - len(up.rejections)
        up.summary_replies.clear()
        full = await play_until(agent, session(), 2)
        failed = proxy.events.of_type("compaction_failed")
        completed = proxy.events.of_type("compaction_completed")
    checks.assert_fine(agent.exchanges, up)
    checks.assert_stable(agent.exchanges)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert calls == failing.calls
    assert checks.reasons(failed) == [failing.reason]
    assert failed[0]["session"] == extract.session
    assert extract.marks == ["compacted", "extractive"]
    assert completed[0]["extractive"] is True
    assert completed[0]["session"] == extract.session
    for poison in ("risotto", "boom", "overloaded", "not json", "<think>", "tool_call>", "sorry"):
        assert poison not in extract.text
    assert {call.path for call in up.summaries} == {api.path}
    assert full.marks == ["compacted"]
    assert "extractive" not in completed[1]
    # What no model has read yet is read now: the whole history, not only the newest span.
    read = b"".join(call.decoded for call in up.summaries[before:]).decode()
    assert all(b.marker(0, number) in read for number in range(10))


PARTIAL: dict[str, Callable[[Api], Reply]] = {
    "length": lambda _: Reply(text=FULL[:240], finish_reason="length"),
    "no last event": lambda api: Reply(chunks=[api.delta(FULL[:240])]),
    "cut connection": lambda _: Reply(text=FULL, cut=True),
    "silence in the middle": lambda _: Reply(text=FULL, gate=asyncio.Event()),
    "error in the middle": lambda api: Reply(chunks=[api.delta(FULL[:240]), api.failure("gone")]),
}


@pytest.mark.parametrize("name", PARTIAL)
async def test_a_cut_summary_is_salvaged(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        up.summary_replies.append(PARTIAL[name](api))
        exchange = await play_until(agent, session(), 1)
        completed = await proxy.wait_event("compaction_completed")
    checks.assert_fine(agent.exchanges, up)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert exchange.marks == ["compacted", "partial"]
    assert "Repair the nightly import." in exchange.text
    assert completed["partial"] is True
    assert "max_output_tokens" in as_text(completed["advice"])
    assert len(up.summaries) == 1
    assert proxy.events.of_type("compaction_failed") == []


async def test_at_the_deadline_what_was_written_must_do(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A summariser that never falls silent for long, but does not come to an end either."""
    checks.make_strict(up, WINDOW)
    values: dict[str, Json] = {"compaction.deadline_seconds": 0.5}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.append(Reply(text=FULL, gate=asyncio.Event()))
        exchange = await play_until(agent, session(), 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted", "partial"]
    await up.wait_for(lambda: up.summaries[0].disconnected)


TEXT = (
    "The nightly import fails; the importer, the scheduler and src/importer were read. "
    "mark0n00001z and mark0n00002z were seen in the results of read_file and run_command. "
    "The registry merges late events. The work goes on with mark0n00003z and the remaining "
    "files of the gateway."
)

USABLE: dict[str, tuple[Callable[[Api], Reply], str]] = {
    "fenced": (lambda _: Reply(text=f"Here it is:\n```json\n{FULL}\n```"), "Keep the public"),
    "thoughts first": (
        lambda _: Reply(text=f"<think>{COOKING}</think>{FULL}"),
        "Repair the nightly",
    ),
    "thoughts beside": (
        lambda api: Reply(chunks=[api.thought(COOKING), api.delta(FULL), api.end(FULL)]),
        "Repair the nightly",
    ),
    "text": (lambda _: Reply(text=TEXT), "The registry merges"),
    "not streamed": (lambda api: Reply(raw_body=api.whole(FULL)), "Repair the nightly"),
    "CRLF and comments": (
        lambda api: Reply(
            chunks=[
                b": hi\r\n\r\n",
                api.delta(FULL[:50]).replace(b"\n", b"\r\n").replace(b"data: ", b"data:"),
                b": ping\n\n",
                api.delta(FULL[50:]) + api.end(FULL),
            ]
        ),
        "Repair the nightly",
    ),
    "bent shapes": (
        lambda _: Reply(text='{"goal":["Repair it"],"instructions":"Keep it","nextSteps":null}'),
        "Repair it",
    ),
}


@pytest.mark.parametrize("name", USABLE)
async def test_other_usable_answers(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    reply, expected = USABLE[name]
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        up.summary_replies.append(reply(api))
        exchange = await play_until(agent, session(), 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    assert expected in exchange.text
    assert "risotto" not in exchange.text
    assert len(up.summaries) == 1


async def test_one_repair_try_is_enough(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        up.summary_replies.append(Reply(text=COOKING))
        exchange = await play_until(agent, session(), 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    assert len(up.summaries) - len(up.rejections) == 2
    assert proxy.events.of_type("compaction_failed") == []


SCHEMA, PLAIN = ["json_schema"], ["json_schema", "json_object", ""]
FORMS: list[tuple[Api, set[str], set[str], list[str]]] = [
    *[(api, {"json_schema"}, set(), PLAIN[:2]) for api in APIS],
    *[(api, {"json_schema", "json_object"}, set(), PLAIN) for api in APIS],
    (CHAT, set(), {"max_tokens"}, SCHEMA * 2),
    (CHAT, {"json_schema"}, {"max_tokens"}, [*PLAIN[:2], "json_object"]),
    (CHAT, set(), {"response_format"}, PLAIN),
    (RESPONSES, set(), {"text"}, PLAIN),
    (Responses(stateless=False), set(), {"store"}, SCHEMA * 2),
    (Responses(stateless=False), {"json_schema", "json_object"}, {"store"}, [*PLAIN, ""]),
]
"""What an upstream rejects, and the forms in which the first summary is asked for."""


@pytest.mark.parametrize(("api", "formats", "params", "forms"), FORMS, ids=str)
async def test_the_form_of_the_call_is_negotiated_once(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    formats: set[str],
    params: set[str],
    forms: list[str],
) -> None:
    checks.make_strict(up, WINDOW)
    up.reject_response_format, up.reject_params = formats, params
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await play_until(agent, session(), 1)
        first = len(up.summaries)
        await play_until(agent, session(), 2)
    checks.assert_fine(agent.exchanges, up)
    assert proxy.events.of_type("compaction_failed") == []
    assert [api.structure_of(call) for call in up.summaries] == [*forms, forms[-1]]
    assert len(up.summaries) == first + 1
    last = up.summaries[-1]
    assert api.limits_of(last) == [next(name for name in api.limits if name not in params)]
    assert set(last.json) & params == set()
    assert {call.path for call in up.summaries} == {api.path}


@pytest.mark.parametrize(
    "text",
    [
        "Unrecognized request argument supplied: max_completion_tokens",
        "Unknown parameter: 'max_completion_tokens'.",
        "[{'loc': ['body', 'max_completion_tokens'], 'msg': 'Extra inputs are not permitted'}]",
        "Unsupported parameter: 'max_completion_tokens' is not supported with this model.",
    ],
)
async def test_other_words_for_an_unsupported_limit(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, text: str
) -> None:
    """The client's own field is asked first; the summariser may take only the other one."""
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, max_completion_tokens=500)
        up.summary_replies.append(Reply(status=400, text=text))
        exchange = await play_until(agent, session(), 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    assert [CHAT.limits_of(call) for call in up.summaries] == [
        ["max_completion_tokens"],
        ["max_tokens"],
    ]


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("{} is too large: 90000. This model supports at most 300 completion tokens.", 300),
        ("{}: 90000 > 256, which is the maximum allowed number of output tokens", 256),
        ("Invalid {} value, the valid range of {} is [1, 200]", 200),
    ],
)
async def test_a_limit_of_the_output_is_learned(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    text: str,
    cap: int,
) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        limit = api.limits[0]
        up.summary_replies.append(Reply(status=400, text=text.replace("{}", limit)))
        await play_until(agent, session(), 1)
        await play_until(agent, session(), 2)
    checks.assert_fine(agent.exchanges, up)
    assert proxy.events.of_type("compaction_failed") == []
    limits = [call.json[limit] for call in up.summaries]
    assert limits[1:] == [cap, cap]


async def test_a_status_in_the_error_is_not_taken_for_a_limit(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    error = b'{"error":{"message":"max_tokens is not supported, at most others","code":400}}'
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.append(Reply(status=400, raw_body=error))
        await play_until(agent, session(), 1)
    assert CHAT.limits_of(up.summaries[1]) == ["max_completion_tokens"]
    assert up.summaries[1].json["max_completion_tokens"] == up.summaries[0].json["max_tokens"]


async def test_an_overflow_of_the_summariser_is_answered_by_a_shorter_input(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    text = "request (9100 tokens) exceeds the available context size (8192 tokens)"
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        up.summary_replies.append(Reply(status=400, text=text))
        exchange = await play_until(agent, session(), 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    first, second, *_ = (len(call.decoded) for call in up.summaries)
    assert second < 0.7 * first


CALLERS: dict[Api, JsonObject] = {
    CHAT: {"n": 1, "stop": ["END"], "logprobs": False, "response_format": {"type": "json_object"}},
    RESPONSES: {"text": {"format": {"type": "text"}}, "top_logprobs": 2, "prompt_cache_key": "k"},
}


async def test_the_summariser_is_sent_nothing_of_the_callers_options(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    headers = {"x-stainless-retry-count": "1", "idempotency-key": "abc", "x-trace": "7"}
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, headers, api=api)
        for step in checks.steps(session()):
            options: JsonObject = {**CALLERS[api], "tools": [*b.catalogue(3)]}
            await agent.post(api.body(step, tool_choice="required", **options))
    checks.assert_fine(agent.exchanges, up)
    assert up.summaries
    for call in up.summaries:
        assert set(call.json) == api.summary_members
        assert api.structure_of(call) == "json_schema"
        assert "idempotency-key" not in call.headers
        assert call.headers["x-trace"] == "7"
        assert b.SYSTEM not in call.decoded.decode()


NONE: dict[str, Json] = {**FAST, "compaction.fallback": "none"}


async def test_without_a_fallback_a_request_that_fits_goes_as_it_came(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    values: dict[str, Json] = {**NONE, "compaction.threshold": 0.5}
    messages = session(12)
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        up.summary_replies.extend(Reply(status=500, text="boom") for _ in range(50))
        exchanges = await agent.play(messages)
        again = await agent.say(messages)
        failed = proxy.events.of_type("compaction_failed")
        skipped = proxy.events.of_type("compaction_skipped")
    checks.assert_fine(agent.exchanges, up)
    assert all(e.arrived == e.sent for e in agent.exchanges)
    assert again.marks == ["none"]
    # One try for each new call group, three in all, then the session cools down.
    assert len(up.summaries) == 3
    assert checks.reasons(failed) == ["http_500"] * 3
    assert "cooldown" in checks.reasons(skipped)
    assert len(exchanges) == 13


async def test_without_a_fallback_what_does_not_fit_is_clipped_and_it_cools_down(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **NONE) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        up.summary_replies.extend(Reply(status=429, text="slow") for _ in range(50))
        await agent.play(session(24))
        failed = proxy.events.of_type("compaction_failed")
    checks.assert_fine(agent.exchanges, up)
    assert agent.exchanges[-1].marks == ["clipped"]
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert checks.reasons(failed) == ["http_429"] * 3
    assert len(up.summaries) == 3
    assert "foldgate-record" not in agent.exchanges[-1].text


async def test_after_the_cool_down_it_recovers(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks.make_strict(up, WINDOW)
    monkeypatch.setattr("proxy.compactor.runs.COOL_SECONDS", 0.2)
    async with Running(up.base_url, tmp_path, **NONE) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        up.summary_replies.extend(Reply(status=500, text="boom") for _ in range(3))
        messages = session(40)
        steps = list(checks.steps(messages))
        while len(proxy.events.of_type("compaction_failed")) < 3:
            await agent.say(steps[len(agent.exchanges)])
        cooled = await cool_until(tmp_path)
        assert cooled
        exchange = await play_until(agent, messages, 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    assert b.TASK in exchange.text


async def cool_until(folder: Path) -> bool:
    """Wait until the stored cool-down is over."""
    import sqlite3
    import time
    from contextlib import closing

    with closing(sqlite3.connect(folder / "foldgate.db")) as db:
        (until,) = db.execute("SELECT cool_until FROM struggles").fetchone()
    await asyncio.sleep(max(0.0, until - time.time()) + 0.01)
    return bool(until)


async def test_extracts_in_a_row_still_cool_down_and_nothing_is_asked(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """With the extractive fallback a dead summariser costs three calls, not one per compaction."""
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        up.summary_replies.extend(Reply(status=503, text="down") for _ in range(50))
        await agent.play(session(60))
        completed = proxy.events.of_type("compaction_completed")
        failed = proxy.events.of_type("compaction_failed")
    checks.assert_fine(agent.exchanges, up)
    checks.assert_stable(agent.exchanges)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert len(up.summaries) == 3
    assert len(completed) > 3
    assert all(e["extractive"] is True for e in completed)
    assert checks.reasons(failed) == ["http_503"] * 3


async def test_a_summariser_that_cannot_be_reached(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """A summariser of its own, at an address where nobody listens."""
    checks.make_strict(up, WINDOW)
    values: dict[str, Json] = {
        **FAST,
        "compaction.summarizer": "small",
        "profiles": [{"model": "small", "base_url": "http://127.0.0.1:9/v1"}],
    }
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        exchange = await play_until(agent, session(), 1)
        failed = proxy.events.of_type("compaction_failed")
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted", "extractive"]
    assert checks.reasons(failed) == ["unreachable"]
    assert up.summaries == []


async def test_a_summariser_with_a_smaller_window_and_a_key_of_its_own(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """Its input is cut to its window; the caller's credential does not go there."""
    checks.make_strict(up, 16_384)
    async with ScriptedUpstream(model="small") as small:
        checks.make_strict(small, 2048)
        values: dict[str, Json] = {
            **FAST,
            "compaction.summarizer": "small",
            "profiles": [{"model": "small", "base_url": small.base_url}],
        }
        async with Running(up.base_url, tmp_path, **values) as proxy:
            agent = Agent(client, proxy.url, up, {"Authorization": "Bearer secret"}, api=api)
            await agent.play(session(45))
            await agent.say(b.tool_session(150, seed=3, result_chars=2000))
            failed = proxy.events.of_type("compaction_failed")
        assert small.violations == []
        assert {s.headers.get("Authorization") for s in small.requests} == {None}
        assert {s.json["model"] for s in small.summaries} == {"small"}
    checks.assert_fine(agent.exchanges, up)
    assert up.summaries == []
    assert failed == []


async def test_first_contact_with_a_session_that_outgrew_the_window_long_ago(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """The summariser's input stays within its window too, however long the history is."""
    checks.make_strict(up, WINDOW)
    messages = b.tool_session(200, result_chars=2000)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = await agent.say(messages)
        more = [*messages, b.assistant("So."), b.user("And now?")]
        second = await agent.say(more)
    checks.assert_fine(agent.exchanges, up)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert first.marks == ["compacted", "partial"]
    assert second.marks == ["reused"]
    assert [call.outcome.status for call in up.summaries] == [200] * 4


async def test_the_scripted_summary_is_plausible(up: ScriptedUpstream) -> None:
    """The tests above rely on it being accepted."""
    assert plausible_checkpoint(session())
