"""An upstream that cannot be used: a clear error in the OpenAI envelope, and no secrets in it."""

import asyncio
import gzip
import logging
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_text, dumps, loads
from proxy.upstream import client as upstream_client
from tests import builders as b
from tests.e2e.raw import Message, RawUpstream, exchange, reply, request
from tests.e2e.running import Running, Served
from tests.upstream import Reply, ScriptedUpstream

CHAT = "/v1/chat/completions"
OTHER = "/v1/embeddings"
JSON = ("Content-Type", "application/json")
BODY = b.chat_body([b.user("hi")])
WINDOW: dict[str, Json] = {"upstream.context_window": 100_000}


@pytest.fixture
async def raw() -> AsyncIterator[RawUpstream]:
    async with RawUpstream() as upstream:
        yield upstream


def error_of(answer: Message) -> JsonObject:
    """The error of a reply in our envelope, which always has all four members."""
    assert answer.get("Content-Type") == "application/json"
    document = loads(bytes(answer.body))
    assert isinstance(document, dict)
    error = document["error"]
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "upstream_error"
    return error


@contextmanager
def reserved_port() -> Iterator[tuple[str, socket.socket]]:
    """A base URL that refuses connections until its socket listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1", taken


class Connects:
    """Counts the real connection attempts of the running loop to one URL."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        self.count = 0
        self.retried = asyncio.Event()
        self.before_retry: socket.socket | None = None
        port = int(url.removesuffix("/v1").rpartition(":")[2])
        loop = asyncio.get_running_loop()
        connect = loop.sock_connect

        async def counted(sock: socket.socket, address: tuple[str, int]) -> None:
            if address[1] == port:
                self.count += 1
                if self.count == 2:
                    self.retried.set()
                    if self.before_retry is not None:
                        self.before_retry.listen()
            await connect(sock, address)

        monkeypatch.setattr(loop, "sock_connect", counted)


@pytest.mark.parametrize("path", [CHAT, OTHER])
async def test_a_refused_connection_is_tried_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    with reserved_port() as (url, _):
        connects = Connects(monkeypatch, url)
        async with Running(url, tmp_path, **WINDOW) as fold:
            answer = await exchange(fold.url, request("POST", path, BODY, JSON))
    assert answer.status == 502
    assert error_of(answer)["code"] == "upstream_unreachable"
    assert connects.count == 2


@pytest.mark.parametrize("path", [CHAT, OTHER])
async def test_the_second_try_may_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(BODY)
        writer.write(reply("200 OK", b"back"))
        await writer.drain()
        writer.close()

    with reserved_port() as (url, taken):
        connects = Connects(monkeypatch, url)
        connects.before_retry = taken
        async with Running(url, tmp_path, **WINDOW) as fold:
            sending = asyncio.ensure_future(exchange(fold.url, request("POST", path, BODY)))
            await asyncio.wait_for(connects.retried.wait(), 5)
            async with await asyncio.start_server(serve, sock=taken):
                answer = await sending
    assert answer.status == 200
    assert answer.body == b"back"


async def test_an_unknown_host_is_named_as_such(tmp_path: Path) -> None:
    async with Running("http://no-such-host.invalid/v1", tmp_path, **WINDOW) as fold:
        answer = await exchange(fold.url, request("POST", CHAT, BODY))
    assert answer.status == 502
    assert error_of(answer)["message"] == "the upstream's host name was not found"


