"""The pure bits of running several workers: pauses, words, and what a reload keeps."""

import pytest

from proxy.server.serve import keep_fixed
from proxy.server.workers import MAX_PAUSE_SECONDS, describe_end, pause_seconds
from proxy.settings import load_settings


def test_the_first_death_costs_no_pause_and_more_of_them_ever_longer_ones() -> None:
    pauses = [pause_seconds(deaths) for deaths in range(100)]
    assert pauses[:5] == [0.0, 0.0, 1.0, 2.0, 4.0]
    assert pauses == sorted(pauses)
    assert max(pauses) == pause_seconds(10_000) == MAX_PAUSE_SECONDS


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, "exit code 0"), (1, "exit code 1"), (-9, "SIGKILL"), (-15, "SIGTERM"), (-63, "signal 63")],
)
def test_an_end_is_told_in_words(code: int, expected: str) -> None:
    assert describe_end(code) == expected


def test_a_worker_that_starts_after_a_reload_keeps_what_the_others_have_built_in() -> None:
    old = load_settings(
        None, {"server": {"port": 1, "workers": 2}, "store": {"url": "sqlite:///a"}}, {}
    )
    new = load_settings(
        None,
        {
            "server": {"port": 2, "workers": 3, "drain_seconds": 5},
            "store": {"url": "sqlite:///b"},
            "compaction": {"threshold": 0.5, "concurrency": 9},
        },
        {},
    )
    kept = keep_fixed(old, new)
    assert (kept.server.port, kept.server.workers, kept.server.drain_seconds) == (1, 2, 5)
    assert kept.store == old.store
    assert (kept.compaction.threshold, kept.compaction.concurrency) == (0.5, 4)
    assert keep_fixed(old, old) == old
