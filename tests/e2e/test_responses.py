"""Sessions in the Responses API: what holds of chats holds of items."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_text, dumps, split_object
from tests import builders as b
from tests import items as i
from tests.e2e import checks
from tests.e2e.checks import PEERS, Agent, Exchange, ItemAgent
from tests.e2e.raw import RawUpstream, exchange, reply, request
from tests.e2e.running import Running
from tests.upstream import RESPONSES, Recorded, Reply, ScriptedUpstream
from tests.upstream_responses import RESPONSES_PATH

WINDOW = 16_384
STEPS = 24
"""Enough calls of 2 KB for one compaction."""

FIELDS: JsonObject = {
    "instructions": b.SYSTEM,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "high"},
}
"""As stateless agents send it."""

SKIPPED = "compaction_skipped"
_MARK = re.compile(r"mark\d+n\d{5}z|MARK-\w+")


def remembers_marks(request: Recorded) -> str:
    """A summary that repeats every marker of what it was shown, so that a leak is seen."""
    marks: list[Json] = [*dict.fromkeys(_MARK.findall(request.decoded.decode()))]
    return dumps({"goal": "Repair the import.", "discoveries": marks}).decode()


def agent_of(
    client: aiohttp.ClientSession,
    proxy: Running,
    up: ScriptedUpstream,
    headers: dict[str, str] | None = None,
    **fields: Json,
) -> ItemAgent:
    return ItemAgent(client, proxy.url, up, headers, **{**FIELDS, **fields})


# Whole sessions


def one_turn() -> list[JsonObject]:
    """45 requests of one user turn."""
    return i.tool_session(44, result_chars=2048)


def without_reasoning() -> list[JsonObject]:
    return i.tool_session(44, result_chars=2048, reasons=False)


def many_turns() -> list[JsonObject]:
    return i.turn_session(21, 3, result_chars=2048)[:-2]


def parallel() -> list[JsonObject]:
    return i.turn_session(14, 5, result_chars=1400, parallel=True)[:-2]


def without_ids() -> list[JsonObject]:
    """As pydantic-ai and Codex send them."""
    return [{k: v for k, v in item.items() if k not in {"id", "status"}} for item in one_turn()]


def part_lists() -> list[JsonObject]:
    """Outputs as arrays of parts, the user's words as one part."""
    items = one_turn()
    for item in items:
        for key in ("content", "output"):
            text = item.get(key)
            if isinstance(text, str):
                item[key] = [{"type": "input_text", "text": text}]
    return items


def big_blobs() -> list[JsonObject]:
    """Sealed reasoning of a few KB in front of each call."""
    items = i.tool_session(44, result_chars=400)
    return [
        i.reasoning(f"{n}", "I think.", sealed_bytes=1500) if item["type"] == "reasoning" else item
        for n, item in enumerate(items)
    ]


def task_of(items: Sequence[JsonObject]) -> str:
    content = items[0]["content"]
    if isinstance(content, list):
        assert isinstance(content[0], dict)
        return as_text(content[0]["text"])
    return as_text(content)


@pytest.mark.parametrize(
    ("session", "stream"),
    [
        (one_turn, False),
        (one_turn, True),
        (without_reasoning, True),
        (many_turns, True),
        (parallel, False),
        (without_ids, True),
        (part_lists, False),
        (big_blobs, False),
    ],
)
async def test_a_session_outlives_its_window(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    session: Callable[[], list[JsonObject]],
    stream: bool,
) -> None:
    checks.make_strict(up, WINDOW)
    items = session()
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        exchanges = await agent_of(client, proxy, up, stream=stream).play(items)
    checks.assert_fine(exchanges, up)
    checks.assert_in_every(task_of(items), exchanges)
    checks.assert_stable(exchanges)
    assert 1 <= len(up.summaries) <= 4
    assert len(checks.compactions(exchanges)) == len(up.summaries)
    assert {r.path for r in up.summaries} == {RESPONSES_PATH}
    assert len({e.session for e in exchanges if e.session}) == 1
    completed = proxy.events.of_type("compaction_completed")
    assert [e for e in completed if "partial" in e or "extractive" in e] == []
    assert proxy.events.of_type(SKIPPED) == []


