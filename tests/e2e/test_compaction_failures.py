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
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running
from tests.upstream import Recorded, Reply, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

WINDOW = 8192
FAST: dict[str, Json] = {
    "compaction.first_byte_seconds": 1.0,
    "compaction.idle_seconds": 1.0,
    "compaction.deadline_seconds": 20.0,
}
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


def event(delta: JsonObject, finish: str | None = None) -> bytes:
    choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + dumps({"choices": [choice]}) + b"\n\n"


@dataclass(frozen=True)
class Failing:
    """Replies that cannot become a checkpoint."""

    reply: Callable[[], Reply]
    reason: str
    calls: int = 1
    """Summariser calls that one compaction makes."""
    values: dict[str, Json] = field(default_factory=dict)


FAILING: dict[str, Failing] = {
    "500": Failing(lambda: Reply(status=500, text="boom"), "http_500"),
    "503 page": Failing(
        lambda: Reply(
            status=503, raw_body=b"<html>down</html>", headers={"Content-Type": "text/html"}
        ),
        "http_503",
    ),
    "429": Failing(
        lambda: Reply(status=429, text="slow", headers={"Retry-After": "60"}), "http_429"
    ),
    "401": Failing(lambda: Reply(status=401, text="no"), "http_401"),
    "400": Failing(lambda: Reply(status=400, text="something else is wrong"), "http_400", 2),
    "hang": Failing(lambda: Reply(hang=True), "timeout"),
    "drop": Failing(lambda: Reply(drop=True), "broken_stream"),
    "silence after the head": Failing(
        lambda: Reply(chunks=[b": wait\n\n", b"data: [DONE]\n\n"], gate=asyncio.Event()), "timeout"
    ),
    "late first byte against the deadline": Failing(
        lambda: Reply(hang=True),
        "timeout",
        values={"compaction.first_byte_seconds": 30.0, "compaction.deadline_seconds": 1.0},
    ),
    "empty": Failing(lambda: Reply(text=""), "empty", 2),
    "white space": Failing(lambda: Reply(text=" \n\t "), "empty", 2),
    "only thoughts": Failing(lambda: Reply(text="<think>" + COOKING + "</think>"), "empty", 2),
    "reasoning channel": Failing(
        lambda: Reply(chunks=[event({"reasoning_content": FULL}), event({}, "stop")]), "empty", 2
    ),
    "unrelated": Failing(lambda: Reply(text=COOKING), "unrelated", 2),
    "short": Failing(lambda: Reply(text="The user works on the importer."), "too_short", 2),
    "refusal": Failing(
        lambda: Reply(text="I'm sorry, but I can't help with that. " * 9), "refusal", 2
    ),
    "error text": Failing(
        lambda: Reply(text="Error: the model is overloaded. " * 9), "error_text", 2
    ),
    "tool call": Failing(
        lambda: Reply(text="", tool_calls=[("c1", "read_file", '{"path":"src/a.py"}')]),
        "tool_call",
        2,
    ),
    "tool call as text": Failing(
        lambda: Reply(text='<tool_call>{"name":"read_file","arguments":{"path":"a"}}</tool_call>'),
        "tool_call",
        2,
    ),
    "bare tool call": Failing(
        lambda: Reply(text='{"name": "read_file", "arguments": {"path": "src/a.py"}}'),
        "tool_call",
        2,
    ),
    "other JSON": Failing(lambda: Reply(text='{"answer": "yes"}'), "malformed_json", 2),
    "empty sections": Failing(
        lambda: Reply(text='{"goal": "", "instructions": [], "nextSteps": []}'), "malformed_json", 2
    ),
    "cut before anything": Failing(
        lambda: Reply(text='{"go', finish_reason="length"), "truncated", 2
    ),
    "spent on thinking": Failing(
        lambda: Reply(text="<think>Let me see", finish_reason="length"), "truncated", 2
    ),
    "malformed SSE": Failing(lambda: Reply(chunks=[b"data: {not json\n\n"]), "malformed_reply", 2),
    "not SSE at all": Failing(
        lambda: Reply(raw_body=b"<html>ok</html>", headers={"Content-Type": "text/html"}),
        "malformed_reply",
        2,
    ),
    "error in the stream": Failing(
        lambda: Reply(chunks=[b'data: {"error":{"message":"overloaded","code":503}}\n\n']),
        "error_in_stream",
    ),
    "error object with 200": Failing(
        lambda: Reply(raw_body=b'{"error":{"message":"overloaded"}}'), "malformed_reply", 2
    ),
    "nothing": Failing(lambda: Reply(chunks=[]), "broken_stream"),
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


@pytest.mark.parametrize("name", FAILING)
async def test_a_failing_summariser(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, name: str
) -> None:
    """An extract takes its place; the next compaction is a full one again."""
    failing = FAILING[name]
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **{**FAST, **failing.values}) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.extend(failing.reply() for _ in range(8))
        extract = await play_until(agent, session(), 1)
        calls = len(up.summaries)
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
    for poison in ("risotto", "boom", "overloaded", "<think>", "tool_call>", "sorry"):
        assert poison not in extract.text
    assert full.marks == ["compacted"]
    assert "extractive" not in completed[1]
    # What no model has read yet is read now: the whole history, not only the newest span.
    assert b.marker(0, 0) in up.summaries[-1].decoded.decode()


