"""`foldgate doctor`: what the model takes: orders of messages, tools, streams, schemas."""

from pathlib import Path

import pytest
from aiohttp import web

from proxy.codec import Json, JsonObject, as_objects
from tests.e2e.test_doctor import (
    HELLO,
    SECRET,
    Answering,
    Stub,
    api,
    chat,
    doctor,
    events,
    nothing_nearby,
    reply,
    saying,
)
from tests.upstream import ScriptedUpstream

__all__ = ["nothing_nearby"]
WEATHER = '{"weather": "sunny"}'


def picky(**refused: Answering) -> Answering:
    """A chat endpoint that answers a request with a certain member in its own way."""

    async def answer(request: web.Request, body: JsonObject) -> web.StreamResponse:
        for name, other in refused.items():
            if body.get(name):
                return await other(request, body)
        return await chat(request, body)

    return answer


def completion(content: str, finish: str = "stop", more: JsonObject | None = None) -> Answering:
    message: Json = {"role": "assistant", "content": content}
    choice: Json = {"index": 0, "message": message, "finish_reason": finish}
    return saying({"choices": [choice], **(more or {})})


# --- completions


@pytest.mark.parametrize(
    ("status", "error", "fix"),
    [
        (404, {"message": "model 'small' does not exist", "code": "model_not_found"}, "--model"),
        (429, {"message": "You exceeded your quota", "code": "insufficient_quota"}, "quota"),
        (402, {"message": "Insufficient balance"}, "balance"),
        (500, {"message": f"boom {SECRET}"}, "log"),
    ],
)
async def test_no_completion(tmp_path: Path, status: int, error: Json, fix: str) -> None:
    bad = picky(messages=saying({"error": error}, status))
    async with Stub(api(chat=bad)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["completion"]
    assert str(status) in found.text_of("completion")
    assert fix in found.fix_of("completion")
    assert found.status_of("streaming") == ""


async def test_the_key_is_refused_for_completions_only(tmp_path: Path) -> None:
    bad = picky(messages=saying({"error": {"code": "invalid_api_key"}}, 401))
    async with Stub(api(chat=bad)).running() as stub:
        env = {"MINE": SECRET}
        found = await doctor(f"{stub.url}/v1", tmp_path, "--key-variable", "MINE", env=env)
    assert found.failures == ["key"]
    assert "the key in MINE was refused" in found.text_of("key")


async def test_other_names_and_sizes_of_the_output_limit(tmp_path: Path) -> None:
    async def minimum(request: web.Request, body: JsonObject) -> web.StreamResponse:
        if "max_tokens" in body:
            text = "Unsupported parameter: 'max_tokens'; use 'max_completion_tokens'."
            return reply({"error": {"message": text}}, 400)
        limit = body.get("max_completion_tokens")
        if body.get("messages") and isinstance(limit, int) and limit < 16:
            return reply({"error": {"message": "max_completion_tokens: below minimum 16"}}, 400)
        return await chat(request, body)

    async with Stub(api(chat=minimum)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == []
    assert "16 tokens" in found.text_of("completion")
    assert found.status_of("template") == "ok"


# --- templates and tools


@pytest.mark.parametrize(
    ("rule", "strict", "said", "cure"),
    [
        ("alternate", "alternate", "must alternate", "join adjacent messages"),
        ("one_system", "system_first", "must be the first message", "later instructions"),
        ("first_user", "user_first", "must be the user's", "begin with a user message"),
    ],
)
async def test_a_strict_template(
    up: ScriptedUpstream, tmp_path: Path, rule: str, strict: str, said: str, cure: str
) -> None:
    setattr(up, rule, True)
    found = await doctor(up.base_url, tmp_path)
    assert found.failures == []
    assert found.status_of("template") == "warn"
    assert found.of("template")["strict"] == [strict]
    assert said in found.text_of("template")
    assert "Foldgate's own rewriting keeps to it" in found.text_of("template")
    assert cure in found.fix_of("template")


async def test_a_template_without_system_messages(tmp_path: Path) -> None:
    async def no_system(request: web.Request, body: JsonObject) -> web.StreamResponse:
        if any(m.get("role") == "system" for m in as_objects(body.get("messages"))):
            return reply({"error": {"message": "System role not supported"}}, 400)
        return await chat(request, body)

    async with Stub(api(chat=no_system)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.of("template")["strict"] == ["no_system"]
    assert "first user message" in found.fix_of("template")


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ('"auto" tool choice requires --enable-auto-tool-choice', "--tool-call-parser"),
        ("qwen does not support tools", "takes tools"),
    ],
)
async def test_tools_are_refused(tmp_path: Path, message: str, fix: str) -> None:
    bad = picky(tools=saying({"error": {"message": message}}, 400))
    async with Stub(api(chat=bad)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.status_of("tools") == "warn"
    assert fix in found.fix_of("tools")


# --- streaming


@pytest.mark.parametrize(
    ("stream", "status", "said"),
    [
        (completion("hello"), "FAIL", "application/json instead of a stream"),
        (saying({"error": {"message": "no stream"}}, 400), "FAIL", "is refused (400)"),
        (saying({}, 429), "warn", "not tried"),
    ],
)
async def test_no_streaming(tmp_path: Path, stream: Answering, status: str, said: str) -> None:
    async with Stub(api(chat=picky(stream=stream))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.status_of("streaming") == status
    assert said in found.text_of("streaming")
    assert status == "warn" or "stream: false" in found.fix_of("streaming")


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        ((HELLO, b'{"choices": [], "usage": {"prompt_tokens": 3}}', b"[DONE]"), "ok", "usage"),
        ((HELLO, b"[DONE]"), "warn", "no usage is told"),
        ((HELLO, b'{"choices": [], "usage": {"prompt_tokens": 3}}'), "warn", "no [DONE]"),
        ((HELLO, b'{"error": {"message": "x"}}'), "FAIL", "holds an error"),
        ((b"hello", b"[DONE]"), "FAIL", "no completion"),
    ],
)
async def test_streams(tmp_path: Path, data: tuple[bytes, ...], status: str, said: str) -> None:
    async def stream(_: web.Request, __: JsonObject) -> web.StreamResponse:
        return events(*data)

    async with Stub(api(chat=picky(stream=stream))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.status_of("streaming") == status
    assert said in found.text_of("streaming")


async def test_a_stream_that_breaks_off(tmp_path: Path) -> None:
    async def broken(request: web.Request, _: JsonObject) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"data: " + HELLO + b"\n\n")
        assert request.transport is not None
        request.transport.close()
        return response

    async with Stub(api(chat=picky(stream=broken))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["streaming"]
    assert "breaks off" in found.text_of("streaming")


async def test_usage_in_streams_is_refused(tmp_path: Path) -> None:
    bad = picky(stream_options=saying({"error": {"message": "unknown stream_options"}}, 400))
    async with Stub(api(chat=bad)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.status_of("streaming") == "warn"
    assert "stream_options.include_usage is refused" in found.text_of("streaming")


# --- structured output


async def test_a_schema_is_refused(up: ScriptedUpstream, tmp_path: Path) -> None:
    up.reject_response_format = {"json_schema"}
    found = await doctor(up.base_url, tmp_path)
    assert found.failures == []
    assert found.status_of("structured") == "warn"
    assert "falls back to json_object" in found.text_of("structured")
    up.reject_response_format = {"json_schema", "json_object"}
    found = await doctor(up.base_url, tmp_path)
    assert "falls back to plain text" in found.text_of("structured")


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (completion(WEATHER), "ok", "honoured"),
        (completion('{"weather": "foggy"}'), "warn", "ignored"),
        (completion("It is sunny."), "warn", "ignored"),
        (completion("", "length"), "ok", "does not show"),
    ],
)
async def test_a_schema(tmp_path: Path, answer: Answering, status: str, said: str) -> None:
    async with Stub(api(chat=picky(response_format=answer))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.status_of("structured") == status
    assert said in found.text_of("structured")


# --- prompt cache


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "not reported"),
        ({"timings": {"cache_n": 250}}, "250 tokens"),
        (
            {"usage": {"prompt_tokens": 260, "prompt_tokens_details": {"cached_tokens": 256}}},
            "256 of 260 tokens",
        ),
        (
            {"usage": {"prompt_tokens": 260, "prompt_tokens_details": {"cached_tokens": 0}}},
            "nothing of 260 tokens",
        ),
        ({"usage": {"prompt_tokens": 260, "prompt_tokens_details": None}}, "not reported"),
    ],
)
async def test_the_prompt_cache(tmp_path: Path, more: JsonObject, said: str) -> None:
    asked = list[str]()

    async def answer(request: web.Request, body: JsonObject) -> web.StreamResponse:
        asked.append(str(body["messages"]))
        return await completion("hi", more=more)(request, body)

    async with Stub(api(chat=picky(max_tokens=answer))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert said in found.text_of("cache")
    assert asked[-1] == asked[-2]


# --- a connection that breaks, a server that becomes busy


async def breaks(request: web.Request, _: JsonObject) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return reply({})


@pytest.mark.parametrize(
    ("member", "name"),
    [
        ("messages", "completion"),
        ("tools", "template"),
        ("stream", "streaming"),
        ("response_format", "structured"),
    ],
)
async def test_a_connection_that_breaks(tmp_path: Path, member: str, name: str) -> None:
    async with Stub(api(chat=picky(**{member: breaks}))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == [name]
    assert "broke the connection off" in found.text_of(name)
    assert "crashed" in found.fix_of(name)


def when(text: str, other: Answering) -> Answering:
    """A chat endpoint that answers messages with a certain text in its own way."""

    async def answer(request: web.Request, body: JsonObject) -> web.StreamResponse:
        return await (other if text in str(body.get("messages")) else chat)(request, body)

    return answer


async def test_a_server_that_becomes_busy(tmp_path: Path) -> None:
    busy = saying({"error": {"code": "rate_limit_exceeded"}}, 429)
    async with Stub(api(chat=when("Say alpha.", busy))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == []
    assert "could not be told (429 rate_limit_exceeded)" in found.text_of("template")
    for text, name in (("sentence about", "structured"), ("Line 0", "cache")):
        async with Stub(api(chat=when(text, busy))).running() as stub:
            found = await doctor(f"{stub.url}/v1", tmp_path)
        assert "not tried (429 rate_limit_exceeded)" in found.text_of(name)
    for text, other in (("Line 0", breaks), ("Line 0", saying({"error": {}}, 400))):
        async with Stub(api(chat=when(text, other))).running() as stub:
            found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.status_of("cache") == ("FAIL" if other is breaks else "warn")


@pytest.mark.parametrize(
    ("status", "body", "said"), [(503, {}, "not ready"), (200, {"x": 1}, "no chat completion")]
)
async def test_what_is_no_completion(
    tmp_path: Path, status: int, body: JsonObject, said: str
) -> None:
    bad = picky(messages=saying(body, status))
    async with Stub(api(chat=bad)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["completion"]
    assert said in found.text_of("completion")


async def test_the_key_is_asked_for_by_completions_only(tmp_path: Path) -> None:
    async def locked(request: web.Request, body: JsonObject) -> web.StreamResponse:
        if body.get("messages") and request.headers.get("Authorization") != f"Bearer {SECRET}":
            return reply({"error": {"code": "invalid_api_key"}}, 401)
        return await chat(request, body)

    async with Stub(api(chat=locked)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env={"OPENAI_API_KEY": SECRET})
        assert found.failures == []
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["key"]


# --- what llama.cpp tells without generating anything


def llama(render: Answering, slots: int = 1, **caps: bool) -> dict[tuple[str, str], Answering]:
    props: Json = {
        "total_slots": slots,
        "chat_template": "…",
        "chat_template_caps": {**caps},
        "default_generation_settings": {"n_ctx": 4096},
    }
    meta: Json = {"n_ctx": 4096, "n_ctx_train": 131072}
    entry: Json = {"id": "small", "owned_by": "llamacpp", "meta": meta}
    return {
        **api(models=saying({"data": [entry]})),
        ("GET", "/props"): saying(props),
        ("POST", "/apply-template"): render,
    }


def rendering(*dropped: str) -> Answering:
    """A template that leaves out some roles, or all tools."""

    async def render(_: web.Request, body: JsonObject) -> web.StreamResponse:
        messages = as_objects(body.get("messages"))
        kept = [str(m["content"]) for m in messages if m["role"] not in dropped]
        tools = [] if "tools" in dropped else [str(body.get("tools"))]
        return reply({"prompt": " ".join([*tools, *kept])})

    return render


async def test_llama_cpp_renders_and_generates_nothing(tmp_path: Path) -> None:
    async with Stub(llama(rendering(), slots=4)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, "--free")
    assert found.failures == []
    assert found.of("template")["rendered"] is True
    assert found.status_of("template") == "ok"
    assert found.status_of("tools") == "ok"
    assert "4 slots, so each conversation gets 4,096 tokens" in found.text_of("slots")
    assert "--parallel 1" in found.fix_of("slots")
    assert "made for 131,072" in found.text_of("window")
    assert stub.asked.count("POST /v1/chat/completions") == 1


async def test_llama_cpp_leaves_out_what_the_template_does_not_know(tmp_path: Path) -> None:
    async with Stub(llama(rendering("system", "tools"))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, "--free")
        assert found.of("template")["strict"] == ["system_lost"]
        assert "ignored silently" in found.text_of("tools")
        assert "--jinja --chat-template-file" in found.fix_of("tools")
        stub.paths = llama(rendering(), supports_tools=False)
        found = await doctor(f"{stub.url}/v1", tmp_path, "--free")
        assert "ignored silently" in found.text_of("tools")


async def test_a_template_that_renders_nothing(tmp_path: Path) -> None:
    bad = saying({"error": {"code": 500, "message": "Jinja Exception"}}, 500)
    async with Stub(llama(bad)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, "--free")
    assert found.failures == ["template"]
    assert "--chat-template chatml" in found.fix_of("template")


async def test_an_older_llama_cpp_is_asked_for_completions(tmp_path: Path) -> None:
    missing = saying({"error": {"message": "File Not Found", "code": 404}}, 404)
    async with Stub(llama(missing)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.of("template")["rendered"] is False
        found = await doctor(f"{stub.url}/v1", tmp_path, "--free")
        assert found.status_of("template") == ""


async def test_a_prompt_cache_that_is_off(tmp_path: Path) -> None:
    paths = llama(rendering())
    usage: Json = {"prompt_tokens": 260, "prompt_tokens_details": {"cached_tokens": 0}}
    paths.update(api(chat=picky(max_tokens=completion("hi", more={"usage": usage}))))
    paths["GET", "/v1/models"] = llama(rendering())["GET", "/v1/models"]
    async with Stub(paths).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.status_of("cache") == "warn"
    assert "--no-cache-prompt" in found.fix_of("cache")


async def test_llama_cpp_serves_its_model_by_any_name(tmp_path: Path) -> None:
    async with Stub(llama(rendering())).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, "--model", "gpt-4o", "--free")
    assert found.failures == []
    assert found.status_of("models") == "warn"
    assert found.fix_of("models") == "--model small"
