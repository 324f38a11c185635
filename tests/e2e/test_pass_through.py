"""What needs no change crosses the proxy unchanged, in both directions."""

import asyncio
import gzip
import random
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import zstandard

from tests import builders as b
from tests.e2e.raw import (
    Message,
    Pairs,
    RawUpstream,
    chunked,
    connection,
    exchange,
    read_message,
    reply,
    request,
)
from tests.e2e.running import Running

CHAT = "/v1/chat/completions"
JSON = ("Content-Type", "application/json")
GATEWAY_HEADERS = ("x-foldgate-compaction", "x-foldgate-tokens", "x-foldgate-session")
BODY = b.chat_body([b.user("hi")])
ALL_BYTES = bytes(range(256)) * 5


@pytest.fixture
async def raw() -> AsyncIterator[RawUpstream]:
    async with RawUpstream() as upstream:
        yield upstream


@pytest.fixture
async def fold(raw: RawUpstream, tmp_path: Path) -> AsyncIterator[Running]:
    settings = {"server.max_body_bytes": 8192, "upstream.context_window": 100_000}
    async with Running(raw.base_url, tmp_path, **settings) as running:
        yield running


def without(pairs: Sequence[tuple[str, str]], *names: str) -> Pairs:
    """The headers but for `names`, sorted; names in lower case, since HTTP knows none."""
    dropped = {name.lower() for name in names}
    return sorted((low, value) for name, value in pairs if (low := name.lower()) not in dropped)


async def both_ways(
    raw: RawUpstream, fold: Running, sent: bytes, *, bodiless: bool = False
) -> tuple[Message, Message, Message, Message]:
    """Send a request directly and through the proxy: both requests, then both replies."""
    replies = list(raw.replies)
    direct = await exchange(raw.url, sent, bodiless=bodiless)
    raw.replies.extend(replies)
    through = await exchange(fold.url, sent, bodiless=bodiless)
    first, second = raw.requests
    return first, second, direct, through


# Requests


TARGETS = [
    "/v1/models",
    "/v1/nobody/knows/this",
    "/v1/files/a%2Fb%2fc%20d?path=%2Fx%2fy&plus=a+b%2Bc&k=1&k=2&k=&empty&=v",
    "/v1/files/caf%C3%A9/%F0%9F%98%80/%e2%82%ac?q=%C3%BC&u=%u00e9",
    "/v1/models/vendor/model:free;v=1?x=1;y=2&z[]=(1)*'!~",
    "/v1//double//slash/./dot/../dots/%2e%2e/",
    "/v1/x?a=b?c=d/e&%41=%61",
    "/v1/x?q=%00%ff%7F%25&bare=%",
    "/v1/x?json={%22a%22:[1|2]}^`",
    "/metrics",
    "/?root=1",
    "/",
]


@pytest.mark.parametrize("target", TARGETS)
async def test_the_target_arrives_as_it_was_written(
    raw: RawUpstream, fold: Running, target: str
) -> None:
    await exchange(fold.url, request("GET", target))
    assert raw.last.line == f"GET {target} HTTP/1.1"


async def test_a_chat_query_arrives_as_it_was_written(raw: RawUpstream, fold: Running) -> None:
    target = f"{CHAT}?api-version=2026-01-01%2B&x=a+b&x=%2F"
    await exchange(fold.url, request("POST", target, BODY, JSON))
    assert raw.last.target == target
    assert raw.last.body == BODY


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"])
@pytest.mark.parametrize("body", [None, b"", ALL_BYTES], ids=["none", "empty", "binary"])
async def test_every_method_crosses_with_its_body(
    raw: RawUpstream, fold: Running, method: str, body: bytes | None
) -> None:
    sent = request(method, "/v1/things/7?x=1", body, ("Content-Type", "x/y"), ("X-Odd-Case", "1"))
    first, second, direct, through = await both_ways(raw, fold, sent)
    assert second.line == first.line
    assert second.body == first.body == (body or b"")
    assert without(second.headers, "Host", "Content-Length") == without(
        first.headers, "Host", "Content-Length"
    )
    assert through.body == direct.body == b"ok"


async def test_head_crosses_without_a_body(raw: RawUpstream, fold: Running) -> None:
    raw.replies.append(reply("200 OK", None, ("Content-Length", "12345"), JSON))
    sent = request("HEAD", "/v1/files/7")
    _, second, direct, through = await both_ways(raw, fold, sent, bodiless=True)
    assert second.method == "HEAD"
    assert through.get("Content-Length") == direct.get("Content-Length") == "12345"


