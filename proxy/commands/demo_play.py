"""Playing the demo's session twice: straight to the model server, and through the proxy."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.commands.model_server import MODEL, check_installed, model_server
from proxy.compaction.checkpoint import Checkpoint
from proxy.server.serve import serving
from proxy.server.stores import make_store
from proxy.settings import Settings, load_settings
from proxy.telemetry import COMPACTION_COMPLETED, COMPACTION_STARTED, Event

WINDOW = 1024
"""Context window of the model server, tokens."""
SUMMARY_TARGET = 0.29
"""In this window it bounds a checkpoint, and with it the summary, to 150 tokens."""
_REPLY_TOKENS = 8
_REPLY_SECONDS = 170.0
_DEADLINE_SECONDS = 40.0
"""A machine too slow for a summary gets a checkpoint made by code instead of a long wait."""

Request = tuple[str, list[JsonObject]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request on one way."""

    status: int
    tokens: int
    """Of the prompt that the server saw, by its own count; zero when it did not say."""
    cached: int = 0
    """Tokens of it that were in the server's prompt cache."""
    overflow: bool = False
    """Refused because the prompt is larger than the window."""

    @property
    def is_ok(self) -> bool:
        return self.status == 200

    def to_json(self) -> JsonObject:
        """Return it as an object."""
        return {
            "status": self.status,
            "tokens": self.tokens,
            "cached": self.cached,
            "overflow": self.overflow,
        }


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of the session, on both ways."""

    number: int
    request: str
    direct: Answer
    through: Answer
    compactions: int
    """So far."""

    def to_json(self) -> JsonObject:
        """Return it as an object."""
        return {
            "turn": self.number,
            "request": self.request,
            "direct": self.direct.to_json(),
            "foldgate": self.through.to_json(),
            "compactions": self.compactions,
        }


@dataclass(slots=True)
class Demo:
    """A run of the demo; `turns` yields it, the rest tells what came of it."""

    requests: Iterable[Request]
    tell: Callable[[str], None]
    """Gets a few words about what is going on, for people who wait."""
    turns: list[Turn] = field(default_factory=list)
    compactions: int = 0
    checkpoint: str = ""
    """As the model gets it; the newest one."""

    def emit(self, event: Event) -> None:
        """Take an event of the proxy."""
        if event.type == COMPACTION_STARTED:
            self.tell("the window is nearly full: a checkpoint is being written")
        elif event.type == COMPACTION_COMPLETED:
            self.compactions += 1

    async def play(self) -> AsyncIterator[Turn]:
        """Yield each turn when both answers are there.

        Raises:
            NoModelServer: when the model server is not installed or does not start.
        """
        check_installed()
        self.tell("starting llama.cpp with a small model")
        with tempfile.TemporaryDirectory(prefix="foldgate-demo-") as folder:
            async with model_server(WINDOW) as server:
                settings = _settings(server, Path(folder))
                async with (
                    serving(settings, self) as (proxy, _),
                    aiohttp.ClientSession(
                        timeout=aiohttp.ClientTimeout(total=_REPLY_SECONDS)
                    ) as client,
                ):
                    async for turn in self._turns(client, server, proxy):
                        yield turn
                self.checkpoint = await _newest_checkpoint(settings)

    async def _turns(
        self, client: aiohttp.ClientSession, server: str, proxy: str
    ) -> AsyncIterator[Turn]:
        for number, (request, messages) in enumerate(self.requests, 1):
            # First through the proxy, so that what is cached there is not the other way's doing.
            self.tell(f"turn {number}, through Foldgate")
            through = await _ask(client, proxy, messages)
            self.tell(f"turn {number}, straight to the model")
            direct = await _ask(client, server, messages)
            turn = Turn(number, request, direct, through, self.compactions)
            self.turns.append(turn)
            yield turn

    @property
    def overflows(self) -> int:
        """Direct requests that the server refused for their size."""
        return sum(turn.direct.overflow for turn in self.turns)

    @property
    def is_fine(self) -> bool:
        """Whether it shows what it should: overflows without the proxy, none with it."""
        return bool(self.turns) and self.overflows > 0 and all(t.through.is_ok for t in self.turns)

    def result(self) -> JsonObject:
        """Return what came of it."""
        return {
            "ok": self.is_fine,
            "window": WINDOW,
            "model": MODEL,
            "turns": len(self.turns),
            "direct": {
                "answered": sum(turn.direct.is_ok for turn in self.turns),
                "overflows": self.overflows,
            },
            "foldgate": {
                "answered": sum(turn.through.is_ok for turn in self.turns),
                "overflows": sum(turn.through.overflow for turn in self.turns),
            },
            "compactions": self.compactions,
        }


def _settings(server: str, folder: Path) -> Settings:
    # Not the user's own settings: the demo shows the same on every machine.
    return load_settings(
        None,
        {
            "server": {"host": "127.0.0.1", "port": 0},
            "upstream": {"base_url": f"{server}/v1"},
            "compaction": {
                "target": SUMMARY_TARGET,
                "deadline_seconds": _DEADLINE_SECONDS,
                "first_byte_seconds": _DEADLINE_SECONDS,
                "idle_seconds": _DEADLINE_SECONDS,
            },
            "store": {"url": f"sqlite:///{folder / 'demo.db'}"},
        },
        {},
    )


async def _ask(client: aiohttp.ClientSession, url: str, messages: list[JsonObject]) -> Answer:
    body: JsonObject = {
        "model": MODEL,
        "messages": [*messages],
        "max_tokens": _REPLY_TOKENS,
        "temperature": 0,
    }
    async with client.post(f"{url}/v1/chat/completions", data=codec.dumps(body)) as reply:
        document = codec.loads(await reply.read())
        if reply.status == 200:
            cached = _number(document, "usage", "prompt_tokens_details", "cached_tokens")
            return Answer(200, _number(document, "usage", "prompt_tokens"), cached)
        overflow = _member(document, "error", "type") == "exceed_context_size_error"
        return Answer(reply.status, _number(document, "error", "n_prompt_tokens"), 0, overflow)


def _number(document: Json, *path: str) -> int:
    value = _member(document, *path)
    return value if isinstance(value, int) else 0


def _member(document: Json, *path: str) -> Json:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


async def _newest_checkpoint(settings: Settings) -> str:
    store = make_store(settings.store)
    found: list[Checkpoint] = []
    try:
        await store.open()
        async for session in store.all_sessions():
            changes = [change async for change in store.export(session)]
            found += [change.checkpoint for change in changes if change.checkpoint is not None]
    finally:
        await store.close()
    return max(found, key=lambda checkpoint: checkpoint.created).rendered if found else ""
