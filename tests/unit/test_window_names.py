"""Which entry of a list is the model that was asked for."""

import pytest

from proxy.codec import Json, JsonObject
from proxy.upstream.window_names import listed, matching


def _names(*names: str) -> list[JsonObject]:
    return [{"id": name} for name in names]


@pytest.mark.parametrize(
    ("asked", "names", "taken"),
    [
        ("m", ["m", "M"], ["m"]),
        ("M", ["m", "m2"], ["m"]),
        ("qwen3", ["qwen3:latest", "qwen3:4b"], ["qwen3:latest"]),
        ("Qwen3:latest", ["qwen3", "qwen3:4b"], ["qwen3"]),
        ("qwen3:4b", ["qwen3:latest"], []),
        ("small.gguf", ["/models/small.gguf", "/models/large.gguf"], ["/models/small.gguf"]),
        ("small", ["C:\\models\\small.gguf"], ["C:\\models\\small.gguf"]),
        ("gpt-4o", ["openai/gpt-4o", "openai/gpt-4o-mini"], ["openai/gpt-4o"]),
        ("openai/gpt-4o", ["gpt-4o", "gpt-4o-mini"], ["gpt-4o"]),
        ("gemini-2.5-pro", ["models/gemini-2.5-pro"], ["models/gemini-2.5-pro"]),
        ("google/gemini-2.5-pro", ["models/gemini-2.5-pro"], ["models/gemini-2.5-pro"]),
        ("llama-3", ["a/llama-3", "b/llama-3"], []),
        ("a/llama-3", ["b/llama-3"], []),
        ("gpt-4", ["gpt-4o", "gpt-4-32k"], []),
        ("m", ["m", "m"], ["m", "m"]),
        ("", ["m"], []),
        ("m", [], []),
    ],
)
def test_the_nearest_name_is_taken_and_no_other_models(
    asked: str, names: list[str], taken: list[str]
) -> None:
    assert list(matching(_names(*names), asked)) == _names(*taken)


@pytest.mark.parametrize("key", ["id", "name", "model", "key", "model_name"])
def test_a_model_is_named_by_several_members(key: str) -> None:
    assert matching([{key: "other"}, {key: "m", "n": 1}], "m") == [{key: "m", "n": 1}]


def test_an_alias_is_a_name() -> None:
    entries: list[JsonObject] = [{"id": "a-2411", "aliases": ["a-latest", 7]}, {"id": "b"}]
    assert matching(entries, "a-latest") == entries[:1]


@pytest.mark.parametrize(
    "reply",
    [{"object": "list", "data": [{"id": "m"}]}, {"models": [{"id": "m"}]}, [{"id": "m"}, "x"]],
)
def test_lists_come_in_three_shapes(reply: Json) -> None:
    assert listed(reply) == [{"id": "m"}]


@pytest.mark.parametrize("reply", [None, "x", 7, {}, {"data": None}, {"data": {"id": "m"}}, []])
def test_anything_else_lists_nothing(reply: Json) -> None:
    assert not listed(reply)