def _bodies() -> list[bytes]:
    rng = random.Random(7)
    return [rng.randbytes(size) for size in (1, 2, 255, 4096, 8191, 8192, 8193, 70_000, 300_000)]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("body", _bodies(), ids=len)
async def test_a_body_arrives_byte_for_byte(
    raw: RawUpstream, fold: Running, path: str, body: bytes
) -> None:
    """Sizes on both sides of what is read whole and of what is streamed through."""
    await exchange(fold.url, request("POST", path, body))
    assert raw.last.body == body
    assert raw.last.get("Content-Length") == str(len(body))
    assert not raw.last.chunked


PIECES: dict[str, list[bytes]] = {
    "none": [],
    "one": [b"x"],
    "json": [BODY[:5], BODY[5:6], BODY[6:]],
    "binary": [ALL_BYTES[:200], ALL_BYTES[200:]],
    "large": [bytes([n]) * 3000 for n in range(40)],
}


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
@pytest.mark.parametrize("name", PIECES)
async def test_a_chunked_upload_arrives_byte_for_byte(
    raw: RawUpstream, fold: Running, path: str, name: str
) -> None:
    answer = await exchange(fold.url, chunked("POST", path, PIECES[name], JSON))
    assert answer.status == 200
    assert raw.last.body == b"".join(PIECES[name])


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
@pytest.mark.parametrize("with_length", [True, False])
async def test_a_large_upload_is_streamed(
    raw: RawUpstream, fold: Running, path: str, with_length: bool
) -> None:
    """The upstream has the beginning while the client still holds the rest."""
    first, rest = b"a" * 9000, b"b" * 5000
    whole = request("POST", path, first + rest)
    head, _, _ = whole.partition(b"\r\n\r\n")
    if with_length:
        parts = [head + b"\r\n\r\n" + first, rest]
    else:
        head = request("POST", path, None, ("Transfer-Encoding", "chunked"))
        parts = [head + b"%x\r\n%s\r\n" % (9000, first), b"%x\r\n%s\r\n0\r\n\r\n" % (5000, rest)]
    async with connection(fold.url) as (reader, writer):
        writer.write(parts[0])
        await raw.wait_for(lambda: bool(raw.requests) and len(raw.last.body) == 9000)
        assert not raw.last.complete
        writer.write(parts[1])
        answer = await read_message(reader)
    assert answer.status == 200
    assert raw.last.body == first + rest
    assert raw.last.chunked is not with_length


def _deflate_raw(data: bytes) -> bytes:
    squeezer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return squeezer.compress(data) + squeezer.flush()


ENCODED = {
    "gzip": ("gzip", gzip.compress(BODY)),
    "x-gzip": ("x-gzip", gzip.compress(BODY)),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress(BODY)),
    "deflate": ("deflate", zlib.compress(BODY)),
    "raw deflate": ("deflate", _deflate_raw(BODY)),
    "upper case": ("GZIP", gzip.compress(BODY)),
    "identity": ("identity", BODY),
    "unknown": ("snappy", b"\x00\x01 anything"),
    "two": ("gzip, gzip", gzip.compress(gzip.compress(BODY))),
    "a lie": ("gzip", b"this is not gzip"),
    "cut": ("gzip", gzip.compress(BODY)[:-6]),
    "a bomb": ("gzip", gzip.compress(b"\x00" * 1_000_000)),
    "br": ("br", b"\x0b\x02\x80hello\x03"),
}


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("name", ENCODED)
async def test_a_compressed_body_stays_compressed(
    raw: RawUpstream, fold: Running, path: str, name: str
) -> None:
    encoding, body = ENCODED[name]
    await exchange(fold.url, request("POST", path, body, ("Content-Encoding", encoding), JSON))
    assert raw.last.body == body
    assert raw.last.all("Content-Encoding") == [encoding]


