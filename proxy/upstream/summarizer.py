"""The summariser call: streamed, bounded, negotiated, cancelled with its caller.

Only the content channel is read. Which API, which structured-output form and which output-limit
field an upstream takes is found out once and remembered per upstream and model; an error about
one parameter drops that parameter only. The session's own API is tried first.
"""

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass, field, replace

import aiohttp

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects.sse import EventReader
from proxy.errors import SummaryFailed, UpstreamConnectError, UpstreamError, UpstreamTimeout
from proxy.upstream.client import UpstreamClient
from proxy.upstream.headers import summary_headers
from proxy.upstream.routes import CHAT_TARGET, RESPONSES_TARGET, Route

_MAX_TRIES = 6
_STRUCTURE_WORDS = (
    "response_format",
    "text.format",
    "'text'",
    "json_schema",
    "json_object",
    "grammar",
    "structured",
)
_UNKNOWN_WORDS = (
    "unsupported",
    "not support",
    "unrecognized",
    "unknown",
    "unexpected",
    "not permitted",
    "not allowed",
)
"""How servers say that they do not take a parameter."""

_LIMIT_WORDS = ("too large", "at most", "maximum", "range", "less than", "up to", "exceed", ">")

_OTHER_FIELD = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_NEGOTIABLE = frozenset({400, 404, 415, 422, 500, 501})
_NO_ENDPOINT = frozenset({404, 405, 501})
_RESPONSES_LIMIT = "max_output_tokens"
_MIN_CAP = 64
_CAP_SHARE = 32
"""A number far below what was asked for is a count of something else."""

_MAX_FORMS = 1024
_MAX_ERROR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SummaryTimes:
    """Bounds of one call, seconds."""

    first_byte: float = 45.0
    idle: float = 45.0


@dataclass(frozen=True, slots=True)
class SummaryJob:
    """One summary to be written."""

    route: Route
    prompt: str = field(repr=False)
    schema: JsonObject = field(repr=False)
    max_tokens: int
    deadline: float
    """Loop time at which what has come so far must do."""


@dataclass(frozen=True, slots=True)
class SummaryText:
    """What the summariser wrote."""

    text: str = field(repr=False)
    cut: bool
    """Ended by its output limit, the deadline or a broken connection."""


@dataclass(frozen=True, slots=True)
class _Form:
    structure: str = "json_schema"
    output_field: str = ""
    stream: bool = True
    responses: bool = False
    """Asked through the Responses API instead of Chat Completions."""
    switched: bool = False
    """Whether the other API turned out not to be there."""
    unstored: bool = True
    """Whether the Responses API is told not to store what it answers."""
    repeated: bool = False
    """Whether the Responses API is told the structure as Chat Completions is, too: llama.cpp passes
    over ``text.format`` and goes by ``response_format``."""
    repeatable: bool = True
    cap: int | None = None
    """Largest output limit that the upstream takes, when an error told one."""


class UpstreamSummarizer:
    """Asks the session's own upstream (or the one it is routed to) for a summary."""

    def __init__(self, client: UpstreamClient, times: SummaryTimes) -> None:
        """Take the client and the bounds."""
        self._client = client
        self._times = times
        self._forms: OrderedDict[tuple[str, str, bool], _Form] = OrderedDict()

    async def summarise(self, job: SummaryJob) -> SummaryText:
        """Return the summary's text.

        Raises:
            SummaryFailed: with a reason word: unreachable, timeout, http_<status>, tool_call,
                broken_stream, error_in_stream, malformed_reply.
        """
        speaks = job.route.speaks_responses
        key = (job.route.base.url, job.route.model, speaks)
        form = self._forms.get(key, _Form(output_field=job.route.output_field, responses=speaks))
        for _ in range(_MAX_TRIES):
            try:
                outcome = await self._call(job, form)
            except UpstreamConnectError as error:
                raise SummaryFailed("unreachable", str(error)) from None
            except (UpstreamTimeout, TimeoutError):
                raise SummaryFailed("timeout", "the summariser gave no answer in time") from None
            except UpstreamError as error:
                raise SummaryFailed("broken_stream", str(error)) from None
            if isinstance(outcome, SummaryText):
                passed_over = form.responses and form.repeatable and _is_prose(outcome)
                self._remember(key, replace(form, repeated=form.repeated or passed_over))
                return outcome
            form = outcome
        raise SummaryFailed("http_400", "the upstream refused every form of the summariser call")

    def _remember(self, key: tuple[str, str, bool], form: _Form) -> None:
        # Only what led to an answer is worth asking again.
        # Should the API that answered go away, the other one is tried again.
        self._forms[key] = replace(form, switched=False)
        self._forms.move_to_end(key)
        if len(self._forms) > _MAX_FORMS:
            self._forms.popitem(last=False)

    async def _call(self, job: SummaryJob, form: _Form) -> SummaryText | _Form:
        url = job.route.base.resolve(_target(job.route, form))
        headers = summary_headers(job.route.headers)
        body = codec.dumps(_body(job, form))
        loop = asyncio.get_running_loop()
        first = min(job.deadline, loop.time() + self._times.first_byte)
        collected = _Collected(_limit(job, form))
        try:
            async with asyncio.timeout_at(first) as timer:
                async with self._client.send("POST", url, headers, body) as reply:
                    if reply.status != 200:
                        return await _refused(reply, form, job.max_tokens)
                    if reply.content_type != "text/event-stream":
                        return _whole(await reply.read(), collected)
                    async for chunk in reply.content.iter_any():
                        timer.reschedule(min(job.deadline, loop.time() + self._times.idle))
                        if collected.take(chunk):
                            break
        except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
            if not collected.text:
                reason = "timeout" if isinstance(error, TimeoutError) else "broken_stream"
                raise SummaryFailed(reason, "the summariser's stream ended early") from None
            return SummaryText(collected.text, cut=True)
        return collected.result()


