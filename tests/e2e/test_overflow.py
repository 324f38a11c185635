"""What is done when an upstream says that a request is too long, or means something else."""

from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, dumps
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import CHAT, RESPONSES, Api
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running
from tests.upstream import Reply, ScriptedUpstream
from tests.upstream_rules import prompt_tokens

LIMIT = 6000
Refused = Callable[[int, int], tuple[int, bytes]]
COMPACTED = "compaction_completed"


def openai_error(message: str, code: Json = "context_length_exceeded", **more: Json) -> bytes:
    error: JsonObject = {"message": message, "type": "invalid_request_error", "code": code, **more}
    return dumps({"error": error})


WORDINGS: dict[str, Refused] = {
    "OpenAI": lambda n, limit: (
        400,
        openai_error(
            f"This model's maximum context length is {limit} tokens. However, your messages "
            f"resulted in {n} tokens."
        ),
    ),
    "OpenAI, no numbers": lambda n, limit: (
        400,
        openai_error("Your input exceeds the context window of this model."),
    ),
    "llama.cpp": lambda n, limit: (
        400,
        openai_error(
            "request exceeds", 400, type="exceed_context_size_error", n_prompt_tokens=n, n_ctx=limit
        ),
    ),
    "vLLM": lambda n, limit: (
        400,
        dumps(
            {
                "object": "error",
                "message": f"This model's maximum context length is {limit} tokens. However, your "
                f"request has {n} input tokens.",
                "code": 400,
            }
        ),
    ),
    "SGLang": lambda n, limit: (
        400,
        dumps(
            {
                "detail": f"The input ({n} tokens) is longer than the model's context length "
                f"({limit} tokens)."
            }
        ),
    ),
    "TGI": lambda n, limit: (
        422,
        dumps(
            {
                "error": f"Input validation error: `inputs` must have less than {limit} tokens. "
                f"Given: {n}",
                "error_type": "validation",
            }
        ),
    ),
    "413": lambda n, limit: (
        413,
        openai_error(f"Current length is {n} while limit is {limit}", "too_long"),
    ),
    "Ollama": lambda n, limit: (
        400,
        openai_error(f"prompt too long; exceeded max context length by {n - limit} tokens"),
    ),
    "500": lambda n, limit: (
        500,
        openai_error("Context size has been exceeded.", 500, type="server_error"),
    ),
    "Groq": lambda n, limit: (
        400,
        openai_error("Please reduce the length of the messages or completion."),
    ),
}


def session(api: Api, calls: int) -> list[JsonObject]:
    """A conversation of about a thousand tokens for two calls."""
    return b.tool_session(calls, result_chars=2000)


def growing(api: Api) -> list[Sequence[JsonObject]]:
    """Five requests, the first of which is too long already."""
    whole = session(api, 36)
    return [whole[: 2 + 2 * calls] for calls in (16, 20, 24, 28, 32)]


@pytest.fixture
async def silent(up: ScriptedUpstream) -> ScriptedUpstream:
    """An upstream that tells no window before it is too late."""
    checks.make_strict(up, LIMIT)
    up.advertise_window = False
    return up


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wording", WORDINGS)
async def test_five_growing_requests(
    silent: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    wording: str,
    stream: bool,
) -> None:
    silent.overflow_as = WORDINGS[wording]
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=api, stream=stream)
        refused = []
        for step in growing(api):
            exchange = await agent.say(step)
            assert exchange.status == 200, exchange.reply
            refused.append(len(silent.rejections))
        assert refused[0] <= 2
        assert refused[-1] == refused[0], "from the second on none is refused"
        assert proxy.events.of_type(COMPACTED)
        told = proxy.events.of_type("compaction_started")[0]
        assert told["reason"] == "overflow"
        numbers = str(LIMIT).encode() in silent.overflow_as(9000, LIMIT)[1]
        assert told["window_source"] == ("error" if numbers else "guess")


