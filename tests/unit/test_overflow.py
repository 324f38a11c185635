"""How an overflow is told from other errors: codes, nesting, events, rules of the operator.

The wordings of servers are in `test_overflow_forms`.
"""

import msgspec
import pytest
from pydantic import ValidationError

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.upstream import overflow
from proxy.upstream.overflow import Overflow, classify, classify_event
from proxy.upstream.overflow_rules import OverflowRule
from proxy.upstream.overflow_table import CODES


def error(message: Json, **members: Json) -> JsonObject:
    """Return the usual envelope."""
    return {"error": {"message": message, "type": "invalid_request_error", **members}}


def flat(message: str, **members: Json) -> JsonObject:
    return {"object": "error", "message": message, "type": "BadRequestError", **members}


def text_of(value: Json) -> str:
    return codec.dumps(value).decode()


def found(status: int, body: Json | bytes, *more: OverflowRule) -> Overflow | None:
    return classify(status, body if isinstance(body, bytes) else codec.dumps(body), more)


def into(prompt: int | None = None, limit: int | None = None, **others: int | bool) -> Overflow:
    """Return an overflow of the input."""
    return msgspec.convert(
        {"kind": "input", "prompt": prompt, "limit": limit, **others}, type=Overflow
    )


def total(prompt: int | None = None, limit: int | None = None, **others: int | bool) -> Overflow:
    """Return an overflow of input and output together."""
    return msgspec.convert(
        {"kind": "total", "prompt": prompt, "limit": limit, **others}, type=Overflow
    )


def told(overflow: Overflow | None) -> tuple[object, ...] | None:
    """Return what pytest can show; an `Overflow` itself is silent."""
    return None if overflow is None else msgspec.structs.astuple(overflow)


LENGTH: JsonObject = {"param": "messages", "code": "context_length_exceeded"}
NO_NUMBERS = (
    "Your input exceeds the context window of this model. Please adjust your input and try again."
)
ANTHROPIC: JsonObject = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "prompt is too long: 213462 tokens > 200000 maximum",
    },
}
ANTHROPIC_BOTH: JsonObject = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "input length and `max_tokens` exceed context limit: 196758 + 8192 > 200000, "
        "decrease input length or `max_tokens` and try again",
    },
    "request_id": "req_1",
}
LLAMA: JsonObject = {
    "error": {
        "code": 400,
        "message": "request (731 tokens) exceeds the available context size (512 tokens), try "
        "increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 731,
        "n_ctx": 512,
    }
}
MID_GENERATION: JsonObject = {
    "code": 500,
    "message": "Context size has been exceeded.",
    "type": "server_error",
}
REDUCE = "Please reduce the length of the messages or completion."

USER_TEXT = (
    "why do I see: prompt is too long: 300000 tokens > 200000 maximum, and "
    '{"code":"context_length_exceeded"}, Context size has been exceeded.'
)


@pytest.mark.parametrize("code", sorted(CODES))
@pytest.mark.parametrize("status", [400, 404, 413, 422, 500, 503])
def test_a_code_is_enough_and_comes_before_vetoes(status: int, code: str) -> None:
    assert found(status, error("See our rate limit pages", code=code.upper())) == into()
    assert found(status, error("See our rate limit pages", type=code)) == into()


@pytest.mark.parametrize("status", [400, 404, 413, 422, 500, 503])
def test_a_comparison_of_numbers_is_believed_of_every_status(status: int) -> None:
    """Gateways turn a 400 of the upstream into a 500."""
    message = "This model's maximum context length is 6000 tokens. However, your request has 7000"
    assert found(status, error(message)) == into(7000, 6000)


@pytest.mark.parametrize(("depth", "seen"), [(0, True), (7, True), (8, False), (400, False)])
def test_nesting_is_followed_eight_levels_deep(depth: int, seen: bool) -> None:
    body: Json = {"message": "prompt is too long"}
    for _ in range(depth):
        body = {"error": body}
    assert (found(400, body) is not None) == seen


