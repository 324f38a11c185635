"""The scripted upstream rejects what real servers reject, and accepts good conversations."""

import asyncio
import gzip
import hashlib
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import aiohttp
import pytest
import zstandard
from aiohttp import ClientSession
from yarl import URL

from proxy.codec import Json, JsonObject, as_objects, as_text, loads
from tests import builders as b
from tests.upstream import CHAT_PATH, PURPOSE_HEADER, Recorded, Reply, ScriptedUpstream
from tests.upstream_rules import Rules, check, prompt_tokens

SUMMARY = {PURPOSE_HEADER: "compaction"}
SPEND = b.call("c1", "spend", {"amount": 3})
LOOK = b.call("c2", "look", {"at": "x"})


@pytest.fixture
async def client() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def ask(
    client: ClientSession,
    up: ScriptedUpstream,
    body: bytes,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, JsonObject]:
    async with client.post(up.url + CHAT_PATH, data=body, headers=headers) as response:
        value = loads(await response.read())
        assert isinstance(value, dict)
        return response.status, value


def inner(value: Json, *path: str | int) -> Json:
    for key in path:
        if isinstance(key, str):
            assert isinstance(value, dict)
            value = value[key]
        else:
            assert isinstance(value, list)
            value = value[key]
    return value


def rejected(messages: Sequence[JsonObject], rules: Rules) -> list[str]:
    return [found.rule for found in check(b.chat_body(messages), rules)]


LOOSE = Rules(strict_pairing=False)

GOOD: dict[str, list[JsonObject]] = {
    "one user": [b.user("hi")],
    "tool session": b.tool_session(5, result_chars=50),
    "turn session": b.turn_session(3, 2, result_chars=50),
    "parallel calls": b.turn_session(2, 3, result_chars=50, parallel=True),
    "no system": b.turn_session(2, 1, result_chars=50, system=None),
    "results out of order": [
        b.user("go"),
        b.assistant(None, [SPEND, LOOK]),
        b.result("c2", "seen"),
        b.result("c1", "spent"),
    ],
    "an id used again later": [
        *[b.user("go"), b.assistant(None, [SPEND]), b.result("c1", "spent")],
        *[b.assistant("and"), b.user("go"), b.assistant("", [SPEND]), b.result("c1", "again")],
    ],
    "all part types": [
        b.user(
            [
                b.text_part("look"),
                b.image_part(b.data_url(b.png(2, 2)), "low"),
                {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
                {"type": "file", "file": {"file_id": "f"}},
            ]
        )
    ],
    "a custom tool": [
        b.user("go"),
        b.assistant(
            None, [{"id": "k", "type": "custom", "custom": {"name": "patch", "input": "{free"}}]
        ),
        b.result("k", "done"),
    ],
    "a refusal part": [b.user("go"), b.assistant("") | {"content": [{"type": "refusal"}]}],
}


@pytest.mark.parametrize("name", GOOD)
def test_every_rule_accepts_good_conversations(name: str) -> None:
    strict = Rules(
        window=50_000, one_system=True, alternate=True, first_user=True, json_arguments=True
    )
    assert rejected(GOOD[name], strict) == []


BAD_PAIRS: dict[str, list[JsonObject]] = {
    "unanswered at the end": [b.user("go"), b.assistant(None, [SPEND])],
    "unanswered before a user": [b.user("go"), b.assistant(None, [SPEND]), b.user("more")],
    "one of two unanswered": [b.user("go"), b.assistant(None, [SPEND, LOOK]), b.result("c2", "s")],
    "an orphan": [b.user("go"), b.result("c1", "spent")],
    "an orphan at the start": [b.result("c1", "spent"), b.user("go")],
    "a foreign id": [
        *[b.user("go"), b.assistant(None, [SPEND]), b.result("c1", "s"), b.result("c9", "?")]
    ],
    "a second answer": [
        *[b.user("go"), b.assistant(None, [SPEND]), b.result("c1", "s"), b.result("c1", "s")]
    ],
    "an answer after another message": [
        *[b.user("go"), b.assistant(None, [SPEND]), b.system("note"), b.result("c1", "s")]
    ],
}


@pytest.mark.parametrize("name", BAD_PAIRS)
def test_broken_pairs_are_rejected(name: str) -> None:
    assert set(rejected(BAD_PAIRS[name], Rules())) == {"pairing"}
    assert rejected(BAD_PAIRS[name], LOOSE) == []


ONE_SYSTEM = Rules(one_system=True)
ALTERNATE = Rules(alternate=True)
FIRST_USER = Rules(first_user=True)
JSON_ARGUMENTS = Rules(json_arguments=True)


@pytest.mark.parametrize(
    ("rules", "rule", "messages"),
    [
        (ONE_SYSTEM, "one_system", [b.system("a"), b.system("b"), b.user("hi")]),
        (ONE_SYSTEM, "one_system", [b.system("a"), b.developer("b"), b.user("hi")]),
        (ONE_SYSTEM, "one_system", [b.user("hi"), b.system("a")]),
        (ALTERNATE, "alternate", [b.user("a"), b.user("b")]),
        (ALTERNATE, "alternate", [b.user("a"), b.assistant("b"), b.assistant("c")]),
        (ALTERNATE, "alternate", [b.user("a"), b.system("note"), b.user("b")]),
        (FIRST_USER, "first_user", [b.system("a"), b.assistant("b"), b.user("c")]),
        (FIRST_USER, "first_user", [b.system("a")]),
        (
            JSON_ARGUMENTS,
            "json_arguments",
            [b.user("a"), b.assistant(None, [b.call("c1", "f", '{"cut')]), b.result("c1", "x")],
        ),
    ],
)
def test_template_rules(rules: Rules, rule: str, messages: list[JsonObject]) -> None:
    assert rejected(messages, rules) == [rule]
    assert rejected(messages, Rules()) == []


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("role", {"role": "wizard", "content": "x"}),
        ("role", {"content": "x"}),
        ("content", {"role": "user", "content": None}),
        ("content", {"role": "assistant"}),
        ("content", {"role": "assistant", "content": None, "tool_calls": []}),
        ("content", {"role": "user", "content": []}),
        ("content", {"role": "user", "content": 7}),
        ("content", {"role": "user", "content": ["x"]}),
        ("content", b.user([b.text_part("")])),
        ("content", b.user([{"type": "input_text", "text": "x"}])),
        ("content", b.user([{"type": "refusal", "refusal": "x"}])),
        ("calls", {"role": "assistant", "content": "x", "tool_calls": {}}),
        ("calls", b.assistant("x", [{"id": "c", "type": "function"}])),
        ("calls", b.assistant("x", [{"id": "c", "function": {"name": "f", "arguments": {}}}])),
    ],
)
def test_messages_of_a_wrong_shape(rule: str, message: JsonObject) -> None:
    assert rejected([b.user("hi"), message], LOOSE) == [rule]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"model":"m"}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":"hi"}',
        b'{"model":"m","messages":["hi"]}',
        b'{"messages":[{"role":"user","content":"hi"}]}',
    ],
)
async def test_bodies_of_a_wrong_shape(client: ClientSession, body: bytes) -> None:
    async with ScriptedUpstream() as up:
        status, answer = await ask(client, up, body)
        assert status == 400
        assert inner(answer, "error", "type") == "invalid_request_error"
        assert up.violations == []
        assert len(up.rejections) == 1


