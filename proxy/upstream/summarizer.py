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
from proxy.errors import SummaryFailed, UpstreamConnectError, UpstreamError, UpstreamTimeout
from proxy.upstream.client import UpstreamClient
from proxy.upstream.headers import summary_headers
from proxy.upstream.overflow import classify
from proxy.upstream.routes import CHAT_TARGET, RESPONSES_TARGET, Route
from proxy.upstream.summary_reply import Collected, SummaryText, overflowed, whole

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
                broken_stream, error_in_stream, malformed_reply. When the prompt was too long it
                says so besides, with what the upstream told.
        """
        speaks = job.route.speaks_responses
        key = (job.route.base.url, job.route.model, speaks)
        form = self._forms.get(key, _Form(output_field=job.route.output_field, responses=speaks))
        for calls in range(1, _MAX_TRIES + 1):
            try:
                outcome = await self._try(job, form)
            except SummaryFailed as error:
                error.calls = calls
                raise
            if isinstance(outcome, SummaryText):
                passed_over = form.responses and form.repeatable and _is_prose(outcome)
                self._remember(key, replace(form, repeated=form.repeated or passed_over))
                return replace(outcome, calls=calls)
            form = outcome
        raise SummaryFailed("http_400", "the upstream refused every form of the summariser call")

    async def _try(self, job: SummaryJob, form: _Form) -> SummaryText | _Form:
        """Ask in one form; return the answer, or the form to ask in next."""
        try:
            return await self._call(job, form)
        except UpstreamConnectError as error:
            raise SummaryFailed("unreachable", str(error)) from None
        except (UpstreamTimeout, TimeoutError):
            raise SummaryFailed("timeout", "the summariser gave no answer in time") from None
        except UpstreamError as error:
            raise SummaryFailed("broken_stream", str(error)) from None

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
        collected = Collected(_limit(job, form))
        try:
            async with asyncio.timeout_at(first) as timer:
                async with self._client.send("POST", url, headers, body) as reply:
                    if reply.status != 200:
                        return await _refused(reply, form, job.max_tokens)
                    if reply.content_type != "text/event-stream":
                        return whole(await reply.read(), collected)
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
    body = await reply.content.read(_MAX_ERROR_BYTES)
    text = body.decode("utf-8", "replace").lower()
    asked = min(max_tokens, form.cap or max_tokens)
    overflow = classify(reply.status, body)
    if overflow is not None and overflow.kind == "input":
        raise overflowed(f"http_{reply.status}", overflow)
    if reply.status in _NO_ENDPOINT and not form.switched:
        limit = "max_tokens" if form.responses else _RESPONSES_LIMIT
        return replace(form, responses=not form.responses, output_field=limit, switched=True)
    other = _other_form(text, form, asked, reply.status) if reply.status in _NEGOTIABLE else None
    if other is None and overflow is not None:
        # Not even a lower output limit can be told apart from what was said.
        raise overflowed(f"http_{reply.status}", overflow)
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
