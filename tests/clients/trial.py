"""One client doing one long task through the proxy, and what was measured of it."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxy.codec import JsonObject, as_objects
from proxy.telemetry import COMPACTION_COMPLETED, COMPACTION_FAILED, CONTEXT_REDUCED, STORE_FAILED
from tests.clients.agent_script import Script, ScriptedAgent, tools_of
from tests.clients.launches import MODEL, Launch, Place
from tests.clients.real_clients import OUTPUT_CHARS as OUTPUT_CHARS
from tests.clients.real_clients import STEPS as STEPS
from tests.clients.real_clients import Client
from tests.clients.witness import Received, Witness
from tests.e2e.checks import make_strict
from tests.e2e.running import Running
from tests.upstream import RESPONSES, Recorded, Reply, ScriptedUpstream
from tests.upstream_responses import Stored, input_items, input_tokens, type_of, whole_input
from tests.upstream_rules import message_texts, prompt_tokens

_UPGRADE_REFUSED = 426
_SHOWN_CHARS = 2000
_FAULTS = frozenset({COMPACTION_FAILED, STORE_FAILED, CONTEXT_REDUCED})


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended; code None: it was killed at its time limit."""

    code: int | None
    seconds: float
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Everything that was seen of a run."""

    client: Client
    script: Script
    window: int
    ended: Ended
    main: Sequence[Recorded]
    refusals: Sequence[str]
    """Of the upstream, whatever the rule."""
    events: Sequence[JsonObject]
    replies: Sequence[Received]
    """As the client got them."""
    sent: Sequence[JsonObject]
    """Bodies as the client sent them."""
    stored: Stored = field(repr=False)
    """What the upstream has kept in the end."""

    @property
    def agent_requests(self) -> list[Recorded]:
        """Main requests of the session itself; a client's side business has no tools."""
        return [request for request in self.main if tools_of(request)]

    @property
    def side_requests(self) -> int:
        return len(self.main) - len(self.agent_requests)

    @property
    def violations(self) -> list[str]:
        """What the strictest upstream would say of the session's requests."""
        strict = ScriptedUpstream(stored=self.stored)
        _be_strict(strict, self.client, self.window)
        return [str(wrong) for r in self.agent_requests for wrong in strict.refusals(r)]

    @property
    def compactions(self) -> int:
        return len([e for e in self.events if e["type"] == COMPACTION_COMPLETED])

    @property
    def read(self) -> set[int]:
        """Steps whose whole output reached the model as a tool result.

        Of a client that shortens outputs, what it left of them is the whole.
        """
        requests = [request.messages for request in self.agent_requests]
        if not self.client.shortens:
            return set().union(*(self.script.read_in(messages) for messages in requests))
        told = self._told
        return {
            step.number
            for messages in requests
            for step, text in self.script.results(messages)
            if text == told.get(step.number)
        }

    @property
    def _told(self) -> dict[int, str]:
        """Results with a mark at head and foot, as the client sent them first."""
        return {
            step.number: text
            for body in reversed(self.sent)
            for step, text in self.script.results(_items(body))
            if text.count(step.mark) == 2
        }

    @property
    def without_task(self) -> list[int]:
        """Numbers of the session's requests whose user messages do not hold the task."""
        return [
            number
            for number, request in enumerate(self.agent_requests, 1)
            if not any(_says(message, self.script.task) for message in self._whole(request))
        ]

    def _whole(self, request: Recorded) -> Sequence[JsonObject]:
        """Return what the model read: what the upstream kept of a chain, too."""
        if request.api == RESPONSES:
            return whole_input(request.json, self.stored)
        return request.messages

    @property
    def histories(self) -> list[tuple[JsonObject, Sequence[JsonObject]]]:
        """The session's requests as they left the client, and what it has said by then."""
        found: list[tuple[JsonObject, Sequence[JsonObject]]] = []
        said: list[JsonObject] = []
        for body in self.sent:
            if body.get("tools"):
                said = [*([] if self.client.whole_history else said), *_items(body)]
                found.append((body, said))
        return found

    @property
    def without_mark(self) -> list[int]:
        """Numbers of the session's requests that lack what all but the first must show."""
        mark = self.client.carries
        later = enumerate(self.histories[1:], 2)
        return [number for number, (body, _) in later if mark and not _shows(body, mark)]

    @property
    def sizes(self) -> list[int]:
        """Prompt tokens of all that the client has said at each of its requests, at least."""
        if self.client.api == RESPONSES:
            return [input_tokens(body, said) for body, said in self.histories]
        return [prompt_tokens(body) for body, _ in self.histories]

    @property
    def shrunk(self) -> bool:
        """Whether the client ever had fewer messages than before: its own compaction."""
        lengths = [len(said) for _, said in self.histories]
        return lengths != sorted(lengths)

    @property
    def overflows(self) -> int:
        return len([reply for reply in self.replies if reply.overflow])

    @property
    def problems(self) -> list[str]:
        """What is not as it must be; empty when all is well."""
        return [*self._of_the_client(), *self._of_the_session()]

    def _of_the_client(self) -> list[str]:
        code, failed = self.ended.code, [r.status for r in self.replies if r.failed]
        expected = [_UPGRADE_REFUSED] if self.client.tries_websocket else []
        others = {request.api for request in self.main} - {self.client.api}
        wanted = len(self.script.steps) + 1
        found = {
            "killed at its time limit": code is None,
            f"exit code {code}": bool(code),
            "the final answer was not printed": self.script.answer not in self.ended.stdout,
            f"error replies reached the client: {failed}": failed != expected,
            f"it used another API: {others}": bool(others),
            f"requests without {self.client.carries}: {self.without_mark}": bool(self.without_mark),
            "its own compaction fired: fewer messages than before": self.shrunk,
            f"{self.side_requests} side requests, known are {self.client.side_requests}": (
                self.side_requests > self.client.side_requests
            ),
            f"{len(self.agent_requests)} requests with tools reached the upstream, not {wanted}": (
                len(self.agent_requests) != wanted
            ),
            f"{len(self.sizes)} requests with tools left the client, not {wanted}": (
                len(self.sizes) != wanted
            ),
        }
        return [text for text, wrong in found.items() if wrong]

    def _of_the_session(self) -> list[str]:
        faults = [e["type"] for e in self.events if e["type"] in _FAULTS]
        missing = sorted({step.number for step in self.script.steps} - self.read)
        found = {
            f"only {self.compactions} compactions": self.compactions < 2,
            f"the proxy reported {faults}": bool(faults),
            f"the upstream refused: {list(self.refusals)}": bool(self.refusals),
            f"rules are broken: {self.violations}": bool(self.violations),
            f"results that never reached the model whole: {missing}": bool(missing),
            f"requests without the task: {self.without_task}": bool(self.without_task),
            f"the client never sent more than the window: {max(self.sizes, default=0)} tokens": (
                max(self.sizes, default=0) <= self.window
            ),
        }
        return [text for text, wrong in found.items() if wrong]

    @property
    def account(self) -> str:
        """What to read when something is wrong."""
        kinds = [event["type"] for event in self.events]
        return (
            f"{self.client.name}: {'; '.join(self.problems) or 'all well'}\n"
            f"{self.ended.seconds:.1f} s, exit code {self.ended.code}, events {kinds}\n"
            f"--- stdout\n{self.ended.stdout[-_SHOWN_CHARS:]}\n"
            f"--- stderr\n{self.ended.stderr[-_SHOWN_CHARS:]}"
        )


