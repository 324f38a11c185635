"""Clients that compact by themselves, and their side requests under the same ids.

Shapes after facts/clients.md: Codex, opencode, pi and qwen-code. Which ids a request carries never
matters; which history it has does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import JsonObject
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import Api
from tests.e2e.checks import PEERS, Agent, Exchange
from tests.e2e.running import Running
from tests.upstream import Reply, ScriptedUpstream

WINDOW = 16_384
STEPS = 24
"""Enough calls of 2 KB for one compaction."""

THREAD = "0199c0de-5e55-7000-8000-00000000abcd"
IDS = {
    "session-id": THREAD,
    "thread-id": THREAD,
    "x-client-request-id": THREAD,
    "x-session-id": "ses_abc",
    "x-session-affinity": "ses_abc",
}
"""What every request of a client's conversation carries, whatever it is for."""

ASKED = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM "
    "that will resume the task."
)
SUMMARY = "MARK-handoff: the importer was read; the parser rejects an empty batch. Next: run tests."

Shape = Callable[[Sequence[JsonObject]], list[JsonObject]]


def codex(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """The user's messages stay, and the summary follows them."""
    said = [m for m in messages if m["role"] in {"system", "user"}]
    return [*said, b.user(f"Another language model started on this. Its summary:\n{SUMMARY}")]


def opencode(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """The summary is an answer."""
    asked = b.user("What did we do so far?")
    return [messages[0], asked, b.assistant(SUMMARY), b.user("Continue if you have next steps.")]


def qwen(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """A snapshot, which the model is made to confirm; what came last is kept."""
    snapshot = b.user(f"<state_snapshot>{SUMMARY}</state_snapshot>")
    return [messages[0], snapshot, b.assistant("Got it."), b.user("Go on."), *messages[-4:]]


def pi(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """The summary is said by the user, and the last calls follow it."""
    told = b.user(f"The conversation before was compacted into this summary:\n\n{SUMMARY}")
    return [messages[0], told, *messages[-6:]]


SHAPES: Sequence[Shape] = (codex, opencode, qwen, pi)


class Client:
    """One conversation of a client in one API; its agents carry the same ids."""

    def __init__(
        self, http: aiohttp.ClientSession, proxy: Running, up: ScriptedUpstream, api: Api
    ) -> None:
        self.up = up
        self.api = api
        self.proxy = proxy
        self.main = Agent(
            http, proxy.url, up, IDS, api=api, tools=[*b.catalogue(4)], prompt_cache_key=THREAD
        )
        self.bare = Agent(http, proxy.url, up, IDS, api=api, tools=[], prompt_cache_key=THREAD)
        """As the main one, without tools: summaries and titles."""
        self.messages = b.tool_session(STEPS, result_chars=2048)

    @property
    def exchanges(self) -> list[Exchange]:
        return [*self.main.exchanges, *self.bare.exchanges]

    async def on(self, messages: Sequence[JsonObject], seed: int, steps: int) -> list[Exchange]:
        """Go on from a list with calls whose results nobody else has."""
        more = b.tool_session(steps, seed=seed, result_chars=2048)[2:]
        start = [] if messages[-1]["role"] in {"user", "tool"} else [b.user("On.")]
        whole = [*messages, *start, *more]
        return [
            await self.main.say(step) for step in checks.steps(whole) if len(step) >= len(messages)
        ]


@pytest.fixture
async def codes(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> AsyncIterator[Client]:
    """A client whose conversation was compacted once."""
    checks.make_strict(up, WINDOW)
    # Codex leaves two user messages side by side.
    up.alternate = False
    up.summary_text = checks.remembers_marks
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        codes = Client(client, proxy, up, api)
        await codes.main.play(codes.messages)
        assert len(up.summaries) == 1
        assert codes.main.exchanges[-1].marks == ["reused"]
        yield codes
        checks.assert_fine(codes.exchanges, up)
        for exchange in codes.exchanges:
            sent = set(checks.MARK.findall(exchange.sent.decode()))
            assert set(checks.MARK.findall(exchange.arrived.decode())) <= sent


def own(exchanges: Sequence[Exchange], foreign: str) -> None:
    """Nothing of this holds that checkpoint."""
    assert foreign
    assert [e for e in exchanges if foreign.encode() in e.arrived] == []


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_summary_by_the_client_begins_a_chain_of_its_own(
    codes: Client, shape: Shape
) -> None:
    up, old = codes.up, codes.main.exchanges[-1]
    record = checks.record_of(old)
    # Its request for a summary is the conversation gone on, so it needs no new checkpoint.
    asked = await codes.bare.say([*codes.messages, b.user(ASKED)])
    assert asked.marks == ["reused"]
    assert checks.record_of(asked) == record
    fresh = shape(codes.messages)
    first = await codes.main.say(fresh)
    assert first.marks == ["none"]
    assert first.arrived == first.sent
    chain = await codes.on(fresh, seed=5, steps=STEPS)
    own([first, *chain], checks.record_id(record))
    checks.assert_stable([first, *chain])
    assert len(checks.compactions(chain)) == 1
    shown = set(checks.MARK.findall(up.summaries[1].decoded.decode()))
    assert shown <= set(checks.MARK.findall(chain[-1].sent.decode()))
    assert "MARK-handoff" in chain[-1].text
    assert len({e.session for e in chain if e.session} | {old.session}) == 2
    # And undone: the old chain is where it was, and so is the new one.
    back = await codes.main.say(codes.messages)
    assert back.arrived == old.arrived
    again = await codes.main.post(chain[-1].sent)
    assert again.arrived == chain[-1].arrived
    assert len(up.summaries) == 2


@pytest.mark.parametrize("shape", [codex, qwen])
async def test_a_client_compacts_again_and_again(codes: Client, shape: Shape) -> None:
    """Each of its chains is compacted by the proxy, too, and each is found again."""
    messages, last, records = codes.messages, [codes.main.exchanges[-1]], set[str]()
    for seed in (6, 7):
        await codes.bare.say([*messages, b.user(ASKED)])
        fresh = shape(messages)
        last.append((await codes.on(fresh, seed, STEPS))[-1])
        messages = [*fresh, *b.tool_session(STEPS, seed=seed, result_chars=2048)[2:]]
    summaries = len(codes.up.summaries)
    for exchange in last:
        records.add(checks.record_of(exchange))
        again = await codes.main.post(exchange.sent)
        assert again.arrived == exchange.arrived
    assert len(records) == len(last)
    assert len(codes.up.summaries) == summaries


def tail_of(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Another system prompt over the end of the conversation, as a memory agent has it."""
    asked = b.system("MARK-memory: extract what is worth keeping.")
    return [asked, b.user("MARK-memory: here is what was said."), *messages[-8:]]


def asides(messages: Sequence[JsonObject]) -> list[list[JsonObject]]:
    """What clients ask besides, under the ids of the conversation."""
    opening = messages[1]
    return [
        [b.system("MARK-title: write a title."), opening],
        [b.system("MARK-title: write a title."), b.user(f"Title of: {opening['content']}")],
        [b.system("You search."), b.user("MARK-search: find the importer.")],
        [*messages[:2], b.assistant("Sure."), b.user("MARK-side: is that all?")],
        [*messages[:4]],
        [b.user("quota")],
    ]


async def test_side_requests_touch_nothing(codes: Client) -> None:
    """Titles, searches and memory agents share ids, and no more history than they hold."""
    record = checks.record_id(checks.record_of(codes.main.exchanges[-1]))
    for messages in asides(codes.messages):
        exchange = await codes.bare.say(messages)
        assert exchange.arrived == exchange.sent
        assert exchange.marks == ["none"]
    # A memory agent begins with the end of the conversation, and works on for long.
    chain = await codes.on(tail_of(codes.messages), seed=8, steps=STEPS)
    own(chain, record)
    checks.assert_stable(chain)
    assert len(checks.compactions(chain)) == 1
    assert b.TASK not in chain[-1].text
    back = await codes.main.say(codes.messages)
    assert back.arrived == codes.main.exchanges[STEPS].arrived
    assert len(codes.up.summaries) == 2


async def test_a_fork_under_another_system_prompt_keeps_its_own_prompt(codes: Client) -> None:
    """With the whole history it has the same checkpoint, and leaves it as it is."""
    fork = [b.system("MARK-fork: remember."), *codes.messages[1:], b.user("MARK-fork: what now?")]
    fork.insert(-1, b.assistant("Done."))
    exchange = await codes.bare.say(fork)
    assert exchange.marks == ["reused"]
    assert b.SYSTEM not in exchange.arrived.decode()
    back = await codes.main.say(codes.messages)
    assert back.arrived == codes.main.exchanges[STEPS].arrived
    assert len(codes.up.summaries) == 1


def unsigned(exchange: Exchange) -> bytes:
    """What arrived, with the checkpoint's nonce taken out."""
    nonce = checks.record_id(checks.record_of(exchange)).encode()
    return exchange.arrived.replace(nonce, b"NONCE") if nonce else exchange.arrived


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_conversation_goes_on_as_if_it_were_alone(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, at_once: bool
) -> None:
    """Between its requests, or at the same time, come the others that carry its ids."""
    checks.make_strict(up, WINDOW)
    up.alternate = False
    up.summary_text = checks.remembers_marks
    arrived = []
    for busy in (False, True):
        folder = tmp_path / str(busy)
        folder.mkdir()
        async with Running(up.base_url, folder, **PEERS) as proxy:
            codes = Client(client, proxy, up, api)
            fresh = [*codex(codes.messages), *b.tool_session(STEPS, seed=9, result_chars=2048)[2:]]
            for step, other in zip(checks.steps(codes.messages), checks.steps(fresh), strict=False):
                others = [other, *asides(step), tail_of(step)] if busy and len(step) > 9 else []
                said = [codes.bare.say(messages) for messages in others]
                if at_once:
                    await asyncio.gather(codes.main.say(step), *said)
                else:
                    await codes.main.say(step)
                    for request in said:
                        await request
        checks.assert_fine(codes.exchanges, up)
        assert len(checks.compactions(codes.main.exchanges)) == 1
        own(codes.bare.exchanges, checks.record_id(checks.record_of(codes.main.exchanges[-1])))
        assert bool(checks.compactions(codes.bare.exchanges)) == busy
        arrived.append([unsigned(exchange) for exchange in codes.main.exchanges])
    assert arrived[0] == arrived[1]


async def test_nobody_waits_for_the_checkpoint_of_another_history(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """While it is being written, all else under its ids is served, compacted if need be."""
    checks.make_strict(up, WINDOW)
    up.alternate = False
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY * 4, gate=gate))
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        codes = Client(client, proxy, up, api)
        fresh = [*codex(codes.messages), *b.tool_session(STEPS, seed=9, result_chars=2048)[2:]]

        async def others() -> list[Exchange]:
            await up.wait_for(lambda: len(up.summaries) == 1)
            done = [await codes.bare.say(m) for m in (*asides(codes.messages), fresh)]
            assert up.summaries[0].outcome.finished is False
            gate.set()
            return done

        first, done = await asyncio.gather(codes.main.say(codes.messages), others())
    checks.assert_fine(codes.exchanges, up)
    assert [e.marks for e in done] == [["none"]] * (len(done) - 1) + [["compacted"]]
    assert first.marks == ["compacted"]
    assert first.session != done[-1].session
    own(done, checks.record_id(checks.record_of(first)))
    own([first], checks.record_id(checks.record_of(done[-1])))


async def test_after_a_restart_both_chains_are_found(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    up.alternate = False
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        codes = Client(client, proxy, up, api)
        await codes.main.play(codes.messages)
        await codes.on(codex(codes.messages), seed=5, steps=STEPS)
        old, new = codes.main.exchanges[STEPS], codes.main.exchanges[-1]
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        codes.main.url = proxy.url
        for exchange in (new, old):
            again = await codes.main.post(exchange.sent)
            assert again.marks == ["reused"]
            assert again.arrived == exchange.arrived
    checks.assert_fine(codes.main.exchanges, up)
    assert len(up.summaries) == 2
