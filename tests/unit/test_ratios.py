"""Learning how far the estimate is off."""

import pytest

from proxy.upstream.ratios import MARGIN, Ratios, reported_tokens


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


def test_a_model_that_counts_more_raises_the_factor() -> None:
    ratios = Ratios()
    ratios.learn("u", "m", 1000, 1200)
    assert 1.0 < ratios.factor("u", "m") < 1.2
    for _ in range(30):
        ratios.learn("u", "m", 1000, 1200)
    assert pytest.approx(1.2 * MARGIN, rel=1e-4) == ratios.factor("u", "m")
    assert ratios.factor("u", "other") == 1.0
    assert ratios.factor("other", "m") == 1.0


@pytest.mark.parametrize(("estimated", "reported"), [(1000, 500), (1000, 0), (100, 200)])
def test_fewer_tokens_nothing_and_small_requests_teach_nothing(
    estimated: int, reported: int
) -> None:
    ratios = Ratios()
    ratios.learn("u", "m", estimated, reported)
    assert ratios.factor("u", "m") == 1.0


def test_one_odd_reply_does_not_poison() -> None:
    ratios = Ratios()
    for _ in range(30):
        ratios.learn("u", "m", 1000, 1100)
    ratios.learn("u", "m", 1000, 100_000)
    assert pytest.approx(1.1 * MARGIN, rel=1e-4) == ratios.factor("u", "m")
    ratios.learn("u", "m", 1000, 2000)
    assert ratios.factor("u", "m") < 1.55