@contextmanager
def deaf_port() -> Iterator[str]:
    """A base URL whose connections never come about: the queue of its listener is full."""
    with socket.socket() as listener, contextmanager(_clients)() as clients:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for client in clients:
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def _clients() -> Iterator[list[socket.socket]]:
    clients = [socket.socket() for _ in range(8)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


async def test_a_connection_that_does_not_come_about_times_out(tmp_path: Path) -> None:
    with deaf_port() as url:
        settings = {**WINDOW, "upstream.connect_seconds": 0.3, "upstream.idle_seconds": 20}
        async with Running(url, tmp_path, **settings) as fold:
            answer = await exchange(fold.url, request("POST", CHAT, BODY))
    assert answer.status == 502
    assert error_of(answer)["message"] == "connecting to the upstream timed out"


@pytest.mark.parametrize("path", [CHAT, OTHER])
async def test_a_silent_upstream_times_out(raw: RawUpstream, tmp_path: Path, path: str) -> None:
    raw.replies.append([asyncio.Event()])
    settings = {**WINDOW, "upstream.idle_seconds": 0.2}
    async with Running(raw.base_url, tmp_path, **settings) as fold:
        answer = await exchange(fold.url, request("POST", path, BODY))
        await raw.wait_for(lambda: raw.last.closed)
    assert answer.status == 504
    assert error_of(answer)["code"] == "upstream_timeout"
    assert len(raw.requests) == 1


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "not http": b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "a bad status": b"HTTP/1.1 abc OK\r\n\r\n",
    "a bad header": b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a huge header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("path", [CHAT, OTHER])
async def test_garbage_is_a_502_and_nothing_is_sent_twice(
    raw: RawUpstream, tmp_path: Path, path: str
) -> None:
    raw.hang_up = True
    async with Running(raw.base_url, tmp_path, **WINDOW) as fold:
        for name, garbage in GARBAGE.items():
            raw.requests.clear()
            raw.replies.append(garbage)
            answer = await exchange(fold.url, request("POST", path, BODY))
            assert answer.status == 502, name
            assert error_of(answer)["code"] == "upstream_protocol_error", name
            assert len(raw.requests) == 1, name


async def test_a_connection_closed_while_idle_is_not_used_again(
    raw: RawUpstream, tmp_path: Path
) -> None:
    raw.hang_up = True
    async with Running(raw.base_url, tmp_path, **WINDOW) as fold:
        for _ in range(5):
            assert (await exchange(fold.url, request("POST", CHAT, BODY))).status == 200
            await raw.wait_for(lambda: not raw.open_connections)


async def test_a_request_into_a_connection_that_was_being_closed_is_sent_again(
    raw: RawUpstream, tmp_path: Path
) -> None:
    """As llama.cpp closes a connection after a stream; SDKs would try again, too."""
    async with Running(raw.base_url, tmp_path, **WINDOW) as fold:
        assert (await exchange(fold.url, request("POST", CHAT, BODY))).status == 200
        raw.hang_up = True
        raw.replies.append(b"")
        assert (await exchange(fold.url, request("POST", CHAT, BODY))).status == 200
        assert raw.connections == 2
        assert len(raw.requests) == 3
        assert len({bytes(message.body) for message in raw.requests}) == 1


async def test_a_request_that_the_server_was_at_work_on_is_not_sent_again(
    raw: RawUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash, or a time-out of a proxy: whatever it is, the server saw the request."""
    monkeypatch.setattr(upstream_client, "_STALE_SECONDS", 0.0)
    async with Running(raw.base_url, tmp_path, **WINDOW) as fold:
        assert (await exchange(fold.url, request("POST", CHAT, BODY))).status == 200
        raw.hang_up = True
        raw.replies.append(b"")
        answer = await exchange(fold.url, request("POST", CHAT, BODY))
        assert answer.status == 502
        assert error_of(answer)["code"] == "upstream_protocol_error"
        assert len(raw.requests) == 2


@pytest.mark.parametrize("coding", ["gzip", "br"])
async def test_an_encoded_reply_to_a_begun_stream(
    up: ScriptedUpstream, tmp_path: Path, coding: str
) -> None:
    """The head told of no encoding, so the body must have none, whatever the upstream does."""
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text="x" * 400, gate=gate))
    packed = gzip.compress(b"data: [DONE]\n\n")
    headers = {"content-encoding": coding, "content-type": "text/event-stream"}
    up.replies.append(Reply(chunks=[packed[:7], packed[7:]], headers=headers))
    settings = {"upstream.context_window": 4000, "server.keepalive_seconds": 0.05}
    body = b.chat_body(b.tool_session(12), stream=True)
    async with (
        Running(up.base_url, tmp_path, **settings) as fold,
        aiohttp.ClientSession() as client,
        client.post(fold.url + CHAT, data=body) as response,
    ):
        assert await response.content.readuntil(b"\n\n") == b": compacting\n\n"
        gate.set()
        rest = (await response.read()).replace(b": compacting\n\n", b"")
    if coding == "gzip":
        assert rest == b"data: [DONE]\n\n"
    else:
        assert b'"code":"no_stream"' in rest


@pytest.mark.parametrize(
    ("reply", "code", "message"),
    [
        (Reply(drop=True), "upstream_protocol_error", "the upstream broke off"),
        # SDKs find a message only inside an object.
        (Reply(status=500, raw_body=b'{"error":"no such model"}'), None, "no such model"),
        (Reply(status=503, raw_body=b"<html>"), None, "The upstream answered with HTTP 503."),
    ],
)
async def test_an_error_ends_a_begun_stream_with_an_event(
    up: ScriptedUpstream, tmp_path: Path, reply: Reply, code: str | None, message: str
) -> None:
    """After the first keep-alive comment there is no status left to tell it with."""
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text="x" * 400, gate=gate))
    up.replies.append(reply)
    settings = {"upstream.context_window": 4000, "server.keepalive_seconds": 0.05}
    body = b.chat_body(b.tool_session(12), stream=True)
    async with (
        Running(up.base_url, tmp_path, **settings) as fold,
        aiohttp.ClientSession() as client,
        client.post(fold.url + CHAT, data=body) as response,
    ):
        assert response.status == 200
        assert await response.content.readuntil(b"\n\n") == b": compacting\n\n"
        gate.set()
        rest = await response.read()
    event = rest.replace(b": compacting\n\n", b"").removeprefix(b"data: ").strip()
    document = loads(event)
    assert isinstance(document, dict)
    error = document["error"]
    assert isinstance(error, dict)
    assert error["code"] == code
    assert as_text(error["message"]).startswith(message)


# TLS


def openssl(folder: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `ca.pem`, and `host.pem`, `other.pem` that it signed."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("authority")
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    authority = ("-subj", "/CN=Test CA", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(folder, "req", "-x509", *new, "-days", "2", *authority)
    for name, subject in (("host", "IP:127.0.0.1"), ("other", "DNS:other.test")):
        (folder / f"{name}.ext").write_text(f"subjectAltName={subject}\n")
        wanted = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(folder, "req", *new, *wanted)
        signed = ("-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", f"{name}.ext")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        openssl(folder, "x509", "-req", *signed, *signer)
    return folder


def server_context(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


async def test_an_own_ca_is_trusted(authority: Path, tmp_path: Path) -> None:
    settings = {**WINDOW, "upstream.ca_file": str(authority / "ca.pem")}
    async with (
        RawUpstream(server_context(authority, "host")) as raw,
        Running(raw.base_url, tmp_path, **settings) as fold,
    ):
        answer = await exchange(fold.url, request("POST", CHAT, BODY))
    assert answer.status == 200
    assert raw.last.body == BODY


@pytest.mark.parametrize(("name", "trusted"), [("host", False), ("other", True)])
async def test_a_certificate_that_is_not_accepted_is_a_clear_502(
    authority: Path, tmp_path: Path, name: str, trusted: bool
) -> None:
    """Signed by an unknown authority, and made for another host."""
    settings: dict[str, Json] = {"upstream.ca_file": str(authority / "ca.pem")} if trusted else {}
    async with (
        RawUpstream(server_context(authority, name)) as raw,
        Running(raw.base_url, tmp_path, **WINDOW, **settings) as fold,
    ):
        answer = await exchange(fold.url, request("POST", CHAT, BODY))
    assert answer.status == 502
    error = error_of(answer)
    assert error["message"] == "the upstream's certificate was not accepted; see upstream.ca_file"
    assert error["code"] == "upstream_unreachable"
    assert raw.requests == []


async def test_plain_http_where_tls_is_expected_is_a_502(raw: RawUpstream, tmp_path: Path) -> None:
    url = raw.base_url.replace("http://", "https://")
    async with Running(url, tmp_path, **WINDOW, **{"upstream.connect_seconds": 0.3}) as fold:
        answer = await exchange(fold.url, request("POST", CHAT, BODY))
    assert answer.status == 502
    assert error_of(answer)["code"] == "upstream_unreachable"


# The HTTP proxy


async def test_the_http_proxy_is_used(raw: RawUpstream, tmp_path: Path) -> None:
    settings = {**WINDOW, "upstream.http_proxy": raw.url}
    key = ("Authorization", "Bearer sk-1")
    async with Running("http://far.test:8080/v1", tmp_path, **settings) as fold:
        answer = await exchange(fold.url, request("POST", f"{CHAT}?x=%2F", BODY, key))
    assert answer.status == 200
    assert raw.last.target == f"http://far.test:8080{CHAT}?x=%2F"
    assert raw.last.get("Host") == "far.test:8080"
    assert raw.last.get("Authorization") == "Bearer sk-1"
    assert raw.last.body == BODY


async def test_the_http_proxy_tunnels_https(raw: RawUpstream, tmp_path: Path) -> None:
    """The proxy sees neither the key nor the path."""
    raw.replies.append(reply("403 Forbidden", b"no tunnel"))
    settings = {**WINDOW, "upstream.http_proxy": raw.url}
    async with Running("https://far.test/v1", tmp_path, **settings) as fold:
        key = ("Authorization", "Bearer sk-1")
        answer = await exchange(fold.url, request("POST", CHAT, BODY, key))
    assert raw.last.line == "CONNECT far.test:443 HTTP/1.1"
    assert raw.last.get("Authorization") is None
    assert answer.status == 502
    assert error_of(answer)["type"] == "upstream_error"


async def test_an_http_proxy_that_is_down_is_a_502(tmp_path: Path) -> None:
    with reserved_port() as (url, _):
        settings = {**WINDOW, "upstream.http_proxy": url.removesuffix("/v1")}
        async with Running("http://far.test/v1", tmp_path, **settings) as fold:
            answer = await exchange(fold.url, request("POST", CHAT, BODY))
    assert answer.status == 502
    assert error_of(answer)["code"] == "upstream_unreachable"


# Secrets


KEY = "sk-SECRETKEYMARKER"
TEXT = "SECRETTEXTMARKER"
CREDENTIALS = {"Authorization": f"Bearer {KEY}", "Cookie": f"session={KEY}"}
MARKERS = ("SECRETKEYMARKER", "SECRETTEXTMARKER")


def secret_session(number: int) -> list[JsonObject]:
    session = b.tool_session(12, task=f"{TEXT} {number}", seed=number)
    session[3]["content"] = f"{TEXT} {session[3]['content']}"
    return session


def failing_replies(up: ScriptedUpstream) -> Iterator[str]:
    """Every way in which the upstream or the summariser fails; yields once per request."""
    echo = dumps({"error": {"message": "bad", "type": "x", "param": None, "code": None}})
    main = {
        "refused": Reply(status=400, raw_body=echo),
        "broken": Reply(status=500, raw_body=echo),
        "dropped": Reply(drop=True),
        "cut": Reply(text="a long answer", cut=True),
        "silent": Reply(hang=True),
        "odd": Reply(raw_body=b"\xff\xfe"),
    }
    for name, failing in main.items():
        up.replies.append(failing)
        yield name
    up.replies.clear()
    summary = {
        "no json": Reply(text=f"I cannot do that. {TEXT}"),
        "a call": Reply(text="", tool_calls=[("c1", "read", f'{{"p": "{TEXT}"}}')]),
        "a refusal": Reply(status=400, text=f"bad {TEXT}"),
        "a limit": Reply(status=429, text=f"slow down {TEXT}"),
        "a failure": Reply(status=500, raw_body=f"<html>{TEXT} {KEY}</html>".encode()),
        "empty": Reply(text=""),
        "dropped": Reply(drop=True),
        "cut": Reply(text=f'{{"goal": "{TEXT}', cut=True),
        "garbage": Reply(chunks=[b"data: {nonsense " + TEXT.encode() + b"\n\n"]),
        "an error": Reply(chunks=[f'data: {{"error": "{TEXT}"}}\n\n'.encode()]),
    }
    for name, failing in summary.items():
        up.summary_replies.extend([failing] * 4)
        yield name
        up.summary_replies.clear()


async def ask(client: aiohttp.ClientSession, url: str, body: bytes) -> str:
    """The reply's text if it is an error of ours; empty otherwise."""
    try:
        async with client.post(url + CHAT, data=body, headers=CREDENTIALS) as response:
            return await response.text("latin-1") if response.status >= 500 else ""
    except aiohttp.ClientError:
        return ""


async def test_no_secret_is_told_to_anyone(up: ScriptedUpstream, tmp_path: Path) -> None:
    """Neither the key nor a word of the conversation is in what the process writes."""
    up.window = 4000
    env = {"FOLDGATE_UPSTREAM__IDLE_SECONDS": "0.5", "FOLDGATE_TENANCY__SOURCE": "credential"}
    told: list[str] = []
    for json_lines in (True, False):
        async with (
            Served(up.base_url, tmp_path, env=env, json_lines=json_lines) as fold,
            aiohttp.ClientSession() as client,
        ):
            for number, _ in enumerate(failing_replies(up)):
                session = secret_session(number)
                for stream in (True, False):
                    told.append(await ask(client, fold.url, b.chat_body(session, stream=stream)))
            bad = [*ODD, b.chat_body(secret_session(99))[:-1]]
            told += [await ask(client, fold.url, body) for body in bad]
            await fold.terminate()
        told += [*fold.stdout, fold.log]
    everything = "\n".join(told)
    assert "compaction_failed" in everything
    assert [marker for marker in MARKERS if marker in everything] == []


ODD = [f'{{"model":"m","messages":["{TEXT}"]}}'.encode(), f'{{"{TEXT}'.encode(), TEXT.encode()]


async def test_no_secret_is_in_an_error_or_log_of_a_dead_upstream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    with reserved_port() as (url, _), deaf_port() as deaf:
        for number, upstream in enumerate((url, deaf, "http://no-such-host.invalid/v1")):
            folder = tmp_path / str(number)
            folder.mkdir()
            settings: dict[str, Json] = {
                "upstream.context_window": 4000,
                "upstream.connect_seconds": 0.1,
                "tenancy.source": "credential",
            }
            async with (
                Running(upstream, folder, **settings) as fold,
                aiohttp.ClientSession() as client,
            ):
                told.append(await ask(client, fold.url, b.chat_body(secret_session(number))))
                told += [dumps(event).decode() for event in fold.events]
    out, err = capfd.readouterr()
    everything = "\n".join([*told, out, err, caplog.text])
    assert "upstream_unreachable" in everything
    assert [marker for marker in MARKERS if marker in everything] == []