ODD_BODIES: dict[str, bytes] = {
    "empty": b"",
    "not json": b'{"model": "m", "messages": [',
    "an array": b'[{"role": "user", "content": "hi"}]',
    "a string": b'"hi"',
    "null": b"null",
    "no messages": b'{"model":"m"}',
    "messages of the wrong shape": b'{"model":"m","messages":"hi"}',
    "a message of the wrong shape": b'{"model":"m","messages":["hi",7,null]}',
    "no model": b'{"messages":[{"role":"user","content":"hi"}]}',
    "a model of the wrong shape": b'{"model":7,"messages":[{"role":"user","content":"hi"}]}',
    "unknown role": b'{"model":"m","messages":[{"role":"robot","content":"hi"}]}',
    "too deep": b'{"model":"m","messages":' + b"[" * 3000 + b"]" * 3000 + b"}",
    "deep content": b'{"model":"m","messages":[{"role":"user","content":'
    + b'{"a":' * 1000
    + b"1"
    + b"}" * 1000
    + b"}]}",
    "invalid utf-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "lone surrogates": rb'{"model":"m","messages":[{"role":"user","content":"a\ud83d b\ude00"}]}',
    "duplicate keys": b'{"model":"a","model":"m","messages":[],"messages":'
    b'[{"role":"user","content":"x","content":"y"}]}',
    "odd spelling": b' { "messages" : [ {"content":"\\u0041\\/", "role" : "user"} ] ,\n\t'
    b'"model":"m", "temperature": 1.00e0, "seed": 12345678901234567890123, "x": -0.0 } \n',
    "nan": b'{"model":"m","temperature":NaN,"messages":[{"role":"user","content":"hi"}]}',
    "bom": b"\xef\xbb\xbf" + BODY,
    "utf-16": '{"model":"m","messages":[]}'.encode("utf-16"),
    "a nul": b'{"model":"m","messages":[{"role":"user","content":"\\u0000"}]}\x00',
    "no turns": b'{"model":"m","messages":[]}',
}


@pytest.mark.parametrize("name", ODD_BODIES)
async def test_an_odd_chat_body_is_left_for_the_upstream_to_judge(
    raw: RawUpstream, fold: Running, name: str
) -> None:
    answer = await exchange(fold.url, request("POST", CHAT, ODD_BODIES[name], JSON))
    assert answer.status == 200
    assert raw.last.body == ODD_BODIES[name]


# Request headers


CLIENT_HEADERS: list[tuple[str, str | bytes]] = [
    ("authorization", "Bearer sk-some-key"),
    ("OpenAI-Organization", "org-1"),
    ("OpenAI-Beta", "assistants=v2, other=1"),
    ("api-key", "k"),
    ("X-Stainless-Retry-Count", "0"),
    ("X-Multi", "one"),
    ("X-Multi", "two"),
    ("Cookie", "a=b; c=d"),
    ("Accept", "text/event-stream"),
    ("Accept-Encoding", "gzip, br, zstd"),
    ("User-Agent", "me/1.0"),
    ("X-Empty", ""),
    ("X-Utf8", "é€".encode()),
    ("Traceparent", "00-1-2-00"),
    ("Idempotency-Key", "abc"),
    ("Origin", "http://localhost"),
    ("If-None-Match", '"x"'),
    ("X-Forwarded-For", "1.2.3.4"),
    ("Via", "1.1 other"),
]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_no_header_is_lost_or_invented(raw: RawUpstream, fold: Running, path: str) -> None:
    sent = request("POST", path, BODY, JSON, *CLIENT_HEADERS)
    first, second, _, _ = await both_ways(raw, fold, sent)
    assert without(second.headers, "Host") == without(first.headers, "Host")
    assert second.all("X-Multi") == ["one", "two"]
    assert second.all("Host") == [raw.url.removeprefix("http://")]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_a_bare_request_stays_bare(raw: RawUpstream, fold: Running, path: str) -> None:
    await exchange(fold.url, request("POST", path, BODY))
    assert without(raw.last.headers, "Host") == [("content-length", str(len(BODY)))]


async def test_a_get_stays_bare(raw: RawUpstream, fold: Running) -> None:
    await exchange(fold.url, request("GET", "/v1/models"))
    assert without(raw.last.headers, "Host") == []


async def test_a_header_that_is_not_utf8_does_no_harm(raw: RawUpstream, fold: Running) -> None:
    """aiohttp leaves out the bytes that are not UTF-8."""
    answer = await exchange(fold.url, request("GET", "/v1/x", None, ("X-Name", b"caf\xe9")))
    assert answer.status == 200
    assert raw.last.get("X-Name") == "caf"