def test_json_in_strings_counts_as_depth() -> None:
    body: Json = error("prompt is too long")
    for _ in range(2):
        body = {"message": text_of(body)}
    assert found(400, body) == into()
    for _ in range(8):
        body = {"message": text_of(body)}
    assert found(400, body) is None


@pytest.mark.parametrize("number", ["0", "99999999999", "0,0", "9,999,999,999"])
def test_absurd_numbers_are_not_told(number: str) -> None:
    assert found(400, error(f"maximum context length is {number} tokens")) == into()


def test_numbers_beside_the_message_are_checked() -> None:
    body = error("x", type="exceed_context_size_error", n_ctx=True, n_prompt_tokens=-1)
    assert found(400, body) == into()


# --- events ---

RESPONSE: JsonObject = {
    "id": "resp_1",
    "instructions": USER_TEXT * 1000,
    "status": "failed",
    "error": {"code": "context_length_exceeded", "message": NO_NUMBERS},
}
EVENTS: list[tuple[str, JsonObject, Overflow | None]] = [
    ("chat", error("x", **LENGTH), into()),
    ("chat, llama.cpp", {"error": MID_GENERATION}, into()),
    ("chat, text", {"error": "prompt is too long: 9000 tokens > 8192 maximum"}, into(9000, 8192)),
    (
        "chat, OpenRouter",
        {
            "id": "gen-1",
            "choices": [{"delta": {"content": ""}, "finish_reason": "error"}],
            "error": {"code": 400, "message": "prompt is too long"},
        },
        into(),
    ),
    ("nested error", {"type": "error", "error": {"code": LENGTH["code"], "message": "x"}}, into()),
    ("Anthropic's", ANTHROPIC, into(213_462, 200_000)),
    (
        "flat error",
        {"type": "error", "code": LENGTH["code"], "message": "x", "param": None},
        into(),
    ),
    ("response.failed", {"type": "response.failed", "response": RESPONSE}, into()),
    ("in+out", {"type": "error", "message": ANTHROPIC_BOTH["error"]}, total(196_758, 200_000)),
    (
        "response.failed for another reason",
        {
            "type": "response.failed",
            "response": {**RESPONSE, "error": {"code": "server_error", "message": "Sorry"}},
        },
        None,
    ),
    (
        "response.failed without a reason",
        {"type": "response.failed", "response": {**RESPONSE, "error": None}},
        None,
    ),
    ("response.failed without a response", {"type": "response.failed", "n": "error"}, None),
    (
        "response.created",
        {"type": "response.created", "response": {**RESPONSE, "error": None}},
        None,
    ),
    (
        "text of the model",
        {"choices": [{"delta": {"content": '{"error": {"code": "context_length_exceeded"}}'}}]},
        None,
    ),
    (
        "text of the model and no error",
        {"choices": [{"delta": {"content": "prompt is too long"}}], "error": None},
        None,
    ),
    (
        "an item that names an error",
        {"type": "response.output_item.done", "item": {"error": error("prompt is too long")}},
        None,
    ),
    ("rate limit", error("token limit exceeded: rate limit"), None),
    ("429", {"error": {"code": 429, "message": "x", "type": "context_length_exceeded"}}, None),
    ("a server's fault", error("maximum context length is 8192 tokens", type="server_error"), None),
    ("502", {"error": {"code": 502, "message": "too many tokens"}}, None),
    ("502, plain", {"error": {"code": 502, "message": "prompt is too long"}}, into()),
    ("too large", error("prompt is too long", padding="x" * overflow.MAX_BYTES), None),
    ("empty", {"error": {}}, None),
]


@pytest.mark.parametrize(
    ("event", "wanted"), [case[1:] for case in EVENTS], ids=[case[0] for case in EVENTS]
)
def test_events(event: JsonObject, wanted: Overflow | None) -> None:
    assert told(classify_event(codec.dumps(event))) == told(wanted)


