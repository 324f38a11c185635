"""What fits a strict chat template still fits it when it was rewritten, in both layouts.

Pinned items of the Responses API are told apart: no template knows what they are, so behind the
record they part nothing that a template sees.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.codec import JsonObject, as_objects, loads
from proxy.compaction import cutpoints
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.dialects.bodies import Dialect, ParsedRequest
from proxy.transcript import Kind
from tests import response_strategies as responses
from tests import strategies as chat
from tests.strategies import policies, windows
from tests.upstream_responses import rendered
from tests.upstream_templates import OF_PLAIN_CHATS, TEMPLATES, Template

Messages = Sequence[JsonObject]
Render = Callable[[Messages], Messages]


def fitting(items: Messages, template: Template, render: Render) -> list[JsonObject]:
    """What is left of a conversation when each message goes that the template refuses."""
    kept: list[JsonObject] = []
    for item in items:
        if not list(template(render([*kept, item]))):
            kept.append(item)
    return kept


def without_tools(messages: Messages) -> list[JsonObject]:
    return [m for m in messages if m["role"] != "tool" and not m.get("tool_calls")]


def as_it_came(messages: Messages) -> Messages:
    return messages


def bodies(
    request: ParsedRequest,
    policy: CompactionPolicy,
    window: Window,
    dialect: Dialect,
    after: ParsedRequest | None,
    *,
    joined: bool,
) -> list[bytes]:
    """The rewritten request, and what a branch of it becomes by what was made for it."""
    question = chat.ask(request, policy, window, force=True, dialect=dialect)
    done = chat.run(request, replace(question, joined=joined), dialect=dialect)
    found = [done.body]
    checkpoint = done.state.checkpoint
    if after is not None and checkpoint is not None:
        branch = after.transcript.items
        if len(branch) > checkpoint.cut_length and (
            branch[checkpoint.cut_length - 1].digest == checkpoint.cut_digest
        ):
            later = chat.ask(after, policy, window, dialect=dialect)
            state = replace(done.state, clips={})
            found.append(
                chat.run(after, replace(later, joined=joined), state, dialect=dialect).body
            )
    return [body for body in found if body]


@pytest.mark.parametrize("name", TEMPLATES)
@given(st.data(), policies(), windows(), st.booleans())
def test_rewritten_messages_fit(
    name: str, data: st.DataObject, policy: CompactionPolicy, window: Window, joined: bool
) -> None:
    template = TEMPLATES[name]
    drawn = data.draw(chat.conversations(max_chars=400, max_turns=5))
    plain = without_tools if name in OF_PLAIN_CHATS else list
    messages = fitting(plain(drawn), template, as_it_came)
    assume(len(messages) > 2)
    request = chat.to_request(messages)
    end = data.draw(st.integers(1, len(messages)))
    added = plain(data.draw(chat.continuations(messages[:end])))
    branch = fitting([*messages[:end], *added], template, as_it_came)
    after = chat.to_request(branch)
    for body in bodies(request, policy, window, chat.DIALECT, after, joined=joined):
        rewritten = loads(body)
        assert isinstance(rewritten, dict)
        assert list(template(as_objects(rewritten["messages"]))) == []


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in OF_PLAIN_CHATS])
@given(st.data(), policies(), windows(), st.booleans())
def test_rewritten_items_fit(
    name: str, data: st.DataObject, policy: CompactionPolicy, window: Window, joined: bool
) -> None:
    template = TEMPLATES[name]
    drawn = fitting(data.draw(responses.inputs(max_chars=400, max_turns=5)), template, rendered)
    items = fitting(unpinned(drawn, joined=joined), template, rendered)
    assume(len(items) > 2)
    request = responses.to_request(items)
    for body in bodies(request, policy, window, responses.DIALECT, None, joined=joined):
        rewritten = loads(body)
        assert isinstance(rewritten, dict)
        assert list(template(rendered(as_objects(rewritten["input"])))) == []


def unpinned(drawn: Messages, *, joined: bool) -> list[JsonObject]:
    """What is left of a list without what is pinned where a template would not see it."""
    request = responses.to_request(drawn)
    items, lead = request.transcript.items, len(request.transcript.instructions)
    runs = cutpoints.led_runs(items)
    pinned = {n for n, item in enumerate(items) if item.kind is Kind.OPAQUE or item.detached}
    if joined:
        # What nobody said stands in front of the record then.
        pinned = {n for n in pinned if items[n].detached or items[n].calls or runs[n] is not None}
    return [item for n, item in enumerate(drawn, -lead) if n not in pinned]
