"""Overflows in wordings that no table knows, and errors that use the same words."""

import pytest

from proxy.upstream.overflow import Overflow
from tests.unit.test_overflow import error, found

TOO_LONG = [
    "The prompt is too large.",
    "Request too large: 7000 tokens, max 6000.",
    "Your conversation is too long. Please start a new one.",
    "Context overflow",
    "number of input tokens (7000) has exceeded max_prompt_tokens (6000) limit",
    "maximum sequence length exceeded",
    "sequence length 7000 is greater than max_seq_len 6000",
    "Token limit reached: 7000/6000",
    "Bad request: prompt length exceeds limit",
    "conversation exceeds model capacity",
    "Context window of 6000 exceeded by prompt",
    "messages too long",
    "The total number of tokens (7000) is more than the allowed 6000",
    "Maximum input length exceeded",
    "The input (over 6000 tokens) cannot be processed",
    "The prompt does not fit into the context of 6000 tokens",
    "The prompt ran out of context",
    "Prompts are limited to 6000 tokens",
    "This model only accepts 6000 tokens of context; you sent 7000",
    "Maximum tokens allowed in a prompt: 6000, got 7000",
    "The context is full",
    "输入长度超过模型最大上下文限制",
    "输入的token数(7000)超过了模型支持的最大长度(6000)",
]

SOMETHING_ELSE = [
    "Bad Request",
    "prompt_cache_key exceeds the maximum length of 64",
    "messages[1].tool_calls[0].function.name exceeds the maximum length of 64",
    "The output tokens exceed the limit of this model",
    "max_tokens is greater than the length that this model writes",
    "The number of tokens to generate must be at most 4096",
    "Maximum tokens must be less than 4096 tokens",
    "Messages must not have more than 100 items",
    "The input image is too large for its tokens",
    "Your organization has exceeded its monthly tokens",
    "The description of the tool in this request is too long",
    "There is not enough memory for a context over 6000 tokens",
    "The request did not tell a token limit",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "Only user and assistant roles are supported in this context",
    "This model only supports text input",
    "temperature must not be greater than 2",
    "The prompt was refused. The name is too long",
    "请求频率超过限制,token",
]


@pytest.mark.parametrize("message", TOO_LONG)
@pytest.mark.parametrize("status", [400, 413, 422])
def test_plain_words_are_understood(status: int, message: str) -> None:
    assert found(status, error(message)) == Overflow("input")


@pytest.mark.parametrize("message", TOO_LONG)
def test_plain_words_are_not_believed_of_a_server_that_failed(message: str) -> None:
    assert found(500, error(message)) is None


@pytest.mark.parametrize("message", SOMETHING_ELSE)
def test_the_same_words_about_something_else(message: str) -> None:
    assert found(400, error(message)) is None


@pytest.mark.parametrize("said", [b"Payload Too Large", b"Content Too Large"])
def test_the_name_of_the_status(said: bytes) -> None:
    assert found(413, said) == Overflow("input")