HOPS: list[tuple[str, str | bytes]] = [
    ("Connection", "keep-alive, X-Hop"),
    ("Connection", "x-second-hop"),
    ("Keep-Alive", "timeout=5"),
    ("X-Hop", "1"),
    ("X-Second-Hop", "1"),
    ("X-Kept", "1"),
    ("Proxy-Connection", "keep-alive"),
    ("Proxy-Authenticate", "Basic"),
    ("Proxy-Authorization", "Basic eDp5"),
    ("TE", "trailers"),
    ("Trailer", "X-Sum"),
]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_hop_by_hop_request_headers_end_here(
    raw: RawUpstream, fold: Running, path: str
) -> None:
    await exchange(fold.url, request("POST", path, BODY, *HOPS))
    assert without(raw.last.headers, "Host", "Content-Length") == [("x-kept", "1")]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_our_request_headers_end_here(raw: RawUpstream, fold: Running, path: str) -> None:
    ours: list[tuple[str, str | bytes]] = [
        ("x-foldgate-session", "label"),
        ("X-Foldgate-Compact", "no"),
        ("x-foldgate-whatever", "1"),
        ("x-foldgate-purpose", "compaction"),
        ("x-foldgate-bypass", "1"),
    ]
    await exchange(fold.url, request("POST", path, BODY, *ours))
    assert without(raw.last.headers, "Host", "Content-Length") == []


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_a_header_may_be_32_kilobytes(raw: RawUpstream, fold: Running, path: str) -> None:
    long = "x" * 32_768
    raw.replies.append(reply("200 OK", b"ok", ("X-Long", long)))
    answer = await exchange(fold.url, request("POST", path, BODY, ("X-Long", long)))
    assert answer.status == 200
    assert raw.last.get("X-Long") == long
    assert answer.get("X-Long") == long


async def test_two_hundred_headers_cross(raw: RawUpstream, fold: Running) -> None:
    many = [(f"X-Number-{n}", str(n)) for n in range(200)]
    raw.replies.append(reply("200 OK", b"ok", *many))
    answer = await exchange(fold.url, request("GET", "/v1/x", None, *many))
    assert without(raw.last.headers, "Host") == without(many)
    assert set(many) <= set(answer.headers)


# Replies


REPLY_HEADERS: list[tuple[str, str | bytes]] = [
    ("Content-Type", "application/json; charset=utf-8"),
    ("Date", "Mon, 30 Nov 2026 03:00:00 GMT"),
    ("Server", "Python/3.11 aiohttp/3.14.5"),
    ("Set-Cookie", "a=1; Path=/"),
    ("Set-Cookie", "b=2; HttpOnly"),
    ("x-request-id", "req_1"),
    ("X-RateLimit-Remaining-Tokens", "149984"),
    ("x-ratelimit-reset-requests", "1s"),
    ("Retry-After", "17"),
    ("retry-after-ms", "17000"),
    ("Vary", "Origin"),
    ("Vary", "Accept-Encoding"),
    ("ETag", '"x"'),
    ("Access-Control-Allow-Origin", "*"),
    ("Content-Disposition", 'attachment; filename="é"'.encode()),
    ("Strict-Transport-Security", "max-age=1"),
    ("openai-processing-ms", "12"),
    ("X-Empty", ""),
]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize(
    "status", ["200 OK", "201 Created", "202 Accepted", "299 Odd", "400 Bad Request", "429 Slow"]
)
async def test_a_reply_crosses_unchanged(
    raw: RawUpstream, fold: Running, path: str, status: str
) -> None:
    raw.replies.append(reply(status, b'{"error":  {"code":null}}\n', *REPLY_HEADERS))
    _, _, direct, through = await both_ways(raw, fold, request("POST", path, BODY, JSON))
    assert through.line == direct.line == f"HTTP/1.1 {status}"
    assert without(through.headers, *GATEWAY_HEADERS) == without(direct.headers)
    assert through.all("Set-Cookie") == ["a=1; Path=/", "b=2; HttpOnly"]
    assert through.body == direct.body


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("body", [b"", b"x"])
async def test_a_bare_reply_stays_bare(
    raw: RawUpstream, fold: Running, path: str, body: bytes
) -> None:
    """But for the date, which a recipient with a clock may add (RFC 9110, 6.6.1)."""
    raw.replies.append(reply("200 OK", body))
    _, _, direct, through = await both_ways(raw, fold, request("POST", path, BODY))
    assert without(through.headers, "Date", *GATEWAY_HEADERS) == without(direct.headers)
    assert through.body == body


