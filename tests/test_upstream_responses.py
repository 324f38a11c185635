"""The scripted upstream rejects in the Responses API what OpenAI does, and keeps what it keeps."""

from collections.abc import AsyncIterator, Sequence

import pytest
from aiohttp import ClientSession

from proxy.codec import JsonObject, as_objects, as_text, loads
from tests import items as i
from tests.upstream import CHAT_PATH, Reply, ScriptedUpstream
from tests.upstream_responses import RESPONSES_PATH, Stored, check
from tests.upstream_rules import Rules

USER = i.user("go")
CALL = i.call("c1", "look", {"at": "x"})
OUTPUT = i.output("c1", "seen")
CUSTOM = i.custom_call("c2", "patch", "*** x")
THOUGHT = i.reasoning("1")


@pytest.fixture
async def client() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


def rejected(items: Sequence[JsonObject], stored: Stored | None = None) -> list[str]:
    found = check(i.body(items), Rules(), stored or Stored())
    return [rejection.rule for rejection in found]


GOOD: dict[str, list[JsonObject]] = {
    "one user": [USER],
    "no type": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
    "tool session": i.tool_session(5, result_chars=50),
    "turn session": i.turn_session(3, 2, result_chars=50, parallel=True),
    "outputs out of order": [
        *[USER, THOUGHT, CALL, CUSTOM],
        *[i.custom_output("c2", "ok"), OUTPUT],
    ],
    "an output without a call id": [USER, {"type": "function_call_output", "output": "by itself"}],
    "a local shell": [
        USER,
        {"type": "local_shell_call", "id": "ls_1", "call_id": "c1", "action": {}},
        {"type": "local_shell_call_output", "id": "c1", "output": "ok"},
    ],
    "reasoning, a comment, a call": [USER, THOUGHT, i.answer("So.", "msg_1"), CALL, OUTPUT],
    "reasoning in two items": [USER, THOUGHT, i.reasoning("2"), CALL, OUTPUT],
    "parts": [i.user([{"type": "input_text", "text": "a"}, {"type": "input_image"}])],
    "settings": [USER, {"type": "configuration_update"}, {"type": "additional_tools"}],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_input_is_accepted(name: str) -> None:
    assert rejected(GOOD[name]) == []


BAD: dict[str, tuple[list[JsonObject], str]] = {
    "an orphaned output": ([USER, OUTPUT], "pairing"),
    "an output before its call": ([USER, OUTPUT, CALL], "pairing"),
    "an unanswered call": ([USER, CALL], "pairing"),
    "two answers": ([USER, CALL, OUTPUT, OUTPUT], "pairing"),
    "an answer of another kind": ([USER, CALL, i.custom_output("c1", "x")], "pairing"),
    "reasoning at the end": ([USER, THOUGHT], "reasoning"),
    "reasoning before a user": ([USER, THOUGHT, USER], "reasoning"),
    "reasoning before an output": ([USER, CALL, THOUGHT, OUTPUT], "reasoning"),
    "reasoning without a summary": ([{"type": "reasoning", "id": "rs_1"}, CALL, OUTPUT], "item"),
    "reasoning that nobody keeps": ([USER, i.reasoning("1", "", 0), CALL, OUTPUT], "ids"),
    "an id twice": ([USER, i.answer("a", "msg_1"), USER, i.answer("b", "msg_1")], "ids"),
    "an id of another kind": ([USER, i.answer("a", "fc_1")], "ids"),
    "an unknown reference": ([{"type": "item_reference", "id": "rs_9"}], "ids"),
    "a reference without a type": ([{"id": "rs_9"}], "ids"),
    "a chat message": ([{"role": "tool", "tool_call_id": "c", "content": "x"}], "item"),
    "an unknown type": ([USER, {"type": "checkpoint"}], "item"),
    "no call id": ([USER, {"type": "function_call", "name": "f", "arguments": "{}"}], "item"),
    "arguments as an object": ([USER, {**CALL, "arguments": {}}, OUTPUT], "item"),
    "a chat part": ([i.user([{"type": "text", "text": "a"}])], "item"),
    "an output part of a user": ([i.user([{"type": "output_text", "text": "a"}])], "item"),
    "an input part of the model": (
        [USER, {"role": "assistant", "content": [{"type": "input_text", "text": "a"}]}],
        "item",
    ),
    "an empty text": ([i.user([{"type": "input_text", "text": ""}])], "item"),
    "no content": ([{"role": "user", "content": None}], "item"),
    "no output": ([USER, CALL, {**OUTPUT, "output": None}], "item"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_rejected(name: str) -> None:
    items, rule = BAD[name]
    assert rule in rejected(items)


def test_an_item_needs_the_reasoning_that_it_was_once_sent_with() -> None:
    stored = Stored()
    whole = [USER, THOUGHT, CALL, OUTPUT]
    assert rejected([USER, CALL, OUTPUT], stored) == []
    assert rejected(whole, stored) == []
    assert rejected([USER, CALL, OUTPUT], stored) == ["reasoning"]
    assert rejected([USER, i.reasoning("2"), CALL, OUTPUT], stored) == ["reasoning"]
    bare = {k: v for k, v in CALL.items() if k != "id"}
    assert rejected([USER, bare, OUTPUT], stored) == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"model":"m"}',
        b'{"input":"hi"}',
        b'{"model":"m","input":[1]}',
        b'{"model":"m","input":"hi","messages":[]}',
        b'{"model":"m","input":"hi","max_tokens":50}',
        b'{"model":"m","input":"hi","response_format":{}}',
        b'{"model":"m","input":"hi","max_output_tokens":1}',
        b'{"model":"m","input":"hi","instructions":[]}',
        b'{"model":"m","input":"hi","previous_response_id":"resp_x"}',
        b'{"model":"m","input":"hi","text":{"format":{"type":"json_schema"}}}',
    ],
)
def test_bad_bodies_are_rejected(body: bytes) -> None:
    assert len(check(body, Rules(), Stored())) == 1