def _target(route: Route, form: _Form) -> str:
    if form.responses == route.speaks_responses:
        return route.target
    return RESPONSES_TARGET if form.responses else CHAT_TARGET


def _limit(job: SummaryJob, form: _Form) -> int:
    return min(job.max_tokens, form.cap or job.max_tokens)


def _body(job: SummaryJob, form: _Form) -> JsonObject:
    if form.responses:
        return _responses_body(job, form)
    body: JsonObject = {
        "model": job.route.model,
        "messages": [{"role": "user", "content": job.prompt}],
        form.output_field: _limit(job, form),
        "stream": form.stream,
    }
    if form.structure:
        body["response_format"] = _response_format(job, form)
    return body


def _responses_body(job: SummaryJob, form: _Form) -> JsonObject:
    body: JsonObject = {
        "model": job.route.model,
        "input": [{"role": "user", "content": job.prompt}],
        form.output_field: _limit(job, form),
        "stream": form.stream,
    }
    if form.unstored:
        body["store"] = False
    if form.structure == "json_schema":
        named: Json = {"type": "json_schema", "name": "checkpoint", "schema": job.schema}
        body["text"] = {"format": named}
    elif form.structure == "json_object":
        body["text"] = {"format": {"type": "json_object"}}
    if form.repeated and form.structure:
        body["response_format"] = _response_format(job, form)
    return body


def _response_format(job: SummaryJob, form: _Form) -> JsonObject:
    if form.structure == "json_object":
        return {"type": "json_object"}
    named: Json = {"name": "checkpoint", "schema": job.schema}
    return {"type": "json_schema", "json_schema": named}


def _is_prose(summary: SummaryText) -> bool:
    return bool(summary.text.strip()) and "{" not in summary.text


async def _refused(reply: aiohttp.ClientResponse, form: _Form, max_tokens: int) -> _Form:
    text = (await reply.content.read(_MAX_ERROR_BYTES)).decode("utf-8", "replace").lower()
    asked = min(max_tokens, form.cap or max_tokens)
    if reply.status in _NO_ENDPOINT and not form.switched:
        limit = "max_tokens" if form.responses else _RESPONSES_LIMIT
        return replace(form, responses=not form.responses, output_field=limit, switched=True)
    other = _other_form(text, form, asked, reply.status) if reply.status in _NEGOTIABLE else None
    if other is None:
        raise SummaryFailed(
            f"http_{reply.status}", f"the summariser call was answered with HTTP {reply.status}"
        )
    return other


