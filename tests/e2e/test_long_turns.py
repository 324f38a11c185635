"""One question and 300 calls: compacted again and again inside one turn of the Responses API."""

import random
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import JsonObject, as_objects, as_text, dumps, loads
from tests import builders as b
from tests import items as i
from tests.e2e import checks
from tests.e2e.apis import STATELESS
from tests.e2e.checks import PEERS, Exchange, ItemAgent
from tests.e2e.running import Running
from tests.upstream import Reply, ScriptedUpstream

WINDOW = 16_384
CALLS = 300
FILES = [f"src/importer/part_{number:02d}.py" for number in range(12)]
"""What the patches are for."""


class Work:
    """What a model does with one question, and what it has been told since, reply by reply."""

    def __init__(self, seed: int, most: int) -> None:
        self.rng = random.Random(seed)
        self.most = most
        self.calls = 0
        self.patches: dict[str, str] = {}
        """By call, the input of each patch."""

    def reply(self) -> Reply:
        """One call, or some side by side, of functions, of a custom tool, or of both."""
        count = min(self.rng.choice([1, 1, 1, 2, 2, 5]), self.most - self.calls)
        names = [b.call_id(0, self.calls + n) for n in range(count)]
        self.calls += count
        patched = [name for name in names if self.rng.random() < 0.3]
        self.patches |= {name: self.patch(name) for name in patched}
        return Reply(
            text=f"Looking at {self.calls}." if self.rng.random() < 0.3 else "",
            reasoning=b.prose(self.rng.choice([40, 900, 2500]), self.calls, "So: "),
            tool_calls=[(n, "read_file", f'{{"path":"{n}"}}') for n in names if n not in patched],
            custom_calls=[(name, "apply_patch", self.patches[name]) for name in patched],
        )

    def patch(self, name: str) -> str:
        path = self.rng.choice(FILES)
        return f"*** Begin Patch\n*** Update File: {path}\n@@\n-old\n+MARK-{name}\n*** End Patch"

    def outputs(self, made: Sequence[JsonObject]) -> list[JsonObject]:
        """The results of calls, in any order; each begins with its mark."""
        told: list[JsonObject] = []
        for call in made:
            name, number = as_text(call["call_id"]), len(told)
            text = b.prose(self.rng.choice([80, 900, 2500]), number, b.marker(0, int(name[-5:])))
            custom = call["type"] == "custom_tool_call"
            told.append(i.custom_output(name, text) if custom else i.output(name, text))
        self.rng.shuffle(told)
        return told

    def built_in(self) -> list[JsonObject]:
        """A patch by the API's own tool, now and then."""
        name = f"own_{self.calls:05d}"
        if self.rng.random() < 0.9 or name in self.patches:
            return []
        self.patches[name] = self.patch(name)
        operation: JsonObject = {"type": "update_file", "path": self.rng.choice(FILES)}
        call, output = i.pair("apply_patch", name, "", f"done {name}")
        call["operation"] = {**operation, "diff": self.patches[name]}
        return [call, output]


def assert_whole(exchange: Exchange, groups: Sequence[Sequence[JsonObject]]) -> None:
    """What the model gave out at once, with its results, arrived as it was or not at all."""
    arrived = set(checks.raw_messages(exchange.arrived))
    for group in groups:
        assert len({dumps(item) in arrived for item in group}) <= 1


def gone(exchange: Exchange, patches: dict[str, str]) -> dict[str, str]:
    """The patches that were sent and did not arrive as items."""
    sent, arrived = exchange.sent.decode(), exchange.arrived.decode()
    said = {name: f'"call_id":"{name}"' for name in patches}
    return {n: patches[n] for n, text in said.items() if text in sent and text not in arrived}


@pytest.mark.parametrize(("calls", "store"), [(CALLS, False), (120, True)])
async def test_one_question_and_many_calls(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, calls: int, store: bool
) -> None:
    """Reasoning is sealed, or kept by the upstream and known to the client by its id alone."""
    checks.make_strict(up, WINDOW)
    up.summary_text = checks.remembers_marks
    work, groups = Work(7, calls), [[i.user(b.TASK)]]
    fields: JsonObject = {"store": True} if store else STATELESS
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        while work.calls < calls:
            up.replies.append(work.reply())
            exchange = await agent.post(i.body(chain(*groups), instructions=b.SYSTEM, **fields))
            assert_whole(exchange, groups)
            output = as_objects(reply_of(exchange)["output"])
            assert ("encrypted_content" in output[0]) != store
            made = [item for item in output if "call_id" in item]
            groups += [[*output, *work.outputs(made)], work.built_in()]
        last = await agent.post(i.body(chain(*groups), instructions=b.SYSTEM, **fields))
    checks.assert_fine(agent.exchanges, up)
    checks.assert_stable(agent.exchanges)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert 4 <= len(up.summaries) <= 20
    assert len(checks.compactions(agent.exchanges)) == len(up.summaries)
    assert len({e.session for e in agent.exchanges if e.session}) == 1
    assert_patches_found(agent.exchanges, work.patches, up)
    assert b.marker(0, calls - 1) in last.text


def reply_of(exchange: Exchange) -> JsonObject:
    value = loads(exchange.reply)
    assert isinstance(value, dict)
    return value


def assert_patches_found(
    exchanges: Sequence[Exchange], patches: dict[str, str], up: ScriptedUpstream
) -> None:
    """What is gone was shown to the summariser; the checkpoint names its file and its mark."""
    shown = "\n".join(as_text(call.messages[0]["content"]) for call in up.summaries)
    for exchange in exchanges:
        record = checks.record_of(exchange)
        for name, patch in gone(exchange, patches).items():
            assert f"+MARK-{name}" in shown
            assert patch.split("File: ")[1].split("\n")[0] in record.partition("Files written")[2]
    assert len(gone(exchanges[-1], patches)) >= 0.2 * len(exchanges)


async def test_first_contact_with_300_calls(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    items = i.tool_session(CALLS)
    async with Running(up.base_url, tmp_path, **PEERS) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        first = await agent.say(items)
        second = await agent.say([*items, i.answer("So."), i.user("And now?")])
    checks.assert_fine(agent.exchanges, up)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert (first.marks, second.marks) == (["compacted", "partial"], ["reused"])
    assert b.marker(0, CALLS - 1) in first.text
    assert len(up.summaries) == 4