async def ask(
    client: ClientSession, up: ScriptedUpstream, body: bytes, path: str = RESPONSES_PATH
) -> tuple[int, JsonObject]:
    async with client.post(up.url + path, data=body) as response:
        value = loads(await response.read())
        assert isinstance(value, dict)
        return response.status, value


async def test_a_chain_is_kept(client: ClientSession) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(Reply(text="", reasoning="Hm.", tool_calls=[("c1", "look", "{}")]))
        _, first = await ask(client, up, i.body("hi"))
        kinds = [item["type"] for item in as_objects(first["output"])]
        assert kinds == ["reasoning", "function_call"]
        name = as_text(first["id"])
        on = [OUTPUT]
        status, second = await ask(client, up, i.body(on, previous_response_id=name))
        assert (status, second["previous_response_id"]) == (200, name)
        status, _ = await ask(client, up, i.body("and?", previous_response_id=name))
        assert status == 400, "its call has no output"
        page = up.url + RESPONSES_PATH + "/" + name
        async with client.get(page + "/input_items") as response:
            assert b'"hi"' in await response.read()
        async with client.delete(page) as response:
            assert response.status == 200
        async with client.get(page) as response:
            assert response.status == 404
        status, unknown = await ask(client, up, i.body(on, previous_response_id=name))
        assert status == 400
        assert "previous_response_not_found" in str(unknown)
        _, unstored = await ask(client, up, i.body("hi", store=False))
        assert as_text(unstored["id"]) not in up.stored.responses


async def test_an_overflow_is_told_as_openai_tells_it(client: ClientSession) -> None:
    async with ScriptedUpstream(window=100) as up:
        status, whole = await ask(client, up, i.body("word " * 200))
        assert status == 400
        assert "context_length_exceeded" in str(whole)
        async with client.post(
            up.url + RESPONSES_PATH, data=i.body("word " * 200, stream=True)
        ) as response:
            assert response.status == 200
            names = [line for line in (await response.read()).split(b"\n") if b"event: " in line]
        assert names == [
            b"event: response.created",
            b"event: response.in_progress",
            b"event: error",
            b"event: response.failed",
        ]
        up.overflow_in_stream = False
        assert (await ask(client, up, i.body("word " * 200, stream=True)))[0] == 400
        assert len(up.violations) == 3


@pytest.mark.parametrize(("api", "path"), [("responses", CHAT_PATH), ("chat", RESPONSES_PATH)])
async def test_it_may_speak_one_api_only(client: ClientSession, api: str, path: str) -> None:
    async with ScriptedUpstream(apis=frozenset({api})) as up:
        status, _ = await ask(client, up, b"{}", path)
        assert status == 404
