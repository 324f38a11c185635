"""What is left after each of a few compactions in a small window, whoever writes the summaries.

Everything is said before the first compaction, so each one has all of it to lose. The upstream is
the scripted one, so a session is the same every time; only summaries may come from a real model.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from proxy.codec import Json, JsonObject
from tests import builders as b
from tests.e2e import checks
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running
from tests.quality.plants import Corpus, Plant
from tests.quality.play import Script
from tests.quality.summarisers import Summariser
from tests.upstream import ScriptedUpstream
from tests.upstream_rules import message_texts, prompt_tokens

PRINTED_CHARS = 300
"""What a tool prints around a fact."""

RESULT_CHARS = (700, 1100, 1600)
WORK_CHARS = 2600
WORK_TURNS = 8
"""Turns of plain work for each compaction, more than enough to fill the window again."""

PATIENCE: Mapping[str, Json] = {
    f"{name}_seconds": 3600
    for name in (
        "compaction.deadline",
        "compaction.first_byte",
        "compaction.idle",
        "upstream.idle",
    )
}
"""A real model may take minutes for a summary where there is no GPU."""

AGENT_TOOLS = b.catalogue(5)
"""As large as a small agent's: some 450 tokens."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """A real model behind a server of its own; it writes summaries and nothing else."""

    name: str
    base_url: str
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Besides those that name it."""

    def values(self) -> dict[str, Json]:
        """Return the settings that send summaries there."""
        profile: Json = {"model": self.name, "base_url": self.base_url}
        named: dict[str, Json] = {"compaction.summarizer": self.name, "profiles": [profile]}
        return {**PATIENCE, **named, **self.settings}


@dataclass(frozen=True, slots=True)
class Left:
    """What one compaction left."""

    number: int
    survived: Counter[str]
    planted: Counter[str]
    """What was said in items that the checkpoint stands for, by kind."""
    lost: tuple[Plant, ...]
    tokens: int
    """Of the checkpoint, as the proxy reports it."""
    counted: int
    """The same as the scripted upstream counts it, which takes prose to be as dense as the rest."""
    budget: int
    """What it may have."""
    share: float
    """Of what it stands for."""
    written: str
    """``whole``, ``partial`` (cut, or not of all of it) or ``extract`` (no summary came)."""
    record: str = field(repr=False)


def session(corpus: Corpus, seed: int, rounds: int) -> list[JsonObject]:
    """Return a session in which all is said at first, followed by enough work."""
    script = Script(corpus, seed, RESULT_CHARS)
    for text in corpus.said:
        script.turn(text, PRINTED_CHARS if text in corpus.by_tools else 0)
    for number in range(WORK_TURNS * rounds):
        script.turn(f"Go on, please, with step {number}.", WORK_CHARS)
    return script.messages[:-1]


def budget(window: int, tools: Sequence[JsonObject]) -> int:
    """Return what a checkpoint may have at the default settings, tokens."""
    trigger = min(0.85 * window, window - min(4096, window // 8) + 1)
    fixed = prompt_tokens({"messages": [b.system(b.SYSTEM)], "tools": [*tools]})
    return int(0.6 * 0.4 * (int(trigger) - fixed))


async def survive(
    corpus: Corpus,
    summariser: Summariser | RealModel,
    folder: Path,
    *,
    window: int,
    rounds: int,
    seed: int,
    tools: Sequence[JsonObject] = (),
) -> AsyncIterator[Left]:
    """Play the session until so many compactions; gives what each of them left, as it comes."""
    values: dict[str, Json] = {"compaction.background": False}
    if isinstance(summariser, RealModel):
        values |= summariser.values()
    async with (
        ScriptedUpstream() as up,
        aiohttp.ClientSession(
            auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        ) as http,
        Running(up.base_url, folder, **values) as proxy,
    ):
        checks.make_strict(up, window)
        if not isinstance(summariser, RealModel):
            up.summary_text = summariser
        agent = Agent(http, proxy.url, up)
        if tools:
            agent = Agent(http, proxy.url, up, tools=[*tools])
        number, most = 0, budget(window, tools)
        for messages in checks.steps(session(corpus, seed, rounds)):
            exchange = await agent.say(messages)
            checks.assert_fine([exchange], up)
            if "compacted" in exchange.marks:
                number += 1
                event = proxy.events.of_type("compaction_completed")[-1]
                yield _left(number, corpus, messages, exchange, event, most)
            if number == rounds:
                break
        assert number == rounds, f"only {number} compactions"
        # A real summariser that is never asked would prove nothing.
        assert bool(up.summaries) is not isinstance(summariser, RealModel)


def _left(
    number: int,
    corpus: Corpus,
    messages: Sequence[JsonObject],
    exchange: Exchange,
    event: JsonObject,
    most: int,
) -> Left:
    record = checks.record_of(exchange)
    said = "\n".join(text for m in messages for text in message_texts(m))
    # What still stands outside the record was not replaced yet.
    kept = exchange.text.replace(record, "")
    replaced = [p for p in corpus.plants if p.text in said and p.text not in kept]
    lost = tuple(plant for plant in replaced if not plant.survives(record))
    tokens, span = event["checkpoint_tokens"], event["span_tokens"]
    assert isinstance(tokens, int)
    assert isinstance(span, int)
    return Left(
        number,
        Counter(plant.kind for plant in replaced if plant not in lost),
        Counter(plant.kind for plant in replaced),
        lost,
        tokens,
        prompt_tokens({"messages": [b.user(record)]}),
        most,
        tokens / span,
        _written(event),
        record,
    )


def _written(event: JsonObject) -> str:
    if event.get("extractive"):
        return "extract"
    return "partial" if event.get("partial") else "whole"
