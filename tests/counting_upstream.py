"""A scripted upstream that counts with any tokenizer, and tells or hides what it counted."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps, loads
from tests import upstream_responses as responses
from tests.upstream import Recorded, ScriptedUpstream
from tests.upstream_replies import ChatAnswer, Reply, output_tokens
from tests.upstream_rules import Rejection, call_texts, llama, measured, message_texts

MESSAGE_TOKENS = 4
IMAGE_TOKENS = 300
"""Of an image in Chat Completions, whatever its size."""


@dataclass(kw_only=True, eq=False)
class CountingUpstream(ScriptedUpstream):
    """Refuses what its tokenizer counts to more than `limit` tokens."""

    tokenizer: Callable[[str], int]
    limit: int
    tells: Callable[[int], int | None] = field(default=lambda counted: counted)
    """What it reports of a size; None reports nothing."""
    drops: bool = False
    """As Ollama: instead of refusing, the oldest messages are left out without a word."""
    counter: str = ""
    """``input_tokens``, ``tokenize``, ``hangs``, or empty for none."""
    counted: list[Recorded] = field(default_factory=list)
    """Requests to a counter."""

    def count(self, body: JsonObject) -> int:
        """The size of a whole prompt."""
        return sum(self.sizes(body))

    def sizes(self, body: JsonObject) -> list[int]:
        """The size of what is fixed, and of each message."""
        fixed = as_text(body.get("instructions"))
        fixed += dumps(body["tools"]).decode() if body.get("tools") else ""
        messages = as_objects(body.get("messages"))
        if "input" in body:
            messages = responses.as_messages(responses.input_items(body))
        return [self.tokenizer(fixed), *(self._size(message) for message in messages)]

    def _size(self, message: JsonObject) -> int:
        texts = message_texts(message)
        for call in as_objects(message.get("tool_calls")):
            name, arguments = call_texts(call)
            texts += [name, arguments or ""]
        parts = as_objects(message.get("content"))
        images = sum(part.get("type") == "image_url" for part in parts)
        return MESSAGE_TOKENS + images * IMAGE_TOKENS + sum(map(self.tokenizer, texts))

    def read(self, body: JsonObject) -> int:
        """What is read of a prompt."""
        sizes = self.sizes(body)
        if self.drops:
            while sum(sizes) > self.limit and len(sizes) > 2:
                del sizes[1]
        return sum(sizes)

    def prompt_tokens(self, record: Recorded) -> int:
        return self.count(record.json)

    def refusals(self, record: Recorded) -> list[Rejection]:
        found = super().refusals(record)
        if found or self.drops or (count := self.count(record.json)) <= self.limit:
            return found
        text = f"request ({count} tokens) exceeds the available context size ({self.limit} tokens)"
        refusal = llama("window", text, status=400, kind="exceed_context_size_error")
        refusal.error.update(n_prompt_tokens=count, n_ctx=self.limit)
        return [refusal]

    def _models(self) -> bytes:
        card: JsonObject = {"id": self.model, "object": "model", "created": 1795000000}
        if self.advertise_window:
            card["meta"] = {"n_ctx": self.limit, "n_ctx_train": 131072}
        return dumps({"object": "list", "data": [card]})

    def _spelled(self, record: Recorded, reply: Reply) -> "ChatAnswer | responses.ResponsesAnswer":
        tokens = self.tells(self.read(record.json))
        plain = super()._spelled(record, reply)
        if isinstance(plain, ChatAnswer):
            return _Chat(plain.number, plain.model, plain.timings, plain.body, reply, tokens)
        return _Response(plain.number, plain.model, plain.body, reply, plain.stored, tokens)

    async def _dispatch(self, request: web.Request, record: Recorded) -> web.StreamResponse:
        counters = ("/input_tokens", "/apply-template", "/tokenize")
        if not record.path.endswith(counters):
            return await super()._dispatch(request, record)
        self.counted.append(record)
        if self.counter == "hangs":
            await asyncio.Event().wait()
        answer: JsonObject | None = None
        if self.counter == "input_tokens" and record.path.endswith("/input_tokens"):
            answer = {"object": "response.input_tokens", "input_tokens": self.count(record.json)}
        if self.counter == "tokenize" and record.path == "/apply-template":
            answer = {"prompt": dumps(record.json).decode()}
        if self.counter == "tokenize" and record.path == "/tokenize":
            rendered = loads(as_text(record.json["content"]))
            assert isinstance(rendered, dict)
            tokens: list[Json] = [*range(self.count(rendered))]
            answer = {"tokens": tokens}
        status = 404 if answer is None else 200
        record.outcome.status = status
        text = dumps(answer or {"error": {"code": 404}})
        return web.Response(body=text, status=status, content_type="application/json")


@dataclass(frozen=True, slots=True)
class _Chat(ChatAnswer):
    tokens: int | None

    def _usage(self) -> tuple[JsonObject, JsonObject]:
        if self.tokens is None:
            return {}, {}
        usage, timings = measured(self.tokens, output_tokens(self.reply))
        return usage, {"timings": timings} if self.timings else {}


@dataclass(frozen=True, slots=True)
class _Response(responses.ResponsesAnswer):
    tokens: int | None

    def whole(self) -> JsonObject:
        response = responses.ResponsesAnswer.whole(self)
        made = output_tokens(self.reply)
        response["usage"] = None
        if self.tokens is not None:
            response["usage"] = {"input_tokens": self.tokens, "output_tokens": made}
        return response
