"""What requests say about themselves in headers."""

import pytest
from multidict import CIMultiDict

from proxy.server.hints import NO_HINTS, BadHint, Hints, read_hints

ALL = ("bypass", "context-window", "threshold")


def read(headers: dict[str, str], allowed: tuple[str, ...] = ALL) -> Hints:
    return read_hints(CIMultiDict({f"x-foldgate-{k}": v for k, v in headers.items()}), allowed)


def test_a_request_that_says_nothing() -> None:
    assert read({}) is NO_HINTS


def test_numbers_are_taken() -> None:
    assert read({"context-window": "8192", "threshold": "0.5"}) == Hints(8192, 0.5)
    assert read({"threshold": " 0.99 "}) == Hints(None, 0.99)


def test_what_clients_may_not_say_is_passed_over() -> None:
    assert read({"context-window": "nonsense", "threshold": "9"}, ("bypass",)) is NO_HINTS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context-window", ""),
        ("context-window", "255"),
        ("context-window", "2000001"),
        ("context-window", "8k"),
        ("context-window", "8192.5"),
        ("threshold", "0.05"),
        ("threshold", "1"),
        ("threshold", "nan"),
        ("threshold", "inf"),
        ("threshold", "half"),
    ],
)
def test_a_bad_number_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BadHint, match=f"x-foldgate-{name} must be .* from "):
        read({name: value})
