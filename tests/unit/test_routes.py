"""Where a client's path goes, for every way to write a base URL."""

import pytest
from multidict import CIMultiDict

from proxy.upstream.routes import Base, Route

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("base", "target", "expected"),
    [
        ("http://h/v1", CHAT, "http://h/v1/chat/completions"),
        ("http://h/v1/", CHAT, "http://h/v1/chat/completions"),
        ("http://h", CHAT, "http://h/v1/chat/completions"),
        ("http://h/", CHAT, "http://h/v1/chat/completions"),
        ("http://h:8080/v1", "/chat/completions", "http://h:8080/v1/chat/completions"),
        ("http://h", "/chat/completions", "http://h/chat/completions"),
        ("http://h/v1", "/models", "http://h/v1/models"),
        ("http://h/v1", "/v1", "http://h/v1"),
        ("http://h/v1", "/v1/", "http://h/v1/"),
        ("http://h/v1", "/v1?x=1", "http://h/v1?x=1"),
        ("http://h/v1", "/v1x/models", "http://h/v1x/models"),
        ("http://h/v1", "/v2/models", "http://h/v2/models"),
        ("http://h/v1", "/health", "http://h/health"),
        ("http://h/v1", "/", "http://h/"),
        ("http://h/v1", "/v1/x?y=/v1/z&q=%2F", "http://h/v1/x?y=/v1/z&q=%2F"),
        ("https://h/openai", CHAT, "https://h/openai/v1/chat/completions"),
        ("https://h/openai/v1", CHAT, "https://h/openai/v1/chat/completions"),
        ("https://h/openai/v1", "/health", "https://h/openai/health"),
        ("https://h/api/v4", CHAT, "https://h/api/v4/chat/completions"),
        ("https://h/v1beta/openai", CHAT, "https://h/v1beta/openai/chat/completions"),
        ("https://h/compatible-mode/v1", "/models", "https://h/compatible-mode/v1/models"),
        ("http://[::1]:80/v1", CHAT, "http://[::1]:80/v1/chat/completions"),
    ],
)
def test_where_a_path_goes(base: str, target: str, expected: str) -> None:
    assert Base.of(base).resolve(target) == expected


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h", "http://h/v1"),
        ("http://h/v1/", "http://h/v1"),
        ("http://h/openai", "http://h/openai/v1"),
        ("http://h/api/v4", "http://h/api/v4"),
    ],
)
def test_how_a_base_is_shown(url: str, shown: str) -> None:
    assert Base.of(url).url == shown


def test_a_route_does_not_show_its_headers() -> None:
    route = Route(Base.of("http://h"), "m", CIMultiDict({"Authorization": "Bearer secret"}))
    assert "secret" not in repr(route)
