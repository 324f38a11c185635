"""What the witness notes of the traffic that it passes on."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession

from proxy.codec import JsonObject, dumps
from tests import builders as b
from tests import items as i
from tests.clients.witness import Witness
from tests.upstream import CHAT_PATH, Reply, ScriptedUpstream
from tests.upstream_responses import RESPONSES_PATH


@pytest.fixture
async def up() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as upstream:
        yield upstream


@pytest.fixture
async def witness(up: ScriptedUpstream) -> AsyncIterator[Witness]:
    async with Witness(up.url) as between:
        yield between


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 50):
        yield body[start : start + 50]


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_requests_and_replies_are_noted_in_order(
    up: ScriptedUpstream, witness: Witness, chunked: bool, stream: bool
) -> None:
    sent: list[JsonObject] = [
        {"model": "m", "messages": [b.user(f"number {n} " + "x" * 500)], "stream": stream}
        for n in range(4)
    ]
    async with ClientSession() as one, ClientSession() as other:
        for number, body in enumerate(sent):
            raw = dumps(body)
            data = pieces(raw) if chunked else raw
            client = (one, other)[number % 2]
            async with client.post(witness.url + CHAT_PATH, data=data) as reply:
                assert f"{number + 1}" in await reply.text()
    assert witness.bodies == sent
    assert [reply.status for reply in witness.replies] == [200] * 4
    assert [reply.failed for reply in witness.replies] == [False] * 4
    assert [record.json for record in up.main] == sent


@pytest.mark.parametrize(
    ("reply", "failed", "overflow"),
    [
        (Reply(text="context_length_exceeded is what they said"), False, False),
        (Reply(status=500, text="down"), True, False),
        (Reply(status=400, text="maximum context length is 8 tokens"), True, True),
        (
            Reply(chunks=[b'data: {"error":{"code":"context_length_exceeded"}}\n\n']),
            True,
            True,
        ),
    ],
)
async def test_errors_are_told_from_text(
    up: ScriptedUpstream, witness: Witness, reply: Reply, failed: bool, overflow: bool
) -> None:
    up.replies.append(reply)
    body = dumps({"model": "m", "messages": [b.user("hi")], "stream": True})
    async with (
        ClientSession() as client,
        client.post(witness.url + CHAT_PATH, data=body) as got,
    ):
        await got.read()
    assert [(r.failed, r.overflow) for r in witness.replies] == [(failed, overflow)]


@pytest.mark.parametrize("type_", ["error", "response.failed"])
async def test_errors_of_a_responses_stream_are_told_from_text(
    up: ScriptedUpstream, witness: Witness, type_: str
) -> None:
    said: JsonObject = {
        "type": "response.output_text.delta",
        "delta": f'\ndata: {{"type":"{type_}"}}',
    }
    wrong: JsonObject = {"type": type_, "error": {"code": "context_length_exceeded"}}
    up.replies += [Reply(chunks=[b"data: %b\n\n" % dumps(event)]) for event in (said, wrong)]
    async with ClientSession() as client:
        for _ in range(2):
            body = i.body("hi", stream=True)
            async with client.post(witness.url + RESPONSES_PATH, data=body) as got:
                await got.read()
    assert [(r.failed, r.overflow) for r in witness.replies] == [(False, False), (True, True)]
