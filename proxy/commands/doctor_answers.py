"""The doctor's checks that cost a few tokens: completion, streaming, structure, cache."""

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.commands.doctor_case import BUSY, REFUSED, Answer, Case, Findings, NoAnswer, seconds_text
from proxy.commands.doctor_key import key_finding, misshapen
from proxy.commands.doctor_trouble import broken_off, odd_status
from proxy.dialects.sse import EventReader
from proxy.sessions.store_check import Finding

_OTHER_FORMS = (
    ("max_completion_tokens", 1),
    ("max_tokens", 16),
    ("max_completion_tokens", 16),
)
"""Output limits that servers take instead of `max_tokens` = 1, the cheapest first."""
_LIMIT_WORDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "output token")
_WEATHER = ("sunny", "rainy")
_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"weather": {"type": "string", "enum": [*_WEATHER]}},
    "required": ["weather"],
    "additionalProperties": False,
}
LOOK_SECONDS = 3.0
"""What a look at the slots of llama.cpp may take beyond the time-out."""
_STRUCTURE_TOKENS = 64
_CACHED_LINES = 20
_FALLS_BACK = "none needed; a server with structured output gives better checkpoints"


def user(text: str) -> JsonObject:
    """Return a user message."""
    return {"role": "user", "content": text}


async def complete(
    case: Case, messages: list[Json], more: JsonObject | None = None, tokens: int = 1
) -> Answer:
    """Ask for a completion of a few tokens.

    Raises:
        NoAnswer: when no HTTP reply came.
    """
    body: JsonObject = {
        "model": case.model or "default",
        "messages": messages,
        case.output_field: max(tokens, case.least_tokens),
    }
    return await case.ask({**body, **(more or {})})


async def check_completion(case: Case) -> Findings:
    """See whether the model answers at all."""
    busy = await _all_busy(case) if case.server == "llama.cpp" else None
    try:
        answer = await _first(case)
        spare = case.spare
        if answer.status in REFUSED and case.key is None and spare and not misshapen(spare):
            case.use(spare)
            answer = await _first(case)
    except NoAnswer as error:
        is_late = isinstance(error.cause, TimeoutError)
        yield (is_late and busy) or await broken_off(case, "completion", error.cause)
        return
    if answer.status == 200 and codec.as_objects(answer.members.get("choices")):
        case.completes = True
        took = seconds_text(answer.seconds)
        name = case.model or "the model"
        text = f"{name} answers ({took} for {_at_most(case.least_tokens)})"
        yield Finding("completion", "ok", text, facts={"seconds": round(answer.seconds, 3)})
        return
    yield _not_completed(case, answer)


async def _all_busy(case: Case) -> Finding | None:
    """Return what to say of no answer while others keep all slots; None when they do not."""
    try:
        slots = codec.as_objects((await case.wire.get(f"{case.root}/slots", LOOK_SECONDS)).document)
    except NoAnswer:
        return None
    if not slots or not all(slot.get("is_processing") for slot in slots):
        return None
    number = "its only slot is" if len(slots) == 1 else f"all its {len(slots)} slots are"
    text = f"no answer within {case.timeout:g} s: {number} busy with other requests"
    fix = (
        "wait until they are done, and look again; for more requests at once start llama-server "
        "with a larger --parallel, and a -c that is larger by as much"
    )
    return Finding("completion", "warn", text, fix, {"busy_slots": len(slots)})


def _at_most(tokens: int) -> str:
    """Return a number of tokens at most."""
    return "1 token" if tokens == 1 else f"{tokens} tokens at most"


async def _first(case: Case) -> Answer:
    """Find the form of the output limit that the upstream takes."""
    answer = await complete(case, [user("Say hello.")])
    for name, least in _OTHER_FORMS:
        if answer.status not in {400, 422} or not answer.says(*_LIMIT_WORDS):
            break
        case.output_field, case.least_tokens = name, least
        answer = await complete(case, [user("Say hello.")])
    return answer