async def test_nothing_is_done_when_compaction_is_off(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    silent.overflow_as = WORDINGS["OpenAI"]
    async with Running(silent.base_url, tmp_path, **{"compaction.auto": False}) as proxy:
        agent = Agent(client, proxy.url, silent, api=api)
        exchange = await agent.say(growing(api)[0])
        assert exchange.status == 400
        assert exchange.error["code"] == "context_length_exceeded"
        assert len(silent.main) == 1


async def test_what_cannot_be_made_smaller_gets_the_upstreams_own_error(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    silent.overflow_as = WORDINGS["OpenAI"]
    silent.window = 10
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=api)
        exchange = await agent.say(growing(api)[0])
        assert exchange.status == 400
        assert "maximum context length is 10 tokens" in str(exchange.error["message"])
        assert len(silent.main) <= 3


@pytest.mark.parametrize(
    "calls", [12, 20, *(pytest.param(n, marks=pytest.mark.slow) for n in (28, 40)), 120]
)
@pytest.mark.parametrize("wording", ["OpenAI, no numbers", "500", "Ollama", "OpenAI"])
async def test_a_first_request_far_above_the_limit(
    silent: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    wording: str,
    calls: int,
) -> None:
    """Guesses begin far too high; what is accepted then says where the limit is at least."""
    silent.overflow_as = WORDINGS[wording]
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=api, stream=True)
        refused = []
        for more in range(0, 40, 2):
            exchange = await agent.say(session(api, calls + more))
            assert exchange.status == 200, exchange.reply
            assert b"context" not in exchange.reply
            refused.append(len(silent.rejections))
        # Two of the request itself; the summariser cannot know better either.
        assert refused[0] <= (1 if wording == "OpenAI" else 5)
        assert refused[-1] == refused[0], "from the second on none is refused"


@pytest.mark.parametrize("wording", ["OpenAI, no numbers", "500"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_window_that_is_believed_far_too_large(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    wording: str,
    stream: bool,
) -> None:
    checks.make_strict(up, LIMIT)
    up.overflow_as = None if stream and api is RESPONSES else WORDINGS[wording]
    up.advertise_window = False
    async with Running(up.base_url, tmp_path, **{"upstream.context_window": 131_072}) as proxy:
        agent = Agent(client, proxy.url, up, api=api, stream=stream)
        exchange = await agent.say(session(api, 16))
        assert exchange.status == 200, exchange.reply
        assert b"exceed" not in exchange.reply


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=400, raw_body=b"", headers={"content-type": "text/plain"}),
        Reply(
            status=413,
            raw_body=openai_error("Request exceeds the maximum size of bytes", "request_too_large"),
        ),
        Reply(status=400, raw_body=b"\x0b\x02\x80", headers={"content-encoding": "br"}),
    ],
    ids=["empty", "bytes", "unreadable"],
)
async def test_what_may_mean_anything_teaches_nothing(
    silent: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    reply: Reply,
) -> None:
    silent.window = None
    async with Running(silent.base_url, tmp_path, **{"upstream.context_window": 131_072}) as proxy:
        agent = Agent(client, proxy.url, silent, api=api)
        silent.replies.append(reply)
        assert (await agent.say(session(api, 16))).status == reply.status
        assert len(silent.main) == 1
        later = await agent.say(session(api, 60))
        assert later.arrived == later.sent
        assert not proxy.events


async def test_a_guess_that_did_not_help_is_not_kept(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    silent.overflow_as = WORDINGS["OpenAI, no numbers"]
    silent.window = 10
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=api)
        exchange = await agent.say(session(api, 16))
        assert (exchange.status, len(silent.main)) == (400, 3)
        silent.window = None
        other = [b.user("Another matter."), *session(api, 12)[2:]]
        later = await agent.say(other)
        assert later.arrived == later.sent


