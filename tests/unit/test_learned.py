"""What errors teach of windows, and which window holds."""

import pytest
from multidict import CIMultiDict

from proxy.compaction.policy import Window
from proxy.upstream.effective import EffectiveWindows
from proxy.upstream.learned import (
    LEARNED_SECONDS,
    RISE_SECONDS,
    LearnedWindows,
)
from proxy.upstream.routes import Base, Route

BASE, MODEL = "http://127.0.0.1:1/v1", "m"
ANN, BOB, EVE = b"ann", b"bob", b"eve"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def learned(clock: Clock) -> LearnedWindows:
    return LearnedWindows(clock)


def told(learned: LearnedWindows, tenant: bytes = ANN) -> tuple[int | None, str] | None:
    window = learned.window(BASE, MODEL, tenant)
    return None if window is None else (window.tokens, window.source)


def test_nothing_is_known_at_first(learned: LearnedWindows) -> None:
    assert told(learned) is None
    assert not learned.knows_any


def test_a_lesson_binds_its_tenant_and_model(learned: LearnedWindows) -> None:
    learned.learn(BASE, MODEL, ANN, 6000, exact=True)
    assert told(learned) == (6000, "error")
    assert told(learned, BOB) is None
    assert learned.window(BASE, "other", ANN) is None
    assert learned.window("http://elsewhere/v1", MODEL, ANN) is None


def test_two_tenants_that_agree_speak_for_all(learned: LearnedWindows) -> None:
    learned.learn(BASE, MODEL, ANN, 6000, exact=True)
    learned.learn(BASE, MODEL, BOB, 7000, exact=True)
    assert told(learned, EVE) is None
    learned.learn(BASE, MODEL, BOB, 6000, exact=True)
    assert told(learned, EVE) == (6000, "error")
    # What a tenant learns for itself still comes first.
    learned.learn(BASE, MODEL, ANN, 5000, exact=True)
    assert told(learned) == (5000, "error")


def test_guesses_of_two_tenants_say_nothing_to_others(learned: LearnedWindows) -> None:
    for tenant in (ANN, BOB):
        learned.learn(BASE, MODEL, tenant, 4000, exact=False)
    assert told(learned, EVE) is None


def test_a_guess_rises_to_what_was_accepted(learned: LearnedWindows) -> None:
    learned.learn(BASE, MODEL, ANN, 4000, exact=False)
    learned.accepted(BASE, MODEL, ANN, 3000)
    assert told(learned) == (4000, "guess")
    learned.accepted(BASE, MODEL, ANN, 4500)
    assert told(learned) == (4500, "guess")


def test_a_guess_that_helped_is_kept_near_what_was_accepted_and_rises(
    learned: LearnedWindows, clock: Clock
) -> None:
    learned.guess(BASE, MODEL, ANN, 30_000)
    learned.settle(BASE, MODEL, ANN, 4000, 18_000)
    assert told(learned) == (5000, "guess")
    clock.now = RISE_SECONDS - 1
    assert told(learned) == (5000, "guess")
    clock.now = RISE_SECONDS
    assert told(learned) == (7500, "guess")
    clock.now = LEARNED_SECONDS / 2
    assert told(learned) == (15_000, "guess"), "no higher than what was guessed"
    learned.accepted(BASE, MODEL, ANN, 16_000)
    assert told(learned) == (16_000, "guess")


def test_a_guess_that_rose_too_far_comes_back_to_what_was_accepted(
    learned: LearnedWindows, clock: Clock
) -> None:
    learned.guess(BASE, MODEL, ANN, 30_000)
    learned.settle(BASE, MODEL, ANN, 4000, 18_000)
    clock.now = RISE_SECONDS
    learned.accepted(BASE, MODEL, ANN, 5900)
    learned.guess(BASE, MODEL, ANN, 6100)
    learned.settle(BASE, MODEL, ANN, 2400, 6100)
    assert told(learned) == (5900, "guess")
    clock.now = LEARNED_SECONDS / 2
    assert told(learned) == (5900, "guess")


def test_a_guess_that_led_to_very_little_is_not_taken_for_the_limit(
    learned: LearnedWindows,
) -> None:
    learned.guess(BASE, MODEL, ANN, 30_000)
    learned.settle(BASE, MODEL, ANN, 300, 30_000)
    assert told(learned) == (4500, "guess")