async def test_each_output_reached_the_model(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """And what the headers say is what was done."""
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        exchanges = await agent_of(client, proxy, up).play(one_turn())
    assert len(exchanges) == 45
    for number, done in enumerate(exchanges[1:]):
        assert b.marker(0, number) in done.text
    first = checks.compactions(exchanges)[0]
    assert {tuple(e.marks) for e in exchanges[:first]} == {("none",)}
    for done in exchanges:
        before, after = done.tokens
        assert after <= before
        assert (after < before) == (done.marks != ["none"])
        assert bool(done.session) == (done.marks != ["none"])
    sizes = [e.tokens[1] for e in exchanges[first:]]
    assert sum(sizes) / len(sizes) >= 6000


def long_turn(calls: int) -> list[JsonObject]:
    """One user message, then calls: one by one, side by side, custom ones, all with reasoning."""
    items = [i.user(b.TASK)]
    rng = random.Random(calls)
    number = 0
    while number < calls:
        count = min(rng.choice([1, 1, 1, 4]), calls - number)
        names = [b.call_id(0, n) for n in range(number, number + count)]
        items.append(i.reasoning(names[0], "So.", sealed_bytes=rng.choice([90, 600])))
        if rng.random() < 0.3:
            note = i.answer(f"Looking at {number}.", f"msg_{names[0]}")
            items.append({**note, "phase": "commentary"})
        custom = rng.random() < 0.3
        made = [
            i.custom_call(name, "apply_patch", b.prose(200, number, f"*** patch {name}"))
            if custom
            else i.call(name, "read_file", {"path": f"src/{name}.py"})
            for name in names
        ]
        outputs = []
        for n, name in enumerate(names, number):
            text = b.prose(rng.choice([80, 900, 2500]), n, b.marker(0, n))
            outputs.append(i.custom_output(name, text) if custom else i.output(name, text))
        rng.shuffle(outputs)
        items += [*made, *outputs]
        number += count
    return items


async def test_one_question_and_300_calls(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    items = long_turn(300)
    steps = list(checks.item_steps(items))
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        agent = agent_of(client, proxy, up)
        for step in [*steps[:-1:3], steps[-1]]:
            await agent.say(step)
        warm = len(up.summaries)
        cold = await agent_of(client, proxy, up).say([i.user(b.TASK + " MARK-cold"), *items[1:]])
    checks.assert_fine([*agent.exchanges, cold], up)
    checks.assert_stable(agent.exchanges)
    checks.assert_in_every(b.TASK, [*agent.exchanges, cold])
    assert 4 <= warm <= 20
    assert "compacted" in cold.marks
    assert b.marker(0, 299) in cold.text


async def test_developer_items_stay_verbatim(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, 8192)
    up.one_system = False
    items = [i.developer("Rule one."), *i.turn_session(10, 2, result_chars=2000)[:-2]]
    turn = next(n for n, item in enumerate(items) if "turn-0-1-question" in str(item))
    items.insert(turn, i.developer("From here on answer in French."))
    async with Running(up.base_url, tmp_path) as proxy:
        exchanges = await agent_of(client, proxy, up).play(items)
    checks.assert_fine(exchanges, up)
    assert checks.compactions(exchanges)
    last = checks.raw_messages(exchanges[-1].arrived)
    assert last[:2] == [dumps(items[0]), dumps(items[turn])]
    assert checks.carries(last[2])


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
    items = i.tool_session(90, result_chars=350, reasons=False)
    async with Running(up.base_url, tmp_path) as proxy:
        for first in (True, False):
            agent = ItemAgent(client, proxy.url, up)
            for step in list(checks.item_steps(items))[40:]:
                body = i.body(step, instructions=instructions)
                if first:
                    head = dumps({"model": "test-model", "instructions": instructions})
                    body = head[:-1] + b',"input":' + dumps([*step]) + b"}"
                await agent.post(body)
            checks.assert_fine(agent.exchanges, up)
            assert "reused" in agent.exchanges[-1].marks


# Edits, branches, restarts, tenants


class Scene:
    """A one-turn session that was compacted once, and its proxy."""

    def __init__(self, proxy: Running, up: ScriptedUpstream, agent: ItemAgent) -> None:
        self.proxy = proxy
        self.up = up
        self.agent = agent
        self.items = i.tool_session(STEPS, result_chars=2048)

    @property
    def last(self) -> Exchange:
        return self.agent.exchanges[STEPS]

    @property
    def cut(self) -> int:
        first_kept = checks.raw_messages(self.last.arrived)[1]
        return [dumps(item) for item in self.items].index(first_kept)

    @property
    def record_id(self) -> str:
        return checks.record_id(checks.record_of(self.last))


@pytest.fixture
async def scene(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> AsyncIterator[Scene]:
    checks.make_strict(up, WINDOW)
    up.summary_text = remembers_marks
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        scene = Scene(proxy, up, agent_of(client, proxy, up))
        await scene.agent.play(scene.items)
        assert len(up.summaries) == 1
        assert scene.last.marks == ["reused"]
        yield scene
        checks.assert_fine(scene.agent.exchanges, up)


def only(done: Exchange, present: Sequence[str], absent: Sequence[str]) -> None:
    """The forwarded body holds all of `present` and none of `absent`."""
    body = done.arrived.decode()
    assert [word for word in present if word not in body] == []
    assert [word for word in absent if word in body] == []


async def test_an_edited_old_output_is_what_counts(scene: Scene) -> None:
    items = [*scene.items]
    place = next(n for n, item in enumerate(items) if b.marker(0, 1) in str(item))
    items[place] = {**items[place], "output": b.prose(2048, 77, "MARK-edited")}
    done = await scene.agent.say(items)
    assert done.marks == ["compacted"]
    only(done, ["MARK-edited", b.TASK], [b.marker(0, 1), scene.record_id])
    back = await scene.agent.say(scene.items)
    assert back.arrived == scene.last.arrived
    assert len(scene.up.summaries) == 2


async def test_branch_undo_and_return(scene: Scene) -> None:
    """Another way on from the cut and from behind it; then back."""
    for start in (scene.cut, scene.cut + 3):
        branch = [*scene.items[:start], i.user("MARK-branch: try the other way.")]
        done = await scene.agent.say(branch)
        only(done, ["MARK-branch", b.TASK, scene.record_id], [b.marker(0, STEPS - 1)])
        on = [*branch, i.reasoning("on"), i.answer("Well.", "msg_on"), i.user("MARK-on")]
        extended = await scene.agent.say(on)
        arrived = checks.raw_messages(done.arrived)
        assert checks.raw_messages(extended.arrived)[: len(arrived)] == arrived
    before = await scene.agent.say(scene.items[: scene.cut])
    assert before.arrived == before.sent
    back = await scene.agent.say(scene.items)
    assert back.arrived == scene.last.arrived
    assert len(scene.up.summaries) == 1


async def test_a_client_that_spells_its_items_anew_is_the_same_client(scene: Scene) -> None:
    """No ids, null fields, messages as plain texts, other white space in arguments."""
    items: list[JsonObject] = []
    for item in scene.items:
        item = {k: v for k, v in item.items() if k not in {"id", "status"}}
        if item["type"] == "message":
            del item["type"]
        if item.get("role") == "assistant":
            content = item["content"]
            assert isinstance(content, list)
            assert isinstance(content[0], dict)
            item["content"] = content[0]["text"]
        if "arguments" in item:
            item["arguments"] = as_text(item["arguments"]).replace('":', '" : ')
            item |= {"namespace": None, "caller": None}
        items.append(item)
    done = await scene.agent.say(items)
    assert done.marks == ["reused"]
    assert checks.record_id(checks.record_of(done)) == scene.record_id
    assert len(scene.up.summaries) == 1


async def test_a_restart_changes_nothing(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    items = i.tool_session(STEPS, result_chars=2048)
    steps = list(checks.item_steps(items))
    exchanges: list[Exchange] = []
    for start in range(0, len(steps), 4):
        async with Running(up.base_url, tmp_path, **PEERS) as proxy:
            agent = agent_of(client, proxy, up)
            if exchanges:
                again = await agent.say(steps[start - 1])
                assert again.arrived == exchanges[-1].arrived
            exchanges += [await agent.say(step) for step in steps[start : start + 4]]
    checks.assert_fine(exchanges, up)
    checks.assert_stable(exchanges)
    assert len(up.summaries) == 1
    assert len({e.session for e in exchanges if e.session}) == 1


async def test_tenants_and_apis_share_nothing(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """The same conversation of two keys, and of one key in both APIs."""
    checks.make_strict(up, WINDOW)
    chat = b.tool_session(STEPS, result_chars=2048)
    items = i.from_chat(chat, reasons=False)
    values: dict[str, Json] = {**PEERS, "tenancy.source": "credential"}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        keys = [{"Authorization": f"Bearer key-{n}"} for n in (1, 2)]
        agents: list[Agent] = [agent_of(client, proxy, up, key) for key in keys]
        agents.append(Agent(client, proxy.url, up, keys[0]))
        for agent in agents:
            await agent.play(items if isinstance(agent, ItemAgent) else chat)
    records = [checks.record_id(checks.record_of(a.exchanges[-1])) for a in agents]
    assert len(set(records)) == 3
    assert len({a.exchanges[-1].session for a in agents}) == 3
    for agent, mine in zip(agents, records, strict=True):
        checks.assert_fine(agent.exchanges, up)
        for done in agent.exchanges:
            only(done, [], [record for record in records if record != mine])
    assert [r.path for r in up.summaries] == [*[RESPONSES_PATH] * 2, "/v1/chat/completions"]


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

    def thought(self) -> list[JsonObject]:
        self.count += 1
        size = self.rng.choice([0, 90, 900])
        return [i.reasoning(f"w{self.count}", "Hm.", size)] if size else []

    def group(self) -> list[JsonObject]:
        """What the model did at once, with the outputs: now and then not by functions."""
        name, thought = f"x{self.count}", self.thought()
        match self.rng.randrange(12):
            case 0:
                search: JsonObject = {"type": "web_search_call", "id": f"ws_{name}"}
                return [*thought, {**search, "action": {"query": "x"}}, *self.functions()]
            case 1:
                shell: JsonObject = {"type": "local_shell_call", "call_id": name, "action": {}}
                done: JsonObject = {"type": "local_shell_call_output", "id": name}
                return [*thought, shell, {**done, "output": self.text()}]
            case 2:
                run: JsonObject = {"type": "shell_call", "call_id": name, "action": {}}
                said: JsonObject = {"stdout": self.text(), "stderr": "", "outcome": {}}
                got: JsonObject = {"type": "shell_call_output", "call_id": name, "output": [said]}
                return [*thought, run, got]
            case 3:
                begun: JsonObject = {"type": "function_call_output", "output": self.text()}
                return [*self.functions(), begun]
            case 4:
                ask: JsonObject = {"type": "mcp_approval_request", "id": f"mcpr_{name}"}
                yes: JsonObject = {"type": "mcp_approval_response", "approve": True}
                yes["approval_request_id"] = ask["id"]
                asked: JsonObject = {**ask, "name": "q", "server_label": "s", "arguments": "{}"}
                return [*thought, asked, yes, *self.functions()]
            case _:
                return self.functions()

    def functions(self) -> list[JsonObject]:
        count = self.rng.choice([1, 1, 2, 5])
        items = self.thought()
        names = [f"w{self.count}_{n}" for n in range(count)]
        custom = self.rng.random() < 0.3
        for name in names:
            made = i.custom_call(name, "patch", "*** x") if custom else i.call(name, "read", {})
            items.append(made)
        self.rng.shuffle(names)
        for name in names:
            text = self.text()
            items.append(i.custom_output(name, text) if custom else i.output(name, text))
        return items

    def on(self, items: list[JsonObject]) -> list[JsonObject]:
        if not items:
            return [i.user(self.text())]
        if self.rng.random() < 0.7:
            return [*items, *self.group()]
        answer = i.answer(self.text(), f"msg_w{self.count}")
        return [*items, *self.thought(), answer, i.user(self.text())]

    def edit(self, items: list[JsonObject]) -> list[JsonObject]:
        index = self.rng.randrange(len(items))
        key = "content" if items[index].get("role") == "user" else "output"
        if key not in items[index]:
            return items
        return [{**m, key: self.text()} if n == index else m for n, m in enumerate(items)]

    def step(self) -> list[JsonObject]:
        last = self.known[-1] if self.known else []
        other = self.rng.choice(self.known or [[]])
        match self.rng.randrange(8) if last else 9:
            case 0:
                items = other
            case 1:
                items = self.on(other)
            case 2:
                items = self.edit(other)
            case _:
                items = self.on(last)
        self.known.append(items)
        return items


@pytest.mark.parametrize(("seed", "window"), [(1, 3000), (2, 8192), (3, 3000)])
async def test_a_random_walk(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, seed: int, window: int
) -> None:
    """Whatever the client does: accepted upstream, faithful, and nothing of another branch."""
    checks.make_strict(up, window)
    up.summary_text = remembers_marks
    walk = Walk(seed)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = agent_of(client, proxy, up)
        for _ in range(50):
            done = await agent.say(walk.step())
            sent = set(_MARK.findall(done.sent.decode()))
            assert set(_MARK.findall(done.arrived.decode())) <= sent
            again = await agent.post(done.sent)
            # With its clips stored, a compaction may have become worth while.
            assert again.arrived == done.arrived or "compacted" in again.marks
        events = checks.reasons(proxy.events)
    checks.assert_fine(agent.exchanges, up)
    assert not {"invariant", "internal"} & set(events)
    assert len(up.summaries) >= 2


# What is left alone


ODD = rb"""{"stream": false,"temperature":1.0 , "model":"test-model","instructions":"Caf\u00e9 \/",
 "metadata":{"big":123456789012345678901234567890,"x":[1.50,-0.0,1E+2]},"client_metadata":{"a":1},
 "input":[{"content":"Caf\u00e9 \u4f60 \ud83d\ude00 \/ \u0041","role":"user","x_mine":{"a":1.0}},
 {"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"AbC+\/="},
 {"call_id":"a","type":"function_call","name":"f","arguments":"{\"v\": 1.0}","id":"fc_1"},
 {"output":"ok\u0021","call_id":"a","type":"function_call_output","score":1e5},
 {"type":"configuration_update","text":{ }}],"tool_choice":"auto" ,
 "x_vendor": {"deep":[[],{},null,true]}}"""
TEXT = rb'{"input" : "Caf\u00e9 \/ hi","model":"test-model" }'


async def test_what_needs_nothing_arrives_with_the_same_bytes(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    fields: JsonObject = {**FIELDS, "tools": [*b.catalogue(10)], "temperature": 1.0}
    large = dumps({"model": "test-model", "input": [*i.tool_session(20)], **fields})
    async with Running(up.base_url, tmp_path) as proxy:
        agent = agent_of(client, proxy, up)
        for body in (ODD, ODD, TEXT, large, large, large[:-1] + b' ,"a":1.0\n}\n'):
            done = await agent.post(body)
            assert done.status == 200
            assert done.arrived == body
            assert done.marks == ["none"]
    assert len(up.summaries) == 0


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
    assert posted == [arrives, arrives]
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


async def test_odd_spelling_survives_in_what_is_kept(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, 4096)
    up.alternate = False
    old = [dumps(m) for m in i.turn_session(6, 2, result_chars=1500, seed=9)]
    odd = [
        rb'{"role":"user" , "content":"Caf\u00e9 \ud83d\ude00 \/ one","x_mine":{"a":1.0,"b":1e5}}',
        rb'{"summary":[],"type":"reasoning","encrypted_content":"AbC+\/=","id":"rs_o"}',
        rb'{"type":"function_call","name":"f","call_id":"o1","arguments":"{\"a\": 1.0,  \"b\":1e5}"'
        rb',"id":"fc_o"}',
        rb'{"type":"function_call_output","call_id":"o1","output":"1.0 \u00e9 1e5","n":1E3}',
        rb'{"role":"user","content":"Next \u4f60","x":12345678901234567890123}',
    ]
    body = b'{"model":"test-model","top_p":1.0,"input":[%b],"x":{"y":1.0},"instructions":"\\u0041"}'
    async with Running(up.base_url, tmp_path, **{"compaction.keep_turns": 1}) as proxy:
        agent = agent_of(client, proxy, up)
        first = await agent.post(body % b", ".join([*old, *odd]))
        second = await agent.post(body % b" ,\n".join([*old, *odd]))
    checks.assert_fine([first, second], up)
    assert (first.marks, second.marks) == (["compacted"], ["reused"])
    for done in (first, second):
        arrived = checks.raw_messages(done.arrived)
        assert checks.carries(arrived[0])
        assert arrived[1:] == odd[1:]
        assert b'"x_mine":{"a":1.0,"b":1e5}' in arrived[0]
        assert split_object(done.arrived)["instructions"] == rb'"\u0041"'


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


# Conversations that the upstream keeps


async def test_a_chain_passes_through_and_says_why(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.window = WINDOW
    async with Running(up.base_url, tmp_path) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        up.replies.append(Reply(text="", reasoning="Hm.", tool_calls=[("c1", "f", "{}")]))
        first = await agent.say([i.user(b.TASK)])
        chained: JsonObject = {"model": "test-model", "previous_response_id": f"resp_{1:032x}"}
        bodies: list[JsonObject] = [
            {**chained, "input": [i.output("c1", b.prose(80_000, 1))]},
            {**chained, "input": [i.output("c1", "ok"), i.user("and?")], "stream": True},
            {"model": "m", "input": [i.user("q"), *references("rs_1", "fc_1_0"), *answered("c1")]},
            {"model": "m", "conversation": {"id": "conv_1"}, "input": "hi"},
            {"model": "m", "prompt": {"id": "pmpt_1"}, "input": "hi"},
        ]
        for number, body in enumerate(bodies, 1):
            done = await agent.post(dumps(body))
            assert done.arrived == done.sent
            event = proxy.events.of_type(SKIPPED)[-1]
            assert event["reason"] == "server_side_state"
            assert len(proxy.events.of_type(SKIPPED)) == number
            # The first one is over the window, which is the upstream's to say.
            assert done.status == (400 if number == 1 else 200)
        await agent.post(dumps({"model": "m", "input": "hi", "previous_response_id": None}))
        unknown = await agent.post(dumps({**chained, "previous_response_id": "resp_x"} | HI))
    assert first.marks == ["none"]
    assert len(proxy.events.of_type(SKIPPED)) == len(bodies) + 1
    assert unknown.status == 400
    assert unknown.error["code"] == "previous_response_not_found"
    assert len(up.summaries) == 0


HI: JsonObject = {"input": "hi"}


def references(*names: str) -> list[JsonObject]:
    return [{"type": "item_reference", "id": name} for name in names]


def answered(name: str) -> list[JsonObject]:
    return [i.output(name, "ok")]


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


# Force, bypass, shadow


async def test_force_and_bypass(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    items = i.tool_session(10, result_chars=2000)
    force = {"x-foldgate-compact": "force"}
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        agent = agent_of(client, proxy, up)
        short = await agent.say([i.user("hi")], **force)
        text = await agent.post(TEXT, force)
        forced = await agent.say(items, **force)
        later = await agent.say(items)
        bypassed = await agent.say(items, **{"x-foldgate-bypass": "1"})
    checks.assert_fine([short, forced, later], up)
    assert (short.arrived, text.arrived) == (short.sent, text.sent)
    assert forced.marks == ["compacted"]
    assert forced.tokens[1] <= 0.9 * forced.tokens[0]
    assert later.arrived == forced.arrived
    assert bypassed.arrived == bypassed.sent
    assert checks.reasons(proxy.events.of_type("compaction_started"))[-1] == "force"
    assert len(up.summaries) == 1


async def test_shadow_changes_nothing(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    items = i.tool_session(30, result_chars=2000)
    values: dict[str, Json] = {"server.shadow": True, "upstream.context_window": 8192}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = agent_of(client, proxy, up)
        await agent.play(items)
        started = proxy.events.of_type("compaction_started")
    assert all(e.arrived == e.sent for e in agent.exchanges)
    assert {tuple(e.marks) for e in agent.exchanges} == {("shadow",)}
    assert started
    assert all(e["shadow"] is True for e in started)
    assert len(up.summaries) == 0


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
            await agent.play(one_turn())
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
