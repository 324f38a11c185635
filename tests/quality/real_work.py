"""A session as agents have them: source code, logs and data, and the plants in their midst."""

import random
import shlex
from collections.abc import Sequence
from pathlib import Path

from proxy.codec import JsonObject, dumps
from tests import builders as b
from tests.quality.plants import Corpus

MODULES = ("shlex", "textwrap", "queue", "heapq", "bisect", "csv", "fnmatch", "string", "graphlib")
SOURCES = [Path(shlex.__file__).with_name(f"{name}.py") for name in MODULES]
"""Source code that does not change with this repository."""

REQUESTS = (
    "The dashboards show that the parse step takes twice as long since the change of last week.",
    "Refactor the session store so that both variants share one contract test.",
    "I looked at the diff and it seems fine, but the naming in the adapter is confusing.",
    "Go on.",
    "Could you also add a command line option for the port, and write it up in the README?",
)
ANSWERS = (
    "The loader reads the rows in batches of 500 and passes each batch to the parser.",
    "Two of the three places use the pool, the third one builds a connection of its own.",
    "I added a test that counts how many connections are opened, and it passes now.",
    "The timeout of the adapter is given in milliseconds while all others are in seconds.",
)
SERVICES = ("importer", "gateway", "billing", "scheduler")
ENTRIES = ("queue depth 12 workers=4", "flushed 512 rows", "job nightly-{} finished with 0 errors")


class Session:
    """Writes it, turn by turn."""

    def __init__(self, seed: int, result_chars: Sequence[int]) -> None:
        """Take how long a result may be, characters."""
        self.messages = [b.system(b.SYSTEM)]
        self._rng = random.Random(seed)
        self._seed, self._sizes = seed, result_chars
        self._calls = 0

    def turn(self, said: str, calls: int, printed: str = "", stated: str = "") -> None:
        """Add a turn; a tool prints one text of these, the assistant states the other."""
        self.messages.append(b.user(said))
        for number in range(calls):
            name, target, text = self._printed("" if number else printed)
            id = b.call_id(self._seed, self._calls)
            self._calls += 1
            self.messages += [b.assistant(None, [b.call(id, name, target)]), b.result(id, text)]
        told = self._rng.sample(ANSWERS, 3)
        if stated:
            told.insert(1, stated)
        self.messages.append(b.assistant(self._rng.choice(("\n\n", " ")).join(told)))

    def said(self, text: str) -> str:
        """Put what the user says where users put it."""
        before, after = self._rng.sample(REQUESTS, 2)
        return self._rng.choice(
            (
                text,
                f"{before} {text} {after}",
                f"{before}\n\n- look at the loader\n- {text}\n- the config is in config/",
                f"Some notes:\nThe loader is new.\n{text}\nThat is all for now.",
                f"{before} {text}\n\n```\n{self._log(30)}\n```",
                f"Here is the log of last night:\n{self._log(30)}\n\n{text}",
            )
        )

    def _printed(self, fact: str) -> tuple[str, JsonObject, str]:
        if not fact:
            return self._work()
        lines = self._log(20).splitlines()
        data: JsonObject = {"service": "web", "replicas": 4, "notes": [fact], "tier": 2}
        notes = dumps(data).decode().replace(",", ",\n  ").replace("[", "[\n    ")
        rows = [f"| {n} | {service} | open | see below |" for n, service in enumerate(SERVICES)]
        table = "\n".join([*rows, f"| 9 | web | open | {fact} |", *rows])
        path: JsonObject = {"path": f"docs/notes_{self._calls}.md"}
        run: JsonObject = {"command": f"kubectl logs deploy/web --tail={self._calls}"}
        code = self._source().splitlines()
        deployed: JsonObject = {"path": f"deploy/web_{self._calls}.json"}
        return self._rng.choice(
            (
                ("read_file", path, fact),
                ("read_file", deployed, notes),
                ("read_file", path, table),
                ("run_command", run, "\n".join([*lines[:10], fact, *lines[10:]])),
                ("run_command", run, "\n".join([*lines, f"{lines[0].split(']')[0]}] {fact}"])),
                ("run_command", run, "\n".join([*code[:12], fact, *code[12:]])),
            )
        )

    def _work(self) -> tuple[str, JsonObject, str]:
        path = self._rng.choice(SOURCES)
        command: JsonObject = {"command": f"make check-{self._rng.randrange(20)}"}
        read: JsonObject = {"path": f"lib/{path.name}"}
        diff: JsonObject = {"command": "git diff HEAD~1"}
        kinds = (
            ("read_file", read, self._source(path)),
            ("run_command", diff, self._patch(self._source(path))),
            ("run_command", command, self._log(25)),
            ("run_command", command, f"{self._log(4)}\n==== 175 passed in 1.62s ===="),
        )
        return self._rng.choice(kinds)

    def _source(self, path: Path | None = None) -> str:
        lines = (path or self._rng.choice(SOURCES)).read_text("utf-8").splitlines()
        start = self._rng.randrange(max(1, len(lines) - 40))
        return "\n".join(lines[start:])[: self._rng.choice(self._sizes)]

    def _patch(self, source: str) -> str:
        added = "\n".join(f"{self._rng.choice('+- ')}{line}" for line in source.splitlines())
        return f"diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1,9 +1,9 @@\n{added}"

    def _log(self, count: int) -> str:
        return "\n".join(
            f"2026-09-11T10:{n:02}:07.{self._rng.randrange(1000):03}Z INFO  "
            f"[{self._rng.choice(SERVICES)}] "
            + self._rng.choice(ENTRIES).format(self._rng.randrange(1000))
            for n in range(count)
        )


def session(
    corpus: Corpus, seed: int, *, calls: int, tail: int, result_chars: Sequence[int]
) -> list[JsonObject]:
    """Return a session in which all of a corpus is said, printed or stated, in order.

    Args:
        corpus: what is planted.
        seed: of everything else.
        calls: of each turn.
        tail: how many turns without a plant come last.
        result_chars: lengths that a result may have.
    """
    script = Session(seed, result_chars)
    script.turn(b.TASK, calls)
    for number, text in enumerate(corpus.said):
        request = f"{REQUESTS[number % len(REQUESTS)]} (part {number})"
        if text in corpus.by_tools:
            script.turn(request, calls, printed=text)
        elif text in corpus.by_assistant:
            script.turn(request, calls, stated=text)
        else:
            script.turn(script.said(text), calls)
    for number in range(tail):
        script.turn(f"{REQUESTS[number % len(REQUESTS)]} (step {number})", calls)
    return script.messages[:-1]