@pytest.mark.parametrize("event", [b"[DONE]", b"", b'["error"]', b'"error"', b'{"error"', b"\xff"])
def test_events_that_are_no_objects(event: bytes) -> None:
    assert classify_event(event) is None


def test_white_space_in_events() -> None:
    event = (
        b'{ "type" : "response.failed" , "response" : { "error" : {"code":"context_overflow"} } }'
    )
    assert classify_event(event) == into()


# --- rules of the operator ---

RULE = OverflowRule.model_validate(
    {"pattern": r"Zu lang: (?P<N>\S+) von (?P<L>\S+)", "statuses": [400, 418]}
)


@pytest.mark.parametrize(
    ("status", "message", "wanted"),
    [
        (400, "zu lang: 9.000 von 8,192", into(None, 8192)),
        (418, "ZU LANG: 9000 von 8192", into(9000, 8192)),
        (400, "Quota? zu lang: 9000 von 8192", into(9000, 8192)),
        (400, "prompt is too long", into()),
        (413, "zu lang: 9000 von 8192", None),
        (418, "prompt is too long", None),
    ],
)
def test_a_rule_adds_a_wording(status: int, message: str, wanted: Overflow | None) -> None:
    assert told(found(status, error(message), RULE)) == told(wanted)


def test_a_rule_for_both_together() -> None:
    rule = OverflowRule.model_validate(
        {
            "pattern": r"(?P<N>\d+) and (?P<L>\d+)(?: over (?P<X>\d+))?",
            "kind": "total",
            "input_only": True,
        }
    )
    assert found(400, error("10 and 20"), rule) == total(10, 20, input_only=True)
    assert found(400, error("30 and 20 over 10"), rule) == into(30, 20, excess=10, input_only=True)


def test_rules_hold_for_events() -> None:
    event = error("zu lang: 9000 von 8192")
    assert classify_event(codec.dumps(event), [RULE]) == into(9000, 8192)
    other = codec.dumps(error("zu lang: 9000 von 8192", code=413))
    assert classify_event(other, [RULE]) is None


@pytest.mark.parametrize(
    ("rule", "place", "says"),
    [
        ({"pattern": "(?P<N>"}, "pattern", "is not a regular expression of Python"),
        ({"pattern": "a{1,99999999999}"}, "pattern", "is not a regular expression of Python"),
        ({"pattern": r"(?P<n>\d+) tokens"}, "pattern", r"has the group n; only \(\?P<N>…\)"),
        ({"pattern": " "}, "pattern", "must be a regular expression, for example"),
        ({"pattern": 5}, "pattern", "must be a regular expression, for example"),
        ({"pattern": "(a+)+b"}, "pattern", "must not repeat a group"),
        ({"pattern": "x*"}, "pattern", "matches an empty message"),
        ({"pattern": "x" * 501}, "pattern", "at most 500 characters"),
        ({"pattern": "x", "kind": "output"}, "kind", "'input' or 'total'"),
        ({"pattern": "x", "statuses": [429]}, "statuses", "must not be 429"),
        ({"pattern": "x", "statuses": [200]}, "statuses", "greater than or equal to 400"),
        ({"pattern": "x", "statuses": []}, "statuses", "must name at least 1 status"),
        ({"pattern": "x", "regex": "y"}, "regex", "Extra inputs are not permitted"),
        ({}, "pattern", "Field required"),
    ],
)
def test_a_wrong_rule_is_refused(rule: JsonObject, place: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says) as refused:
        OverflowRule.model_validate(rule)
    assert [problem["loc"][0] for problem in refused.value.errors()] == [place]


def test_a_rule_is_shown_as_it_was_written() -> None:
    shown = codec.loads(RULE.model_dump_json())
    assert shown == {
        "pattern": r"Zu lang: (?P<N>\S+) von (?P<L>\S+)",
        "kind": "input",
        "statuses": [400, 418],
        "input_only": False,
    }
    assert OverflowRule.model_validate(shown) == RULE
