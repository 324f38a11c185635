"""Servers of the Responses API that go by another field for the structure of an answer."""

from pathlib import Path

import aiohttp
import pytest

from proxy.codec import JsonObject, loads
from tests import items as i
from tests.e2e import checks
from tests.e2e.checks import ItemAgent
from tests.e2e.running import Running
from tests.upstream import Recorded, ScriptedUpstream
from tests.upstream_rules import message_texts

WINDOW = 8192
SHAPES = ("text", "response_format")


def prose(asked: Recorded) -> str:
    """What a model writes that is held to nothing: words of what it was shown, in order."""
    words = [w for item in asked.messages for t in message_texts(item) for w in t.split()]
    return "The work so far: " + " ".join(dict.fromkeys(w for w in words if w.isalnum()))[:1500]


async def play(up: ScriptedUpstream, client: aiohttp.ClientSession, folder: Path) -> None:
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, folder) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        for step in checks.steps(i.tool_session(36, result_chars=2000)):
            await agent.say(step)
        assert len(checks.compactions(agent.exchanges)) >= 3
        assert not proxy.events.of_type("compaction_failed")


def told(request: Recorded) -> tuple[str, ...]:
    """The members by which a call asks for a structure."""
    return tuple(name for name in SHAPES if name in request.json)


async def test_a_structure_that_is_passed_over_is_told_as_in_chats(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """As llama.cpp needs it."""
    up.takes_response_format = True

    def written(asked: Recorded) -> str:
        if "response_format" in asked.json:
            return '{"goal": "mend the import", "currentState": "under way"}'
        return prose(asked)

    up.summary_text = written
    await play(up, client, tmp_path)
    first, *others = map(told, up.summaries)
    assert first == ("text",)
    assert set(others) == {SHAPES}
    bodies = [request.json for request in up.summaries[1:]]
    assert [shape_of(body) for body in bodies] == [schema_of(body) for body in bodies]


def shape_of(body: JsonObject) -> JsonObject:
    wanted = body["response_format"]
    assert isinstance(wanted, dict)
    assert wanted["type"] == "json_schema"
    inner = wanted["json_schema"]
    assert isinstance(inner, dict)
    return inner


def schema_of(body: JsonObject) -> JsonObject:
    text = body["text"]
    assert isinstance(text, dict)
    wanted = text["format"]
    assert isinstance(wanted, dict)
    return {key: value for key, value in wanted.items() if key != "type"}


async def test_a_server_that_refuses_the_other_field_is_not_asked_with_it_again(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Its model writes prose all the same."""
    up.summary_text = prose
    await play(up, client, tmp_path)
    assert [told(r) for r in up.summaries].count(SHAPES) == 1
    assert told(up.summaries[1]) == SHAPES
    assert {told(r) for r in up.summaries[2:]} == {("text",)}
    assert [r.rule for r in up.rejections] == ["params"]


@pytest.mark.parametrize("text", ['```json\n{"goal": "mend the import"}\n```', None])
async def test_where_the_structure_is_kept_nothing_is_repeated(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, text: str | None
) -> None:
    up.summary_text = text
    await play(up, client, tmp_path)
    assert {told(r) for r in up.summaries} == {("text",)}
    assert not up.rejections
    assert text is None or isinstance(loads(text.split("\n")[1]), dict)