def _be_strict(up: ScriptedUpstream, client: Client, window: int) -> None:
    make_strict(up, window)
    up.one_system = up.alternate = client.fits_templates


def _items(body: JsonObject) -> Sequence[JsonObject]:
    return as_objects(body.get("messages")) or input_items(body)


def _shows(body: JsonObject, mark: str) -> bool:
    return bool(body.get(mark)) or any(
        mark == type_of(item) or item.get(mark) for item in _items(body)
    )


def _says(message: JsonObject, text: str) -> bool:
    return message.get("role") == "user" and text in "\n".join(message_texts(message))


@dataclass(frozen=True, slots=True)
class Conditions:
    """How long the task is, and in which window; None: as is usual for the client."""

    steps: int | None = None
    output_chars: int | None = None
    window: int | None = None
    agent: Callable[[Script], Callable[[Recorded], Reply]] = ScriptedAgent
    """What plays the model."""
    direct: bool = False
    """Without the proxy, for comparison."""


async def run(client: Client, folder: Path, conditions: Conditions | None = None) -> Trial:
    """Run a client in an empty folder; it is installed first where need be.

    Raises:
        MissingTool: when this machine has no Node or npm and the client needs them.
        InstallFailed: when it cannot be installed.
    """
    await asyncio.to_thread(client.packages.install)
    conditions = conditions or Conditions()
    window = conditions.window or client.window
    script = Script.draw(
        conditions.steps or client.steps, conditions.output_chars or client.output_chars
    )
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    script.write(work)
    up = ScriptedUpstream(model=MODEL, reply=conditions.agent(script))
    _be_strict(up, client, window)
    up.alternate &= client.alternates
    async with (
        up,
        Running(up.base_url, folder) as fold,
        Witness(up.url if conditions.direct else fold.url) as witness,
    ):
        place = Place(witness.url + "/v1", script.task, window, home, work)
        ended = await end_of(client.launch(place), home, work, client.seconds)
    return Trial(
        client=client,
        script=script,
        window=window,
        ended=ended,
        main=up.main,
        refusals=[str(refusal) for refusal in up.rejections],
        events=fold.events,
        replies=witness.replies,
        sent=witness.bodies,
        stored=up.stored,
    )


async def end_of(launch: Launch, home: Path, work: Path, seconds: float) -> Ended:
    """Run a client to its end, with a home of its own and nothing of this machine's settings."""
    logs = home / "stdout.log", home / "stderr.log"
    started = time.monotonic()
    # Files, not pipes: what the client leaves running must not keep us waiting.
    with logs[0].open("wb") as stdout, logs[1].open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *launch.command,
            cwd=work,
            env={**_environment(home), **launch.variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    code: int | None = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                code = await process.wait()
    finally:
        # The whole group: clients start helpers, and some ignore gentler signals.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs]
    return Ended(code, time.monotonic() - started, *texts)


def _environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],  # noqa: TID251  -- nothing else of this machine's reaches it
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
