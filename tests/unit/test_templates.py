"""Which errors are a chat template's, and what is remembered of it."""

import pytest

from proxy.codec import dumps
from proxy.upstream import templates
from proxy.upstream.templates import Templates, is_template_error, is_template_event

BASE = "http://up/v1"

OBJECTIONS = {
    "llama.cpp": (
        500,
        "\n------------\nWhile executing CallExpression at line 19, column 27 in source:\n...% 2 =="
        ' 0) -%}↵        {{ raise_exception("Conversation roles must alternate user...\n   ^\n'
        "Error: Jinja Exception: Conversation roles must alternate user/assistant/user/...",
    ),
    "llama.cpp, other words": (500, "Jinja Exception: No user query found in messages."),
    "vLLM": (400, "Conversation roles must alternate user/assistant/user/assistant/..."),
    "vLLM with mistral-common": (400, "Unexpected role 'user' after role 'tool'"),
    "the last role": (
        400,
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got x",
    ),
    "SGLang": (400, "Failed to apply chat template: System role not supported"),
    "LM Studio": (
        400,
        'Error rendering prompt with jinja template: "Only user and assistant roles are'
        ' supported!".',
    ),
    "TGI": (422, "Template error: syntax error: Conversation roles must alternate (in <string>:1)"),
    "Ollama": (500, 'template: :1:13: executing "" at <.Messages>: wrong type'),
    "transformers": (500, "jinja2.exceptions.TemplateError: no"),
    "Qwen": (400, "System message must be at the beginning."),
    "Gemma": (500, "System role not supported"),
    "Mistral": (500, "Only user, assistant and tool roles are supported, got developer."),
    "Anthropic": (
        400,
        'messages: roles must alternate between "user" and "assistant", but found multiple "user"'
        " roles in a row",
    ),
    "Anthropic, first": (400, 'messages: first message must use the "user" role'),
    "Bedrock": (400, "A conversation must start with a user message. Try again with one."),
    "Gemini": (
        400,
        "Please ensure that function call turn comes immediately after a user turn or after a"
        " function response turn.",
    ),
}

OTHERS = {
    "an overflow": (400, "This model's maximum context length is 8192 tokens."),
    "a parameter": (400, "Unsupported parameter: 'max_tokens' is not supported with this model."),
    "pairing": (400, "messages with role 'tool' must be a response to a preceding message"),
    "a broken server": (500, "Internal Server Error"),
    "a key": (401, "Conversation roles must alternate user/assistant/user/assistant/..."),
    "a limit": (429, "Jinja Exception: slow down"),
    "an answer": (200, "Conversation roles must alternate user/assistant/user/assistant/..."),
    "nothing": (500, ""),
}


@pytest.mark.parametrize("name", OBJECTIONS)
def test_what_a_template_says(name: str) -> None:
    status, text = OBJECTIONS[name]
    for body in (dumps({"error": {"message": text}}), dumps({"error": text}), text.encode()):
        assert is_template_error(status, body)


@pytest.mark.parametrize("name", OTHERS)
def test_what_others_say(name: str) -> None:
    status, text = OTHERS[name]
    assert not is_template_error(status, dumps({"error": {"message": text}}))


def test_no_bytes_are_too_strange() -> None:
    assert not is_template_error(500, b"\xff\xfe{")
    assert not is_template_event(b'\xff"error"')


TEXT = OBJECTIONS["vLLM"][1]


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ({"error": {"message": TEXT}}, True),
        ({"error": TEXT}, True),
        ({"type": "error", "message": TEXT}, True),
        ({"type": "response.failed", "response": {"error": {"message": TEXT}}}, True),
        ({"type": "response.failed", "response": {"error": None, "instructions": TEXT}}, False),
        ({"type": "response.failed", "response": "error"}, False),
        ({"error": None, "choices": [{"delta": {"content": TEXT}}]}, False),
        ({"type": "response.output_text.delta", "delta": f'"error" {TEXT}'}, False),
        ({"error": {"message": "overloaded"}}, False),
        ({"choices": [{"delta": {"content": f'{{"error":"{TEXT}"}}'}}]}, False),
    ],
)
def test_an_event_must_be_an_error(event: dict[str, object], found: bool) -> None:
    assert is_template_event(dumps(event)) is found  # type: ignore[arg-type]


def test_long_events_are_not_searched() -> None:
    long = dumps({"error": {"message": TEXT + "x" * templates.MAX_BYTES}})
    assert not is_template_event(long)


def test_only_what_helped_is_remembered_by_url_and_model() -> None:
    known = Templates()
    assert not known.joins(BASE, "a")
    known.helped(BASE, "a")
    known.helped(BASE, "a")
    assert known.joins(BASE, "a")
    assert not known.joins(BASE, "b")
    assert not known.joins("http://other/v1", "a")


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MAX_MODELS", 2)
    known = Templates()
    for model in ("a", "b", "a", "c"):
        known.helped(BASE, model)
    assert [model for model in "abc" if known.joins(BASE, model)] == ["a", "c"]
