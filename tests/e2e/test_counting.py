"""Asking upstreams how large a request is: what they have is found out once, and remembered."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from multidict import CIMultiDict

from proxy.codec import Json, JsonObject, dumps, loads
from proxy.upstream.client import TransportOptions, UpstreamClient
from proxy.upstream.counting import ABSENT_SECONDS, PAUSE_SECONDS, Counters
from proxy.upstream.routes import CHAT_TARGET, RESPONSES_TARGET, Base, Route

CHAT_COUNTER = "/v1/chat/completions/input_tokens"
BODY = dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True})


@dataclass
class Upstream:
    """Answers some paths, with 404 all others."""

    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, JsonObject, Mapping[str, str]]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event | None = None
    url: str = ""

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]

    async def handle(self, request: web.Request) -> web.Response:
        body = loads(await request.read())
        assert isinstance(body, dict)
        self.asked.append((request.path, body, CIMultiDict(request.headers)))
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()
        status, text = self.answers.get(request.path, (404, b"{}"))
        return web.Response(status=status, body=text, content_type="application/json")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def up() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", upstream.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield upstream
    await runner.cleanup()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def counters(clock: Clock) -> AsyncIterator[Counters]:
    client = UpstreamClient(TransportOptions())
    yield Counters(client, clock)
    await client.close()


def route(up: Upstream, target: str = CHAT_TARGET, model: str = "m") -> Route:
    headers = CIMultiDict({"Authorization": "Bearer sk-own", "Content-Encoding": "gzip"})
    return Route(Base.of(up.url), model, headers, target=target)


def counted(tokens: Json) -> tuple[int, bytes]:
    return 200, dumps({"input_tokens": tokens})


async def test_a_count_is_asked_with_the_requests_own_credential(
    up: Upstream, counters: Counters
) -> None:
    up.answers = {CHAT_COUNTER: counted(731)}
    assert await counters.count(route(up), BODY) == 731
    ((path, body, headers),) = up.asked
    assert path == CHAT_COUNTER
    assert body == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert headers["Authorization"] == "Bearer sk-own"
    assert "Content-Encoding" not in headers


async def test_of_a_responses_request_only_what_the_counter_takes_is_sent(
    up: Upstream, counters: Counters
) -> None:
    up.answers = {"/v1/responses/input_tokens": counted(5)}
    body = dumps({"model": "m", "input": "hi", "stream": True, "store": False, "include": []})
    assert await counters.count(route(up, RESPONSES_TARGET), body) == 5
    assert up.asked[0][1] == {"model": "m", "input": "hi"}


async def test_else_a_prompt_is_rendered_and_tokenised(up: Upstream, counters: Counters) -> None:
    up.answers = {
        "/apply-template": (200, dumps({"prompt": "<|user|>hi"})),
        "/tokenize": (200, dumps({"tokens": [1, 2, 3]})),
    }
    assert await counters.count(route(up), BODY) == 3
    assert up.asked[-1][1] == {"content": "<|user|>hi", "add_special": True, "parse_special": True}
    # From now on that is the way.
    assert await counters.count(route(up), BODY) == 3
    assert up.paths == [CHAT_COUNTER, *["/apply-template", "/tokenize"] * 2]


@pytest.mark.parametrize(
    "answer",
    [
        (404, b"{}"),
        (405, b""),
        (501, b"{}"),
        (400, b'{"error": {}}'),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        counted("many"),
        counted(0),
        counted(None),
        counted(True),
    ],
)
async def test_an_upstream_without_a_counter_is_asked_once_in_a_while(
    up: Upstream, counters: Counters, clock: Clock, answer: tuple[int, bytes]
) -> None:
    up.answers = {"/v1/responses/input_tokens": answer}
    body = dumps({"model": "m", "input": "hi"})
    for now in (0.0, 1.0, ABSENT_SECONDS - 1):
        clock.now = now
        assert await counters.count(route(up, RESPONSES_TARGET), body) is None
    assert len(up.asked) == 1
    assert not counters.may_count(route(up, RESPONSES_TARGET))
    assert counters.may_count(route(up, RESPONSES_TARGET, "another"))
    clock.now = ABSENT_SECONDS
    assert counters.may_count(route(up, RESPONSES_TARGET))
    up.answers = {"/v1/responses/input_tokens": counted(7)}
    assert await counters.count(route(up, RESPONSES_TARGET), body) == 7


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_one_that_cannot_say_now_is_asked_again_soon(
    up: Upstream, counters: Counters, clock: Clock, status: int
) -> None:
    up.answers = {CHAT_COUNTER: (status, b"{}")}
    assert await counters.count(route(up), BODY) is None
    assert await counters.count(route(up), BODY) is None
    assert up.paths == [CHAT_COUNTER]
    clock.now = PAUSE_SECONDS
    up.answers = {CHAT_COUNTER: counted(7)}
    assert await counters.count(route(up), BODY) == 7


async def test_a_request_that_a_known_counter_dislikes_says_little_of_others(
    up: Upstream, counters: Counters, clock: Clock
) -> None:
    up.answers = {CHAT_COUNTER: counted(7)}
    assert await counters.count(route(up), BODY) == 7
    up.answers = {CHAT_COUNTER: (400, b"{}")}
    assert await counters.count(route(up), BODY) is None
    clock.now = PAUSE_SECONDS
    up.answers = {CHAT_COUNTER: counted(8)}
    assert await counters.count(route(up), BODY) == 8


async def test_one_request_finds_out_for_all(up: Upstream, counters: Counters) -> None:
    up.answers = {CHAT_COUNTER: counted(7)}
    up.gate = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(counters.count(route(up), BODY))
        await up.arrived.wait()
        assert await counters.count(route(up), BODY) is None
        up.gate.set()
    assert first.result() == 7
    assert await counters.count(route(up), BODY) == 7
    assert len(up.asked) == 2


async def test_an_upstream_that_is_gone_fails_no_request(up: Upstream, counters: Counters) -> None:
    gone = Route(Base.of("http://127.0.0.1:9/v1"), "m", CIMultiDict())
    assert await counters.count(gone, BODY) is None
    assert not counters.may_count(gone)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"nothing"])
async def test_what_is_no_request_is_not_counted(
    up: Upstream, counters: Counters, body: bytes
) -> None:
    assert await counters.count(route(up), body) is None
    assert not up.asked
