"""Builders of chat messages, images and whole sessions; everything is deterministic."""

import base64
import random
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from proxy.codec import Json, JsonObject, dumps

SYSTEM = "You are a careful coding agent. Use the tools, then answer briefly."
TASK = "Find out why the nightly import fails and repair it without changing the public interface."


def _message(role: str, content: Json) -> JsonObject:
    return {"role": role, "content": content}


def system(text: str) -> JsonObject:
    return _message("system", text)


def developer(text: str) -> JsonObject:
    return _message("developer", text)


def user(content: str | Iterable[JsonObject]) -> JsonObject:
    return _message("user", content if isinstance(content, str) else [*content])


def assistant(
    text: str | None = None, calls: Iterable[JsonObject] = (), **extra: Json
) -> JsonObject:
    """`extra` are vendor fields such as `reasoning_content`."""
    message = _message("assistant", text)
    opened: list[Json] = [*calls]
    if opened:
        message["tool_calls"] = opened
    return {**message, **extra}


def call(id: str, name: str, arguments: str | Mapping[str, Json]) -> JsonObject:
    text = arguments if isinstance(arguments, str) else dumps(dict(arguments)).decode()
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def result(id: str, text: str | Iterable[JsonObject]) -> JsonObject:
    content: Json = text if isinstance(text, str) else [*text]
    return {"role": "tool", "tool_call_id": id, "content": content}


