"""Which upstreams keep responses for later requests, learned from what they say.

Some servers of the Responses API keep nothing (llama.cpp), some only while they run. A request
that draws on what was kept is sent as it came until an upstream refuses one of that kind; from
then on it gets them written out.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from proxy.dialects.continuations import Continuation

MAX_DOUBTS = 2
"""So many lost or ignored responses in a row make an upstream one that keeps nothing."""

MAX_MODELS = 1024
_SERVER_ERROR = 500
_STATUSES = frozenset({400, 404, 405, 409, 410, 422, 500, 501})
_CHAIN_WORDS = ("previous_response", "previous response")
_REFERENCE_WORDS = ("item_reference", "item reference", "type of 'item'")
_UNKNOWN_WORDS = ("not found", "not_found", "does not exist", "expired", "no longer")
_UNSUPPORTED_WORDS = (
    "support",
    "not implemented",
    "unknown",
    "unrecognized",
    "unexpected",
    "not permitted",
    "not allowed",
    "extra",
    "invalid value: 'item_reference'",
    "cannot determine",
    "requires",
)
"""How servers say that they do not take a field."""

_LOST_CALL = re.compile(r"no (?:tool|function) call found\b.{0,80}?\bcall_id:? ['\"]?([\w.:-]+)")
"""What a strict server says that passed the field over: the call is in what it did not look at."""

_IGNORED_SHARE = 0.5
_MIN_TOKENS = 256

Refusal = Literal["unsupported", "unknown"]


@dataclass(slots=True)
class _Seen:
    refuses: bool = False
    doubts: int = 0


class Continuations:
    """What is known of the upstreams of one process, by base URL and model."""

    def __init__(self) -> None:
        """Begin with the belief that every upstream keeps responses."""
        self._seen: OrderedDict[tuple[str, str], _Seen] = OrderedDict()

    def refuses(self, base: str, model: str) -> bool:
        """Whether an upstream must get requests written out."""
        seen = self._seen.get((base, model))
        return seen is not None and seen.refuses

    def helped(self, base: str, model: str, refusal: Refusal) -> None:
        """Note that an upstream refused a request, and took it once it was written out."""
        self._doubt(base, model, MAX_DOUBTS if refusal == "unsupported" else 1)

    def answered(
        self,
        base: str,
        model: str,
        *,
        chained: bool,
        told: bool,
        expected: int,
        reported: int | None,
    ) -> None:
        """Note an answer to a request that draws on what the upstream keeps.

        A server that passes ``previous_response_id`` over without a word is noticed by how little
        it has read.

        Args:
            base: the upstream's base URL.
            model: the model that was asked.
            chained: whether the request names a response.
            told: whether the answer says that it continues that one.
            expected: estimated tokens of the whole request; 0 when that cannot be compared.
            reported: prompt tokens as the usage report has them.
        """
        known = reported is not None and expected >= _MIN_TOKENS
        if chained and known and reported is not None and reported < _IGNORED_SHARE * expected:
            self._doubt(base, model, 1 if told else MAX_DOUBTS)
        elif (base, model) in self._seen and (known or not chained):
            self._seen[base, model].doubts = 0

    def _doubt(self, base: str, model: str, weight: int) -> None:
        seen = self._seen.setdefault((base, model), _Seen())
        seen.doubts += weight
        seen.refuses = seen.refuses or seen.doubts >= MAX_DOUBTS
        self._seen.move_to_end((base, model))
        if len(self._seen) > MAX_MODELS:
            self._seen.popitem(last=False)


def refusal(
    status: int, body: bytes, continuation: Continuation, holds: Callable[[str], bool]
) -> Refusal | None:
    """Tell whether an error is about what a request draws on; None when it is not.

    Args:
        status: of the reply.
        body: of the reply, decoded.
        continuation: what the request draws on.
        holds: tells whether a call with an id is in that, as far as it is known here.
    """
    if status not in _STATUSES:
        return None
    text = body.decode("utf-8", "replace").lower()
    lost = _LOST_CALL.search(text) if continuation.previous else None
    if lost is not None:
        return "unknown" if holds(lost[1].rstrip(".")) else None
    words: list[str] = []
    if continuation.previous:
        words += [*_CHAIN_WORDS, continuation.previous.lower()]
    if continuation.references:
        words += [*_REFERENCE_WORDS, *(name.lower() for name in continuation.references if name)]
    if not any(word in text for word in words):
        return None
    if status != _SERVER_ERROR and any(word in text for word in _UNKNOWN_WORDS):
        return "unknown"
    return "unsupported" if any(word in text for word in _UNSUPPORTED_WORDS) else None
