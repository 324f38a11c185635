"""What matters outlasts real work: source code, logs, data and pastes crowd nothing out."""

from pathlib import Path

import aiohttp
import pytest

pytest.importorskip("compaction_kit")

from proxy.codec import Json, JsonObject
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import Api
from tests.e2e.checks import Agent
from tests.e2e.running import Running
from tests.quality import plants, real_work
from tests.quality.plants import STRICT, Corpus
from tests.quality.summarisers import SUMMARISERS
from tests.upstream import ScriptedUpstream

OPTIONS: dict[str, Json] = {"compaction.background": False}


async def _record(
    up: ScriptedUpstream,
    http: aiohttp.ClientSession,
    folder: Path,
    api: Api,
    messages: list[JsonObject],
    window: int,
) -> tuple[str, list[JsonObject]]:
    checks.make_strict(up, window)
    up.summary_text = SUMMARISERS["contradicting"]
    async with Running(up.base_url, folder, **OPTIONS) as proxy:
        agent = Agent(http, proxy.url, up, api=api, tools=[*b.catalogue(8)])
        exchanges = await agent.play(messages)
        events = proxy.events.of_type("compaction_completed")
    checks.assert_fine(exchanges, up)
    return checks.record_of(exchanges[-1]), events


def _assert_survives(corpus: Corpus, record: str) -> None:
    lost = [plant for plant in corpus.plants if not plant.survives(record)]
    assert [plant.text for plant in lost if plant.kind in STRICT] == []
    softer = [plant for plant in corpus.plants if plant.kind not in STRICT]
    assert len([p for p in lost if p.kind not in STRICT]) <= 0.05 * len(softer)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12, 13])
async def test_ten_compactions_of_real_work(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, seed: int
) -> None:
    corpus = plants.spread_of(plants.random_values(seed))
    messages = real_work.session(corpus, seed, calls=4, tail=16, result_chars=(900, 2000, 3500))
    record, events = await _record(up, client, tmp_path, api, messages, 12_288)
    _assert_survives(corpus, record)
    assert len(events) >= 10
    last = events[-1]
    assert int(str(last["checkpoint_tokens"])) <= 0.08 * int(str(last["span_tokens"]))


async def test_a_small_window_keeps_what_was_ruled_and_labelled(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    corpus = plants.spread_of(plants.generated(21))
    messages = real_work.session(corpus, 21, calls=1, tail=24, result_chars=(500, 900))
    record, events = await _record(up, client, tmp_path, api, messages, 4096)
    _assert_survives(corpus, record)
    assert len(events) >= 3
