"""What a reply told of the size of its request, and what that is evidence of.

A report may be what was expected; or tell that the text costs more or less than estimated; or that
the server drops what is old without a word; or be of something else altogether.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from proxy.compaction.calibration import MAX_FACTOR, MIN_FACTOR, Calibration
from proxy.transcript import Record

REPORTS = 5
"""A ratio is the median of so many."""

NOISE_TOKENS = 64
"""What templates add here and there."""

_TOLERANCE, _NEW_TOLERANCE, _KNOWN_TOLERANCE = 0.25, 0.5, 0.02
"""How far off a report may be: of the whole where all is estimated, else of what is new and old."""

CHEAP = 0.5
"""A report below this part of the estimate is more likely cut short than of text so cheap."""

CHEAP_GROWTH = 1.5
_CHEAP_SLOPES = 0.6, 1.7
"""Text is so cheap when reports grow by so much, at the rate that they themselves tell: what is cut
short stays where it is."""

_SAME_RATIO = 0.15
_SAME_SLOPES = 0.5, 2.0
"""How far apart the ratios of requests in different forms may be, and at which part of their rate
the reports must differ, to tell of one way to count."""

FLAT, STANDING = 0.3, 0.1
"""A request that grew must be told to have grown at least by this part of it; below that one it
stands still."""

FLAT_AFTER, SLOW_AFTER, CREEPING_AFTER = 512, 2048, 8192
"""Estimated tokens that must have come to it before that is asked, and before it may be said that
it does grow after all, or at least a little: single messages come and go. A template that leaves
old reasoning out makes it so."""

TRUNCATED_BELOW, TRUNCATED_BY = 0.75, 512
"""A report is far too low below this part of what was expected, and by at least so many tokens."""

_NEAR = 0.7
_UNCACHED = 1.3
# Whole messages are dropped, so sizes at a window differ; and caches end between messages.

_PROMPT_TOKENS = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,9})')
_TIMINGS = re.compile(rb'"cache_n"\s*:\s*(\d{1,9})\s*,\s*"prompt_n"\s*:\s*(\d{1,9})')


def reported_tokens(tail: bytes) -> int | None:
    """Return the prompt tokens that the end of a reply reports, or None.

    Understood are `usage.prompt_tokens`, `usage.input_tokens` (Responses) and, for streams without
    usage, llama.cpp's `timings`.
    """
    found = _PROMPT_TOKENS.findall(tail)
    if found:
        return int(found[-1])
    timings = _TIMINGS.findall(tail)
    return sum(map(int, timings[-1])) if timings else None


class Measured(Record, frozen=True):
    """A request that is sent, as far as the report of its size is compared with it."""

    session: bytes
    """Fingerprint through the first user item."""
    estimate: int
    calibration: Calibration
    """How that was read when it was decided about."""
    settled: Calibration
    """How to read it when it comes again."""
    length: int = 0
    last: bytes = b""
    """Number of items, and fingerprint through the last; empty when they were not read."""
    form: str = ""
    """Id of the checkpoint that it goes with; empty for none."""
    has_image: bool = False

    @property
    def comparable(self) -> int:
        """The estimate, where a report that differs says something about its text; else 0."""
        # What an image costs differs too much between models.
        return 0 if self.has_image else self.estimate

    @property
    def expected(self) -> int:
        """What the upstream was expected to count."""
        return self.calibration.tokens(self.estimate)

    @property
    def new(self) -> int:
        """The estimated tokens since the anchor; all of them where there is none."""
        known = self.calibration.estimated if self.calibration.reported else 0
        return abs(self.estimate - known)


@dataclass(frozen=True, slots=True)
class Report:
    """What one reply told of the size of its request."""

    form: str
    estimate: int
    reported: int
    length: int = 0
    last: bytes = b""
    missing: bool = False
    """Whether it was far less than expected."""
    before: Calibration | None = None
    """How to read the same request again."""


@dataclass(slots=True)
class SessionReports:
    """What was told of one session."""

    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=REPORTS))
    anchors: list[Report] = field(default_factory=list)
    latest: Report | None = None
    """The last report that was believed."""
    reference: Report | None = None
    """An older one, from which growth is judged: many small steps are as good as a large one."""
    doubted: Report | None = None
    cheap: Report | None = None
    """An earlier one that was of far less than estimated: the first of its form."""
    is_cheap: bool = False
    """Whether its text was found to be that cheap."""
    flat: Report | None = None
    """The first of those in a row that tell of no growth."""
    highest: int = 0

    @property
    def scale(self) -> float:
        """How much a report grows at least where text is as it was before, of its estimate."""
        return median(self.ratios) if self.is_cheap and self.ratios else 1.0


def is_near(sent: Measured, tokens: int) -> bool:
    """Whether a report is about what was expected."""
    expected = sent.expected
    tolerance = _TOLERANCE * expected
    if sent.calibration.reported:
        tolerance = _NEW_TOLERANCE * sent.new + _KNOWN_TOLERANCE * expected
    return abs(tokens - expected) <= NOISE_TOKENS + tolerance


def has_shrunk(sent: Measured, tokens: int) -> bool:
    """Whether a report is of less than the beginning of the same request was told to have.

    It cannot be of all of it, whatever the text costs.
    """
    known = sent.calibration
    return known.estimated <= sent.estimate and tokens < known.reported - NOISE_TOKENS


def is_flat(session: SessionReports, report: Report) -> bool:
    """Whether a request has hardly grown by what it reports, though it has by our estimate."""
    reference = session.reference
    if reference is None or reference.form != report.form:
        return False
    grown = report.estimate - reference.estimate
    least = FLAT * session.scale * grown
    return grown >= FLAT_AFTER and report.reported - reference.reported < least


def is_proven_cheap(session: SessionReports, report: Report) -> bool:
    """Whether the text of a session is as cheap as a report says, by an earlier one."""
    seen = report.reported / report.estimate
    if session.is_cheap or not MIN_FACTOR <= seen < CHEAP:
        return False
    first = session.cheap
    if first is None:
        session.cheap = report
        return False
    grown, told = report.estimate - first.estimate, report.reported - first.reported
    if grown >= NOISE_TOKENS and report.reported >= CHEAP_GROWTH * first.reported:
        least, most = _CHEAP_SLOPES
        session.is_cheap = least <= told / grown / seen <= most
    if not session.is_cheap and first.form != report.form:
        session.cheap = report
    return session.is_cheap


def agree(one: Report, other: Report, *, has_image: bool) -> bool:
    """Whether two reports, neither of them expected, are of the same way to count."""
    if one.estimate > other.estimate:
        one, other = other, one
    grown, told = other.estimate - one.estimate, other.reported - one.reported
    if one.form != other.form:
        # Where each request is compacted no two have the same form. What is cut short does not
        # grow in proportion.
        first, seen = one.reported / one.estimate, other.reported / other.estimate
        least, most = _SAME_SLOPES
        alike = grown >= NOISE_TOKENS and abs(first - seen) <= _SAME_RATIO * seen
        return alike and not has_image and least <= told / grown / seen <= most
    if grown < NOISE_TOKENS:
        # The same request again may be cut short again.
        return abs(told) <= NOISE_TOKENS and not other.missing
    if has_image:
        # What an image costs is anybody's guess.
        return told >= 0
    return FLAT * grown <= told <= MAX_FACTOR * grown + NOISE_TOKENS


def is_cut(session: SessionReports, one: Report, other: Report) -> bool:
    """Whether two reports in a row tell that only the end of the conversation was read."""
    grown = other.estimate - one.estimate
    if not (one.missing and other.missing) or one.form != other.form or grown < NOISE_TOKENS:
        return False
    if other.reported - one.reported > STANDING * session.scale * grown:
        return False
    less, more = sorted((one.reported, other.reported))
    # Some servers report what was not in their cache: about what is new, each time.
    uncached = _UNCACHED * grown + 4 * NOISE_TOKENS
    return less >= _NEAR * more and less > uncached and more >= TRUNCATED_BELOW * session.highest