@pytest.mark.parametrize(
    ("second", "status"),
    [
        (Reply(status=429, text="slow down", headers={"retry-after": "9"}), 429),
        (Reply(status=503, text="overloaded"), 503),
        (Reply(drop=True), 502),
    ],
    ids=["429", "503", "gone"],
)
async def test_what_will_pass_is_told_instead_of_the_overflow(
    silent: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    second: Reply,
    status: int,
) -> None:
    """An overflow is final for clients; they come again after this."""
    silent.overflow_as = WORDINGS["OpenAI"]
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=api)
        # Dropped once, on a connection that was used before, it would be sent again.
        silent.replies.extend([second] * (2 if second.drop else 1))
        exchange = await agent.say(session(api, 16))
        assert exchange.status == status
        assert (await agent.say(session(api, 16))).marks == ["reused"]


@pytest.mark.parametrize("wording", ["OpenAI, no numbers", "OpenAI"])
async def test_compaction_that_is_off_stays_off_afterwards(
    silent: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    wording: str,
) -> None:
    silent.overflow_as = WORDINGS[wording]
    async with Running(silent.base_url, tmp_path, **{"compaction.auto": False}) as proxy:
        agent = Agent(client, proxy.url, silent, api=api)
        assert (await agent.say(session(api, 16))).status == 400
        silent.window = None
        later = await agent.say(session(api, 16))
        assert later.arrived == later.sent


async def test_instructions_that_leave_little_room(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """There is nothing to compact, so little output is better than none."""
    silent.window = None
    window, field = 16_384, api.limits[-1]

    def answer(_: object) -> Reply:
        request = silent.main[-1]
        tokens, asked = silent.prompt_tokens(request), request.json[field]
        assert isinstance(asked, int)
        if tokens + asked <= window:
            return Reply(text="done")
        text = (
            f"This model's maximum context length is {window} tokens. However, you requested "
            f"{tokens + asked} tokens ({tokens} in the messages, {asked} in the completion)."
        )
        return Reply(status=400, raw_body=openai_error(text))

    silent.reply = answer
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, None, api=api, **{field: 6000})
        exchange = await agent.say([b.system("Mind the gap. " * 3600), b.user("Where?")])
        assert exchange.status == 200, exchange.reply
        limits = [request.json[field] for request in silent.main]
        assert limits[0] == 6000
        assert isinstance(limits[-1], int)
        assert 3000 < limits[-1] < 4000


@pytest.mark.parametrize("calls", [16, 32, 60])
@pytest.mark.parametrize(
    "text",
    [
        "input length and `max_tokens` exceed context limit",
        "you requested {asked} output tokens and your prompt contains at least {least} input "
        "tokens, for a total of at least {total} tokens. This model's maximum context length is "
        "{window} tokens.",
    ],
    ids=["no numbers", "at least"],
)
async def test_too_much_together_and_no_word_of_the_prompt(
    silent: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    text: str,
    calls: int,
) -> None:
    silent.window = None
    window, field = 16_384, api.limits[-1]

    def answer(_: object) -> Reply:
        request = silent.main[-1]
        # A tokenizer that finds half as many again.
        tokens, asked = silent.prompt_tokens(request) * 3 // 2, request.json[field]
        assert isinstance(asked, int)
        if tokens + asked <= window:
            return Reply(text="done")
        least = window - asked + 1
        told = text.format(asked=asked, least=least, total=window + 1, window=window)
        return Reply(status=400, raw_body=openai_error(told, None))

    silent.reply = answer
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, None, api=api, **{field: 6000})
        for more in (0, 2, 4):
            exchange = await agent.say(session(api, calls + more))
            assert exchange.status == 200, exchange.reply


@pytest.mark.parametrize("status", [400, 413])
async def test_an_empty_error_at_an_unknown_window(
    silent: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    status: int,
) -> None:
    """As Cerebras answers."""
    silent.overflow_as = lambda n, limit: (status, b"")
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=api)
        for step in growing(api):
            assert (await agent.say(step)).status == 200
        assert proxy.events.of_type(COMPACTED)


