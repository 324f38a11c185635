"""Strict chat templates, as pure checks of the messages that they are given.

Each knows what a family of real templates refuses, and says so with the status and in the words of
a server that runs such models.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from proxy.codec import JsonObject
from tests import upstream_rules as rules
from tests.upstream_rules import INSTRUCTION_ROLES, Rejection

Template = Callable[[Sequence[JsonObject]], Iterator[Rejection]]

RULE = "template"
_SOURCE = (
    "\n------------\nWhile executing CallExpression at line 19, column 27 in source:\n"
    '...% 2 == 0) -%}↵        {{ raise_exception("Conversation...\n   ^\nError: Jinja Exception: '
)


def _llama(text: str) -> Rejection:
    return rules.llama(RULE, _SOURCE + text)


def _vllm(text: str) -> Rejection:
    return rules.openai(RULE, text)


def _lm_studio(text: str) -> Rejection:
    return rules.openai(RULE, f'Error rendering prompt with jinja template: "{text}".')


def _is_system(message: JsonObject) -> bool:
    return message.get("role") in INSTRUCTION_ROLES


def _after_system(messages: Sequence[JsonObject]) -> Sequence[JsonObject]:
    return messages[1:] if messages and _is_system(messages[0]) else messages


def mistral(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """Users and final answers take turns; calls and their results do not count."""
    users = 0
    for message in _after_system(messages):
        if message.get("role") == "user" or (
            message.get("role") == "assistant" and not message.get("tool_calls")
        ):
            if (message["role"] == "user") != (users % 2 == 0):
                yield _llama(
                    "After the optional system message, conversation roles must alternate user "
                    "and assistant roles except for tool calls and results."
                )
            users += 1
        elif _is_system(message):
            yield _llama("Only user, assistant and tool roles are supported, got system.")


def gemma(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """No system message at all, and every other message is the user's."""
    if messages and _is_system(messages[0]):
        yield _llama("System role not supported")
    for index, message in enumerate(messages):
        if index and _is_system(message):
            yield _llama("Only user and assistant roles are supported!")
        if (message.get("role") == "user") != (index % 2 == 0):
            yield _llama("Conversation roles must alternate user/assistant/user/assistant/...")


def llama2(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """Behind one system message every other message is the user's."""
    for index, message in enumerate(_after_system(messages)):
        if _is_system(message):
            yield _vllm("Only user and assistant roles are supported!")
        if (message.get("role") == "user") != (index % 2 == 0):
            yield _vllm("Conversation roles must alternate user/assistant/user/assistant/...")


def qwen(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """A system message stands first or nowhere, and somebody must have asked something."""
    if any(_is_system(message) for message in messages[1:]):
        yield _lm_studio("System message must be at the beginning.")
    if not any(message.get("role") == "user" for message in messages):
        yield _lm_studio("No user query found in messages.")


def mistral_common(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """What follows what is checked before anything is rendered."""
    allowed = {
        "": {"system", "user"},
        "system": {"user", "system"},
        "user": {"assistant"},
        "assistant": {"user", "tool", "assistant"},
        "tool": {"tool", "assistant"},
    }
    before = ""
    for message in messages:
        role = "system" if _is_system(message) else str(message.get("role"))
        if role not in allowed.get(before, ()):
            yield _vllm(f"Unexpected role '{role}' after role '{before}'")
        before = role


def one_lead(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """System messages stand anywhere, but never next to each other."""
    for before, after in pairwise(messages):
        if _is_system(before) and _is_system(after):
            yield _llama("Conversation roles must alternate: consecutive system messages")


TEMPLATES: Mapping[str, Template] = {
    "mistral": mistral,
    "gemma": gemma,
    "llama2": llama2,
    "qwen": qwen,
    "mistral_common": mistral_common,
}
"""Those that clients' usual conversations fit."""

OF_PLAIN_CHATS = frozenset({"gemma", "llama2"})
"""Those that know no tools."""