async def test_rejections_on_the_wire(client: ClientSession) -> None:
    async with ScriptedUpstream(alternate=True) as up:
        status, answer = await ask(client, up, b.chat_body([b.user("a"), b.user("b")], stream=True))
        assert status == 500
        assert "Conversation roles must alternate" in as_text(inner(answer, "error", "message"))
        assert inner(answer, "error", "code") == 500
        status, answer = await ask(client, up, b.chat_body(BAD_PAIRS["unanswered at the end"]))
        assert status == 400
        assert as_text(inner(answer, "error", "message")).endswith("response messages: c1")
        assert inner(answer, "error", "param") == "messages.[1].role"
        assert [v.partition(":")[0] for v in up.violations] == ["alternate", "pairing"]
        assert [r.outcome.status for r in up.main] == [500, 400]


@pytest.mark.parametrize("headers", [{}, SUMMARY])
async def test_the_window(client: ClientSession, headers: dict[str, str]) -> None:
    async with ScriptedUpstream(window=100) as up:
        assert (await ask(client, up, b.chat_body([b.user("x" * 399)]), headers))[0] == 200
        assert up.violations == []
        status, answer = await ask(client, up, b.chat_body([b.user("x" * 400)]), headers)
        assert status == 400
        assert answer == {
            "error": {
                "code": 400,
                "message": "request (100 tokens) exceeds the available context size (100 tokens), "
                "try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 100,
                "n_ctx": 100,
            }
        }
        assert len(up.violations) == 1
        up.window = None
        assert (await ask(client, up, b.chat_body([b.user("x" * 400)]), headers))[0] == 200