async def test_an_output_cap_without_numbers_touches_no_conversation(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    silent.window = None
    text = "input length and `max_tokens` exceed context limit"
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, None, max_tokens=90_000)
        silent.replies.extend([Reply(status=400, raw_body=openai_error(text, None))] * 2)
        exchange = await agent.say(session(CHAT, 8))
        assert exchange.status == 200
        assert [r.json["max_tokens"] for r in silent.main] == [90_000, 22_500, 5_625]
        later = await agent.say(session(CHAT, 8))
        assert later.arrived == later.sent
        assert not proxy.events


async def test_a_stream_that_repeats_all_it_was_told_before_it_fails(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Running(silent.base_url, tmp_path) as proxy:
        text = "Mind the gap. " * 3000
        silent.window = 36_000
        agent = Agent(client, proxy.url, silent, api=RESPONSES, stream=True, instructions=text)
        exchange = await agent.say(session(RESPONSES, 60))
        assert exchange.status == 200
        assert b"context_length_exceeded" not in exchange.reply
        assert exchange.reply.count(b"event: response.created") == 1
        assert proxy.events.of_type(COMPACTED)


ABOUT_SOMETHING_ELSE: dict[str, tuple[int, str, Json]] = {
    "rate limit": (429, "Rate limit reached: 6000 tokens per minute", "rate_limit_exceeded"),
    "key": (401, "Incorrect API key provided.", "invalid_api_key"),
    "TPM": (
        413,
        "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 9000",
        "rate_limit_exceeded",
    ),
    "output cap": (
        400,
        "max_tokens is too large: 90000. This model supports at most 16384 completion tokens.",
        "invalid_value",
    ),
    "image": (400, "image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes", None),
    "pairing": (
        400,
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'.",
        None,
    ),
    "server": (500, "failed to load model: context window of 131072 needs 24 GiB", None),
    "overloaded": (503, "The server is overloaded, try again.", None),
}


@pytest.mark.parametrize("kind", ABOUT_SOMETHING_ELSE)
async def test_other_errors_are_relayed_as_they_are(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, kind: str
) -> None:
    status, message, code = ABOUT_SOMETHING_ELSE[kind]
    raw = openai_error(message, code)
    headers = {"retry-after": "3"}
    silent.replies.append(Reply(status=status, raw_body=raw, headers=headers))
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=api)
        exchange = await agent.say(session(api, 8))
        assert (exchange.status, exchange.reply) == (status, raw)
        assert exchange.headers["retry-after"] == "3"
        assert len(silent.main) == 1
        assert not silent.summaries
        assert not proxy.events


@pytest.mark.parametrize(
    ("api", "field"),
    [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (RESPONSES, "max_output_tokens"),
    ],
    ids=str,
)
async def test_an_output_limit_that_leaves_no_room_is_lowered_for_that_try(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, field: str
) -> None:
    window, asked = 16_384, 6000
    silent.window = None

    def strict(request: JsonObject) -> int:
        limit = request[field]
        assert isinstance(limit, int)
        return limit

    served = []

    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, None, api=api, **{field: asked})

        def answer(record: object) -> Reply:
            request = silent.main[-1]
            tokens = silent.prompt_tokens(request)
            served.append(strict(request.json))
            if tokens + served[-1] > window:
                text = (
                    f"This model's maximum context length is {window} tokens. However, you "
                    f"requested {tokens + served[-1]} tokens ({tokens} in the messages, "
                    f"{served[-1]} in the completion)."
                )
                return Reply(status=400, raw_body=openai_error(text))
            return Reply(text="done")

        silent.reply = answer
        exchange = await agent.say(session(api, 20))
        assert exchange.status == 200, exchange.reply
        assert (served[0], len(served)) == (asked, 2)
        assert window // 4 <= served[-1] < asked
        assert not proxy.events.of_type(COMPACTED)
        # Where too little would be left, the conversation gives way, now and from then on.
        for calls in (24, 25, 26):
            exchange = await agent.say(session(api, calls))
            assert exchange.status == 200, exchange.reply
            assert served[-1] == asked
        assert proxy.events.of_type(COMPACTED)
        assert len(served) <= 6