@pytest.mark.parametrize("status", [403, 404, 409, 413, 422, 500, 502, 503, 504, 529, 599])
async def test_an_error_reply_crosses_byte_for_byte(
    raw: RawUpstream, fold: Running, status: int
) -> None:
    body = b'{ "error" : {"message":"no \\u00e9","type":null,"code":%d} }\r\n' % status
    raw.replies.append(reply(f"{status} Some Words", body, JSON, ("Retry-After", "3")))
    answer = await exchange(fold.url, request("POST", CHAT, BODY, JSON))
    assert answer.line == f"HTTP/1.1 {status} Some Words"
    assert answer.body == body
    assert answer.get("Retry-After") == "3"
    assert len(raw.requests) == 1


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_204_has_no_body(raw: RawUpstream, fold: Running, path: str) -> None:
    raw.replies.append(reply("204 No Content", None, ("X-Kept", "1")))
    answer = await exchange(fold.url, request("POST", path, BODY), bodiless=True)
    assert answer.status == 204
    assert without(answer.headers, "Date", *GATEWAY_HEADERS) == [("x-kept", "1")]


async def test_304_keeps_its_headers(raw: RawUpstream, fold: Running) -> None:
    raw.replies.append(reply("304 Not Modified", None, ("ETag", '"x"')))
    sent = request("GET", "/v1/x", None, ("If-None-Match", '"x"'))
    answer = await exchange(fold.url, sent, bodiless=True)
    assert answer.status == 304
    assert without(answer.headers, "Date") == [("etag", '"x"')]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(raw: RawUpstream, fold: Running, status: int) -> None:
    location = "http://elsewhere.test/v1/x?y=%2F"
    raw.replies.append(reply(f"{status} Moved", b"moved", ("Location", location)))
    answer = await exchange(fold.url, request("POST", CHAT, BODY))
    assert answer.status == status
    assert answer.all("Location") == [location]
    assert len(raw.requests) == 1


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_hop_by_hop_reply_headers_end_here(
    raw: RawUpstream, fold: Running, path: str
) -> None:
    raw.replies.append(reply("200 OK", b"ok", *HOPS))
    answer = await exchange(fold.url, request("POST", path, BODY))
    assert without(answer.headers, "Date", "Content-Length", *GATEWAY_HEADERS) == [("x-kept", "1")]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "deflate", "br", "unheard-of"])
async def test_a_compressed_reply_stays_compressed(
    raw: RawUpstream, fold: Running, path: str, encoding: str
) -> None:
    body = gzip.compress(b'{"choices": []}' * 100)
    raw.replies.append(reply("200 OK", body, JSON, ("Content-Encoding", encoding)))
    sent = request("POST", path, BODY, ("Accept-Encoding", encoding))
    answer = await exchange(fold.url, sent)
    assert answer.body == body
    assert answer.get("Content-Encoding") == encoding
    assert answer.get("Content-Length") == str(len(body))


async def test_a_compressed_chunked_reply_stays_compressed(raw: RawUpstream, fold: Running) -> None:
    body = gzip.compress(ALL_BYTES)
    headers = (("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked"))
    chunks = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:])
    raw.replies.append(reply("200 OK", None, *headers) + chunks)
    answer = await exchange(fold.url, request("GET", "/v1/x"))
    assert answer.body == body
    assert answer.chunked


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_048_576, 1_048_577, 3_000_000])
async def test_a_reply_of_any_size_arrives_byte_for_byte(
    raw: RawUpstream, fold: Running, size: int
) -> None:
    body = random.Random(size).randbytes(size)
    raw.replies.append(reply("200 OK", body))
    answer = await exchange(fold.url, request("GET", "/v1/files/1/content"))
    assert answer.body == body
    assert answer.get("Content-Length") == str(size)


async def test_a_reply_that_ends_with_its_connection_arrives(
    raw: RawUpstream, fold: Running
) -> None:
    raw.hang_up = True
    raw.replies.append(b"HTTP/1.0 200 OK\r\nX-Old: 1\r\n\r\n" + ALL_BYTES)
    answer = await exchange(fold.url, request("GET", "/v1/x"))
    assert answer.body == ALL_BYTES
    assert answer.get("X-Old") == "1"


async def test_an_interim_reply_is_not_taken_for_the_reply(raw: RawUpstream, fold: Running) -> None:
    raw.replies.append(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + reply("200 OK", b"later"))
    answer = await exchange(fold.url, request("GET", "/v1/x"))
    assert answer.status == 200
    assert answer.body == b"later"


async def test_a_reply_header_that_is_not_utf8_does_no_harm(
    raw: RawUpstream, fold: Running
) -> None:
    raw.replies.append(reply("200 OK", b"ok", ("X-Name", b"caf\xe9")))
    answer = await exchange(fold.url, request("GET", "/v1/x"))
    assert answer.status == 200
    assert answer.get("X-Name") == "caf"


# The connection