def text_part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def image_part(url: str, detail: str | None = None) -> JsonObject:
    image: JsonObject = {"url": url}
    if detail is not None:
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, filler_bytes: int = 0) -> bytes:
    """A well-formed PNG container of 57 + `filler_bytes` bytes; its pixels are noise."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    filler = random.Random(width * 65537 + height).randbytes(filler_bytes)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _png_chunk(b"IHDR", header),
            _png_chunk(b"IDAT", filler),
            _png_chunk(b"IEND", b""),
        ]
    )


def data_url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def chat_body(
    messages: Iterable[JsonObject],
    *,
    model: str = "test-model",
    tools: Iterable[JsonObject] | None = None,
    **fields: Json,
) -> bytes:
    body: JsonObject = {"model": model, "messages": [*messages]}
    if tools is not None:
        body["tools"] = [*tools]
    return dumps({**body, **fields})


def marker(seed: int, number: int) -> str:
    """The word that occurs in the result of call `number` of a session, and nowhere else."""
    return f"mark{seed}n{number:05d}z"


def call_id(seed: int, number: int) -> str:
    """The id of call `number` of a session."""
    return f"call_{seed}_{number:05d}"


_SUBJECTS = [
    "parser",
    "importer",
    "scheduler",
    "cache",
    "session",
    "ledger",
    "gateway",
    "encoder",
    "registry",
    "worker",
]
_VERBS = [
    "reads",
    "rejects",
    "rewrites",
    "retries",
    "counts",
    "merges",
    "skips",
    "validates",
    "caches",
    "reorders",
]
_OBJECTS = [
    "the first record",
    "an empty batch",
    "stale entries",
    "nested groups",
    "every unpaired row",
    "the lock file",
    "two timestamps",
    "a truncated header",
    "late events",
    "unknown columns",
]
_LEVELS = ("INFO", "DEBUG", "WARNING", "ERROR")
_TOOLS = ("read_file", "run_command", "search_text", "list_directory")


def _line(rng: random.Random) -> str:
    subject, verb, thing = rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_OBJECTS)
    match rng.randrange(4):
        case 0:
            return (
                f"{rng.choice(_LEVELS)} {subject}.{verb}: {thing} (took {rng.randrange(9000)} ms)"
            )
        case 1:
            return f"src/{subject}/{verb}.py:{rng.randrange(1, 900)}: {subject} {verb} {thing}"
        case 2:
            return f"    {subject}_{verb} = load('{thing}', limit={rng.randrange(1000)})"
        case _:
            return f"The {subject} {verb} {thing}, then the {rng.choice(_SUBJECTS)} takes over."


def prose(chars: int, seed: int = 0, mark: str = "") -> str:
    """Varied text of exactly `chars` characters that begins with `mark`."""
    # Rounded up, so that texts of one seed are the beginnings of one that was written once.
    written = _written(1 << max(chars, 1).bit_length(), seed, mark)
    return written[:chars].removesuffix("\n").ljust(chars, ".")


@lru_cache(maxsize=1024)
def _written(chars: int, seed: int, mark: str) -> str:
    rng = random.Random(f"{seed}/{mark}")
    lines = [mark] if mark else []
    size = len(mark)
    while size < chars:
        lines.append(_line(rng))
        size += len(lines[-1]) + 1
    return "\n".join(lines)


def _tool_call(seed: int, number: int) -> JsonObject:
    rng = random.Random(f"call/{seed}/{number}")
    path = f"src/{rng.choice(_SUBJECTS)}/{rng.choice(_VERBS)}_{number}.py"
    name = _TOOLS[number % len(_TOOLS)]
    arguments: dict[str, JsonObject] = {
        "read_file": {"path": path, "limit": rng.randrange(50, 500)},
        "run_command": {"command": f"pytest -q {path}", "timeout": rng.randrange(10, 90)},
        "search_text": {"pattern": f"{rng.choice(_VERBS)}_{number}", "paths": ["src", "tests"]},
        "list_directory": {"path": path.rpartition("/")[0], "depth": rng.randrange(1, 4)},
    }
    return call(call_id(seed, number), name, arguments[name])


def _steps(seed: int, first: int, count: int, result_chars: int) -> list[JsonObject]:
    messages: list[JsonObject] = []
    for number in range(first, first + count):
        thought = (
            None if number % 3 else f"Step {number}: {_line(random.Random(f'{seed}:{number}'))}"
        )
        messages.append(assistant(thought, [_tool_call(seed, number)]))
        messages.append(_result(seed, number, result_chars))
    return messages


def _result(seed: int, number: int, result_chars: int) -> JsonObject:
    return result(call_id(seed, number), prose(result_chars, seed, marker(seed, number)))


def tool_session(
    steps: int,
    *,
    task: str = TASK,
    result_chars: int = 2000,
    system: str | None = SYSTEM,
    seed: int = 0,
) -> list[JsonObject]:
    """One task, then `steps` pairs of an assistant's call and its result; ends with a result.

    The result of step n (from 0) begins with `marker(seed, n)`; its call has `call_id(seed, n)`.
    """
    head = [] if system is None else [_message("system", system)]
    return [*head, user(task), *_steps(seed, 0, steps, result_chars)]


def turn_session(
    turns: int,
    calls_per_turn: int = 2,
    *,
    result_chars: int = 2000,
    system: str | None = SYSTEM,
    seed: int = 0,
    parallel: bool = False,
) -> list[JsonObject]:
    """Whole turns: a user message, calls with their results, a final answer; ends with an answer.

    Calls are numbered through as in `tool_session`. `parallel` puts the calls of a turn into one
    assistant message. Turn t has `turn-<seed>-<t>-question` and `turn-<seed>-<t>-answer`.
    """
    messages = [] if system is None else [_message("system", system)]
    for turn in range(turns):
        rng = random.Random(f"turn/{seed}/{turn}")
        tag, first = f"turn-{seed}-{turn}", turn * calls_per_turn
        numbers = range(first, first + calls_per_turn)
        messages.append(user(f"{tag}-question: why is it that {_line(rng)}?"))
        if parallel and calls_per_turn:
            messages.append(assistant(None, [_tool_call(seed, n) for n in numbers]))
            messages += [_result(seed, n, result_chars) for n in numbers]
        else:
            messages += _steps(seed, first, calls_per_turn, result_chars)
        messages.append(assistant(f"{tag}-answer: {_line(rng)}"))
    return messages


def catalogue(n_tools: int, description_chars: int = 200) -> list[JsonObject]:
    """Tool definitions; the first ones are the tools that the sessions call."""
    return [_definition(number, description_chars) for number in range(n_tools)]


def _definition(number: int, description_chars: int) -> JsonObject:
    name = _TOOLS[number] if number < len(_TOOLS) else f"tool_{number}"
    parameters: JsonObject = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
    }
    function: JsonObject = {
        "name": name,
        "description": prose(description_chars, number),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def texts(messages: Sequence[JsonObject]) -> str:
    """All of a conversation as one string, to look for markers in."""
    return dumps([*messages]).decode()