def test_what_counts_as_tokens() -> None:
    tools = b.catalogue(2, 100)
    image = b.image_part(b.data_url(b.png(10, 10, 5000)))
    messages = [
        b.user([b.text_part("é" * 8), image, image]),
        b.assistant("", [b.call("c", "f" * 4, "a" * 4)], reasoning_content="r" * 4),
        b.result("c", "y" * 4),
    ]
    assert prompt_tokens({"messages": [*messages]}) == 2006
    both = prompt_tokens({"messages": [*messages], "tools": [*tools]})
    assert both == (24 + len(b.texts(tools))) // 4 + 2000


@pytest.mark.parametrize(
    ("window", "advertise", "meta"),
    [
        (4096, True, {"n_ctx": 4096, "n_ctx_train": 131072}),
        (4096, False, None),
        (None, True, None),
    ],
)
async def test_models(
    client: ClientSession, window: int | None, advertise: bool, meta: JsonObject | None
) -> None:
    async with (
        ScriptedUpstream(window=window, advertise_window=advertise, model="m") as up,
        client.get(up.base_url + "/models") as response,
    ):
        card = as_objects(inner(loads(await response.read()), "data"))[0]
        assert (card["id"], card["object"], card.get("meta")) == ("m", "model", meta)


async def test_the_key_guards_everything(client: ClientSession) -> None:
    async with ScriptedUpstream(key="secret") as up:
        for path in ("/v1/models", "/echo/x", "/v1/other"):
            async with client.get(up.url + path) as response:
                assert response.status == 401
        body = b.chat_body([b.user("hi")])
        assert (await ask(client, up, body, {"Authorization": "bearer secret"}))[0] == 401
        assert (await ask(client, up, body, {"Authorization": "Bearer secret"}))[0] == 200
        assert len(up.requests) == 5


@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
async def test_unsupported_response_formats(client: ClientSession, kind: str) -> None:
    async with ScriptedUpstream(reject_response_format={kind}) as up:
        body = b.chat_body([b.user("hi")], response_format={"type": kind})
        status, answer = await ask(client, up, body, SUMMARY)
        assert status == 400
        assert inner(answer, "error", "param") == "response_format"
        body = b.chat_body([b.user("hi")], response_format={"type": "text"})
        assert (await ask(client, up, body, SUMMARY))[0] == 200


async def test_unsupported_parameters(client: ClientSession) -> None:
    async with ScriptedUpstream(reject_params={"max_tokens"}) as up:
        status, answer = await ask(client, up, b.chat_body([b.user("hi")], max_tokens=5))
        assert status == 400
        assert answer["error"] == {
            "message": "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead.",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "unsupported_parameter",
        }
        body = b.chat_body([b.user("hi")], max_completion_tokens=5)
        assert (await ask(client, up, body))[0] == 200


def squeeze_zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    ("encoding", "squeeze"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", squeeze_zstd)],
)
async def test_compressed_bodies_are_checked_and_kept(
    client: ClientSession, encoding: str, squeeze: Callable[[bytes], bytes]
) -> None:
    async with ScriptedUpstream() as up:
        packed = squeeze(b.chat_body([b.user("hi")]))
        assert (await ask(client, up, packed, {"Content-Encoding": encoding}))[0] == 200
        assert up.main[0].body == packed
        assert up.main[0].messages == [b.user("hi")]
        packed = squeeze(b.chat_body([b.result("c", "x")]))
        assert (await ask(client, up, packed, {"Content-Encoding": encoding}))[0] == 400
        assert (await ask(client, up, b"plain", {"Content-Encoding": encoding}))[0] == 400
        assert len(up.violations) == 1


async def test_replies_come_from_the_queue_then_the_callable_then_the_default(
    client: ClientSession,
) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(Reply(text="queued", headers={"X-Up": "1"}))
        body = b.chat_body([b.user("hi " * 8)])
        _, queued = await ask(client, up, body)
        _, default = await ask(client, up, body)
        up.reply = lambda record: Reply(text=as_text(record.messages[0]["content"]))
        _, answer = await ask(client, up, body)
        texts = [inner(a, "choices", 0, "message", "content") for a in (queued, default, answer)]
        assert texts == ["queued", "ok 2", "hi " * 8]
        assert inner(answer, "usage", "prompt_tokens") == 6
        assert inner(answer, "usage", "total_tokens") == 12
        assert "timings" not in answer
        assert all(r.outcome.finished and not r.disconnected for r in up.requests)


