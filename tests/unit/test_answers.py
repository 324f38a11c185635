"""Reading replies of the Responses API."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, JsonObject, as_objects
from proxy.dialects.answers import Answer, AnswerReader, answer_of
from tests import items as b

REASONING = b.reasoning("1", "thinking")
CALL = b.call("call_1", arguments='{"path":"a.py"}')
SAID = b.answer("Zwölf Dateien 🎈\nline")
OUTPUT = [REASONING, SAID, CALL]
LIMIT = 1 << 20


def response(output: list[JsonObject], /, **fields: Json) -> JsonObject:
    head: JsonObject = {"id": "resp_1", "object": "response", "status": "completed"}
    return {**head, "store": True, "previous_response_id": "resp_0", "output": [*output], **fields}


def events(output: list[JsonObject], /, **fields: Json) -> list[JsonObject]:
    """As OpenAI streams them; `fields` replace members of the last event's response."""
    begun = {**response([]), "status": "in_progress"}
    found: list[JsonObject] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(output):
        early: JsonObject = {**item, "status": "in_progress", "content": []}
        found += [
            {"type": "response.output_item.added", "output_index": index, "item": early},
            {"type": "response.output_text.delta", "output_index": index, "delta": "response.x"},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]
    return [*found, {"type": "response.completed", "response": response(output, **fields)}]


def spelled(found: list[JsonObject], end: str = "\n") -> bytes:
    lines = [f"event: {e['type']}{end}data: {codec.dumps(e).decode()}{end}{end}" for e in found]
    return "".join(lines).encode()


def read(data: bytes, size: int, limit: int = LIMIT) -> list[Answer]:
    reader = AnswerReader(limit)
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    found = [*map(reader.feed, chunks), reader.end()]
    return [answer for answer in found if answer is not None]


def items_of(answer: Answer) -> list[Json]:
    return [codec.loads(raw) for raw in answer.items]


