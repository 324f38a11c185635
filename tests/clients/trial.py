"""One client doing one long task through the proxy, and what was measured of it."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.codec import JsonObject, as_objects
from proxy.telemetry import COMPACTION_COMPLETED, COMPACTION_FAILED, CONTEXT_REDUCED, STORE_FAILED
from tests.clients.agent_script import Script, ScriptedAgent, tools_of
from tests.clients.real_clients import MODEL, Client, Launch, Place
from tests.clients.witness import Received, Witness
from tests.e2e.checks import make_strict
from tests.e2e.running import Running
from tests.upstream import Recorded, Reply, ScriptedUpstream
from tests.upstream_rules import check, message_texts, prompt_tokens

STEPS = 24
OUTPUT_CHARS = 6000
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
        strict = ScriptedUpstream()
        make_strict(strict, self.window)
        return [str(wrong) for r in self.agent_requests for wrong in check(r.decoded, strict)]

    @property
    def compactions(self) -> int:
        return len([e for e in self.events if e["type"] == COMPACTION_COMPLETED])

    @property
    def read(self) -> set[int]:
        """Steps whose whole output reached the model as a tool result."""
        return set().union(*(self.script.read_in(r.messages) for r in self.agent_requests))

    @property
    def without_task(self) -> list[int]:
        """Numbers of the session's requests in which no user message holds the task."""
        return [
            number
            for number, request in enumerate(self.agent_requests, 1)
            if not any(_says(message, self.script.task) for message in request.messages)
        ]

    @property
    def sizes(self) -> list[int]:
        """Prompt tokens of the session's requests as the client sent them."""
        return [prompt_tokens(body) for body in self.sent if body.get("tools")]

    @property
    def shrunk(self) -> bool:
        """Whether the client ever sent fewer messages than before: its own compaction."""
        lengths = [len(as_objects(b.get("messages"))) for b in self.sent if b.get("tools")]
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
        wanted = len(self.script.steps) + 1
        found = {
            "killed at its time limit": code is None,
            f"exit code {code}": bool(code),
            "the final answer was not printed": self.script.answer not in self.ended.stdout,
            f"error replies reached the client: {failed}": bool(failed),
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


def _says(message: JsonObject, text: str) -> bool:
    return message.get("role") == "user" and text in "\n".join(message_texts(message))


@dataclass(frozen=True, slots=True)
class Conditions:
    """How long the task is, and in which window."""

    steps: int = STEPS
    output_chars: int = OUTPUT_CHARS
    window: int | None = None
    """Instead of the client's own."""
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
    script = Script.draw(conditions.steps, conditions.output_chars)
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    script.write(work)
    up = ScriptedUpstream(model=MODEL, reply=conditions.agent(script))
    make_strict(up, window)
    up.alternate = client.alternates
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
