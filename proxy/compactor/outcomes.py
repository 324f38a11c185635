"""What a decision comes to: the body to send and what is told about it."""

from proxy.compaction.plan import Outlook, Refuse, Substitute
from proxy.compactor.entries import Found
from proxy.compactor.requests import Outcome, PreparedRequest
from proxy.compactor.runs import Landed
from proxy.dialects.bodies import ParsedRequest


def forwarded(request: PreparedRequest, tokens: int) -> Outcome:
    """Return the outcome of a request that goes on as it came, or only written out."""
    expansion, whole = request.expansion, b""
    if expansion is not None and request.expanded:
        whole = expansion.body
    return Outcome(
        whole or request.body,
        request.handling.route,
        rewritten=bool(whole),
        is_expanded=bool(whole),
        measured=comparable(request.parsed, tokens),
        before=tokens,
        after=tokens,
        continuation=request.continuation,
        expansion=expansion,
        recorded=request.parsed.stored,
    )


def comparable(parsed: ParsedRequest, tokens: int) -> int:
    """Return the estimate where it can be compared with a usage report, else 0."""
    # What an image costs differs too much between models to say anything about text.
    return 0 if any(item.has_image for item in parsed.transcript.items) else tokens


def shadow(request: PreparedRequest, outlook: Outlook) -> Outcome:
    """Return the outcome of a request that is only decided about."""
    tokens = outlook.before.tokens
    route = request.handling.route
    return Outcome(request.body, route, marks=("shadow",), before=tokens, after=tokens)


def marks(found: Found, decision: Substitute | Refuse, landed: Landed | None) -> tuple[str, ...]:
    """Return the words of the reply header."""
    words = []
    new = landed.checkpoint if landed is not None else None
    if new is not None and found.checkpoint is not None and new.id == found.checkpoint.id:
        words.append("compacted")
        words += ["extractive"] if new.extractive else []
        words += ["partial"] if new.partial else []
    elif found.checkpoint is not None:
        words.append("reused")
    if decision.clips:
        words.append("clipped")
    return tuple(words)
