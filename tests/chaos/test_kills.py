"""The chaos programs, short: nothing that they check may be violated."""

import pytest

from tests import redis_servers as servers
from tests.chaos import kills, outage
from tests.chaos.kills import progress

pytestmark = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)


@pytest.mark.slow
async def test_a_few_kills() -> None:
    options = kills.Options(proxy_kills=2, redis_kills=1, sessions=4, last_seconds=1)
    report = await kills.run(options, progress)
    assert [*report.violations] == []
    assert report.counts["answered"] > 50
    assert report.store["checkpoints"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("aof", [True, False], ids=["aof", "nothing persisted"])
async def test_many_kills(aof: bool) -> None:
    report = await kills.run(kills.Options(proxy_kills=25, redis_kills=10, aof=aof), progress)
    assert [*report.violations] == []
    assert report.counts["answered"] > 1000
    assert report.store["checkpoints"] > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "seconds"), [("down", 8.0), ("hang", 5.0), ("failover", 5.0), ("slots", 12.0)]
)
async def test_an_outage(scenario: str, seconds: float) -> None:
    report = await outage.run(outage.Options(scenario, seconds), progress)
    assert [*report.violations] == []
    assert report.counts["answered"] == report.counts["requests"] > 500
    assert report.store["checkpoints"] > 20