def _not_completed(case: Case, answer: Answer) -> Finding:
    if answer.status in REFUSED and not (answer.status == 403 and answer.says("model")):
        return key_finding(case, answer)
    text = f"{case.model or 'a model without a name'} gives no completion ({answer.reason})"
    if answer.status in BUSY:
        why, fix = odd_status(case, answer)
        return Finding("completion", "FAIL", f"{text}: {why}", fix)
    if answer.status in {402, 429}:
        fix = "see quota, balance and rate limits of the account; nothing is wrong with the address"
        return Finding("completion", "FAIL", text, fix)
    if answer.status == 403 or (
        answer.status in {400, 404, 422} and (answer.says("model") or not case.model)
    ):
        listed = "a chat model that the server has, and that the key may use"
        return Finding("completion", "FAIL", text, f"--model NAME of {listed}")
    if answer.status == 200:
        return _odd_success(answer)
    verb = "fails at" if answer.status >= 500 else "refuses"
    return Finding("completion", "FAIL", text, f"see the model server's log: it {verb} plain text")


def _odd_success(answer: Answer) -> Finding:
    """Say what a 200 is that is no completion."""
    if answer.kind == "text/event-stream":
        text = "requests that want no stream are answered with one (stream: false)"
        fix = "turn streaming by force off, in the server or in what is in front of it"
    elif "error" in answer.members:
        text = f"a 200 comes with an error in it instead of a completion ({answer.reason})"
        fix = "see the model server's log"
    else:
        text = "what comes is no chat completion (200 without choices)"
        fix = "see the model server's log, and whether the URL is that of the model server"
    return Finding("completion", "FAIL", text, fix)


async def check_streaming(case: Case) -> Findings:
    """See whether a stream is one, ends as it should, and tells its usage."""
    options: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}
    try:
        answer = await complete(case, [user("Say hello.")], options, 4)
        refused_usage = answer.status in {400, 422} and answer.says("stream_options")
        if refused_usage:
            answer = await complete(case, [user("Say hello.")], {"stream": True}, 4)
    except NoAnswer as error:
        yield await broken_off(case, "streaming", error.cause)
        return
    yield _streamed(case, answer, refused_usage=refused_usage)


def _streamed(case: Case, answer: Answer, *, refused_usage: bool) -> Finding:
    off = "turn streaming on in the server, or off in the client (stream: false)"
    if answer.status in BUSY | {429}:
        return Finding("streaming", "warn", f"not tried ({answer.reason})", "look again later")
    if answer.status != 200:
        text = f"stream: true is refused ({answer.reason})"
        return Finding("streaming", "FAIL", text, off)
    if answer.kind != "text/event-stream":
        what = answer.kind or "nothing"
        text = f"stream: true is answered with {what} instead of a stream"
        return Finding("streaming", "FAIL", text, off)
    reader = EventReader()
    events = reader.feed(answer.body + b"\n\n")
    documents = [_parsed(event) for event in events if event != b"[DONE]"]
    text = f"{len(documents)} events"
    facts: JsonObject = {"events": len(documents), "done": b"[DONE]" in events}
    if any(document.get("error") for document in documents):
        fix = "see the model server's log"
        return Finding("streaming", "FAIL", "the stream holds an error", fix, facts)
    if not any(codec.as_objects(document.get("choices")) for document in documents):
        fix = "see whether something between here and the server holds streams back or changes them"
        return Finding("streaming", "FAIL", "the stream holds no completion", fix, facts)
    if not answer.is_whole:
        fix = "see the model server's log, and time limits of what is in between"
        return Finding("streaming", "FAIL", "the stream breaks off", fix, facts)
    return _ended(text, facts, documents, refused_usage=refused_usage)


def _ended(
    text: str, facts: JsonObject, documents: list[JsonObject], *, refused_usage: bool
) -> Finding:
    usage = any(document.get("usage") or document.get("timings") for document in documents)
    facts = {**facts, "usage": usage}
    if not facts["done"]:
        fix = "none needed for Foldgate; some clients take a stream without [DONE] for a broken one"
        return Finding("streaming", "warn", f"{text}, but no [DONE] at the end", fix, facts)
    if usage:
        return Finding("streaming", "ok", f"{text}, [DONE], usage is told", facts=facts)
    how = "stream_options.include_usage is refused" if refused_usage else "no usage is told"
    fix = "let the server report usage in streams (stream_options.include_usage)"
    text = f"{text}, [DONE], but {how}: estimates of sizes cannot be checked"
    return Finding("streaming", "warn", text, fix, facts)


def _parsed(event: bytes) -> JsonObject:
    try:
        document = codec.loads(event)
    except codec.MalformedJson:
        return {}
    return document if isinstance(document, dict) else {}


