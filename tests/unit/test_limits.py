"""Output limits of requests, read and lowered."""

import pytest

from proxy import codec
from proxy.dialects.limits import output_limit, with_output_limit

NAMES = ("max_completion_tokens", "max_tokens")


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{"max_tokens":6000}', 6000),
        (b'{"max_tokens":6000,"max_completion_tokens":7000}', 7000),
        (b'{"max_tokens":null}', None),
        (b'{"max_tokens":"6000"}', None),
        (b'{"max_tokens":-1}', None),
        (b'{"max_tokens":6000.0}', None),
        (b'{"max_tokens":99999999999999999999}', None),
        (b'{"max_output_tokens":6000}', None),
        (b"[]", None),
        (b"{", None),
    ],
)
def test_the_limit_that_a_request_names(body: bytes, limit: int | None) -> None:
    assert output_limit(body, NAMES) == limit


def test_only_what_is_too_large_is_lowered() -> None:
    body = b'{"x": 1.0,"max_tokens":6000,"max_completion_tokens":50,"messages":[{"a": 1}]}'
    lowered = with_output_limit(body, NAMES, 100)
    assert lowered is not None
    assert b'"messages":[{"a": 1}]' in lowered
    assert codec.loads(lowered) == {
        "x": 1.0,
        "max_tokens": 100,
        "max_completion_tokens": 50,
        "messages": [{"a": 1}],
    }


@pytest.mark.parametrize("body", [b'{"max_tokens":90}', b"{}", b"[]", b"{", b'{"max_tokens":null}'])
def test_where_there_is_nothing_to_lower(body: bytes) -> None:
    assert with_output_limit(body, NAMES, 100) is None
