"""The window that a server tells, and how it is asked."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from proxy.codec import Json, JsonObject, dumps, loads
from proxy.compaction.policy import Window
from proxy.upstream.client import TransportOptions, UpstreamClient
from proxy.upstream.routes import Base, Route
from proxy.upstream.windows import KNOWN_SECONDS, UNKNOWN_SECONDS, WindowProbe, window_of
from tests import builders as b
from tests.e2e.running import Running
from tests.upstream import ScriptedUpstream

MODEL = "test-model"


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"max_model_len": 32768}, 32768),
        ({"context_window": 131072, "max_completion_tokens": 8192}, 131072),
        ({"context_length": 200000, "top_provider": {"context_length": 128000}}, 128000),
        ({"meta": {"n_ctx": 2048, "n_ctx_train": 131072}}, 2048),
        ({"meta": {"n_ctx_train": 131072}}, None),
        ({"meta": None, "context_length": None}, None),
        ({"context_length": "32768"}, 32768),
        ({"context_length": True}, None),
        ({"context_length": 0}, None),
        ({"limits": {"max_context_length": 65536}}, 65536),
        ({"context_length": 400000, "max_input_tokens": 272000}, 272000),
        ({"id": "gpt", "object": "model"}, None),
    ],
)
def test_the_generic_fields_of_a_models_entry(entry: JsonObject, window: int | None) -> None:
    assert window_of(entry) == window


HANG = object()
"""Never answers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for something else than a reply of the model."""

    line: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(eq=False)
class Fake:
    """A server with the pages of one kind of server: 404 for everything else.

    Keys are method and path, with the query where that matters; values are JSON, a status or
    `HANG`.
    """

    pages: dict[str, object]
    base_path: str = "/v1"
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    location: str = ""
    """Where a redirect leads."""
    _runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        return self.url + self.base_path

    @property
    def lines(self) -> list[str]:
        return [asked.line for asked in self.asked]

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        if request.path.endswith("/chat/completions"):
            return web.json_response(CHAT)
        line = f"{request.method} {request.path_qs}"
        self.asked.append(Asked(line, CIMultiDict(request.headers), await request.read()))
        page = self.pages.get(line, self.pages.get(f"{request.method} {request.path}", 404))
        if page is HANG:
            await asyncio.Event().wait()
        if isinstance(page, int):
            where = {"Location": self.location} if self.location else {}
            return web.json_response({"error": "Not Found"}, status=page, headers=where)
        return web.json_response(page)


CHAT: Json = {
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ok"},
            "finish_reason": "stop",
        }
    ],
}


async def post(
    fold: Running, messages: list[JsonObject], key: str = "right", output: int | None = None
) -> int:
    fields: JsonObject = {} if output is None else {"max_tokens": output}
    body = dumps({"model": MODEL, "messages": [*messages], **fields})
    async with aiohttp.ClientSession() as client:
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{fold.url}/v1/chat/completions"
        async with client.post(url, data=body, headers=headers) as reply:
            await reply.read()
            return reply.status


async def started(
    fold: Running, messages: list[JsonObject], output: int | None = None
) -> JsonObject:
    assert await post(fold, messages, output=output) == 200
    return fold.events.of_type("compaction_started")[-1]


def listing(*entries: JsonObject) -> JsonObject:
    return {"object": "list", "data": [*entries]}


def card(id: str, owner: str, **more: Json) -> JsonObject:
    return {"id": id, "object": "model", "created": 1795000000, "owned_by": owner, **more}


def props(n_ctx: int, **more: Json) -> JsonObject:
    return {"default_generation_settings": {"n_ctx": n_ctx, "params": {}}, **more}


def ps(*running: JsonObject) -> JsonObject:
    return {"models": [*running]}


def running(name: str, tokens: int) -> JsonObject:
    return {"name": name, "model": name, "size_vram": 1, "context_length": tokens}


def show(parameters: str) -> JsonObject:
    return {"parameters": parameters, "model_info": {"qwen3.context_length": 40960}}


def lm_model(key: str, *loaded: int) -> JsonObject:
    instances: list[Json] = [{"id": key, "config": {"context_length": n}} for n in loaded]
    return {"type": "llm", "key": key, "loaded_instances": instances, "max_context_length": 8000}


OLLAMA = listing(card(f"{MODEL}:latest", "library"), card("other:latest", "library"))
LM_STUDIO = listing(card(MODEL, "organization_owner"), card("other", "organization_owner"))
ROUTER = listing(
    card(MODEL, "llamacpp", status={"value": "loaded"}),
    card("other", "llamacpp", status={"value": "unloaded"}),
)
OPENROUTER = listing(
    {"id": MODEL, "context_length": 8000, "top_provider": {"context_length": 7000}},
    {"id": "x/other", "context_length": 1000, "top_provider": {"context_length": 1000}},
)

SERVERS: dict[str, tuple[dict[str, object], str, Window]] = {
    "llama.cpp": (
        {
            "GET /v1/models": listing(
                card("/m/smol.gguf", "llamacpp", meta={"n_ctx": 4096, "n_ctx_train": 131072})
            )
        },
        "/v1",
        Window(4096, "models"),
    ),
    "llama.cpp, older": (
        {
            "GET /v1/models": listing(card("/m/x", "llamacpp", meta={"n_ctx_train": 131072})),
            "GET /props": props(4096, total_slots=1),
        },
        "/v1",
        Window(4096, "props"),
    ),
    "llama.cpp, several slots": (
        {
            "GET /v1/models": listing(card("/m/x", "llamacpp", meta=None)),
            "GET /props": props(2048, total_slots=4),
        },
        "/v1",
        Window(2048, "props"),
    ),
    "llama.cpp, router": (
        {
            "GET /v1/models": ROUTER,
            "GET /props": props(0, role="router"),
            f"GET /props?model={MODEL}&autoload=false": props(4096),
        },
        "/v1",
        Window(4096, "props"),
    ),
    "vLLM": (
        {"GET /v1/models": listing(card(MODEL, "vllm", parent=None, max_model_len=4096))},
        "/v1",
        Window(4096, "models"),
    ),
    "vLLM, adapter": (
        {
            "GET /v1/models": listing(
                card("base", "vllm", parent=None, max_model_len=4096),
                card(MODEL, "vllm", parent="base"),
            )
        },
        "/v1",
        Window(4096, "models"),
    ),
    "SGLang, adapter": (
        {
            "GET /v1/models": listing(
                card("base", "sglang", parent=None, max_model_len=4096),
                card(MODEL, "sglang", parent="base", max_model_len=None),
            )
        },
        "/v1",
        Window(4096, "models"),
    ),
    "Ollama, loaded": (
        {
            "GET /v1/models": OLLAMA,
            "GET /api/ps": ps(running("other:latest", 2048), running(f"{MODEL}:latest", 4096)),
            "POST /api/show": show("num_ctx 8192"),
        },
        "/v1",
        Window(4096, "ollama_ps"),
    ),
    "Ollama, not loaded": (
        {
            "GET /v1/models": OLLAMA,
            "GET /api/ps": ps(running("other:latest", 2048)),
            "POST /api/show": show('stop "<|im_end|>"\nnum_ctx                        4096'),
        },
        "/v1",
        Window(4096, "ollama_show"),
    ),
    "LM Studio": (
        {
            "GET /v1/models": LM_STUDIO,
            "GET /api/v1/models": {"models": [lm_model("other", 2048), lm_model(MODEL, 4864)]},
        },
        "/v1",
        Window(4864, "lm_studio"),
    ),
    "LM Studio, not loaded": (
        {"GET /v1/models": LM_STUDIO, "GET /api/v1/models": {"models": [lm_model(MODEL)]}},
        "/v1",
        Window(8000, "lm_studio_max"),
    ),
    "LM Studio, older": (
        {
            "GET /v1/models": LM_STUDIO,
            # What it answers where it has no page.
            "GET /api/v1/models": {"error": "Unexpected endpoint or method."},
            "GET /api/v0/models": listing(
                {"id": "other", "state": "loaded", "loaded_context_length": 2048},
                {
                    "id": MODEL,
                    "state": "loaded",
                    "max_context_length": 131072,
                    "loaded_context_length": 4864,
                },
            ),
        },
        "/v1",
        Window(4864, "lm_studio"),
    ),
    "OpenRouter": (
        {"GET /api/v1/models": OPENROUTER},
        "/api/v1",
        Window(7000, "models"),
    ),
    "OpenRouter, endpoints": (
        {
            "GET /api/v1/models": OPENROUTER,
            f"GET /api/v1/models/{MODEL}/endpoints": {
                "data": {
                    "id": MODEL,
                    "endpoints": [{"context_length": 8000}, {"context_length": 4096}],
                }
            },
        },
        "/api/v1",
        Window(4096, "openrouter"),
    ),
    "LiteLLM": (
        {
            "GET /v1/models": listing(
                card(MODEL, "openai", max_input_tokens=4096, max_output_tokens=4096),
                card("other", "openai", max_input_tokens=1000),
            )
        },
        "/v1",
        Window(4096, "models", input_only=True),
    ),
    "LiteLLM, older": (
        {
            "GET /v1/models": listing(card(MODEL, "openai"), card("other", "openai")),
            "GET /model/info": listing(
                {"model_name": "other", "model_info": {"max_input_tokens": 1000}},
                {
                    "model_name": MODEL,
                    "model_info": {"max_tokens": 1000, "max_input_tokens": 4096},
                },
            ),
        },
        "/v1",
        Window(4096, "litellm", input_only=True),
    ),
    "TGI": (
        {
            "GET /v1/models": listing(card("org/model", "org/model")),
            "GET /info": {
                "model_id": "org/model",
                "max_total_tokens": 4096,
                "max_input_tokens": 4095,
            },
        },
        "/v1",
        Window(4096, "tgi", input_limit=4095),
    ),
    "TGI, no list": (
        {"GET /info": {"model_id": "x", "max_total_tokens": 4096, "max_input_tokens": 4095}},
        "",
        Window(4096, "tgi", input_limit=4095),
    ),
    "Groq": (
        {"GET /openai/v1/models": listing(card(MODEL, "Meta", context_window=4096))},
        "/openai/v1",
        Window(4096, "models"),
    ),
    "Mistral": (
        {
            "GET /v1/models": listing(
                card("other", "mistralai", max_context_length=1000),
                card("m-2411", "mistralai", max_context_length=4096, aliases=[MODEL]),
            )
        },
        "/v1",
        Window(4096, "models"),
    ),
    "Together": (
        {
            "GET /v1/models": [
                {"id": "x", "context_length": 1},
                {"id": MODEL, "context_length": 4096},
            ]
        },
        "/v1",
        Window(4096, "models"),
    ),
    "Fireworks": (
        {"GET /inference/v1/models": listing(card(MODEL, "fireworks", context_length=4096))},
        "/inference/v1",
        Window(4096, "models"),
    ),
    "Cerebras": (
        {"GET /v1/models": listing(card(MODEL, "Cerebras", limits={"max_context_length": 4096}))},
        "/v1",
        Window(4096, "models"),
    ),
    "GitHub Models": (
        {
            "GET /catalog/models": [
                {"id": "openai/other", "limits": {"max_input_tokens": 1000}},
                {"id": MODEL, "limits": {"max_input_tokens": 4096, "max_output_tokens": 100}},
            ]
        },
        "/inference",
        Window(4096, "models", input_only=True),
    ),
    "Anthropic": (
        {"GET /v1/models": listing({"id": MODEL, "max_input_tokens": 4096, "max_tokens": 100})},
        "/v1",
        Window(4096, "models", input_only=True),
    ),
    "Gemini": (
        {"GET /v1beta/models": {"models": [{"name": f"models/{MODEL}", "inputTokenLimit": 4096}]}},
        "/v1beta",
        Window(4096, "models", input_only=True),
    ),
    "Vercel": (
        {"GET /v1/models": listing(card(MODEL, "openai", context_window=4096, max_tokens=100))},
        "/v1",
        Window(4096, "models"),
    ),
}


@pytest.mark.parametrize("name", SERVERS)
async def test_every_server_tells_its_window(name: str, tmp_path: Path) -> None:
    pages, path, window = SERVERS[name]
    async with Fake(pages, path) as server, Running(server.base_url, tmp_path) as fold:
        event = await started(fold, b.tool_session(20), output=4000)
    assert (event["window"], event["window_source"]) == (window.tokens, window.source)
    # The requested reply lowers the trigger, unless the limit is that of the prompt alone.
    kept = 0 if window.input_only else min(4000, (window.tokens or 0) // 4)
    room = (window.tokens or 0) - kept
    assert event["trigger"] == min(int(0.85 * (window.trusted or 0)), room + 1)
    for asked in server.asked:
        assert asked.headers["Authorization"] == "Bearer right"
        assert not [name for name in asked.headers if name.lower().startswith("x-foldgate")]


UNTOLD: dict[str, dict[str, object]] = {
    "OpenAI": {"GET /v1/models": listing(card(MODEL, "system"), card("other", "openai"))},
    "trained size of llama.cpp": {
        "GET /v1/models": listing(card(MODEL, "llamacpp", meta={"n_ctx_train": 4096}))
    },
    "trained size of Ollama": {
        "GET /v1/models": OLLAMA,
        "GET /api/ps": ps(),
        "POST /api/show": {
            "parameters": 'stop "x"',
            "model_info": {"qwen3.context_length": 4096},
        },
    },
    "another model": {
        "GET /v1/models": listing(
            card("other", "x", context_length=1000), card("more", "x", context_length=1000)
        ),
        "GET /api/ps": ps(running("other", 1000)),
        "GET /api/v1/models": {"models": [lm_model("other", 1000)]},
        "GET /api/v0/models": listing({"id": "other", "loaded_context_length": 1000}),
        "GET /v1/model/info": listing(
            {"model_name": "other", "model_info": {"max_input_tokens": 1000}}
        ),
    },
    "a lone other model of a server that serves by name": {
        "GET /v1/models": listing(card("other", "openai", context_length=1000))
    },
    "a router whose model is not loaded": {
        "GET /v1/models": ROUTER,
        "GET /props": props(0, role="router"),
        f"GET /props?model={MODEL}&autoload=false": 400,
    },
    "absurd sizes": {"GET /v1/models": listing(card(MODEL, "x", context_length=1))},
    "absurd sizes elsewhere": {"GET /props": props(1), "GET /info": {"max_total_tokens": -5}},
    "a page for everything": {
        "GET /v1/models": "welcome",
        "GET /props": [1],
        "GET /info": None,
        "GET /api/ps": 401,
        "GET /model/info": 500,
    },
}


@pytest.mark.parametrize("name", UNTOLD)
async def test_what_nobody_tells_is_unknown(name: str, tmp_path: Path) -> None:
    async with Fake(UNTOLD[name]) as server, Running(server.base_url, tmp_path) as fold:
        assert await post(fold, b.tool_session(20)) == 200
        assert fold.events.of_type("compaction_started") == []


async def test_a_wrong_key_does_not_hide_the_window_from_the_next_caller(tmp_path: Path) -> None:
    long = b.tool_session(20)
    async with (
        ScriptedUpstream(window=8192, key="right") as up,
        Running(up.base_url, tmp_path) as fold,
    ):
        for _ in range(2):
            assert await post(fold, long, "wrong") == 401
        # Who is refused the list is not shown the rest.
        assert [r.path for r in up.requests if r.method == "GET"] == ["/v1/models"]
        assert (await started(fold, long))["window"] == 8192


@pytest.mark.parametrize(
    "pages", [{"GET /v1/models": HANG}, {"GET /props": HANG, "GET /info": HANG}]
)
async def test_a_slow_probe_delays_a_request_once(pages: dict[str, object], tmp_path: Path) -> None:
    options: dict[str, Json] = {"upstream.probe_seconds": 0.2}
    async with Fake(pages) as server, Running(server.base_url, tmp_path, **options) as fold:
        async with asyncio.timeout(5):
            for _ in range(3):
                assert await post(fold, b.tool_session(20)) == 200
        assert server.lines.count("GET /v1/models") == 1
        assert len(server.lines) == len(set(server.lines))


async def test_what_was_told_in_time_counts(tmp_path: Path) -> None:
    entry = card(MODEL, "organization_owner", context_length=4096)
    pages = {"GET /v1/models": listing(entry), "GET /api/v1/models": HANG}
    options: dict[str, Json] = {"upstream.probe_seconds": 0.2}
    async with Fake(pages) as server, Running(server.base_url, tmp_path, **options) as fold:
        assert (await started(fold, b.tool_session(20)))["window"] == 4096


async def test_nobody_waits_for_the_rest_once_one_page_has_told(tmp_path: Path) -> None:
    pages = {"GET /props": props(4096), "GET /info": HANG, "GET /api/ps": HANG}
    options: dict[str, Json] = {"upstream.probe_seconds": 60.0}
    async with Fake(pages) as server, Running(server.base_url, tmp_path, **options) as fold:
        async with asyncio.timeout(20):
            assert (await started(fold, b.tool_session(20)))["window"] == 4096


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    pages: dict[str, object] = {"GET /v1/models": 302, "GET /props": 307, "GET /info": 301}
    async with (
        Fake({"GET /v1/models": listing(card(MODEL, "vllm", max_model_len=4096))}) as elsewhere,
        Fake(pages, location=f"{elsewhere.url}/v1/models") as server,
        Running(server.base_url, tmp_path) as fold,
    ):
        assert await post(fold, b.tool_session(20)) == 200
        assert elsewhere.asked == []


# --- what is remembered, with a clock that the test holds


class Asking:
    """A probe of a server, and its clock."""

    def __init__(self, server: Fake, model: str = MODEL, window: int | None = None) -> None:
        self.now = 1000.0
        self.client = UpstreamClient(TransportOptions())
        self.probe = WindowProbe(self.client, lambda: self.now, 5.0)
        self.route = self.to(server, model, window)
        self.changes: list[tuple[str, str, Window]] = []
        self.probe.when_changed(lambda *change: self.changes.append(change))

    @staticmethod
    def to(server: Fake, model: str, window: int | None = None) -> Route:
        headers = CIMultiDict({"Authorization": "Bearer right"})
        return Route(Base.of(server.base_url), model, headers, window)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.probe.close()
        await self.client.close()

    async def window(self) -> Window:
        return await self.probe.window(self.route)

    async def renewed(self) -> Window:
        """Return the window once what is old by now was fetched again."""
        await self.window()
        self.probe.ask_soon(self.route)
        while self.probe._asking:
            await asyncio.sleep(0)
            await asyncio.gather(*self.probe._asking.values())
        return await self.window()


def vllm(tokens: int) -> JsonObject:
    return listing(card(MODEL, "vllm", max_model_len=tokens))


async def test_a_server_that_was_restarted_is_noticed_after_a_while() -> None:
    pages: dict[str, object] = {"GET /v1/models": vllm(8192)}
    async with Fake(pages) as server, Asking(server) as asking:
        assert await asking.window() == Window(8192, "models")
        pages["GET /v1/models"] = vllm(4096)
        asking.now += KNOWN_SECONDS - 1
        assert await asking.window() == Window(8192, "models")
        assert len(server.asked) == 1
        asking.now += 1
        # The old answer counts while the new one is fetched.
        assert await asking.window() == Window(8192, "models")
        assert await asking.renewed() == Window(4096, "models")
        assert asking.changes == [(server.base_url, MODEL, Window(4096, "models"))]


async def test_a_refresh_asks_at_once_and_tells_of_a_change() -> None:
    pages: dict[str, object] = {"GET /v1/models": vllm(8192)}
    async with Fake(pages) as server, Asking(server) as asking:
        await asking.window()
        assert await asking.probe.refreshed(asking.route) == Window(8192, "models")
        assert asking.changes == []
        pages["GET /v1/models"] = vllm(4096)
        asking.probe.refresh(asking.route)
        asking.probe.refresh(asking.route)
        assert await asking.probe.refreshed(asking.route) == Window(4096, "models")
        assert len(server.asked) == 3
        assert asking.changes == [(server.base_url, MODEL, Window(4096, "models"))]
        assert asking.probe.remembered(asking.route) == Window(4096, "models")


async def test_what_was_told_holds_while_the_server_is_silent() -> None:
    pages: dict[str, object] = {"GET /v1/models": vllm(8192)}
    async with Fake(pages) as server, Asking(server) as asking:
        await asking.window()
        for page in (404, 401, 500, listing()):
            pages["GET /v1/models"] = page
            assert await asking.probe.refreshed(asking.route) == Window(8192, "models")
            assert asking.probe.remembered(asking.route) == Window(8192, "models")
        assert asking.changes == []


async def test_what_is_forgotten_is_waited_for_again() -> None:
    pages: dict[str, object] = {"GET /v1/models": vllm(8192)}
    async with Fake(pages) as server, Asking(server) as asking:
        await asking.window()
        pages["GET /v1/models"] = vllm(4096)
        asking.probe.forget(asking.route)
        assert asking.probe.remembered(asking.route) is None
        assert await asking.window() == Window(4096, "models")


async def test_a_window_that_is_set_is_never_asked_for() -> None:
    async with Fake({"GET /v1/models": vllm(8192)}) as server, Asking(server, window=500) as asking:
        assert await asking.window() == Window(500, "settings")
        asking.probe.refresh(asking.route)
        assert await asking.probe.refreshed(asking.route) == Window(500, "settings")
        assert server.asked == []


async def test_a_server_that_tells_nothing_is_asked_little() -> None:
    async with Fake({}) as server, Asking(server) as asking:
        for _ in range(3):
            assert await asking.window() == Window()
        assert len(server.asked) == len(set(server.lines)) <= 8
        server.asked.clear()
        asking.now += UNKNOWN_SECONDS
        assert await asking.renewed() == Window()
        assert set(server.lines) == {"GET /v1/models"}
        # Neither for another of its models.
        server.asked.clear()
        assert await asking.probe.window(asking.to(server, "other")) == Window()
        assert server.lines == ["GET /v1/models"]
        server.asked.clear()
        server.pages["GET /props"] = props(4096)
        assert await asking.probe.refreshed(asking.route) == Window(4096, "props")


async def test_ollama_is_asked_again_soon_after_a_model_was_loaded() -> None:
    pages: dict[str, object] = {
        "GET /v1/models": OLLAMA,
        "GET /api/ps": ps(),
        "POST /api/show": show("num_ctx 8192"),
    }
    async with Fake(pages) as server, Asking(server) as asking:
        assert await asking.window() == Window(8192, "ollama_show")
        posted = server.asked[-1]
        assert posted.line == "POST /api/show"
        assert loads(posted.body) == {"model": MODEL}
        assert posted.headers["Content-Type"] == "application/json"
        pages["GET /api/ps"] = ps(running(f"{MODEL}:latest", 4096))
        asking.now += UNKNOWN_SECONDS
        assert await asking.renewed() == Window(4096, "ollama_ps")
        # Unloaded, it will be loaded as before, as far as anyone knows.
        pages["GET /api/ps"] = ps()
        assert await asking.probe.refreshed(asking.route) == Window(4096, "ollama_ps")
        pages["POST /api/show"] = show("num_ctx 2048")
        assert await asking.probe.refreshed(asking.route) == Window(2048, "ollama_show")
        pages["POST /api/show"] = show("num_ctx 16384")
        assert await asking.probe.refreshed(asking.route) == Window(16384, "ollama_show")


async def test_requests_at_once_share_one_probe() -> None:
    async with Fake({"GET /props": props(4096)}) as server, Asking(server) as asking:
        windows = await asyncio.gather(*(asking.window() for _ in range(20)))
        assert set(windows) == {Window(4096, "props")}
        assert len(server.asked) == len(set(server.lines))
