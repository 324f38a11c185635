"""Edits, branches, undo, retries, sub-agents and tenants: always the right content."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, dumps
from tests import builders as b
from tests import items as i
from tests.e2e import checks
from tests.e2e.apis import CHAT, RESPONSES, Api
from tests.e2e.checks import PEERS, Agent, Exchange
from tests.e2e.running import Running
from tests.upstream import ScriptedUpstream

WINDOW = 16_384
STEPS = 24
"""Enough calls of 2 KB for one compaction."""


class Scene:
    """A one-turn session that was compacted once, and its proxy."""

    def __init__(self, proxy: Running, up: ScriptedUpstream, agent: Agent) -> None:
        self.proxy = proxy
        self.up = up
        self.agent = agent
        self.messages = b.tool_session(STEPS, result_chars=2048)

    @property
    def last(self) -> Exchange:
        return self.agent.exchanges[STEPS]

    @property
    def cut(self) -> int:
        """How many of `messages`, the system message included, stand before the cut."""
        return cut_of(self.last, self.messages, self.agent.api)

    @property
    def record(self) -> str:
        return checks.record_of(self.last)

    @property
    def record_id(self) -> str:
        return checks.record_id(self.record)


def cut_of(exchange: Exchange, messages: Sequence[JsonObject], api: Api) -> int:
    """How many messages stand before what was kept behind the message with the checkpoint."""
    arrived = checks.raw_messages(exchange.arrived)
    first_kept = arrived[next(n for n, raw in enumerate(arrived) if checks.carries(raw)) + 1]
    groups = api.spelled(messages)
    return next(n for n, group in enumerate(groups) if group and dumps(group[0]) == first_kept)


@pytest.fixture
async def scene(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> AsyncIterator[Scene]:
    checks.make_strict(up, WINDOW)
    up.summary_text = checks.remembers_marks
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        scene = Scene(proxy, up, Agent(client, proxy.url, up, api=api))
        await scene.agent.play(scene.messages)
        assert len(up.summaries) == 1
        assert scene.last.marks == ["reused"]
        assert scene.record
        yield scene
        checks.assert_fine(scene.agent.exchanges, up)


def edited(messages: Sequence[JsonObject], index: int, text: str) -> list[JsonObject]:
    """The list with the content of one message replaced."""
    return [{**m, "content": text} if i == index else m for i, m in enumerate(messages)]


def only(exchange: Exchange, present: Sequence[str], absent: Sequence[str]) -> None:
    """The forwarded body holds all of `present` and none of `absent`."""
    body = exchange.arrived.decode()
    assert [word for word in present if word not in body] == []
    assert [word for word in absent if word in body] == []


async def test_an_edited_old_message_is_what_counts(scene: Scene) -> None:
    messages = edited(scene.messages, 5, b.prose(2048, 77, "MARK-edited"))
    gone = b.marker(0, 1)
    exchange = await scene.agent.say(messages)
    assert exchange.marks == ["compacted"]
    assert len(scene.up.summaries) == 2
    assert gone not in scene.up.summaries[1].decoded.decode()
    only(exchange, ["MARK-edited", b.TASK], [gone, scene.record_id])
    again = await scene.agent.say(messages)
    assert again.arrived == exchange.arrived
    # Back to what it was before: the first checkpoint still stands.
    back = await scene.agent.say(scene.messages)
    assert back.arrived == scene.last.arrived
    assert len(scene.up.summaries) == 2


async def test_an_edited_task_starts_afresh(scene: Scene) -> None:
    messages = edited(scene.messages[:20], 1, "MARK-other: draw a map of the harbour instead.")
    exchange = await scene.agent.say(messages)
    assert exchange.marks == ["none"]
    only(exchange, ["MARK-other"], [b.TASK, scene.record_id])


async def test_an_edit_behind_the_cut_keeps_the_checkpoint(scene: Scene) -> None:
    index = scene.cut + 1
    gone = b.marker(0, (index - 3) // 2)
    assert gone in scene.last.text
    messages = edited(scene.messages, index, b.prose(1000, 5, "MARK-late"))
    exchange = await scene.agent.say(messages)
    assert exchange.marks == ["reused"]
    assert checks.record_of(exchange) == scene.record
    only(exchange, ["MARK-late", b.TASK], [gone])
    assert len(scene.up.summaries) == 1


async def test_branch_and_return(scene: Scene) -> None:
    """A new summary neither for the branch that shares the cut, nor on the way back."""
    base = scene.messages[: scene.cut + 4]
    branch = [*base, b.assistant("Let me ask."), b.user("MARK-branch: try the other way.")]
    exchange = await scene.agent.say(branch)
    only(exchange, ["MARK-branch", b.TASK, scene.record_id], [b.marker(0, STEPS - 1)])
    longer = [*branch, *b.tool_session(3, seed=8, result_chars=500)[2:]]
    extended = await scene.agent.say(longer)
    arrived = checks.raw_messages(exchange.arrived)
    assert checks.raw_messages(extended.arrived)[: len(arrived)] == arrived
    back = await scene.agent.say(scene.messages)
    assert back.arrived == scene.last.arrived
    only(back, [], ["MARK-branch"])
    assert len(scene.up.summaries) == 1
    assert {exchange.session, extended.session, back.session} == {back.session}


async def test_two_branches_before_the_cut_have_a_checkpoint_each(scene: Scene) -> None:
    other = [*scene.messages[:6], *b.tool_session(STEPS, seed=3, result_chars=2048)[2:]]
    there = [await scene.agent.say(step) for step in checks.steps(other[:]) if len(step) > 6]
    assert len(scene.up.summaries) == 2
    back = await scene.agent.say(scene.messages)
    again = await scene.agent.say(other)
    assert len(scene.up.summaries) == 2
    assert back.arrived == scene.last.arrived
    assert again.arrived == there[-1].arrived
    for number in range(4, STEPS):
        only(back, [], [b.marker(3, number)])
        only(again, [], [b.marker(0, number)])
    assert back.session != again.session


async def test_undo_past_the_cut_to_it_and_behind_it(scene: Scene) -> None:
    cut = scene.cut
    for length in (cut - 2, cut):
        exchange = await scene.agent.say(scene.messages[:length])
        assert exchange.marks == ["none"]
        only(exchange, [], [scene.record_id])
    behind = await scene.agent.say(scene.messages[: cut + 2])
    assert behind.marks == ["reused"]
    assert checks.record_of(behind) == scene.record
    back = await scene.agent.say(scene.messages)
    assert back.arrived == scene.last.arrived
    assert len(scene.up.summaries) == 1


async def test_another_way_on_from_exactly_the_cut(scene: Scene) -> None:
    head = scene.messages[: scene.cut]
    ways = [
        [b.user("MARK-way: stop and explain.")],
        [b.assistant("I stop here."), b.user("MARK-way: why?")],
        b.tool_session(2, seed=6, result_chars=300)[2:],
    ]
    for way in ways:
        exchange = await scene.agent.say([*head, *way])
        assert checks.record_of(exchange) == scene.record
        only(exchange, [b.TASK], [b.marker(0, STEPS - 1)])
        on = [*head, *way, b.assistant("Well."), b.user("MARK-on: go on.")]
        extended = await scene.agent.say(on)
        arrived = checks.raw_messages(exchange.arrived)
        assert checks.raw_messages(extended.arrived)[: len(arrived)] == arrived
    assert len(scene.up.summaries) == 1


async def test_a_user_message_right_after_the_cut_keeps_its_parts(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    picture = b.image_part(b.data_url(b.png(64, 64, 900)))
    messages = b.tool_session(STEPS, result_chars=2048)
    messages[1] = b.user([b.text_part(b.TASK), picture])
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        last = (await agent.play(messages))[-1]
        head = messages[: cut_of(last, messages, api)]
        text = await agent.say([*head, b.user("Only text.")])
        both = await agent.say([*head, b.user([b.text_part("A look:"), picture])])
    checks.assert_fine(agent.exchanges, up)
    for exchange, pictures in ((last, 1), (text, 1), (both, 2)):
        carrier = next(raw for raw in checks.raw_messages(exchange.arrived) if checks.carries(raw))
        assert carrier.count(dumps(api.part(picture))) == pictures
    only(text, [b.TASK, "Only text."], [])
    assert len(up.summaries) == 1


async def test_a_retry_is_the_same_request(scene: Scene) -> None:
    steps = list(checks.steps(scene.messages))
    number = checks.compactions(scene.agent.exchanges)[0]
    for index in (number, number, STEPS):
        exchange = await scene.agent.say(steps[index])
        assert exchange.arrived == scene.agent.exchanges[index].arrived
        assert exchange.marks == ["reused"]
    assert len(scene.up.summaries) == 1


async def test_two_sessions_with_one_opening(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_text = checks.remembers_marks
    sessions = [b.tool_session(STEPS, seed=seed, result_chars=2048) for seed in (1, 2)]
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        agents = [Agent(client, proxy.url, up, api=api) for _ in sessions]
        for pair in zip(*map(checks.steps, sessions), strict=True):
            for agent, step in zip(agents, pair, strict=True):
                await agent.say(step)
    for agent, other in zip(agents, (2, 1), strict=True):
        checks.assert_fine(agent.exchanges, up)
        checks.assert_stable(agent.exchanges)
        for exchange in agent.exchanges:
            only(exchange, [b.TASK], [f"mark{other}n"])
    assert len(up.summaries) == 2
    assert agents[0].exchanges[-1].session != agents[1].exchanges[-1].session


async def test_two_tenants_with_the_same_content(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    values: dict[str, Json] = {**PEERS, "tenancy.source": "credential"}
    messages = b.tool_session(STEPS, result_chars=2048)
    async with Running(up.base_url, tmp_path, **values) as proxy:
        keys = ("Bearer key-one", "Bearer key-two")
        agents = [Agent(client, proxy.url, up, {"Authorization": key}, api=api) for key in keys]
        await asyncio.gather(*(agent.play(messages) for agent in agents))
    records = [checks.record_of(agent.exchanges[-1]) for agent in agents]
    assert all(records)
    assert len({agent.exchanges[-1].session for agent in agents}) == 2
    for agent, mine, theirs, key in zip(agents, records, records[::-1], keys, strict=True):
        checks.assert_fine(agent.exchanges, up)
        for exchange in agent.exchanges:
            only(exchange, [], [checks.record_id(theirs)])
            assert checks.record_of(exchange) in {"", mine}
            assert exchange.forwarded is not None
            assert exchange.forwarded.headers["Authorization"] == key
    assert sorted(r.headers["Authorization"] for r in up.summaries) == sorted(keys)


async def test_the_same_items_under_another_system_prompt(scene: Scene) -> None:
    messages = [b.system("MARK-system: answer like a pirate."), *scene.messages[1:]]
    exchange = await scene.agent.say(messages)
    assert exchange.marks == ["reused"]
    only(exchange, ["MARK-system", scene.record_id], [b.SYSTEM])
    bare = await scene.agent.say(scene.messages[1:])
    only(bare, [scene.record_id], [b.SYSTEM, "MARK-system"])
    assert len(scene.up.summaries) == 1
    assert b.SYSTEM not in scene.up.summaries[0].decoded.decode()


async def test_branching_through_many_turns(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """Undo to every turn of a session that was compacted several times, then on another way."""
    checks.make_strict(up, 4096)
    messages = b.turn_session(12, 2, result_chars=1200)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = await agent.play(messages[:-1])
        summaries = len(up.summaries)
        assert summaries >= 2
        for end in range(len(messages), 1, -1):
            if messages[end - 1]["role"] != "assistant" or messages[end - 1].get("tool_calls"):
                continue
            exchange = await agent.say([*messages[:end], b.user("MARK-undo: and now?")])
            gone = [b.marker(0, n) for n in range(24) if b.marker(0, n) not in str(messages[:end])]
            only(exchange, ["MARK-undo"], gone)
        undone = len(up.summaries)
        again = await agent.play(messages[:-1])
    checks.assert_fine(agent.exchanges, up)
    # An undone turn may need a cut of its own, which then stands on the way back, too.
    assert undone <= summaries + 2
    assert len(up.summaries) == undone
    known = {checks.record_of(e) for e in agent.exchanges[: -len(again)]}
    assert {checks.record_of(e) for e in again} <= known
    same = slice(checks.compactions(first)[-1], None)
    assert undone > summaries or [e.arrived for e in again[same]] == [
        e.arrived for e in first[same]
    ]


class Walk:
    """A client that goes on, goes back, edits, branches and sends again, by chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.known: list[list[JsonObject]] = []
        self.count = 0

    def text(self) -> str:
        self.count += 1
        size = self.rng.choice([30, 200, 900, 2500, 2500, 12_000])
        return b.prose(size, self.count, f"MARK-w{self.count}-")

    def group(self) -> list[JsonObject]:
        count = self.rng.choice([1, 1, 2, 5])
        ids = [
            f"call_{n}" if self.rng.random() < 0.5 else f"c{self.count}_{n}" for n in range(count)
        ]
        calls = [b.call(id, "read_file", {"path": f"src/{n}.py"}) for n, id in enumerate(ids)]
        self.rng.shuffle(ids)
        return [b.assistant(None, calls), *(b.result(id, self.text()) for id in ids)]

    def on(self, messages: list[JsonObject]) -> list[JsonObject]:
        if not messages:
            return [b.system(b.SYSTEM), b.user(self.text())]
        if self.rng.random() < 0.7:
            return [*messages, *self.group()]
        return [*messages, b.assistant(self.text()), b.user(self.text())]

    def edit(self, messages: list[JsonObject]) -> list[JsonObject]:
        index = self.rng.randrange(1, len(messages))
        key = "content" if messages[index].get("role") in {"user", "tool"} else "output"
        if not isinstance(messages[index].get(key), str):
            return messages
        return [{**m, key: self.text()} if n == index else m for n, m in enumerate(messages)]

    def step(self) -> list[JsonObject]:
        last = self.known[-1] if self.known else []
        other = self.rng.choice(self.known or [[]])
        match self.rng.randrange(10) if last else 9:
            case 0:
                messages = other
            case 1:
                messages = self.on(other)
            case 2:
                messages = self.edit(other)
            case 3:
                messages = [b.system(self.text()[:60]), *other[1:]]
            case _:
                messages = self.on(last)
        self.known.append(messages)
        return messages


