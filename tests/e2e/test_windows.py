"""The window that a server tells, and how it is asked."""

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from proxy.codec import Json, JsonObject
from proxy.upstream.windows import window_of
from tests import builders as b
from tests.e2e.running import Running
from tests.upstream import ScriptedUpstream


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"max_model_len": 32768}, 32768),
        ({"context_window": 131072, "max_completion_tokens": 8192}, 131072),
        ({"context_length": 200000, "top_provider": {"context_length": 128000}}, 128000),
        ({"meta": {"n_ctx": 2048, "n_ctx_train": 131072}}, 2048),
        ({"meta": {"n_ctx_train": 131072}}, None),
        ({"meta": None, "context_length": None}, None),
        ({"context_length": "32768"}, None),
        ({"context_length": True}, None),
        ({"context_length": 0}, None),
        ({"limits": {"max_context_length": 65536}}, 65536),
        ({"id": "gpt", "object": "model"}, None),
    ],
)
def test_the_generic_fields_of_a_models_entry(entry: JsonObject, window: int | None) -> None:
    assert window_of(entry) == window


async def started_window(fold: Running, messages: list[JsonObject]) -> Json:
    async with aiohttp.ClientSession() as client:
        headers = {"Authorization": "Bearer right"}
        url = f"{fold.url}/v1/chat/completions"
        async with client.post(url, data=b.chat_body(messages), headers=headers) as reply:
            assert reply.status == 200
    return fold.events.of_type("compaction_started")[-1]["window"]


async def test_a_wrong_key_does_not_hide_the_window_from_the_next_caller(tmp_path: Path) -> None:
    long = b.tool_session(20)
    async with (
        ScriptedUpstream(window=8192, key="right") as up,
        Running(up.base_url, tmp_path) as fold,
    ):
        for _ in range(2):
            async with aiohttp.ClientSession() as client:
                wrong = {"Authorization": "Bearer wrong"}
                url = f"{fold.url}/v1/chat/completions"
                async with client.post(url, data=b.chat_body(long), headers=wrong) as reply:
                    assert reply.status == 401
        assert len([r for r in up.requests if r.path.endswith("/models")]) == 1
        assert await started_window(fold, long) == 8192


async def test_llama_cpp_of_an_older_build_tells_by_its_props(tmp_path: Path) -> None:
    async def models(_: web.Request) -> web.Response:
        entry = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131072}}
        return web.json_response({"data": [entry]})

    async def props(_: web.Request) -> web.Response:
        return web.json_response({"default_generation_settings": {"n_ctx": 4096}})

    async def chat(_: web.Request) -> web.Response:
        message = {"role": "assistant", "content": "ok"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "choices": [choice]})

    app = web.Application(client_max_size=0)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/props", props)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        async with Running(url, tmp_path) as fold:
            assert await started_window(fold, b.tool_session(20)) == 4096
            assert fold.events.of_type("compaction_started")[0]["window_source"] == "props"
    finally:
        await runner.cleanup()
