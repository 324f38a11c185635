"""What replies tell of the size of requests, and what is made of it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.calibration import Calibration
from proxy.compaction.policy import Window
from proxy.transcript import Item, Kind, Transcript
from proxy.upstream.calibrations import (
    LEAST_UNTRIED,
    MAX_ANCHORS,
    MAX_SESSIONS,
    Calibrations,
)
from proxy.upstream.learned import LearnedWindows
from proxy.upstream.reports import REPORTS, Measured, reported_tokens

BASE, MODEL, TENANT = "http://up/v1", "m", b"tenant"
EACH = 400


@pytest.mark.parametrize(
    ("tail", "tokens"),
    [
        (b'{"usage":{"completion_tokens":2,"prompt_tokens":731,"total_tokens":733}}', 731),
        (b'data: {"usage": {"prompt_tokens" : 5}}\n\ndata: [DONE]\n\n', 5),
        (b'"delta":{}}],"timings":{"cache_n":5,"prompt_n":28,"prompt_ms":1.5}}', 33),
        (b'{"usage":null}', None),
        (b"", None),
        (b'"prompt_tokens":1 ... "prompt_tokens":9', 9),
    ],
)
def test_the_report_is_found_at_the_end_of_a_reply(tail: bytes, tokens: int | None) -> None:
    assert tokens == reported_tokens(tail)


def _item(digest: bytes) -> Item:
    return Item(Kind.USER, "user", b"", 4 * EACH, EACH, digest)


class Session:
    """A conversation that grows by `EACH` estimated tokens a turn."""

    def __init__(self, calibrations: Calibrations, name: str = "s", *, image: bool = False) -> None:
        self.calibrations = calibrations
        self.name = name.encode() + b"/0"
        self.image = image
        self.turns = 0

    def digest(self, number: int) -> bytes:
        return self.name if not number else b"%b%d" % (self.name, number)

    @property
    def estimate(self) -> int:
        return EACH * self.turns

    def transcript(self, turns: int) -> Transcript:
        return Transcript((), tuple(_item(self.digest(number)) for number in range(turns)))

    def calibration(self, form: str = "") -> Calibration:
        """How the next request is read."""
        following = _item(b"new" if self.turns else self.name)
        transcript = Transcript((), (*self.transcript(self.turns).items, following))
        return self.calibrations.of(BASE, MODEL, TENANT, transcript, form)

    def again(self, form: str = "") -> Calibration:
        """How the same request is read."""
        return self.calibrations.of(BASE, MODEL, TENANT, self.transcript(self.turns), form)

    def tokens(self, form: str = "") -> int:
        return self.calibration(form).tokens(self.estimate)

    def sent(self, form: str = "") -> Measured:
        return Measured(
            self.name,
            self.estimate,
            self.again(form),
            self.again(form).settle(self.estimate),
            self.turns,
            self.digest(self.turns - 1),
            form,
            self.image,
        )

    def turn(self, reported: float, form: str = "") -> None:
        """Take one turn more, and be told what the whole has."""
        self.turns += 1
        self.calibrations.reported(BASE, MODEL, TENANT, self.sent(form), round(reported))

    def settle(self, ratio: float, turns: int = 6) -> None:
        for _ in range(turns):
            self.turn(ratio * (self.estimate + EACH))


@pytest.fixture
def learned() -> LearnedWindows:
    return LearnedWindows(lambda: 0.0)


@pytest.fixture
def calibrations(learned: LearnedWindows) -> Calibrations:
    return Calibrations(learned)


@pytest.fixture
def session(calibrations: Calibrations) -> Session:
    return Session(calibrations)


@pytest.mark.parametrize("ratio", [0.35, 0.6, 0.8, 1.0, 1.2, 1.7, 3.0])
def test_what_was_told_is_believed_but_for_what_is_new(session: Session, ratio: float) -> None:
    session.settle(ratio)
    told = round(ratio * session.estimate)
    assert session.tokens() == pytest.approx(told, abs=2)
    session.turns += 1
    new = EACH * max(0.5, ratio)
    assert session.tokens() == pytest.approx(told + new, abs=2 + 0.5 * EACH * (ratio < 0.5))


def test_another_form_has_no_anchor_but_the_ratio(session: Session) -> None:
    session.settle(1.5)
    calibration = session.calibration("checkpoint")
    assert calibration.reported == 0
    assert calibration.ratio == pytest.approx(1.5, rel=0.01)
    session.turn(1000, "checkpoint")
    assert session.calibration("").reported > 0


def test_a_branch_goes_on_from_the_longest_request_that_it_shares(session: Session) -> None:
    session.settle(1.2)
    session.turns = 4
    assert session.calibration().reported == round(1.2 * 4 * EACH)
    session.turns = 3
    assert session.tokens() == pytest.approx(1.2 * 3 * EACH, abs=2)


def test_the_same_request_again_is_read_as_it_was(session: Session) -> None:
    """So that it comes to the same, whatever was reported of it."""
    session.settle(1.2)
    session.turns += 1
    before = session.again()
    session.turns -= 1
    session.turn(1.15 * session.tokens())
    again = session.again()
    assert again == before.settle(session.estimate)
    assert again.new_share(session.estimate) == 0


def test_of_many_anchors_the_latest_are_kept(session: Session) -> None:
    session.settle(1.0, MAX_ANCHORS + 3)
    session.turns = 2
    assert session.calibration().reported == 0
    session.turns = MAX_ANCHORS
    assert session.calibration().reported == EACH * MAX_ANCHORS


ODD = [0, 1, 7, 300, 0.1, 0.6, 1.5, 10.0, 1000.0]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.8])
def test_one_odd_reply_changes_nothing(
    session: Session, learned: LearnedWindows, odd: float, ratio: float
) -> None:
    session.settle(ratio)
    before, tokens = session.calibration(), session.tokens()
    session.turn(odd if isinstance(odd, int) else odd * tokens)
    assert session.calibration() == before
    assert learned.window(BASE, MODEL, TENANT) is None
    session.settle(ratio, 1)
    assert session.tokens() == pytest.approx(ratio * session.estimate, abs=2)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_reply_to_the_first_request_changes_nothing(
    session: Session, learned: LearnedWindows, odd: float
) -> None:
    session.turns = 9
    session.turn(odd if isinstance(odd, int) else odd * session.tokens())
    assert session.calibration() == Calibration()
    assert learned.window(BASE, MODEL, TENANT) is None


def test_the_second_report_that_agrees_is_believed(session: Session) -> None:
    session.settle(1.0, 3)
    # From here on it is emoji.
    session.turn(3 * EACH + 3 * EACH)
    assert session.calibration().reported == 3 * EACH
    session.turn(3 * EACH + 6 * EACH)
    assert session.tokens() == 9 * EACH


def test_requests_that_are_each_compacted_agree_across_their_forms(session: Session) -> None:
    session.turns = 8
    session.turn(0.7 * (session.estimate + EACH), "a")
    assert session.calibration("c").ratio == 1.0
    session.turn(0.7 * (session.estimate + EACH), "b")
    assert session.calibration("c").ratio == pytest.approx(0.7, abs=0.01)


def test_what_is_cut_short_does_not_agree_across_forms(session: Session) -> None:
    session.turns = 12
    for number in range(20):
        session.turn(2900 + 37 * (number % 7), f"c{number}")
        assert session.calibration("new").ratio == 1.0


def test_text_is_found_to_be_cheap_across_forms(session: Session) -> None:
    for form in "ab":
        session.turns += 8
        session.turn(0.08 * (session.estimate + EACH), form)
    assert session.calibration("c").ratio == pytest.approx(0.08, abs=0.01)


def test_less_than_the_beginning_was_told_to_have_is_never_of_the_whole(session: Session) -> None:
    session.settle(1.0, 12)
    # Only what was not cached; by chance it grows as if the text were cheap.
    session.turn(899)
    session.turns += 3
    session.turn(1372)
    assert session.calibration().reported == 12 * EACH
    assert session.calibration().ratio == pytest.approx(1.0)


def test_two_odd_reports_that_do_not_agree_are_not(session: Session) -> None:
    session.settle(1.0, 3)
    session.turn(20_000)
    session.turn(60_000)
    assert session.calibration().reported == 3 * EACH


def test_a_prompt_that_a_server_adds_is_in_the_anchor(session: Session) -> None:
    session.turn(9000 + EACH)
    session.turn(9000 + 2 * EACH)
    session.turns = 10
    assert session.tokens() == 9000 + 10 * EACH


def test_a_new_session_begins_with_what_others_of_the_model_cost(
    calibrations: Calibrations,
) -> None:
    for number, ratio in enumerate([1.2, 1.3, 1.4]):
        Session(calibrations, f"s{number}").settle(ratio)
    new = Session(calibrations, "new")
    assert new.calibration().ratio == pytest.approx(1.3, rel=0.01)
    assert calibrations.of("http://else/v1", MODEL, TENANT, new.transcript(1)).ratio == 1.0
    assert calibrations.of(BASE, "other", TENANT, new.transcript(1)).ratio == 1.0


def test_a_long_session_is_no_majority(calibrations: Calibrations) -> None:
    Session(calibrations, "one").settle(1.2)
    Session(calibrations, "other").settle(1.2)
    Session(calibrations, "hex").settle(2.0, 50)
    assert Session(calibrations, "new").calibration().ratio == pytest.approx(1.2, rel=0.01)


def test_a_new_session_is_not_taken_for_much_cheaper_than_estimated(
    calibrations: Calibrations,
) -> None:
    Session(calibrations, "chinese").settle(0.6)
    assert Session(calibrations, "english").calibration().ratio == LEAST_UNTRIED


def test_of_images_only_the_anchor_is_learned(
    calibrations: Calibrations, learned: LearnedWindows
) -> None:
    session = Session(calibrations, image=True)
    for turn in range(1, 9):
        session.turn(100 * turn)
    assert session.calibration().ratio == 1.0
    assert session.calibration().reported == 800
    assert Session(calibrations, "new").calibration().ratio == 1.0
    assert learned.window(BASE, MODEL, TENANT) is None


def test_small_requests_say_nothing_of_text(session: Session, calibrations: Calibrations) -> None:
    sent = Measured(session.name, 100, Calibration(), Calibration(), 1, session.name)
    calibrations.reported(BASE, MODEL, TENANT, sent, 120)
    assert calibrations.nearest(BASE, MODEL, TENANT, session.name).ratio == 1.0


def _truncated(session: Session, window: int, turns: int) -> None:
    """As Ollama: whole messages are dropped until the rest fits."""
    for _ in range(turns):
        kept = min(session.turns + 1, window // EACH)
        session.turn(kept * EACH)


@pytest.mark.parametrize("before", [0, 5, 20])
def test_a_size_that_no_longer_grows_is_a_window(
    calibrations: Calibrations, learned: LearnedWindows, before: int
) -> None:
    session = Session(calibrations)
    session.turns = before
    _truncated(session, 4100, 30)
    found = learned.window(BASE, MODEL, TENANT)
    assert found == Window(4000, "truncation")
    assert session.calibration().ratio == pytest.approx(1.0, abs=0.1)


def test_small_steps_do_not_hide_it(calibrations: Calibrations, learned: LearnedWindows) -> None:
    session, rng = Session(calibrations), random.Random(5)
    estimate = 0
    for turn in range(1, 200):
        step = rng.randrange(40, 120)
        estimate += step
        session.turns = turn
        sent = Measured(
            session.name, estimate, session.again(), session.again(), turn, session.digest(turn - 1)
        )
        calibrations.reported(BASE, MODEL, TENANT, sent, min(estimate, 4096 - rng.randrange(100)))
    found = learned.window(BASE, MODEL, TENANT)
    assert found is not None
    assert 3900 <= (found.tokens or 0) <= 4096


def test_a_single_reply_cut_short_is_no_window(session: Session, learned: LearnedWindows) -> None:
    session.settle(1.0, 20)
    session.turn(4000)
    assert learned.window(BASE, MODEL, TENANT) is None
    session.settle(1.0, 3)
    session.turn(4000)
    assert learned.window(BASE, MODEL, TENANT) is None


@pytest.mark.parametrize("cached", [0, 64, 100])
@pytest.mark.parametrize("settled", [0, 8])
def test_what_was_not_cached_is_no_window(
    session: Session, learned: LearnedWindows, cached: int, settled: int
) -> None:
    session.settle(1.0, settled)
    session.turns = max(session.turns, 12)
    for _ in range(20):
        session.turn(EACH + cached)
    assert learned.window(BASE, MODEL, TENANT) is None
    assert session.calibration().ratio == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("ratio", [0.26, 0.4])
def test_a_template_that_leaves_reasoning_out_is_no_window(
    session: Session, learned: LearnedWindows, ratio: float
) -> None:
    for _ in range(100):
        session.turn(ratio * (session.estimate + EACH))
        assert learned.window(BASE, MODEL, TENANT) is None
    assert session.tokens() == pytest.approx(ratio * session.estimate, rel=0.4)


def test_a_guess_rises_to_what_was_reported(session: Session, learned: LearnedWindows) -> None:
    learned.learn(BASE, MODEL, TENANT, 1000, exact=False)
    session.settle(0.9, 5)
    assert learned.window(BASE, MODEL, TENANT) == Window(round(0.9 * 5 * EACH), "guess")


def test_an_odd_report_raises_no_guess(session: Session, learned: LearnedWindows) -> None:
    learned.learn(BASE, MODEL, TENANT, 1000, exact=False)
    session.turn(1_000_000)
    assert learned.window(BASE, MODEL, TENANT) == Window(1000, "guess")


def test_what_an_error_told_counts_at_once_and_for_its_tenant(
    session: Session, calibrations: Calibrations
) -> None:
    session.turns = 10
    calibrations.told(BASE, MODEL, TENANT, session.sent(), 6000)
    assert session.tokens() == 6000
    new = Session(calibrations, "new")
    assert new.calibration().ratio == 1.5
    assert calibrations.nearest(BASE, MODEL, b"another", b"new").ratio == 1.0
    new.settle(1.1)
    newer = Session(calibrations, "newer")
    assert newer.calibration().ratio == pytest.approx(1.1, rel=0.01)


@pytest.mark.parametrize("counted", [0, 3000, 40_000])
def test_errors_that_tell_less_than_expected_or_too_much_teach_nothing(
    session: Session, calibrations: Calibrations, counted: int
) -> None:
    session.turns = 10
    calibrations.told(BASE, MODEL, TENANT, session.sent(), counted)
    assert session.tokens() == session.estimate


def test_an_error_that_tells_the_whole_count_is_believed_of_its_session(
    session: Session, calibrations: Calibrations
) -> None:
    session.turns = 10
    calibrations.told(BASE, MODEL, TENANT, session.sent(), 3000, exact=True)
    assert session.tokens() == 3000
    assert Session(calibrations, "new").calibration().ratio == 1.0
    calibrations.told(BASE, MODEL, TENANT, session.sent(), 300, exact=True)
    assert session.tokens() == 3000, "far less than it can be"


def test_a_count_is_an_anchor_at_once(session: Session, calibrations: Calibrations) -> None:
    session.turns = 10
    calibrations.counted(BASE, MODEL, session.sent(), 7000)
    assert session.tokens() == 7000
    session.turns += 1
    assert session.tokens() == 7000 + round(1.75 * EACH)


def test_a_request_that_was_not_read_goes_on_from_the_last_report(
    session: Session, calibrations: Calibrations
) -> None:
    assert calibrations.nearest(BASE, MODEL, TENANT, session.name) == Calibration()
    session.settle(0.4, 8)
    nearest = calibrations.nearest(BASE, MODEL, TENANT, session.name)
    assert nearest.tokens(session.estimate) == session.tokens()
    session.turn(1000, "checkpoint")
    session.turn(1000 + EACH, "checkpoint")
    assert calibrations.nearest(BASE, MODEL, TENANT, session.name).reported == 0


def test_sessions_are_bounded(calibrations: Calibrations) -> None:
    first = Session(calibrations, "first")
    first.settle(1.2)
    for number in range(MAX_SESSIONS):
        calibrations.reported(
            BASE,
            MODEL,
            TENANT,
            Measured(b"%d" % number, 1000, Calibration(), Calibration(), 1, b"x"),
            1000,
        )
    assert first.calibration().reported == 0
    assert first.calibration().ratio == 1.0


@given(
    st.floats(0.6, 2.5),
    st.lists(st.sampled_from([None, None, None, None, 0.01, 0.3, 10.0]), min_size=8, max_size=40),
)
def test_single_odd_replies_never_move_what_is_believed(
    ratio: float, replies: list[float | None]
) -> None:
    calibrations = Calibrations(LearnedWindows(lambda: 0.0))
    session = Session(calibrations)
    session.settle(ratio, REPORTS)
    before: float | None = None
    for odd in replies:
        odd = None if before is not None else odd
        session.turn((odd or 1.0) * ratio * (session.estimate + EACH))
        before = odd
        if odd is None:
            assert session.tokens() == pytest.approx(ratio * session.estimate, rel=0.01)


def test_text_that_costs_a_quarter_of_the_estimate_is_no_text_that_is_cut_short(
    session: Session, learned: LearnedWindows
) -> None:
    for _ in range(20):
        session.turn((session.estimate + EACH) / 4)
    assert session.tokens() == pytest.approx(session.estimate / 4, rel=0.05)
    assert learned.window(BASE, MODEL, TENANT) is None


def test_one_that_is_cut_short_from_its_first_turn_is_not_taken_for_cheap(
    calibrations: Calibrations, learned: LearnedWindows
) -> None:
    session = Session(calibrations)
    session.turns = 30
    for number in range(20):
        session.turn(2900 + 37 * (number % 7))
        assert session.tokens() >= 0.4 * session.estimate
    window = learned.window(BASE, MODEL, TENANT)
    assert window is not None
    assert window.tokens is not None
    assert 2900 <= window.tokens <= 3200