async def check_structured(case: Case) -> Findings:
    """See whether JSON of a schema can be had, as summaries ask for it."""
    named: Json = {"name": "weather", "strict": True, "schema": _SCHEMA}
    by_schema: JsonObject = {"response_format": {"type": "json_schema", "json_schema": named}}
    prompt: list[Json] = [user("Write one sentence about the weather, as JSON.")]
    plain: JsonObject = {"response_format": {"type": "json_object"}}
    try:
        answer = await complete(case, prompt, by_schema, _STRUCTURE_TOKENS)
        refused = answer.status in {400, 404, 415, 422, 500, 501}
        also = await complete(case, prompt, plain) if refused else answer
    except NoAnswer as error:
        yield await broken_off(case, "structured", error.cause)
        return
    facts: JsonObject = {"json_schema": answer.status == 200, "json_object": also.status == 200}
    if refused:
        rest = "json_object" if also.status == 200 else "plain text"
        text = f"json_schema is refused ({answer.reason}); Foldgate falls back to {rest}"
        yield Finding("structured", "warn", text, _FALLS_BACK, facts)
    elif answer.status != 200:
        text = f"not tried ({answer.reason})"
        yield Finding("structured", "warn", text, "look again later", facts)
    else:
        yield _structured(answer, facts)


def _structured(answer: Answer, facts: JsonObject) -> Finding:
    choice = next(iter(codec.as_objects(answer.members.get("choices"))), {})
    message = choice.get("message")
    content = codec.as_text(message.get("content")) if isinstance(message, dict) else ""
    made = _parsed(content.strip().encode("utf-8", "replace"))
    if made.keys() == {"weather"} and made["weather"] in _WEATHER:
        return Finding("structured", "ok", "json_schema is honoured", facts=facts)
    if choice.get("finish_reason") == "length" and content.lstrip()[:1] in {"", "{"}:
        text = f"json_schema is taken; whether it holds does not show in {_STRUCTURE_TOKENS} tokens"
        return Finding("structured", "ok", text, facts=facts)
    text = "json_schema is taken but ignored: the answer is not of the schema"
    fix = "none needed: Foldgate reads plain text too; structured output makes better checkpoints"
    return Finding("structured", "warn", text, fix, {**facts, "json_schema": False})


async def check_cache(case: Case) -> Findings:
    """Send the same prompt twice, and see whether the second one is known already."""
    lines = (f"Line {number}: the quick brown fox jumps." for number in range(_CACHED_LINES))
    prompt: list[Json] = [user("\n".join(lines))]
    try:
        first = await complete(case, prompt)
        second = await complete(case, prompt)
    except NoAnswer as error:
        yield await broken_off(case, "cache", error.cause)
        return
    if first.status != 200 or second.status != 200:
        bad = first if first.status != 200 else second
        yield _no_cache(bad)
        return
    cached, whole = _cached(second.members)
    facts: JsonObject = {"cached_tokens": cached, "prompt_tokens": whole}
    if cached is None:
        text = "not reported: whether the upstream keeps a prompt cache does not show"
        yield Finding("cache", "ok", text, facts=facts)
    elif cached:
        of = f" of {whole:,}" if whole else ""
        text = f"{cached:,}{of} tokens of a repeated prompt came from the cache"
        yield Finding("cache", "ok", text, facts=facts)
    elif case.server == "llama.cpp":
        text = "nothing of a repeated prompt came from the cache: every turn is read anew"
        fix = "start llama-server without --no-cache-prompt"
        yield Finding("cache", "warn", text, fix, facts)
    else:
        text = f"nothing of {whole or 'some hundred'} tokens; many services begin at 1,024"
        yield Finding("cache", "ok", text, facts=facts)


def _no_cache(answer: Answer) -> Finding:
    if answer.status in BUSY | {429}:
        return Finding("cache", "warn", f"not tried ({answer.reason})", "look again later")
    text = f"a prompt of some hundred tokens is refused ({answer.reason})"
    return Finding("cache", "warn", text, "see the window: it may be smaller than that")


def _cached(document: JsonObject) -> tuple[int | None, int | None]:
    usage, timings = document.get("usage"), document.get("timings")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    timings = timings if isinstance(timings, dict) else {}
    cached = details.get("cached_tokens", timings.get("cache_n"))
    whole = usage.get("prompt_tokens")
    return (
        cached if isinstance(cached, int) else None,
        whole if isinstance(whole, int) else None,
    )
