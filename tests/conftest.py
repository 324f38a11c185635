"""What every test shares: hypothesis profiles and a clean environment."""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests import redis_servers as servers
from tests.clients import installed

_SLOW_OK = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "fast", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_SLOW_OK
)
settings.register_profile("ci", max_examples=300, deadline=None, suppress_health_check=_SLOW_OK)
settings.register_profile("deep", max_examples=3000, deadline=None, suppress_health_check=_SLOW_OK)
# `pytest --hypothesis-profile=ci` chooses another one.
settings.load_profile("fast")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-redis",
        action="store_true",
        help="fail at once when no redis-server can be had, instead of skipping its tests",
    )
    parser.addoption(
        "--require-node",
        action="store_true",
        help="fail at once without node and npm, instead of skipping real clients that need them",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--require-redis") and servers.default_binary() is None:
        raise pytest.UsageError(servers.NO_SERVER)
    if config.getoption("--require-node"):
        try:
            installed.need_node()
        except installed.MissingTool as missing:
            raise pytest.UsageError(f"{missing}, and real clients need it") from missing


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the developer's own machine reaches a test."""
    for name in [*os.environ]:  # noqa: TID251  -- read only to be emptied
        if name.upper().startswith("FOLDGATE_"):
            monkeypatch.delenv(name)
