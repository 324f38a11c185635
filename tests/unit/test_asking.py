"""What a refused prompt teaches: the next one is smaller, by what was told or by half."""

import pytest
from multidict import CIMultiDict

from proxy.compactor.asking import INPUT_SAFETY, LESSON_SECONDS, Lesson, Lessons
from proxy.errors import SummaryFailed
from proxy.upstream.routes import Base, Route
from tests.unit.test_breaker import Clock


def route(model: str = "m", tenant: bytes = b"") -> Route:
    return Route(Base.of("http://h"), model, CIMultiDict(), tenant=tenant)


def refusal(limit: int | None = None, prompt: int | None = None) -> SummaryFailed:
    return SummaryFailed("http_400", overflowed=True, limit=limit, prompt=prompt)


def allowed(lesson: Lesson, window: int) -> float:
    """The largest prompt that a lesson leaves, as `Asker` works it out without a reply."""
    if lesson.window is not None:
        window = min(window, lesson.window)
    prompt = INPUT_SAFETY * window / max(1.0, lesson.factor)
    return prompt if lesson.prompt is None else min(prompt, lesson.prompt)


@pytest.mark.parametrize("limit", [None, 900, 4000, 90_000])
@pytest.mark.parametrize("prompt", [None, 1000, 3000, 9000])
def test_the_next_prompt_is_smaller_whatever_was_told(
    limit: int | None, prompt: int | None
) -> None:
    lessons, sent = Lessons(Clock()), 3000
    for _ in range(3):
        lessons.learn(route(), sent, refusal(limit, prompt))
        following = allowed(lessons.of(route()), 8000)
        assert following < 0.91 * sent
        sent = int(following)


def test_what_was_told_is_used() -> None:
    lessons = Lessons(Clock())
    lessons.learn(route(), 3000, refusal(4000, 6000))
    lesson = lessons.of(route())
    assert (lesson.window, lesson.prompt) == (4000, None)
    assert lesson.factor == pytest.approx(2.1)


def test_without_numbers_it_is_half() -> None:
    lessons = Lessons(Clock())
    lessons.learn(route(), 3000, refusal())
    assert lessons.of(route()).prompt == 1500


def test_what_was_counted_is_remembered_at_its_densest() -> None:
    clock = Clock()
    lessons = Lessons(clock)
    for counted in (3300, 3900, 1000):
        lessons.counted(route(), 3000, counted)
    assert lessons.of(route()).factor == pytest.approx(1.3)
    lessons.learn(route(), 3000, refusal())
    lessons.counted(route(), 1000, 1400)
    assert lessons.of(route()).prompt == 1500
    assert lessons.of(route()).factor == pytest.approx(1.4)
    clock.time += LESSON_SECONDS
    assert lessons.of(route()) == Lesson()


def test_a_lesson_is_for_one_model_and_tenant_and_for_a_time() -> None:
    clock = Clock()
    lessons = Lessons(clock)
    lessons.learn(route(), 3000, refusal())
    assert lessons.of(route("other")) == lessons.of(route(tenant=b"t")) == Lesson()
    clock.time += LESSON_SECONDS
    assert lessons.of(route()) == Lesson()
