"""What requests leave to a memory, and which upstreams have none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import JsonObject
from proxy.dialects import continuations
from proxy.dialects.continuations import Continuation, item_id, resolved, written_out
from proxy.transcript import Item, Kind
from proxy.upstream.continuations import Continuations, refusal
from tests import items as b

CHAIN = Continuation("resp_abc")
REFERENCES = Continuation("", ("msg_123", "rs_9"))
BASE, MODEL = "http://127.0.0.1:1/v1", "m"


def item(value: JsonObject, kind: Kind = Kind.USER) -> Item:
    role = continuations.REFERENCE if kind is Kind.OPAQUE else "user"
    return Item(kind, role, codec.dumps(value), 1, 1)


# --- writing a request out ---


def test_written_out_is_the_request_without_the_id() -> None:
    fields = codec.split_object(
        b'{"model": "m","previous_response_id":"resp_1", "input":"hi", "temperature":1.0}'
    )
    assert written_out(fields, [b'{"a": 1}', b"{}"]) == (
        b'{"model":"m","input":[{"a": 1},{}],"temperature":1.0}'
    )


@given(st.lists(st.booleans(), max_size=8))
def test_each_reference_gives_way_to_its_item(kinds: list[bool]) -> None:
    items, wanted, known = [], [], {}
    for place, refers in enumerate(kinds):
        raw = b'{"n":  %d}' % place
        name = f"item_{place}"
        if refers:
            items.append(item({"type": "item_reference", "id": name}, Kind.OPAQUE))
            known[name] = raw
        else:
            items.append(Item(Kind.USER, "user", raw, 1, 1))
        wanted.append(raw)
    assert resolved(items, known) == wanted


def test_a_reference_to_nothing_known_is_an_error() -> None:
    with pytest.raises(KeyError):
        resolved([item(b.REFERENCE, Kind.OPAQUE)], {})


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b'{"id":"fc_1"}', "fc_1"),
        (b'{"id":null}', ""),
        (b'{"id":5}', ""),
        (b"{}", ""),
        (b"[]", ""),
        (b'{"id"', ""),
    ],
)
def test_ids_of_items(raw: bytes, name: str) -> None:
    assert item_id(raw) == name


def test_a_reference_that_is_no_object_names_nothing() -> None:
    assert continuations.reference_of(b"[]") == ""


# --- what upstreams say ---

UNSUPPORTED = [
    (400, "llama.cpp does not support 'previous_response_id'."),
    (400, "Unsupported parameter: 'previous_response_id' is not supported with this model."),
    (400, "Unknown parameter: 'previous_response_id'."),
    (422, '[{"type":"extra_forbidden","loc":["body","previous_response_id"],"msg":"Extra"}]'),
    (501, "previous_response_id is not implemented"),
    (500, "`previous_response_id` requires a response store"),
]
UNKNOWN = [
    (400, "Previous response with id 'resp_abc' not found."),
    (404, "Response with id 'resp_abc' not found."),
    (404, '{"error":{"code":"previous_response_not_found"}}'),
    (400, "No tool call found for function call output with call_id call_1."),
]


def told(status: int, text: str, continuation: Continuation = CHAIN) -> str | None:
    return refusal(status, text.encode(), continuation, "call_1".__eq__)


@pytest.mark.parametrize(("status", "text"), UNSUPPORTED)
def test_a_server_that_does_not_know_the_field(status: int, text: str) -> None:
    assert told(status, text) == "unsupported"


@pytest.mark.parametrize(("status", "text"), UNKNOWN)
def test_a_server_that_does_not_have_the_response(status: int, text: str) -> None:
    assert told(status, text) == "unknown"


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "Cannot determine type of 'item'", "unsupported"),
        (400, "Invalid value: 'item_reference'. Supported values are: 'message'", "unsupported"),
        (404, "Item with id 'rs_9' not found. Items are not persisted when `store` is", "unknown"),
        (404, "Item with id 'rs_8' not found.", None),
        (400, "No tool call found for function call output with call_id call_1.", None),
    ],
)
def test_a_server_without_the_items(status: int, text: str, kind: str | None) -> None:
    assert told(status, text, REFERENCES) == kind


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, "previous_response_id: unknown API key"),
        (429, "Rate limit: previous_response_id is not supported"),
        (503, "previous response: not found"),
        (500, "Internal error while loading previous response resp_abc: not found"),
        (400, "No tool output found for function call call_1."),
        (400, "No tool call found for function call output with call_id call_2."),
        (400, "Your input exceeds the context window of this model."),
        (400, "Invalid value: 'item_reference'"),
        (400, "Invalid 'previous_response_id': 'foo'. Expected an ID that begins with 'resp'."),
        (422, '{"loc":["temperature"],"msg":"too large","input":{"previous_response_id":"r"}}'),
        (200, "previous_response_id is not supported"),
    ],
)
def test_an_error_about_something_else(status: int, text: str) -> None:
    assert told(status, text) is None


def test_bytes_that_are_no_text_are_no_refusal() -> None:
    assert refusal(400, b"\xff\xfe\x00", CHAIN, "call_1".__eq__) is None


def test_what_helped_once_against_an_unknown_field_is_done_from_then_on() -> None:
    seen = Continuations()
    assert not seen.refuses(BASE, MODEL)
    seen.helped(BASE, MODEL, "unsupported")
    assert seen.refuses(BASE, MODEL)
    assert not seen.refuses(BASE, "other")
    answer(seen, reported=4000)
    assert seen.refuses(BASE, MODEL)


def test_one_lost_response_is_not_enough() -> None:
    seen = Continuations()
    seen.helped(BASE, MODEL, "unknown")
    answer(seen, reported=4000)
    seen.helped(BASE, MODEL, "unknown")
    assert not seen.refuses(BASE, MODEL)
    seen.helped(BASE, MODEL, "unknown")
    assert seen.refuses(BASE, MODEL)


def answer(
    seen: Continuations,
    *,
    chained: bool = True,
    told: bool = True,
    expected: int = 4000,
    reported: int | None,
) -> None:
    seen.answered(BASE, MODEL, chained=chained, told=told, expected=expected, reported=reported)


@pytest.mark.parametrize(
    ("told", "expected", "reported", "chained", "refuses"),
    [
        (False, 4000, 300, True, [True, True]),
        (True, 4000, 300, True, [False, True]),
        (False, 4000, 2100, True, [False, False]),
        (False, 4000, None, True, [False, False]),
        (False, 200, 3, True, [False, False]),
        (False, 0, 300, True, [False, False]),
        (False, 4000, 300, False, [False, False]),
    ],
)
def test_a_server_that_passes_the_field_over_is_noticed(
    told: bool, expected: int, reported: int | None, chained: bool, refuses: list[bool]
) -> None:
    """Some repeat the id all the same, so it takes two of those."""
    seen, found = Continuations(), []
    for _ in range(2):
        answer(seen, chained=chained, told=told, expected=expected, reported=reported)
        found.append(seen.refuses(BASE, MODEL))
    assert found == refuses


def test_one_odd_report_is_forgotten() -> None:
    seen = Continuations()
    for reported in (300, 4000, 300):
        answer(seen, reported=reported)
    assert not seen.refuses(BASE, MODEL)


def test_what_is_known_of_upstreams_is_bounded() -> None:
    seen = Continuations()
    for number in range(1100):
        seen.helped(BASE, f"m{number}", "unsupported")
    assert seen.refuses(BASE, "m1099")
    assert not seen.refuses(BASE, "m0")
