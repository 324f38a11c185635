"""Which models' chat templates refuse what a rewritten request looks like, learned from errors.

A server that renders a conversation with the model's template tells what the template objects to,
with a 400 or, as llama.cpp does, a 500. When that happens to a request we rewrote, it is laid out
the other way (`proxy.compaction.layout`); what helped is remembered by base URL and model.
Nothing here knows how requests are laid out.
"""

import re
from collections import OrderedDict

from proxy import codec

MAX_MODELS = 1024
MAX_BYTES = 64 * 1024
"""Of an error that is searched; templates quote themselves in what they say."""

_BAD_REQUEST = 400
_STATUSES = frozenset({_BAD_REQUEST, 422, 424, 500})
_RENDERING = (
    # llama.cpp, and Ollama where it runs llama.cpp
    r"jinja exception",
    r"while executing \w+ at line \d+, column \d+ in source",
    r"raise_exception\(",
    # LM Studio
    r"error rendering prompt with jinja template",
    # text-generation-inference
    r"template error",
    # vLLM, SGLang and others on transformers
    r"jinja2\.exceptions",
    r"\btemplateerror\b",
    r"chat[ _]template.{0,80}\b(?:error|fail|raise|exception)",
    r"(?:error|failed)\b.{0,80}\bchat[ _]template",
    # Ollama's own templates
    r"template: :\d+:\d+: executing",
)
"""A template failed, whatever it says."""

_ROLES = (
    r"roles? must alternate",
    r"alternate (?:between )?[`'\"]?user[`'\"]? and [`'\"]?assistant",
    r"must alternate .{0,40}\buser\b.{0,40}\bassistant\b",
    r"system (?:role|message|prompt)s? (?:is |are )?not supported",
    r"does not support (?:the )?[`'\"]?system[`'\"]? (?:role|message|prompt)",
    r"only user,? (?:and )?assistant(?:,? (?:and )?\w+)* roles are supported",
    r"system messages? must (?:be|come|appear) (?:at|in) the (?:beginning|start|first)",
    r"(?:only one|multiple|more than one|a second) system (?:message|prompt)",
    r"unexpected role",
    r"(?:conversation|messages?) must (?:start|begin) with (?:a |the )?[`'\"]?user",
    r"first (?:non-system )?(?:message|turn) must (?:be|have|use)\b.{0,30}\buser",
    r"expected last role",
    r"consecutive (?:user|assistant|system) (?:messages|turns)",
    r"(?:function call|function response|model) turn .{0,60}immediately after",
)
"""The order of roles is wrong: templates' own words, and those of servers that check it first."""

_WORDS = re.compile("|".join((*_RENDERING, *_ROLES)), re.DOTALL)


class Templates:
    """What is known of the models that one process talks to."""

    def __init__(self) -> None:
        """Begin with the belief that every template takes what clients send."""
        self._joins: OrderedDict[tuple[str, str], None] = OrderedDict()

    def joins(self, base: str, model: str) -> bool:
        """Whether nothing may stand beside a checkpoint in requests to a model."""
        return (base, model) in self._joins

    def helped(self, base: str, model: str) -> None:
        """Note that a model took a request only when nothing stood beside the checkpoint."""
        self._joins[base, model] = None
        self._joins.move_to_end((base, model))
        if len(self._joins) > MAX_MODELS:
            self._joins.popitem(last=False)


def is_template_error(status: int, body: bytes) -> bool:
    """Tell whether an error says that a chat template objects to a request. Never raises.

    Args:
        status: of the reply.
        body: of the reply, decoded.
    """
    if status not in _STATUSES:
        return False
    return _WORDS.search(body[:MAX_BYTES].decode("utf-8", "replace").lower()) is not None


def is_template_event(event: bytes) -> bool:
    """Tell whether the data of a stream's event says so, as an error. Never raises.

    LM Studio and others begin a stream before they render the conversation. What a model writes
    is no error, whatever its words.
    """
    if b'"error"' not in event or len(event) > MAX_BYTES:
        return False
    try:
        members = codec.split_object(event)
        kind, error = members.get("type"), members.get("error", b"null")
        if kind == b'"response.failed"':
            error = codec.split_object(members.get("response", b"{}")).get("error", b"null")
    except codec.MalformedJson:
        return False
    if error == b"null" and kind == b'"error"':
        error = event
    return error != b"null" and is_template_error(_BAD_REQUEST, error)