async def test_a_responses_stream_that_fails_before_it_says_anything_is_cured(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """As OpenAI does it: status 200, created, in_progress, error."""
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=RESPONSES, stream=True)
        exchange = await agent.say(growing(RESPONSES)[0])
        assert exchange.status == 200
        assert b"response.completed" in exchange.reply
        assert exchange.reply.count(b"event: response.created") == 1
        assert b"context_length_exceeded" not in exchange.reply
        assert proxy.events.of_type(COMPACTED)


async def test_a_responses_stream_that_fails_later_is_relayed(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    said = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta"}\n\n'
    failed = (
        b'event: error\ndata: {"type":"error","error":{"code":"context_length_exceeded",'
        b'"message":"Your input exceeds the context window of this model."}}\n\n'
    )
    created = b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
    silent.replies.append(Reply(chunks=[created, said, failed]))
    silent.window = None
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=RESPONSES, stream=True)
        exchange = await agent.say(growing(RESPONSES)[0])
        assert exchange.reply == created + said + failed
        assert len(silent.main) == 1
        assert not proxy.events


async def test_a_model_that_was_loaded_anew_with_less(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, 16_384)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        assert (await agent.say(session(api, 16))).status == 200
        up.window = LIMIT
        exchange = await agent.say(session(api, 18))
        assert exchange.status == 200
        assert len(up.rejections) == 1
        started = proxy.events.of_type("compaction_started")[0]
        assert (started["reason"], started["window"]) == ("overflow", LIMIT)
        later = [await agent.say(session(api, calls)) for calls in (20, 24, 28)]
        assert [e.status for e in later] == [200] * 3
        assert len(up.rejections) == 1


async def test_one_tenants_errors_bind_that_tenant(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    async with Running(silent.base_url, tmp_path, **{"tenancy.source": "credential"}) as proxy:
        ann = Agent(client, proxy.url, silent, {"authorization": "Bearer ann"}, api=api)
        bob = Agent(client, proxy.url, silent, {"authorization": "Bearer bob"}, api=api)
        silent.overflow_as = WORDINGS["OpenAI"]
        assert (await ann.say(growing(api)[0])).status == 200
        silent.window = None
        free: Exchange = await bob.say(growing(api)[1])
        assert free.arrived == free.sent
        bound = await ann.say(growing(api)[1])
        assert prompt_tokens(bound.forwarded.json) < LIMIT if bound.forwarded else False


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-foldgate-context-window", "many"),
        ("x-foldgate-context-window", "12"),
        ("x-foldgate-context-window", "99999999"),
        ("x-foldgate-threshold", "2"),
        ("x-foldgate-threshold", "nan"),
    ],
)
async def test_a_hint_that_cannot_be_used_is_refused(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, header: str, value: str
) -> None:
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, {header: value})
        exchange = await agent.say([b.user("hi")])
        assert exchange.status == 400
        assert header in str(exchange.error["message"])
        assert exchange.headers["x-should-retry"] == "false"
        assert not up.main


async def test_a_request_may_name_its_window_and_threshold(
    silent: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    silent.window = None
    async with Running(silent.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, silent, api=api)
        assert (await agent.say(session(api, 14))).arrived
        assert not proxy.events
        hint = {"x-foldgate-context-window": "8192", "x-foldgate-threshold": "0.5"}
        exchange = await agent.post(api.body(session(api, 14)), hint)
        assert exchange.marks == ["compacted"]
        started = proxy.events.of_type("compaction_started")[0]
        assert (started["window"], started["window_source"]) == (8192, "header")
        assert started["trigger"] == 4096
        assert not any(name.startswith("x-foldgate") for name in silent.main[-1].headers)