@given(st.integers(1, 400), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_stream_gives_its_items_whatever_its_chunks(size: int, end: str) -> None:
    (answer,) = read(spelled(events(OUTPUT), end), size)
    assert (answer.id, answer.previous) == ("resp_1", "resp_0")
    assert items_of(answer) == OUTPUT


def test_the_answer_is_there_with_the_event_that_ends_it() -> None:
    reader, found = AnswerReader(LIMIT), events(OUTPUT)
    assert [reader.feed(spelled([event])) is not None for event in found] == [
        *[False] * (len(found) - 1),
        True,
    ]


def test_items_keep_the_bytes_they_came_with() -> None:
    raw = b'{"type": "message",  "id":"msg_1", "n": 1.0, "text":"h\\u00e9"}'
    event = b'data: {"type":"response.output_item.done", "output_index":0, "item": %b}\n\n' % raw
    end = spelled([{"type": "response.completed", "response": response([])}])
    (answer,) = read(event + end, 7)
    assert answer.items == (raw,)


def test_items_come_in_the_order_of_their_index() -> None:
    found = events(OUTPUT)
    done = [e for e in found if e["type"] == "response.output_item.done"]
    (answer,) = read(spelled([found[0], *reversed(done), found[-1]]), 50)
    assert items_of(answer) == OUTPUT


def test_items_without_an_index_come_in_the_order_of_the_stream() -> None:
    """As llama.cpp sends them."""
    found = [{k: v for k, v in e.items() if k != "output_index"} for e in events(OUTPUT)]
    (answer,) = read(spelled(found), 50)
    assert items_of(answer) == OUTPUT


def test_the_last_event_tells_what_no_event_of_its_own_told() -> None:
    found = [e for e in events(OUTPUT) if e["type"] != "response.output_item.done"]
    (answer,) = read(spelled(found), 50)
    assert items_of(answer) == OUTPUT


@pytest.mark.parametrize("output", [[], None])
def test_items_count_when_the_last_event_has_none(output: Json) -> None:
    (answer,) = read(spelled(events(OUTPUT, output=output)), 50)
    assert items_of(answer) == OUTPUT


def test_a_stream_may_end_with_the_line_of_its_last_event() -> None:
    (answer,) = read(spelled(events(OUTPUT)).rstrip(b"\n") + b"\n", 50)
    assert items_of(answer) == OUTPUT


def test_the_request_decides_what_is_stored_not_what_a_server_makes_of_it() -> None:
    """One that keeps nothing says so, and needs the record all the more."""
    begun: JsonObject = {"type": "response.created", "response": response([], store=False)}
    assert len(read(spelled([begun, *events(OUTPUT, store=False)[1:]]), 50)) == 1
    assert answer_of(codec.dumps(response(OUTPUT, store=False))) is not None


def test_half_a_character_does_not_spoil_an_item() -> None:
    raw = b'{"type":"message","text":"cut \\ud83d"}'
    event = b'data: {"type":"response.output_item.done","output_index":0,"item":%b}\n\n' % raw
    end = b'data: {"type":"response.completed","response":{"id":"r","output":[%b]}}\n\n' % raw
    (answer,) = read(event + end, 50)
    assert answer.items == (raw,)
    whole = answer_of(b'{"id":"r","output":[%b]}' % raw)
    assert whole is not None
    assert whole.items == (raw,)


def test_an_incomplete_response_can_be_continued() -> None:
    found = events(OUTPUT, status="incomplete")
    found[-1]["type"] = "response.incomplete"
    assert len(read(spelled(found), 50)) == 1


@pytest.mark.parametrize(
    "found",
    [
        events(OUTPUT)[:-1],
        events(OUTPUT, id=None),
        [*events(OUTPUT)[:-1], {"type": "response.failed", "response": response(OUTPUT)}],
        events(OUTPUT, status="queued"),
        [{"type": "response.completed", "response": None}],
        [{"type": "response.completed"}],
    ],
)
def test_nothing_to_continue(found: list[JsonObject]) -> None:
    assert read(spelled(found), 50) == []


@pytest.mark.parametrize(
    "data",
    [
        b"data: [DONE]\n\n",
        b'data: {"type":"response.completed"\n\n',
        b'data: ["response.completed"]\n\n',
        b": comment\n\n",
        b"",
    ],
)
def test_what_is_no_stream_of_this_api_is_passed_over(data: bytes) -> None:
    assert read(data, 5) == []


def test_after_an_event_that_cannot_be_read_nothing_is_believed() -> None:
    broken = b'data: {"type":"response.output_item.done","item":{"a"}\n\n'
    assert read(broken + spelled(events(OUTPUT)), 50) == []


@pytest.mark.parametrize("size", [100, 4096])
def test_more_than_the_limit_is_given_up(size: int) -> None:
    large = b.answer("x" * 50_000)
    assert read(spelled(events([large])), size, limit=10_000) == []
    # Far more text streams by than is kept.
    deltas: list[JsonObject] = [{"type": "response.output_text.delta", "delta": "y" * 1000}] * 200
    found = events(OUTPUT)
    (answer,) = read(spelled([found[0], *deltas, *found[1:]]), size, limit=10_000)
    assert items_of(answer) == OUTPUT


def test_a_whole_response() -> None:
    answer = answer_of(codec.dumps(response(OUTPUT)))
    assert answer is not None
    assert (answer.id, answer.previous, items_of(answer)) == ("resp_1", "resp_0", OUTPUT)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": 7},
        {"output": None},
        {"output": "text"},
        {"status": "failed"},
        {"status": "queued"},
    ],
)
def test_a_whole_response_that_cannot_be_continued(fields: JsonObject) -> None:
    assert answer_of(codec.dumps(response(OUTPUT, **fields))) is None


def test_a_small_server_says_less() -> None:
    answer = answer_of(b'{"id":"resp_1","output":[]}')
    assert answer == Answer("resp_1", ())


@given(st.binary(max_size=60))
def test_any_bytes_are_read_without_harm(data: bytes) -> None:
    assert read(b"data: " + data + b"\n\n", 9) == []
    try:
        found = answer_of(data)
    except codec.MalformedJson:
        return
    assert found is None


def test_no_representation_shows_what_was_said() -> None:
    answer = answer_of(codec.dumps(response(OUTPUT)))
    assert "line" not in repr(answer)
    assert as_objects(items_of(answer))[1] == SAID if answer is not None else False