PARTIAL: dict[str, Callable[[], Reply]] = {
    "length": lambda: Reply(text=FULL[:240], finish_reason="length"),
    "no finish reason": lambda: Reply(chunks=[event({"content": FULL[:240]})]),
    "cut connection": lambda: Reply(text=FULL, cut=True),
    "silence in the middle": lambda: Reply(text=FULL, gate=asyncio.Event()),
    "error in the middle": lambda: Reply(
        chunks=[event({"content": FULL[:240]}), b'data: {"error":{"message":"gone"}}\n\n']
    ),
}


@pytest.mark.parametrize("name", PARTIAL)
async def test_a_cut_summary_is_salvaged(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.append(PARTIAL[name]())
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
    values: dict[str, Json] = {"compaction.deadline_seconds": 1.0}
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

USABLE: dict[str, tuple[Callable[[], Reply], str]] = {
    "fenced": (lambda: Reply(text=f"Here it is:\n```json\n{FULL}\n```"), "Keep the public"),
    "thoughts first": (lambda: Reply(text=f"<think>{COOKING}</think>{FULL}"), "Repair the nightly"),
    "text": (lambda: Reply(text=TEXT), "The registry merges"),
    "not streamed": (
        lambda: Reply(
            raw_body=dumps(
                {"choices": [{"index": 0, "message": {"content": FULL}, "finish_reason": "stop"}]}
            )
        ),
        "Repair the nightly",
    ),
    "CRLF and comments": (
        lambda: Reply(
            chunks=[
                b": hi\r\n\r\n",
                event({"content": FULL}).replace(b"\n", b"\r\n").replace(b"data: ", b"data:"),
                event({}, "stop"),
                b"data: [DONE]\n\n",
            ]
        ),
        "Repair the nightly",
    ),
    "bent shapes": (
        lambda: Reply(text='{"goal":["Repair it"],"instructions":"Keep it","nextSteps":null}'),
        "Repair it",
    ),
}


@pytest.mark.parametrize("name", USABLE)
async def test_other_usable_answers(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    reply, expected = USABLE[name]
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.append(reply())
        exchange = await play_until(agent, session(), 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    assert expected in exchange.text
    assert "risotto" not in exchange.text
    assert len(up.summaries) == 1


async def test_one_repair_try_is_enough(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.append(Reply(text=COOKING))
        exchange = await play_until(agent, session(), 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    assert len(up.summaries) == 2
    assert proxy.events.of_type("compaction_failed") == []


def form_of(call: Recorded) -> tuple[str, list[str]]:
    """The structured-output form and the output-limit fields of a summariser call."""
    body = call.json
    structure = body.get("response_format")
    kind = as_text(structure.get("type")) if isinstance(structure, dict) else ""
    return kind, [f for f in ("max_tokens", "max_completion_tokens") if f in body]


@pytest.mark.parametrize(
    ("formats", "params", "forms"),
    [
        ({"json_schema"}, set(), ["json_schema", "json_object", "json_object"]),
        ({"json_schema", "json_object"}, set(), ["json_schema", "json_object", "", ""]),
        (set(), {"max_tokens"}, ["json_schema", "json_schema", "json_schema"]),
        ({"json_schema"}, {"max_tokens"}, ["json_schema", "json_object", "json_object"]),
        (set(), {"response_format"}, ["json_schema", "json_object", "", ""]),
    ],
    ids=["no schema", "no format", "no max_tokens", "neither", "no response_format"],
)
async def test_the_form_of_the_call_is_negotiated_once(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    formats: set[str],
    params: set[str],
    forms: list[str],
) -> None:
    checks.make_strict(up, WINDOW)
    up.reject_response_format, up.reject_params = formats, params
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up)
        await play_until(agent, session(), 1)
        first = len(up.summaries)
        await play_until(agent, session(), 2)
    checks.assert_fine(agent.exchanges, up)
    assert proxy.events.of_type("compaction_failed") == []
    assert [form_of(call)[0] for call in up.summaries][: len(forms)] == forms
    assert len(up.summaries) == first + 1
    assert form_of(up.summaries[-1]) == form_of(up.summaries[first - 1])
    limit = "max_completion_tokens" if "max_tokens" in params else "max_tokens"
    assert form_of(up.summaries[-1])[1] == [limit]


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
    assert [form_of(call)[1] for call in up.summaries] == [
        ["max_completion_tokens"],
        ["max_tokens"],
    ]


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("max_tokens is too large: 90000. This model supports at most 300 completion tokens.", 300),
        ("max_tokens: 90000 > 256, which is the maximum allowed number of output tokens", 256),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 200]", 200),
    ],
)
async def test_a_limit_of_the_output_is_learned(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, text: str, cap: int
) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.append(Reply(status=400, text=text))
        await play_until(agent, session(), 1)
        await play_until(agent, session(), 2)
    checks.assert_fine(agent.exchanges, up)
    assert proxy.events.of_type("compaction_failed") == []
    limits = [call.json["max_tokens"] for call in up.summaries]
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
    assert form_of(up.summaries[1])[1] == ["max_completion_tokens"]
    assert up.summaries[1].json["max_completion_tokens"] == up.summaries[0].json["max_tokens"]


async def test_an_overflow_of_the_summariser_is_answered_by_a_shorter_input(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    text = "request (9100 tokens) exceeds the available context size (8192 tokens)"
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.append(Reply(status=400, text=text))
        exchange = await play_until(agent, session(), 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    first, second = (len(call.decoded) for call in up.summaries)
    assert second < 0.7 * first


async def test_the_summariser_is_sent_nothing_of_the_callers_options(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(
            client,
            proxy.url,
            up,
            {"x-stainless-retry-count": "1", "idempotency-key": "abc", "x-trace": "7"},
            n=1,
            stop=["END"],
            logprobs=False,
            tools=[*b.catalogue(3)],
            tool_choice="required",
            response_format={"type": "json_object"},
        )
        await play_until(agent, session(), 1)
    call = up.summaries[0]
    assert set(call.json) == {"model", "messages", "max_tokens", "stream", "response_format"}
    assert "idempotency-key" not in call.headers
    assert call.headers["x-trace"] == "7"
    assert b.SYSTEM not in call.decoded.decode()


NONE: dict[str, Json] = {**FAST, "compaction.fallback": "none"}


async def test_without_a_fallback_a_request_that_fits_goes_as_it_came(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    values: dict[str, Json] = {**NONE, "compaction.threshold": 0.5}
    messages = session(12)
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up)
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
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **NONE) as proxy:
        agent = Agent(client, proxy.url, up)
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks.make_strict(up, WINDOW)
    monkeypatch.setattr("proxy.compactor.runs.COOL_SECONDS", 0.2)
    async with Running(up.base_url, tmp_path, **NONE) as proxy:
        agent = Agent(client, proxy.url, up)
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
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """With the extractive fallback a dead summariser costs three calls, not one per compaction."""
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up)
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
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A summariser of its own, at an address where nobody listens."""
    checks.make_strict(up, WINDOW)
    values: dict[str, Json] = {
        **FAST,
        "compaction.summarizer": "small",
        "profiles": [{"model": "small", "base_url": "http://127.0.0.1:9/v1"}],
    }
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up)
        exchange = await play_until(agent, session(), 1)
        failed = proxy.events.of_type("compaction_failed")
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted", "extractive"]
    assert checks.reasons(failed) == ["unreachable"]
    assert up.summaries == []


async def test_a_summariser_with_a_smaller_window_and_a_key_of_its_own(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
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
            agent = Agent(client, proxy.url, up, {"Authorization": "Bearer secret"})
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
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """The summariser's input stays within its window too, however long the history is."""
    checks.make_strict(up, WINDOW)
    messages = b.tool_session(200, result_chars=2000)
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = Agent(client, proxy.url, up)
        first = await agent.say(messages)
        more = [*messages, b.assistant("So."), b.user("And now?")]
        second = await agent.say(more)
    checks.assert_fine(agent.exchanges, up)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert first.marks == ["compacted"]
    assert second.marks == ["reused"]
    assert len(up.summaries) == 1
    assert up.summaries[0].outcome.status == 200


async def test_the_scripted_summary_is_plausible(up: ScriptedUpstream) -> None:
    """The tests above rely on it being accepted."""
    assert plausible_checkpoint(session())
