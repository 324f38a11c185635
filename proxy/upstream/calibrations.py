"""What replies told of the size of requests, and what that says of the next ones.

A report is believed when it is near what was expected of that request. One that is not changes
nothing; a second one that agrees with it does: the text may really cost that much. Two that agree
on a size that no longer grows, though the conversation does, tell that the server drops what is
old without a word: that is a window, not a ratio.

Everything is of one process and bounded; after a restart it is learned anew.
"""

from collections import OrderedDict
from statistics import median
from typing import TypeVar

from proxy.compaction.calibration import MAX_FACTOR, MIN_FACTOR, Calibration
from proxy.transcript import Transcript
from proxy.upstream.learned import TRUNCATED, LearnedWindows
from proxy.upstream.reports import (
    CHEAP,
    CREEPING_AFTER,
    FLAT,
    FLAT_AFTER,
    REPORTS,
    SLOW_AFTER,
    STANDING,
    TRUNCATED_BELOW,
    TRUNCATED_BY,
    Measured,
    Report,
    SessionReports,
    agree,
    has_shrunk,
    is_cut,
    is_flat,
    is_near,
    is_proven_cheap,
)

MIN_ESTIMATE = 256
"""Smaller requests say more about the chat template than about the text."""

MAX_SESSIONS = 4096
MAX_MODELS = 1024
MAX_ANCHORS = 8
"""Of one session: its branches, and its forms."""

LEAST_UNTRIED = 0.9
"""A model whose other sessions cost less than estimated is believed that far by a new one."""

_Model = tuple[str, str, bytes]
"""Base URL, model and tenant."""