async def test_tool_calls_and_errors(client: ClientSession) -> None:
    async with ScriptedUpstream(timings=True) as up:
        up.replies += [
            Reply(text="", tool_calls=[("c1", "spend", '{"amount":3}')]),
            Reply(status=429, text="slow down", headers={"Retry-After": "1"}),
            Reply(status=418, raw_body=b'{"odd":1}'),
        ]
        body = b.chat_body([b.user("hi")])
        _, answer = await ask(client, up, body)
        assert inner(answer, "choices", 0, "finish_reason") == "tool_calls"
        assert inner(answer, "choices", 0, "message") == b.assistant(calls=[SPEND])
        assert inner(answer, "timings", "prompt_n") == 0
        assert (await ask(client, up, body))[1]["error"] == {
            "message": "slow down",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
        assert await ask(client, up, body) == (418, {"odd": 1})


async def events(client: ClientSession, up: ScriptedUpstream, body: bytes) -> list[JsonObject]:
    async with client.post(up.url + CHAT_PATH, data=body) as response:
        assert response.content_type == "text/event-stream"
        lines = (await response.read()).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [*as_objects([loads(line.removeprefix("data: ")) for line in lines[:-2]])]


async def test_streams(client: ClientSession) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(Reply(text="héllo wörld", tool_calls=[("c1", "f", '{"a":1}')]))
        chunks = await events(client, up, b.chat_body([b.user("hi")], stream=True))
        deltas = as_objects([inner(c, "choices", 0, "delta") for c in chunks])
        assert deltas[0] == {"role": "assistant", "content": None}
        assert "".join(as_text(d.get("content")) for d in deltas) == "héllo wörld"
        calls = [inner(d, "tool_calls", 0, "function") for d in deltas if "tool_calls" in d]
        assert "".join(as_text(inner(c, "arguments")) for c in calls) == '{"a":1}'
        assert inner(chunks[-1], "choices", 0, "finish_reason") == "tool_calls"
        assert not any("usage" in c for c in chunks)

        body = b.chat_body([b.user("hi")], stream=True, stream_options={"include_usage": True})
        chunks = await events(client, up, body)
        assert [c["usage"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["choices"] == []
        assert inner(chunks[-1], "usage", "completion_tokens") == 1


async def test_raw_chunks_are_sent_as_they_are(client: ClientSession) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(Reply(chunks=[b": ping\n\n", b"data: x\n", b"\n"]))
        body = b.chat_body([b.user("hi")], stream=True)
        async with client.post(up.url + CHAT_PATH, data=body) as response:
            assert await response.read() == b": ping\n\ndata: x\n\n"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_reply_is_an_error_for_the_client(client: ClientSession, stream: bool) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(Reply(text="a long answer", cut=True))
        body = b.chat_body([b.user("hi")], stream=stream)
        async with client.post(up.url + CHAT_PATH, data=body) as response:
            assert response.status == 200
            assert await response.content.readany()
            with pytest.raises(aiohttp.ClientError):
                await response.read()
        assert not up.main[0].disconnected


async def test_a_dropped_request_gets_no_reply(client: ClientSession) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(Reply(drop=True))
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await ask(client, up, b.chat_body([b.user("hi")]))
        assert up.main[0].outcome.status is None
        assert not up.main[0].disconnected


@pytest.mark.parametrize("reply", [Reply(hang=True), Reply(delay=60)])
async def test_a_client_that_leaves_while_waiting_is_noticed(
    client: ClientSession, reply: Reply
) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(reply)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ask(client, up, b.chat_body([b.user("hi")])))
            await up.wait_for(lambda: bool(up.main))
            assert not up.main[0].disconnected
            task.cancel()
        await up.wait_for(lambda: up.main[0].disconnected)


async def test_a_client_that_leaves_in_a_stream_is_noticed(client: ClientSession) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(Reply(text="first second", gate=asyncio.Event()))
        body = b.chat_body([b.user("hi")], stream=True)
        response = await client.post(up.url + CHAT_PATH, data=body)
        assert b"assistant" in await response.content.readany()
        assert up.main[0].outcome.status == 200
        response.close()
        await up.wait_for(lambda: up.main[0].disconnected)


async def test_a_gate_holds_the_second_half(client: ClientSession) -> None:
    async with ScriptedUpstream() as up:
        gate = asyncio.Event()
        up.replies.append(Reply(chunks=[b"one", b"two"], gate=gate))
        body = b.chat_body([b.user("hi")], stream=True)
        async with client.post(up.url + CHAT_PATH, data=body) as response:
            assert await response.content.readany() == b"one"
            gate.set()
            assert await response.read() == b"two"


async def test_stopping_does_not_count_as_a_client_that_left(client: ClientSession) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(Reply(hang=True))

        async def ask_in_vain() -> None:
            with pytest.raises(aiohttp.ClientError):
                await ask(client, up, b.chat_body([b.user("hi")]))

        async with asyncio.TaskGroup() as group:
            group.create_task(ask_in_vain())
            await up.wait_for(lambda: bool(up.main))
            await up.stop()
        assert not up.main[0].disconnected


async def test_waiting_ends_with_a_timeout() -> None:
    async with ScriptedUpstream() as up:
        with pytest.raises(TimeoutError):
            await up.wait_for(lambda: False, 0.01)


async def test_summaries_have_their_own_replies(client: ClientSession) -> None:
    def shout(record: Recorded) -> str:
        return as_text(record.messages[0]["content"]).upper()

    async with ScriptedUpstream() as up:
        up.summary_replies.append(Reply(text="queued"))
        body = b.chat_body([b.system("hidden"), b.user("repair src/cache/reads.py thoroughly")])
        texts = []
        for text in ("", None, "fixed", shout):
            up.summary_text = text
            _, answer = await ask(client, up, body, SUMMARY)
            texts.append(as_text(inner(answer, "choices", 0, "message", "content")))
        assert texts[0] == "queued"
        assert texts[2:] == ["fixed", "HIDDEN"]
        checkpoint = loads(texts[1])
        assert isinstance(checkpoint, dict)
        assert list(checkpoint) == [
            *["goal", "instructions", "discoveries", "accomplished"],
            *["currentState", "nextSteps", "relevantFiles"],
        ]
        assert checkpoint["relevantFiles"] == ["src/cache/reads.py"]
        assert "thoroughly" in texts[1]
        assert "hidden" not in texts[1]
        assert len(up.summaries) == 4
        assert up.main == []


async def test_echo_and_unknown_paths(client: ClientSession) -> None:
    async with ScriptedUpstream() as up:
        url = URL(up.url + "/echo/a%2fb%41?q=1&q=%2c", encoded=True)
        headers = {"X-Odd-Case": "ä"}
        async with client.put(url, data=b"\x00\xff", headers=headers) as response:
            echo = loads(await response.read())
        assert inner(echo, "method") == "PUT"
        assert inner(echo, "length") == 2
        assert inner(echo, "sha256") == hashlib.sha256(b"\x00\xff").hexdigest()
        assert inner(echo, "path_qs") == up.requests[0].path_qs == "/echo/a%2fb%41?q=1&q=%2c"
        pairs = inner(echo, "headers")
        assert isinstance(pairs, list)
        assert "X-Odd-Case" in [inner(pair, 0) for pair in pairs]
        async with client.get(up.url + "/v1/other") as response:
            assert response.status == 404
            message = inner(loads(await response.read()), "error", "message")
            assert message == "Invalid URL (GET /v1/other)"
        async with client.head(up.url + "/echo/x") as response:
            assert response.status == 200
        assert [r.method for r in up.requests] == ["PUT", "GET", "HEAD"]
        assert up.main == []


def test_png_is_well_formed() -> None:
    data = b.png(640, 480, 1000)
    assert len(data) == 1057
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    length, kind, width, height = struct.unpack(">I4sII", data[8:24])
    assert (length, kind, width, height) == (13, b"IHDR", 640, 480)
    assert struct.unpack(">I", data[29:33])[0] == zlib.crc32(data[12:29])
    assert data == b.png(640, 480, 1000)


def test_sessions_are_deterministic_and_marked() -> None:
    session = b.tool_session(30, result_chars=300, seed=4)
    assert session == b.tool_session(30, result_chars=300, seed=4)
    assert session != b.tool_session(30, result_chars=300, seed=5)
    assert [m["role"] for m in session] == ["system", "user", *["assistant", "tool"] * 30]
    assert {len(as_text(m["content"])) for m in session if m["role"] == "tool"} == {300}
    everything = b.texts(session)
    assert all(everything.count(b.marker(4, number)) == 1 for number in range(30))
    turns = b.turn_session(3, 2, parallel=True)
    assert [m["role"] for m in turns[1:]] == ["user", "assistant", "tool", "tool", "assistant"] * 3
    assert len(b.texts(b.catalogue(20, 400))) > 8000