@pytest.mark.parametrize("upgrade", ["websocket", "WebSocket"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime?model=m"])
async def test_a_websocket_upgrade_is_refused(
    raw: RawUpstream, fold: Running, path: str, upgrade: str
) -> None:
    headers = (
        ("Connection", "Upgrade"),
        ("Upgrade", upgrade),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
    )
    answer = await exchange(fold.url, request("GET", path, None, *headers))
    assert answer.status == 426
    assert b"upgrade_not_supported" in answer.body
    assert raw.requests == []


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
async def test_a_client_that_waits_for_100_continue_is_told_to_go_on(
    raw: RawUpstream, fold: Running, path: str
) -> None:
    whole = request("POST", path, BODY, ("Expect", "100-continue"))
    async with connection(fold.url) as (reader, writer):
        writer.write(whole[: -len(BODY)])
        interim = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert interim.startswith(b"HTTP/1.1 100 ")
        writer.write(BODY)
        answer = await asyncio.wait_for(read_message(reader), 5)
    assert answer.status == 200
    assert raw.last.body == BODY
    assert raw.last.get("Expect") is None


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_an_http_1_0_client_is_served(
    raw: RawUpstream, fold: Running, is_chunked: bool
) -> None:
    """It knows no chunks: the end of the connection ends the reply."""
    if is_chunked:
        head = reply("200 OK", None, ("Transfer-Encoding", "chunked"))
        raw.replies.append(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    else:
        raw.replies.append(reply("200 OK", b"abcde"))
    async with asyncio.timeout(5), connection(fold.url) as (reader, writer):
        writer.write(b"GET /v1/x?y=1 HTTP/1.0\r\n\r\n")
        answer = await reader.read(-1)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == b"200"
    assert body == b"abcde"
    assert raw.last.target == "/v1/x?y=1"


async def test_pipelined_requests_are_answered_in_order(raw: RawUpstream, fold: Running) -> None:
    raw.replies += [reply("200 OK", b"first"), reply("201 Created", b"second"), reply("200 OK")]
    sent = request("POST", CHAT, BODY) + request("GET", "/v1/x") + request("DELETE", "/v1/y")
    async with asyncio.timeout(5), connection(fold.url) as (reader, writer):
        writer.write(sent)
        answers = [await read_message(reader) for _ in range(3)]
    assert [(a.status, bytes(a.body)) for a in answers] == [
        (200, b"first"),
        (201, b"second"),
        (200, b""),
    ]
    assert [r.method for r in raw.requests] == ["POST", "GET", "DELETE"]


async def test_a_connection_is_kept_after_a_streamed_upload(
    raw: RawUpstream, fold: Running
) -> None:
    large = b"z" * 20_000
    async with asyncio.timeout(5), connection(fold.url) as (reader, writer):
        for body in (large, BODY, large):
            writer.write(request("POST", CHAT, body))
            assert (await read_message(reader)).status == 200
    assert [bytes(r.body) for r in raw.requests] == [large, BODY, large]


async def test_the_upstream_may_answer_before_it_has_read_everything(
    raw: RawUpstream, tmp_path: Path
) -> None:
    """A 413 after the head of a large upload reaches the client."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply("413 Too Large", b"no", ("Connection", "close")))
        await writer.drain()
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with Running(url, tmp_path) as fold, connection(fold.url) as (reader, writer):
            writer.write(request("POST", "/v1/files", b"x" * 500_000)[:200_000])
            answer = await asyncio.wait_for(read_message(reader), 5)
    assert answer.status == 413


# Where to


@pytest.mark.parametrize(
    ("base", "target", "expected"),
    [
        ("", CHAT, "/v1/chat/completions"),
        ("/v1", CHAT, "/v1/chat/completions"),
        ("/v1/", "/chat/completions?x=1", "/v1/chat/completions?x=1"),
        ("/openai/v1", CHAT, "/openai/v1/chat/completions"),
        ("/api/openai", CHAT, "/api/openai/v1/chat/completions"),
        ("/v1beta/openai", CHAT, "/v1beta/openai/chat/completions"),
    ],
)
async def test_a_base_url_may_have_any_path(
    raw: RawUpstream, tmp_path: Path, base: str, target: str, expected: str
) -> None:
    settings = {"upstream.context_window": 1000}
    async with Running(raw.url + base, tmp_path, **settings) as fold:
        answer = await exchange(fold.url, request("POST", target, BODY, JSON))
    assert answer.status == 200
    assert raw.last.target == expected
    assert answer.get("x-foldgate-compaction") == "none"
