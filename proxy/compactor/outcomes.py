"""What a decision comes to: the body to send and what is told about it."""

from proxy.compaction.calibration import Calibration
from proxy.compaction.plan import Outlook, Refuse, Substitute
from proxy.compactor.entries import Found
from proxy.compactor.requests import Outcome, PreparedRequest
from proxy.compactor.runs import Landed
from proxy.transcript import Transcript
from proxy.upstream.reports import Measured


def forwarded(request: PreparedRequest, estimate: int, calibration: Calibration) -> Outcome:
    """Return the outcome of a request that goes on as it came, or only written out.

    Args:
        request: the request.
        estimate: its estimated tokens.
        calibration: how to read them.
    """
    expansion, whole = request.expansion, b""
    if expansion is not None and request.expanded:
        whole = expansion.body
    tokens = calibration.tokens(estimate)
    return Outcome(
        whole or request.body,
        request.handling.route,
        rewritten=bool(whole),
        is_expanded=bool(whole),
        measured=measured(
            request.parsed.transcript, estimate, calibration, calibration.settle(estimate)
        ),
        before=tokens,
        after=tokens,
        continuation=request.continuation,
        expansion=expansion,
        recorded=request.parsed.stored,
    )


def measured(
    transcript: Transcript,
    estimate: int,
    calibration: Calibration,
    settled: Calibration,
    form: str = "",
) -> Measured:
    """Return what the report of a request's size is to be compared with.

    Args:
        transcript: the request as it came.
        estimate: the estimated tokens of what is sent.
        calibration: how to read them.
        settled: how to read them when it comes again.
        form: id of the checkpoint that it is sent with; empty for none.
    """
    items = transcript.items
    return Measured(
        transcript.anchor,
        estimate,
        calibration,
        settled,
        len(items),
        items[-1].digest if items else b"",
        form,
        any(item.has_image for item in items),
    )


def told(outlook: Outlook, calibration: Calibration, form: str) -> tuple[int, int]:
    """Return the tokens of what came and of what goes upstream, as the model counts them.

    Args:
        outlook: the sizes, estimated.
        calibration: how to read them in the form that goes upstream.
        form: id of the checkpoint that it goes with; empty for none.
    """
    before = outlook.before.tokens
    return (
        calibration.elsewhere(before) if form else calibration.tokens(before),
        calibration.tokens(outlook.after.tokens),
    )


def shadow(request: PreparedRequest, outlook: Outlook, calibration: Calibration) -> Outcome:
    """Return the outcome of a request that is only decided about."""
    estimate = outlook.before.tokens
    tokens = calibration.tokens(estimate)
    settled = calibration.settle(estimate)
    return Outcome(
        request.body,
        request.handling.route,
        marks=("shadow",),
        measured=measured(request.parsed.transcript, estimate, calibration, settled),
        before=tokens,
        after=tokens,
    )


def marks(found: Found, decision: Substitute | Refuse, landed: Landed | None) -> tuple[str, ...]:
    """Return the words of the reply header."""
    words = []
    new = landed.checkpoint if landed is not None else None
    if new is not None and found.checkpoint is not None and new.id == found.checkpoint.id:
        words.append("compacted")
        words += ["extractive"] if new.extractive else []
        words += ["partial"] if new.partial or new.covered is not None else []
    elif found.checkpoint is not None:
        words.append("reused")
    if decision.clips:
        words.append("clipped")
    return tuple(words)
