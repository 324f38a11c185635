"""The log: where it goes, and that it never stops anything."""

import io
from collections.abc import Iterator

import pytest
import structlog

from proxy.telemetry import configure_log, log


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("quiet", "verbose", "expected"),
    [
        (False, False, ["told", "warned", "failed"]),
        (True, False, ["failed"]),
        (False, True, ["told", "warned", "failed"]),
    ],
)
def test_what_is_logged(quiet: bool, verbose: bool, expected: list[str]) -> None:
    stream = io.StringIO()
    configure_log(quiet=quiet, verbose=verbose, stream=stream)
    log().info("told")
    log().warning("warned", number=1)
    log().error("failed")
    lines = stream.getvalue().splitlines()
    assert [word for line in lines for word in expected if word in line] == expected
    assert len(lines) == len(expected)


def test_a_full_disk_stops_nothing() -> None:
    configure_log(stream=Full())
    log().warning("store_failed", reason="unreachable")


def test_a_closed_stream_stops_nothing() -> None:
    stream = io.StringIO()
    configure_log(stream=stream)
    stream.close()
    log().warning("store_failed", reason="unreachable")
