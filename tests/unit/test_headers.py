"""Which headers cross, in either direction."""

import pytest
from multidict import CIMultiDict

from proxy.upstream.headers import (
    HOP_BY_HOP,
    reply_headers,
    request_headers,
    summary_headers,
    with_credential,
)


def pairs(*items: tuple[str, str]) -> CIMultiDict[str]:
    return CIMultiDict(items)


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP))
def test_hop_by_hop_headers_end_here(name: str) -> None:
    given = pairs((name.title(), "x"), ("X-Kept", "1"))
    assert request_headers(given) == reply_headers(given) == pairs(("X-Kept", "1"))


@pytest.mark.parametrize(
    ("connection", "kept"),
    [
        (["close"], ["A", "B"]),
        (["a"], ["B"]),
        ([" A ,, b"], []),
        (["keep-alive, A", "B"], []),
        ([""], ["A", "B"]),
    ],
)
def test_what_connection_names_ends_here(connection: list[str], kept: list[str]) -> None:
    given = pairs(*[("Connection", value) for value in connection], ("A", "1"), ("B", "2"))
    assert list(request_headers(given)) == kept
    assert list(reply_headers(given)) == kept


def test_only_requests_lose_host_expect_and_our_own() -> None:
    given = pairs(("Host", "h"), ("Expect", "100-continue"), ("X-Foldgate-Compact", "force"))
    assert request_headers(given) == pairs()
    assert reply_headers(given) == given


def test_everything_else_keeps_order_spelling_and_repetition() -> None:
    given = pairs(("x-B", "1"), ("Set-Cookie", "a"), ("A", ""), ("set-cookie", "b"))
    assert list(request_headers(given).items()) == list(given.items())
    assert list(reply_headers(given).items()) == list(given.items())


def test_an_upstreams_own_key_replaces_every_credential() -> None:
    given = pairs(
        ("authorization", "Bearer mine"),
        ("Api-Key", "mine"),
        ("x-api-key", "mine"),
        ("x-goog-api-key", "mine"),
        ("Cookie", "mine"),
        ("X-Kept", "1"),
    )
    assert with_credential(given.copy(), "theirs") == pairs(
        ("X-Kept", "1"), ("Authorization", "Bearer theirs")
    )
    assert with_credential(given.copy(), "") == pairs(("X-Kept", "1"))


def test_a_summary_has_the_credential_but_nothing_about_the_body() -> None:
    given = pairs(
        ("Authorization", "Bearer k"),
        ("OpenAI-Organization", "o"),
        ("Content-Type", "text/plain"),
        ("Content-Encoding", "gzip"),
        ("Content-Length", "9"),
        ("Accept-Encoding", "br"),
        ("Idempotency-Key", "i"),
        ("X-Stainless-Retry-Count", "1"),
        ("If-None-Match", "x"),
    )
    assert summary_headers(given) == pairs(
        ("Authorization", "Bearer k"),
        ("OpenAI-Organization", "o"),
        ("Content-Type", "application/json"),
        ("x-foldgate-purpose", "compaction"),
    )
