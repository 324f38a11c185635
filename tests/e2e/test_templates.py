"""Models whose chat templates are strict: a client that fits them is never refused."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps
from proxy.dialects.writing import SYSTEM_SAID
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import CHAT, COMMENT, Api
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running
from tests.upstream import Recorded, Reply, ScriptedUpstream
from tests.upstream_rules import Rejection, plausible_checkpoint
from tests.upstream_templates import OF_PLAIN_CHATS, TEMPLATES, one_lead

WINDOW = 8192
TURNS = 30


def plain_chat(turns: int, *, system: bool) -> list[JsonObject]:
    messages = [b.system(b.SYSTEM)] if system else []
    for turn in range(turns):
        messages.append(b.user(f"turn-{turn} " + b.prose(1200, turn)))
        messages.append(b.assistant(b.prose(900, 100 + turn)))
    return messages[:-1]


@pytest.mark.parametrize("name", TEMPLATES)
async def test_thirty_turns(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    up.window, up.template = WINDOW, TEMPLATES[name]
    if name in OF_PLAIN_CHATS:
        messages = plain_chat(TURNS, system=name != "gemma")
    else:
        messages = b.turn_session(TURNS, 2, result_chars=700)[:-1]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(messages)
    checks.assert_fine(agent.exchanges, up)
    checks.assert_stable(agent.exchanges)
    assert len(agent.exchanges) >= TURNS
    assert len(checks.compactions(agent.exchanges)) >= 2
    assert len(up.main) == len(agent.exchanges)


@pytest.mark.parametrize("name", [n for n in TEMPLATES if n not in OF_PLAIN_CHATS])
async def test_one_long_turn(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    """Cuts within the turn: the task stays in front of the calls that are kept."""
    up.window, up.template = WINDOW, TEMPLATES[name]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.play(b.tool_session(TURNS, result_chars=2500))
    checks.assert_fine(agent.exchanges, up)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert len(checks.compactions(agent.exchanges)) >= 2


# What follows is about templates that take what a client sends, but not what we make of it.


def with_rules(turns: int) -> list[JsonObject]:
    """A session with system messages in its midst, early ones among them."""
    messages = b.turn_session(turns, 2, result_chars=1800)
    for number, place in enumerate((5, 13)):
        messages.insert(place * 2, b.system(f"MARK-rule{number}: answer in French from now on."))
    return messages


RULES = ("MARK-rule0", "MARK-rule1")


async def grow(agent: Agent, messages: Sequence[JsonObject], first: int) -> list[Exchange]:
    """Send the whole of a session from message `first` on, step by step."""
    return [await agent.say(m) for m in checks.steps(messages) if len(m) >= first]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_template_objects_to_is_learned(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, stream: bool
) -> None:
    up.window, up.template = WINDOW, one_lead
    messages = with_rules(10)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api, stream=stream)
        exchanges = await grow(agent, messages, 20)
    assert [e.status for e in exchanges] == [200] * len(exchanges)
    changed = [e for e in exchanges if e.marks != ["none"]]
    assert len(changed) >= 4
    # The first rewritten request was refused once; no other ever was.
    assert {r.rule for r in up.rejections} == {"template"}
    assert [r.outcome.status for r in up.main].count(500) == 1
    assert len(up.main) == len(exchanges) + 1
    # From then on each prompt extends the one before, until the next compaction.
    taken = [checks.raw_messages(r.body) for r in up.main if r.outcome.status == 200]
    changes = {
        number
        for number, (old, new) in enumerate(itertools.pairwise(taken), 1)
        if new[: len(old)] != old
    }
    assert changes <= set(checks.compactions(exchanges))
    told = [up.main[-1].decoded.decode().count(rule) for rule in RULES]
    assert told == [1, 1]
    assert SYSTEM_SAID in up.main[-1].decoded.decode()


async def test_what_was_learned_is_of_that_model_only(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.window, up.template = WINDOW, one_lead
    messages = with_rules(10)[:-1]
    async with Running(up.base_url, tmp_path) as proxy:
        await Agent(client, proxy.url, up, api=api).say(messages)
        up.template = None
        before = len(up.main)
        other = Agent(client, proxy.url, up, api=api, model="another")
        await other.say(messages)
    (request,) = up.main[before:]
    roles = [m.get("role") for m in request.messages]
    assert "system" in roles[1 if api is CHAT else 0 : 3]
    assert SYSTEM_SAID not in request.decoded.decode()


TEXT = "Conversation roles must alternate user/assistant/user/assistant/..."


@pytest.mark.parametrize("status", [400, 500])
async def test_a_request_we_did_not_change_is_the_clients_own(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, status: int
) -> None:
    body = dumps({"error": {"code": status, "message": TEXT, "type": "server_error"}})
    up.replies.append(Reply(status=status, raw_body=body))
    async with Running(up.base_url, tmp_path) as proxy:
        exchange = await Agent(client, proxy.url, up, api=api).say([b.user("a"), b.user("b")])
    assert (exchange.status, exchange.reply) == (status, body)
    assert len(up.main) == 1


def refuses_records(request: Recorded) -> Reply:
    """No layout helps: the template objects to every request with a record in it."""
    if b"foldgate-record" in request.decoded:
        return Reply(status=500, raw_body=dumps({"error": {"message": f"Jinja Exception: {TEXT}"}}))
    return Reply(text="as it came")


@pytest.mark.parametrize("size", [2900, 4000])
async def test_when_no_layout_helps_it_goes_as_it_came_if_that_may_fit(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, size: int
) -> None:
    """Above the window it cannot: the client gets what the template said."""
    up.reply = refuses_records
    messages = b.turn_session(7, 2, result_chars=size)[:-1]
    settings: dict[str, Json] = {"upstream.context_window": 12_500}
    async with Running(up.base_url, tmp_path, **settings) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = await agent.say(messages)
        calls = len(up.main)
        again = await agent.say(messages)
        started = proxy.events.of_type("compaction_started")
    fits = size == 2900
    assert (first.status, again.status) == ((200, 200) if fits else (500, 500))
    assert (TEXT in first.reply.decode()) is not fits
    assert calls <= 3
    # Nothing was learned of what did not help, and nothing was compacted again.
    assert len(up.main) - calls <= 3
    assert len(started) == 1


async def test_the_clients_own_objection_is_told_when_the_original_is_refused_too(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """A conversation that no template takes, whatever we make of it: three calls, and its words."""
    messages = b.turn_session(7, 2, result_chars=2900)[:-1]

    def reply(request: Recorded) -> Reply:
        whose = "record" if b"foldgate-record" in request.decoded else "original"
        error: JsonObject = {"message": f"Jinja Exception: {TEXT} of the {whose}"}
        return Reply(status=500, raw_body=dumps({"error": error}))

    up.reply = reply
    settings: dict[str, Json] = {"upstream.context_window": 12_500}
    async with Running(up.base_url, tmp_path, **settings) as proxy:
        exchange = await Agent(client, proxy.url, up, api=api).say(messages)
    assert exchange.status == 500
    assert "of the original" in exchange.reply.decode()
    assert up.main[-1].body == exchange.sent
    assert len(up.main) <= 3


def event_of(rejection: Rejection) -> bytes:
    error = {**rejection.error, "message": rejection.message}
    return b"event: error\ndata: " + dumps({"error": error}) + b"\n\n"


def in_the_stream(request: Recorded) -> Reply:
    """As LM Studio: the template is rendered when the stream has begun."""
    refused = list(one_lead(as_objects(request.json.get("messages"))))
    return Reply(chunks=[event_of(refused[0])]) if refused else Reply(text="cured")


async def test_an_objection_within_a_stream(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.window, up.reply = WINDOW, in_the_stream
    messages = with_rules(10)[:-1]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, stream=True)
        exchange = await agent.say(messages)
        again = await agent.say(messages)
    for each in (exchange, again):
        said = [as_objects(e["choices"])[0]["delta"] for e in CHAT.events(each.reply)]
        assert "cured" in "".join(as_text(d.get("content")) for d in said if isinstance(d, dict))
    assert len(up.main) == 3


async def test_an_objection_within_a_stream_to_a_small_request(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """What we made of a request is looked at, however small the window is."""
    up.window, up.reply = 1024, in_the_stream
    messages = [b.system("Be brief.")]
    for turn in range(12):
        messages += [b.user(f"Question {turn}?"), b.assistant("It depends on that. " * 15)]
        if turn == 9:
            messages.append(b.system("Answer in French."))
    messages.append(b.user("And now?"))
    async with Running(up.base_url, tmp_path) as proxy:
        exchange = await Agent(client, proxy.url, up, stream=True).say(messages)
    said = [as_objects(e["choices"])[0]["delta"] for e in CHAT.events(exchange.reply)]
    assert "cured" in "".join(as_text(d.get("content")) for d in said if isinstance(d, dict))
    assert len(up.main) == 2


async def test_a_model_that_writes_such_words_is_not_cured(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.window = WINDOW
    up.replies.append(Reply(text=f'{{"error": "{TEXT}"}}'))
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api, stream=True)
        exchange = await agent.say(with_rules(10)[:-1])
    assert api.events(exchange.reply)
    assert exchange.marks == ["compacted"]
    assert len(up.main) == 1


async def test_an_objection_after_the_head(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """The client hears comments, then the reply to what the template takes."""
    up.window, up.template = WINDOW, one_lead
    gate = asyncio.Event()
    messages = with_rules(10)[:-1]
    up.summary_replies.append(Reply(text=plausible_checkpoint(messages), gate=gate))
    settings: dict[str, Json] = {"server.keepalive_seconds": 0.05}
    async with (
        Running(up.base_url, tmp_path, **settings) as proxy,
        client.post(proxy.url + api.path, data=api.body(messages, stream=True)) as reply,
    ):
        received = b""
        async for chunk in reply.content.iter_any():
            received += chunk
            if COMMENT in received:
                gate.set()
    assert received.startswith(COMMENT)
    assert api.events(received)
    assert len(up.main) == 2
