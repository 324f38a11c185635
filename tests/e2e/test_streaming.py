"""Streams: relayed as they come, byte for byte; a break on one side is a break on the other."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from tests import builders as b
from tests.e2e.raw import RawUpstream, connection, exchange, read_message, reply, request
from tests.e2e.running import Running
from tests.upstream import Reply, ScriptedUpstream

CHAT = "/v1/chat/completions"
OTHER = "/v1/other/stream"
SSE = ("Content-Type", "text/event-stream")
STREAMED = b.chat_body([b.user("hi")], stream=True)
WHOLE = b.chat_body([b.user("hi")])
PROMPTLY = 2.0


@pytest.fixture
async def raw() -> AsyncIterator[RawUpstream]:
    async with RawUpstream() as upstream:
        yield upstream


@pytest.fixture
async def fold(raw: RawUpstream, tmp_path: Path) -> AsyncIterator[Running]:
    async with Running(
        raw.base_url, tmp_path, **{"upstream.context_window": 100_000, "upstream.idle_seconds": 5}
    ) as running:
        yield running


@pytest.fixture
async def strict(up: ScriptedUpstream, tmp_path: Path) -> AsyncIterator[Running]:
    """The proxy in front of the scripted upstream."""
    async with Running(up.base_url, tmp_path, **{"upstream.context_window": 4000}) as running:
        yield running


def chunks(pieces: Sequence[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


def begun(*headers: tuple[str, str]) -> bytes:
    return reply("200 OK", None, *headers, ("Transfer-Encoding", "chunked"))


DELTA = b'{"choices":[{"index":0,"delta":{"content":"a"}}]}'
STREAMS: dict[str, bytes] = {
    "plain": b"data: " + DELTA + b"\n\ndata: [DONE]\n\n",
    "comments": b": hello\n\n:\n\ndata: " + DELTA + b"\n: inside\n\ndata: [DONE]\n\n",
    "ids and names": b"event: x\nid: 7\nretry: 100\ndata: " + DELTA + b"\n\ndata: [DONE]\n\n",
    "crlf": b"data: " + DELTA + b"\r\n\r\ndata: [DONE]\r\n\r\n",
    "cr": b"data: " + DELTA + b"\r\rdata: [DONE]\r\r",
    "mixed ends": b"data: " + DELTA + b"\r\n\ndata: {}\n\r\n: x\r\rdata: [DONE]\n\n",
    "no space": b"data:" + DELTA + b"\n\ndata:[DONE]\n\n",
    "bom": b"\xef\xbb\xbfdata: " + DELTA + b"\n\ndata: [DONE]\n\n",
    "several lines": b'data: {"choices":\ndata: []}\n\ndata\n\ndata: [DONE]\n\n',
    "no done": b"data: " + DELTA + b"\n\n",
    "no blank line": b"data: " + DELTA,
    "more after done": b"data: [DONE]\n\ndata: " + DELTA + b"\n\n",
    "not sse at all": b"\x00\xff\r\n\r\n{}",
    "unknown fields": b'data: {"x":1.0e2,"y":"\\u00e9"}\n\nnonsense: 1\nnonsense\n\n',
    "empty": b"",
    "an error inside": b'data: {"error":{"message":"late","code":null}}\n\n',
}


def split(data: bytes, how: str) -> list[bytes]:
    if how == "whole":
        return [data] if data else []
    if how == "bytes":
        return [data[n : n + 1] for n in range(len(data))]
    rng = random.Random(how + str(len(data)))
    pieces = []
    while data:
        size = rng.randint(1, 9)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.parametrize("path", [CHAT, OTHER])
@pytest.mark.parametrize("how", ["whole", "bytes", "random"])
async def test_streams_arrive_byte_for_byte(
    raw: RawUpstream, fold: Running, path: str, how: str
) -> None:
    for name, data in STREAMS.items():
        raw.replies.append(begun(SSE) + chunks(split(data, how)) + b"0\r\n\r\n")
        answer = await exchange(fold.url, request("POST", path, STREAMED))
        assert answer.body == data, name
        assert answer.all("Content-Type") == ["text/event-stream"]
        assert answer.all("Content-Length") == []


@pytest.mark.parametrize("path", [CHAT, OTHER])
async def test_a_stream_is_relayed_as_it_comes(raw: RawUpstream, fold: Running, path: str) -> None:
    """Each piece arrives while the upstream still holds the next one, head first."""
    pieces = split(STREAMS["comments"], "random")
    gates = [asyncio.Event() for _ in pieces]
    script: list[bytes | asyncio.Event] = [begun(SSE)]
    for gate, piece in zip(gates, pieces, strict=True):
        script += [gate, chunks([piece])]
    raw.replies.append([*script, b"0\r\n\r\n"])
    async with asyncio.timeout(10), connection(fold.url) as (reader, writer):
        writer.write(request("POST", path, STREAMED))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        for gate, piece in zip(gates, pieces, strict=True):
            gate.set()
            assert await reader.readexactly(len(chunks([piece]))) == chunks([piece])
        assert await reader.readexactly(5) == b"0\r\n\r\n"


async def test_the_first_event_arrives_before_the_last(
    up: ScriptedUpstream, strict: Running, client: aiohttp.ClientSession
) -> None:
    gate = asyncio.Event()
    up.replies.append(Reply(text="one two three four", gate=gate))
    async with client.post(strict.url + CHAT, data=STREAMED) as response:
        first = await response.content.readany()
        assert b"assistant" in first
        assert not up.main[0].outcome.finished
        gate.set()
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_a_large_known_length_is_relayed_as_it_comes(raw: RawUpstream, fold: Running) -> None:
    gate = asyncio.Event()
    raw.replies.append([reply("200 OK", b"a" * 2_000_000)[:-1_000_000], gate, b"a" * 1_000_000])
    async with asyncio.timeout(10), connection(fold.url) as (reader, writer):
        writer.write(request("GET", "/v1/files/1/content"))
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(1_000_000) == b"a" * 1_000_000
        gate.set()
        assert await reader.readexactly(1_000_000) == b"a" * 1_000_000


# The upstream breaks off


CUT: dict[str, bytes] = {
    "in a stream": begun(SSE) + chunks([b"data: 1\n\n"]),
    "inside a chunk": begun(SSE) + b"ff\r\ndata: 1\n\n",
    "before the first event": begun(SSE),
    "in a short known length": reply("200 OK", b"12345678")[:-3],
    "in a long known length": reply("200 OK", b"1" * 3_000_000)[:-3],
}


@pytest.mark.parametrize("path", [CHAT, OTHER])
@pytest.mark.parametrize("name", CUT)
async def test_a_reply_that_is_cut_does_not_look_complete(
    raw: RawUpstream, fold: Running, name: str, path: str
) -> None:
    raw.hang_up = True
    raw.replies.append(CUT[name])
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await exchange(fold.url, request("POST", path, STREAMED))
    assert len(raw.requests) == 1
    answer = await exchange(fold.url, request("GET", "/v1/x"))
    assert answer.status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_an_aborted_upstream_aborts_the_client(
    up: ScriptedUpstream, strict: Running, client: aiohttp.ClientSession, stream: bool
) -> None:
    up.replies.append(Reply(text="a long enough answer", cut=True))
    body = b.chat_body([b.user("hi")], stream=stream)
    with pytest.raises(aiohttp.ClientError):
        async with client.post(strict.url + CHAT, data=body) as response:
            await response.read()


@pytest.mark.parametrize("path", [CHAT, OTHER])
async def test_a_stream_that_falls_silent_is_broken_off(
    raw: RawUpstream, tmp_path: Path, path: str
) -> None:
    settings = {"upstream.idle_seconds": 0.2, "upstream.context_window": 9000}
    raw.replies.append([begun(SSE) + chunks([b"data: 1\n\n"]), asyncio.Event()])
    async with Running(raw.base_url, tmp_path, **settings) as fold:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await exchange(fold.url, request("POST", path, STREAMED))
        await raw.wait_for(lambda: raw.last.closed, PROMPTLY)


# The client leaves


@pytest.mark.parametrize("path", [CHAT, OTHER])
async def test_leaving_in_a_stream_cancels_the_call(
    raw: RawUpstream, fold: Running, path: str
) -> None:
    raw.replies.append([begun(SSE) + chunks([b"data: 1\n\n"]), asyncio.Event()])
    async with connection(fold.url) as (reader, writer):
        writer.write(request("POST", path, STREAMED))
        await asyncio.wait_for(reader.readuntil(b"data: 1\n\n"), 5)
    await raw.wait_for(lambda: raw.last.closed, PROMPTLY)


@pytest.mark.parametrize("path", [CHAT, OTHER])
@pytest.mark.parametrize("body", [STREAMED, WHOLE], ids=["stream", "whole"])
async def test_leaving_before_the_reply_cancels_the_call(
    raw: RawUpstream, fold: Running, path: str, body: bytes
) -> None:
    raw.replies.append([asyncio.Event()])
    async with connection(fold.url) as (_, writer):
        writer.write(request("POST", path, body))
        await raw.wait_for(lambda: bool(raw.requests) and raw.last.complete)
    await raw.wait_for(lambda: raw.last.closed, PROMPTLY)


@pytest.mark.parametrize("path", [CHAT, OTHER])
async def test_leaving_in_a_whole_reply_cancels_the_call(
    raw: RawUpstream, fold: Running, path: str
) -> None:
    raw.replies.append([reply("200 OK", b"12345678")[:-3], asyncio.Event()])
    async with connection(fold.url) as (_, writer):
        writer.write(request("POST", path, WHOLE))
        await raw.wait_for(lambda: bool(raw.requests) and raw.last.complete)
    await raw.wait_for(lambda: raw.last.closed, PROMPTLY)


async def test_a_half_close_counts_as_leaving(raw: RawUpstream, fold: Running) -> None:
    """Nobody can tell a half-closed connection from a client that left."""
    gate = asyncio.Event()
    raw.replies.append([gate, reply("200 OK", b"late")])
    async with connection(fold.url) as (_, writer):
        writer.write(request("POST", CHAT, WHOLE))
        await raw.wait_for(lambda: bool(raw.requests) and raw.last.complete)
        writer.write_eof()
        await raw.wait_for(lambda: raw.last.closed, PROMPTLY)


async def test_leaving_in_an_upload_cancels_the_call(raw: RawUpstream, fold: Running) -> None:
    async with connection(fold.url) as (_, writer):
        writer.write(request("POST", OTHER, b"x" * 10_000)[:-5_000])
        await raw.wait_for(lambda: bool(raw.requests) and len(raw.last.body) >= 4000)
    await raw.wait_for(lambda: not raw.open_connections, PROMPTLY)
    assert not raw.last.complete


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_during_a_compaction_cancels_the_summary(
    up: ScriptedUpstream, strict: Running, stream: bool
) -> None:
    up.summary_replies.append(Reply(hang=True))
    body = b.chat_body(b.tool_session(12), stream=stream)
    async with connection(strict.url) as (_, writer):
        writer.write(request("POST", CHAT, body))
        await up.wait_for(lambda: bool(up.summaries))
    await up.wait_for(lambda: up.summaries[0].disconnected, PROMPTLY)
    assert up.main == []


async def test_a_connection_survives_many_streams(raw: RawUpstream, fold: Running) -> None:
    async with asyncio.timeout(10), connection(fold.url) as (reader, writer):
        for _ in range(20):
            raw.replies.append(begun(SSE) + chunks([STREAMS["plain"]]) + b"0\r\n\r\n")
            writer.write(request("POST", CHAT, STREAMED))
            assert (await read_message(reader)).body == STREAMS["plain"]
    assert raw.connections == 1