def _other_form(text: str, form: _Form, asked: int, status: int) -> _Form | None:
    if form.repeated and "response_format" in text:
        return replace(form, repeated=False, repeatable=False)
    if form.structure and any(word in text for word in _STRUCTURE_WORDS):
        return replace(form, structure="json_object" if form.structure == "json_schema" else "")
    unknown = any(word in text for word in _UNKNOWN_WORDS)
    if form.responses and form.unstored and unknown and re.search(r"\bstore\b", text):
        return replace(form, unstored=False)
    named = re.search(rf"\b{form.output_field}\b", text)
    other = _OTHER_FIELD.get(form.output_field)
    if named and other and unknown:
        return replace(form, output_field=other)
    if named and any(word in text for word in _LIMIT_WORDS):
        # The message tells the limit and may tell what was asked; the error object its status.
        numbers = map(int, re.findall(r"\b\d{2,7}\b", text[named.end() :]))
        least = max(_MIN_CAP, asked // _CAP_SHARE)
        cap = max((n for n in numbers if least <= n < asked and n != status), default=None)
        if cap is not None:
            return replace(form, cap=cap)
    if form.stream and "stream" in text and "support" in text:
        return replace(form, stream=False)
    return None


def _whole(body: bytes, collected: "_Collected") -> SummaryText:
    try:
        document = codec.loads(body)
    except codec.MalformedJson:
        raise SummaryFailed("malformed_reply", "the summariser's reply is not JSON") from None
    if isinstance(document, dict) and document.get("object") == "response":
        if _is_error(document):
            raise SummaryFailed("error_in_stream", "the summariser's response holds an error")
        collected.response(document, with_text=True)
    elif isinstance(document, dict) and codec.as_objects(document.get("choices")):
        collected.choice(document, "message")
    else:
        raise SummaryFailed("malformed_reply", "the summariser's reply is no completion")
    return collected.result()


class _Collected:
    """The content channel of a reply, as far as it came."""

    def __init__(self, limit: int) -> None:
        """Take the output limit that was asked for, tokens."""
        self._limit = limit
        self._reader = EventReader()
        self._parts: list[str] = []
        self._finish = ""
        self._tool_call = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def take(self, chunk: bytes) -> bool:
        """Take stream bytes; True once the stream has said that it is done."""
        for data in self._reader.feed(chunk):
            if data == b"[DONE]":
                return True
            try:
                event = codec.loads(data)
            except codec.MalformedJson:
                raise SummaryFailed("malformed_reply", "the stream is not JSON") from None
            if isinstance(event, dict) and _is_error(event):
                if self._parts:
                    self._finish = "length"
                    return True
                raise SummaryFailed("error_in_stream", "the summariser's stream held an error")
            if isinstance(event, dict) and _type_of(event).startswith("response."):
                if self._responses_event(event):
                    return True
            else:
                self.choice(event, "delta")
        return False

    def _responses_event(self, event: JsonObject) -> bool:
        """Take an event of the Responses API; True when it is the last one."""
        type_ = _type_of(event)
        if type_ == "response.output_text.delta":
            self._parts.append(codec.as_text(event.get("delta")))
        elif type_ in {"response.completed", "response.incomplete"}:
            self.response(event.get("response"), with_text=not self._parts)
            return True
        return False

    def response(self, response: Json, *, with_text: bool) -> None:
        """Take a whole response of the Responses API."""
        members = response if isinstance(response, dict) else {}
        for item in codec.as_objects(members.get("output")):
            self._tool_call = self._tool_call or _type_of(item).endswith("_call")
            if with_text and _type_of(item) == "message":
                self._parts.append(_content(item.get("content")))
        usage = members.get("usage")
        written = usage.get("output_tokens") if isinstance(usage, dict) else None
        # llama.cpp says "completed" even of what its output limit cut off.
        cut = isinstance(written, int) and written >= self._limit
        self._finish = "stop" if members.get("status") == "completed" and not cut else "length"

    def choice(self, document: Json, member: str) -> None:
        choices = document.get("choices") if isinstance(document, dict) else None
        for choice in codec.as_objects(choices)[:1]:
            message = choice.get(member)
            if isinstance(message, dict):
                self._parts.append(_content(message.get("content")))
                self._tool_call = self._tool_call or bool(message.get("tool_calls"))
            self._finish = codec.as_text(choice.get("finish_reason")) or self._finish

    def result(self) -> SummaryText:
        if self._tool_call and not self.text.strip():
            raise SummaryFailed("tool_call", "the summariser answered with a tool call")
        if not self._finish and not self.text:
            raise SummaryFailed("broken_stream", "the summariser's reply holds nothing")
        # A stream that ends without a finish reason was cut (llama.cpp and OpenAI always send one).
        return SummaryText(self.text, cut=self._finish not in {"stop", "tool_calls", "eos"})


def _type_of(event: JsonObject) -> str:
    return codec.as_text(event.get("type"))


def _is_error(event: JsonObject) -> bool:
    return bool(event.get("error")) or _type_of(event) in {"error", "response.failed"}


def _content(content: Json) -> str:
    if isinstance(content, list):
        return "".join(codec.as_text(part.get("text")) for part in codec.as_objects(content))
    return codec.as_text(content)
