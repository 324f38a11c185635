"""What real clients do to their base URLs and connections."""

import asyncio
import logging
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json
from tests import builders as b
from tests.e2e.running import Running, Served
from tests.upstream import ScriptedUpstream

WINDOW = 8000
SETTINGS: dict[str, Json] = {"upstream.context_window": WINDOW}
AZURE = "/openai/deployments/test-model/chat/completions"


async def play(client: aiohttp.ClientSession, url: str) -> list[str]:
    """Send a session that outgrows the window; returns what the proxy did to each request."""
    messages = b.tool_session(16, result_chars=2500)
    done = []
    for end in [2, *range(4, len(messages) + 1, 2)]:
        async with client.post(url, data=b.chat_body(messages[:end])) as reply:
            assert reply.status == 200, await reply.text()
            done.append(reply.headers["x-foldgate-compaction"])
    return done


# Paths


@pytest.mark.parametrize(
    "path",
    [
        "/v1//chat/completions",
        "//v1/chat/completions",
        "/v1/chat/completions/",
        "///v1///chat/completions//",
        "/chat/completions/",
    ],
)
async def test_slashes_too_many_do_no_harm(
    path: str, up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """As a base URL with a slash at its end makes them."""
    async with Running(up.base_url, tmp_path, **SETTINGS) as fold:
        done = await play(client, fold.url + path)
    assert "compacted" in done
    # Near its trigger a session is worth the question whether the upstream can count it.
    asked = {"/v1/chat/completions/input_tokens", "/apply-template"}
    posted = {request.path_qs for request in up.requests if request.method == "POST"}
    assert posted - asked == {"/v1/chat/completions"}
    assert up.violations == []


async def test_slashes_elsewhere_are_left_alone(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        Running(up.base_url, tmp_path) as fold,
        client.get(fold.url + "/echo//a/?b=//c/") as reply,
    ):
        assert reply.status == 200
    assert up.requests[-1].path_qs == "/echo//a/?b=//c/"


@pytest.mark.parametrize(
    "path",
    [
        f"{AZURE}?api-version=2026-10-01&x=//",
        "/inference/chat/completions?route=//a",
        "/api/paas/v4/chat/completions",
    ],
)
async def test_summaries_are_asked_for_where_the_client_asks(
    path: str, up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Azure keeps the model and the version of its API in path and query."""
    up.chat_path = path.partition("?")[0]
    async with Running(up.url, tmp_path, **SETTINGS) as fold:
        done = await play(client, fold.url + path)
    assert "compacted" in done
    assert not [marks for marks in done if "extractive" in marks]
    assert {request.path_qs for request in (*up.summaries, *up.main)} == {path}


# Leaving early


async def test_a_client_that_leaves_at_the_last_event_is_nothing_to_log(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    async with Served(up.base_url, tmp_path) as fold:
        host, port = fold.url.removeprefix("http://").split(":")
        body = b.chat_body([b.user("hi")], stream=True)
        for _ in range(60):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            await reader.readuntil(b"[DONE]")
            writer.close()
        assert await fold.terminate() == 0
    assert fold.log == ""


# What is not HTTP


async def test_a_malformed_request_is_not_quoted_in_the_log(
    up: ScriptedUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Running(up.base_url, tmp_path) as fold:
        host, port = fold.url.removeprefix("http://").split(":")
        for text in (b"POST /v1 HTTP/1.1\nsecret-text: a\n\nsecret-text", b"secret-text\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(text)
            assert b" 400 " in await reader.readline()
            writer.close()
            await writer.wait_closed()
    assert "secret-text" not in caplog.text