_Key = tuple[str, str, bytes]
"""Base URL, model and session."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class Calibrations:
    """What one process learned, by upstream and model, tenant and session."""

    def __init__(self, learned: LearnedWindows) -> None:
        """Take who learns windows from what was accepted, and from what was dropped."""
        self._learned = learned
        self._sessions: OrderedDict[_Key, SessionReports] = OrderedDict()
        self._models: OrderedDict[tuple[str, str], OrderedDict[bytes, float]] = OrderedDict()
        self._told: OrderedDict[_Model, float] = OrderedDict()

    def of(
        self, base: str, model: str, tenant: bytes, transcript: Transcript, form: str = ""
    ) -> Calibration:
        """Return how to read the estimates of a request.

        Args:
            base: the upstream's base URL.
            model: the model that is asked.
            tenant: whose request it is; what errors told counts for one tenant only.
            transcript: the request.
            form: id of the checkpoint that it goes with; empty when it goes as it came.
        """
        session = self._sessions.get((base, model, transcript.anchor))
        ratio = self._ratio(base, model, tenant, session)
        if session is None:
            return Calibration(ratio)
        items, best = transcript.items, None
        for anchor in session.anchors:
            if anchor.form != form or not 0 < anchor.length <= len(items):
                continue
            if best is not None and best.length > anchor.length:
                continue
            if items[anchor.length - 1].digest == anchor.last:
                best = anchor
        if best is None:
            return Calibration(ratio)
        if best.before is not None and best.length == len(items):
            # The same request again: it must come to the same.
            return best.before
        return Calibration(ratio, best.estimate, best.reported)

    def nearest(self, base: str, model: str, tenant: bytes, session: bytes) -> Calibration:
        """Return how to read the estimates of a request that was not read, and goes as it came."""
        known = self._sessions.get((base, model, session))
        ratio = self._ratio(base, model, tenant, known)
        latest = known.latest if known is not None else None
        if latest is None or latest.form:
            return Calibration(ratio)
        return Calibration(ratio, latest.estimate, latest.reported)

    def reported(self, base: str, model: str, tenant: bytes, sent: Measured, tokens: int) -> None:
        """Take what a reply told of the size of its request; an odd one changes nothing."""
        if tokens <= 0 or not sent.session or sent.estimate <= 0:
            return
        session = self._session((base, model, sent.session))
        expected = sent.expected
        missing = tokens < TRUNCATED_BELOW * expected and expected - tokens >= TRUNCATED_BY
        report = Report(
            sent.form, sent.estimate, tokens, sent.length, sent.last, missing, sent.settled
        )
        shrunk = has_shrunk(sent, tokens)
        if not (sent.has_image or shrunk) and is_proven_cheap(session, report):
            session.flat = session.doubted = None
            self._believe((base, model, tenant), sent, session, report)
            return
        if not sent.has_image and is_flat(session, report):
            self._take_flat((base, model, tenant), sent, session, report)
            return
        session.flat = None
        doubted, session.doubted = session.doubted, None
        if is_near(sent, tokens):
            self._believe((base, model, tenant), sent, session, report)
        elif (
            doubted is not None and not shrunk and agree(doubted, report, has_image=sent.has_image)
        ):
            if not sent.has_image:
                # What was learned before was of other text.
                session.ratios.clear()
                self._take_ratio((base, model), sent.session, session, doubted)
            self._believe((base, model, tenant), sent, session, report)
        else:
            session.doubted = report
            if session.reference is None and missing:
                # Whatever it is, what follows must grow from there.
                session.reference = report
            if doubted is not None and not sent.has_image:
                self._find_cut((base, model, tenant), session, doubted, report)

    def _take_flat(
        self, model: _Model, sent: Measured, session: SessionReports, report: Report
    ) -> None:
        """Take a report that says that the conversation has hardly grown."""
        doubted, session.doubted = session.doubted, report
        if doubted is not None:
            self._find_cut(model, session, doubted, report)
        if session.flat is None or session.flat.form != report.form:
            session.flat = report
            return
        grown = (report.estimate - session.flat.estimate) * session.scale
        told = report.reported - session.flat.reported
        if (grown >= SLOW_AFTER and told >= FLAT * grown) or (
            grown >= CREEPING_AFTER and told >= STANDING * grown
        ):
            session.flat = session.doubted = None
            self._believe(model, sent, session, report)

    def _find_cut(self, model: _Model, session: SessionReports, one: Report, other: Report) -> None:
        if is_cut(session, one, other):
            kept = max(session.highest, one.reported, other.reported)
            self._learned.learn(*model, kept, exact=False, source=TRUNCATED)

    def told(
        self,
        base: str,
        model: str,
        tenant: bytes,
        sent: Measured | None,
        counted: int,
        *,
        exact: bool = False,
    ) -> None:
        """Take the count of an overflow error: had it been expected, there would be no error.

        Args:
            base: the upstream's base URL.
            model: the model that was asked.
            tenant: whose request it was.
            sent: the request.
            counted: what it was told to have, or at least to have.
            exact: whether it has no more than that. What is less than expected counts for the
                session alone.
        """
        if sent is None or sent.has_image or sent.estimate < MIN_ESTIMATE:
            return
        seen = counted / sent.estimate
        if not (CHEAP if exact else 0) < seen <= MAX_FACTOR:
            return
        if counted > sent.expected:
            self._told[base, model, tenant] = seen
            self._told.move_to_end((base, model, tenant))
            _bound(self._told, MAX_MODELS)
        elif not exact:
            return
        if sent.session:
            session = self._session((base, model, sent.session))
            session.ratios.clear()
            session.ratios.append(seen)
            report = Report(sent.form, sent.estimate, counted, sent.length, sent.last)
            _anchor(session, report)

    def counted(self, base: str, model: str, sent: Measured, tokens: int) -> None:
        """Take the exact size of a request that is about to be sent."""
        session = self._session((base, model, sent.session))
        report = Report(sent.form, sent.estimate, tokens, sent.length, sent.last)
        _anchor(session, report)
        session.latest = session.reference = report
        session.doubted = None
        if not sent.has_image:
            self._take_ratio((base, model), sent.session, session, report)

    def _ratio(self, base: str, model: str, tenant: bytes, session: SessionReports | None) -> float:
        if session is not None and session.ratios:
            return _bounded(median(session.ratios))
        told = self._told.get((base, model, tenant), 0.0) if self._told else 0.0
        others = self._models.get((base, model))
        usual = max(LEAST_UNTRIED, median(others.values())) if others else 1.0
        return _bounded(max(usual, told))

    def _session(self, key: _Key) -> SessionReports:
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = SessionReports()
            _bound(self._sessions, MAX_SESSIONS)
        else:
            self._sessions.move_to_end(key)
        return session

    def _believe(
        self, model: _Model, sent: Measured, session: SessionReports, report: Report
    ) -> None:
        base, name, tenant = model
        changed = session.latest is not None and session.latest.form != report.form
        if changed and not session.is_cheap:
            session.ratios.clear()
        _anchor(session, report)
        session.latest, session.cheap = report, None
        session.highest = max(session.highest, report.reported)
        reference = session.reference
        if (
            reference is None
            or report.form != reference.form
            or not 0 <= report.estimate - reference.estimate < FLAT_AFTER
        ):
            session.reference = report
        if not sent.has_image:
            self._take_ratio((base, name), sent.session, session, report)
            if session.ratios and self._told.get(model, 0.0) > session.ratios[-1]:
                # That was before.
                self._told[model] = session.ratios[-1]
        self._learned.accepted(base, name, tenant, report.reported)

    def _take_ratio(
        self, model: tuple[str, str], name: bytes, session: SessionReports, report: Report
    ) -> None:
        # Cut short or cheap: until it is known which, it counts as half of the estimate.
        seen = max(MIN_FACTOR if session.is_cheap else CHEAP, report.reported / report.estimate)
        if report.estimate < MIN_ESTIMATE or seen > MAX_FACTOR:
            return
        session.ratios.append(seen)
        # Of the sessions that were heard of last, each once: a long one is no majority.
        sessions = self._models.setdefault(model, OrderedDict())
        sessions[name] = median(session.ratios)
        sessions.move_to_end(name)
        _bound(sessions, REPORTS)
        self._models.move_to_end(model)
        _bound(self._models, MAX_MODELS)


def _anchor(session: SessionReports, report: Report) -> None:
    if not report.last:
        return
    kept = [a for a in session.anchors if (a.last, a.form) != (report.last, report.form)]
    session.anchors = [*kept[1 - MAX_ANCHORS :], report]


def _bounded(ratio: float) -> float:
    return min(MAX_FACTOR, max(MIN_FACTOR, ratio))


def _bound(kept: "OrderedDict[_K, _V]", most: int) -> None:
    if len(kept) > most:
        kept.popitem(last=False)
