"""What the model counts of the requests at hand.

What replies told serves most requests. Near the trigger, and before a compaction that may not be
due, it matters whether that is exact: where too much of a request is only estimated, an upstream
that can count is asked.
"""

from proxy.compaction.calibration import Calibration
from proxy.compaction.checkpoint import Checkpoint
from proxy.compaction.clip import clip_arguments, clip_texts
from proxy.compaction.plan import Compact, Decision, Question, State, standing
from proxy.compaction.policy import Window, budget
from proxy.compaction.quiet import quiet_size, surely_quiet
from proxy.compactor.outcomes import measured
from proxy.compactor.ports import Calibrations, Counters
from proxy.compactor.requests import Handling, PreparedRequest
from proxy.dialects.bodies import Glance
from proxy.dialects.memo import Match
from proxy.transcript import Transcript
from proxy.upstream.reports import Measured
from proxy.upstream.routes import Route

NEAR_SHARE = 0.05
"""So near the trigger, on either side, an exact count is worth a question."""

FRESH_SHARE = 0.05
"""What is only estimated may be so much of a request without making it worth one."""

DOUBTED_SHARE = 2.0
"""A compaction is dear: so far above the trigger a count may show that it is not due."""

LEARN_SHARE = 0.25
"""From this part of the trigger on it is worth the while to read what small steps are reported."""


class Counts:
    """Reads the estimates of one process's requests."""

    def __init__(self, calibrations: Calibrations, counters: Counters) -> None:
        """Take what was learned, and who can be asked."""
        self._calibrations = calibrations
        self._counters = counters

    def calibration(
        self, route: Route, transcript: Transcript, checkpoint: Checkpoint | None
    ) -> Calibration:
        """Return how to read the estimates of a request that goes with a checkpoint, or none."""
        form = checkpoint.id if checkpoint is not None else ""
        return self._calibrations.of(route.base.url, route.model, route.tenant, transcript, form)

    def quiet(
        self, transcript: Transcript, handling: Handling, window: Window
    ) -> tuple[int, Calibration] | None:
        """Return the size of a request that plainly needs nothing, and how to read it.

        None when it has to be planned. Only for requests of which nothing is stored.
        """
        route, policy = handling.route, handling.rules.policy
        calibration = self.calibration(route, transcript, None)
        tokens = quiet_size(transcript, policy, window, calibration)
        if tokens is None:
            return None
        limits = budget(policy, window, transcript)
        is_far = calibration.tokens(tokens) < (1 - NEAR_SHARE) * limits.trigger
        if is_far or limits.fit is None or not self._is_worth_asking(route, calibration, tokens):
            return tokens, calibration
        return None

    def glanced(
        self, glance: Glance, known: Match, handling: Handling, window: Window
    ) -> tuple[int, Measured | None] | None:
        """Return about how large a request is that fits whatever little is new in it.

        With what its report is to be compared with, where that is worth reading. None when it has
        to be looked at.
        """
        route, policy = handling.route, handling.rules.policy
        calibration = self._calibrations.nearest(
            route.base.url, route.model, route.tenant, glance.anchor
        )
        factor = calibration.careful(glance.tokens)
        if not surely_quiet(policy, window, glance.tokens, glance.chars, factor):
            return None
        estimate = glance.estimate
        tokens = calibration.tokens(estimate)
        limit = window.trusted
        if limit is None or glance.tokens < LEARN_SHARE * limit:
            return tokens, None
        has_image = any(item.has_image for item in known.items)
        return tokens, Measured(
            glance.anchor,
            estimate,
            calibration,
            calibration.settle(estimate),
            has_image=has_image,
        )

    async def counted(
        self, request: PreparedRequest, question: Question, state: State, decision: Decision
    ) -> bool:
        """Ask how large a request is, where that may change what was decided; tell if it is known.

        Args:
            request: the request.
            question: what was planned.
            state: what is stored of it.
            decision: what came of it.
        """
        route, calibration = request.handling.route, question.calibration
        tokens = decision.outlook.after.tokens
        if request.force or request.shadow or question.window.trusted is None:
            return False
        factor, careful = calibration.factor(tokens), calibration.careful(tokens)
        limits = budget(question.policy, question.window, question.transcript, factor, careful)
        if not _may_change(calibration, tokens, limits.trigger, due=isinstance(decision, Compact)):
            return False
        if not self._is_worth_asking(route, calibration, tokens):
            return False
        pieces, full = standing(question, state)
        body = request.expansion.body if request.expansion is not None else request.body
        if pieces:
            body = request.dialect.rebuild(request.parsed, pieces, clip_texts, clip_arguments)
        found = await self._counters.count(route, body)
        if found is None:
            return False
        form = state.checkpoint.id if state.checkpoint is not None else ""
        settled = calibration.settle(full.tokens)
        sent = measured(question.transcript, full.tokens, calibration, settled, form)
        self._calibrations.counted(route.base.url, route.model, sent, found)
        return True

    def _is_worth_asking(self, route: Route, calibration: Calibration, tokens: int) -> bool:
        return calibration.new_share(tokens) > FRESH_SHARE and self._counters.may_count(route)


def _may_change(calibration: Calibration, tokens: int, trigger: int, *, due: bool) -> bool:
    """Whether an exact count may come to another decision; `due` if that is to compact."""
    if abs(tokens - trigger) <= NEAR_SHARE * trigger:
        return True
    known = (1 - calibration.new_share(tokens)) * tokens
    return due and known < trigger < tokens <= DOUBTED_SHARE * trigger