class ItemWalk(Walk):
    """Now and then with what only the Responses API has."""

    def group(self) -> list[JsonObject]:
        self.count += 1
        name = f"x{self.count}"
        thought = (
            [i.reasoning(name, "Hm.", size)] if (size := self.rng.choice([0, 90, 900])) else []
        )
        match self.rng.randrange(10):
            case 0:
                search: JsonObject = {"type": "web_search_call", "id": f"ws_{name}"}
                return [*thought, {**search, "action": {"query": "x"}}, *super().group()]
            case 1:
                return [*super().group(), i.output(None, self.text())]
            case 2:
                asked = i.approval(f"mcpr_{name}", approve=True)[:2]
                return [*thought, *asked, *super().group()]
            case 3 | 4 | 5:
                kind = self.rng.choice(["custom", "shell", "local_shell", "apply_patch"])
                ids = [f"{name}_{n}" for n in range(self.rng.choice([1, 2]))]
                pairs = [i.pair(kind, id, f"*** {id}", self.text()) for id in ids]
                return [*thought, *(call for call, _ in pairs), *(output for _, output in pairs)]
            case _:
                return super().group()


WALKS = [
    pytest.param(api, walk, seed, window, id=f"{api}-{seed}-{window}")
    for api, walk in ((CHAT, Walk), (RESPONSES, ItemWalk))
    for seed, window in ((1, 3000), (2, 3000), (2, 8192), (3, 3000))
]


@pytest.mark.parametrize(("api", "walk", "seed", "window"), WALKS)
async def test_a_random_walk(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    walk: type[Walk],
    seed: int,
    window: int,
) -> None:
    """Whatever the client does: accepted upstream, faithful, and nothing of another branch."""
    checks.make_strict(up, window)
    up.summary_text = checks.remembers_marks
    walker = walk(seed)
    # What is finished behind a reply would change what the same request becomes.
    values: dict[str, Json] = {"compaction.background": False}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        for _ in range(60):
            exchange = await agent.say(walker.step())
            sent = set(checks.MARK.findall(exchange.sent.decode()))
            assert set(checks.MARK.findall(exchange.arrived.decode())) <= sent
            again = await agent.post(exchange.sent)
            assert again.arrived == exchange.arrived
        events = checks.reasons(proxy.events)
    checks.assert_fine(agent.exchanges, up)
    assert not {"invariant", "internal"} & set(events)
    assert len(up.summaries) >= 2