def test_what_was_told_is_not_settled(learned: LearnedWindows) -> None:
    learned.learn(BASE, MODEL, ANN, 6000, exact=True)
    learned.settle(BASE, MODEL, ANN, 2000, 9000)
    assert told(learned) == (6000, "error")


def test_what_was_told_does_not_rise(learned: LearnedWindows) -> None:
    learned.learn(BASE, MODEL, ANN, 4000, exact=True)
    learned.accepted(BASE, MODEL, ANN, 9000)
    learned.accepted(BASE, MODEL, BOB, 9000)
    assert told(learned) == (4000, "error")


def test_lessons_grow_old(learned: LearnedWindows, clock: Clock) -> None:
    learned.learn(BASE, MODEL, ANN, 4000, exact=True)
    clock.now = LEARNED_SECONDS + 1
    assert told(learned) is None


def test_a_server_that_loaded_the_model_anew_ends_all_lessons(learned: LearnedWindows) -> None:
    for tenant in (ANN, BOB):
        learned.learn(BASE, MODEL, tenant, 4000, exact=True)
    learned.learn(BASE, "other", ANN, 5000, exact=True)
    learned.forget(BASE, MODEL)
    assert [told(learned, tenant) for tenant in (ANN, BOB, EVE)] == [None] * 3
    assert learned.window(BASE, "other", ANN) is not None


def test_absurd_limits_are_not_believed(learned: LearnedWindows) -> None:
    learned.learn(BASE, MODEL, ANN, 5, exact=True)
    assert told(learned) is None


def test_limits_of_the_input_stay_that(learned: LearnedWindows) -> None:
    learned.learn(BASE, MODEL, ANN, 4000, exact=True, input_only=True)
    window = learned.window(BASE, MODEL, ANN)
    assert window is not None
    assert window.input_only


def test_lessons_are_bounded(learned: LearnedWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.upstream.learned.MAX_LESSONS", 20)
    for number in range(30):
        learned.learn(BASE, f"m{number}", ANN, 4000, exact=True)
    assert learned.window(BASE, "m9", ANN) is None
    assert learned.window(BASE, "m10", ANN) is not None


# --- which window holds ---


class Server:
    """What a server says."""

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens
        self.asked: list[str] = []

    def remembered(self, route: Route) -> Window | None:
        if route.window is not None:
            return Window(route.window, "settings")
        return Window(self.tokens, "models") if self.tokens else None

    async def window(self, route: Route) -> Window:
        self.asked.append("window")
        return self.remembered(route) or Window()

    def ask_soon(self, route: Route) -> None:
        self.asked.append("soon")

    def refresh(self, route: Route) -> None:
        self.asked.append("refresh")

    async def refreshed(self, route: Route) -> Window:
        self.asked.append("refreshed")
        return await self.window(route)


@pytest.mark.parametrize(
    ("setting", "error", "hint", "server", "holds"),
    [
        (None, None, None, 8000, (8000, "models")),
        (None, None, 4000, 8000, (4000, "header")),
        (None, None, 9000, 8000, (9000, "header")),
        (None, 5000, 4000, 8000, (5000, "error")),
        (7000, None, 4000, 8000, (7000, "settings")),
        (7000, 5000, 4000, 8000, (5000, "error")),
        (7000, 9000, None, 8000, (7000, "settings")),
        (None, 9000, None, 8000, (9000, "error")),
    ],
)
async def test_the_order_of_what_is_known(
    learned: LearnedWindows,
    setting: int | None,
    error: int | None,
    hint: int | None,
    server: int,
    holds: tuple[int, str],
) -> None:
    if error is not None:
        learned.learn(BASE, MODEL, ANN, error, exact=True)
    headers = CIMultiDict[str]()
    route = Route(Base.of(BASE), MODEL, headers, setting, tenant=ANN, hint=hint)
    windows = EffectiveWindows(Server(server), learned)
    window = windows.remembered(route)
    assert window is not None
    assert (window.tokens, window.source) == holds
    assert await windows.window(route) == window


async def test_the_server_is_asked_where_nothing_else_is_known(learned: LearnedWindows) -> None:
    server = Server(None)
    windows = EffectiveWindows(server, learned)
    route = Route(Base.of(BASE), MODEL, CIMultiDict[str](), tenant=ANN)
    assert windows.remembered(route) is None
    assert await windows.window(route) == Window()
    windows.ask_soon(route)
    windows.refresh(route)
    await windows.refreshed(route)
    assert server.asked == ["window", "soon", "refresh", "refreshed", "window"]
