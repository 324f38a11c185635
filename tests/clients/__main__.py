"""Runs the real clients and prints what was measured, as a Markdown table or as JSON.

Run with ``uv run python -m tests.clients``, or with names of clients (``--list`` shows them). The
exit code is 1 when a client failed.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from proxy.codec import JsonObject, as_text, dumps
from proxy.telemetry import configure_log
from tests.clients import trial
from tests.clients.installed import InstallFailed, MissingTool
from tests.clients.real_clients import ALL_CLIENTS, Client
from tests.clients.trial import Conditions, Trial

COLUMNS: Mapping[str, str] = {
    "client": "client",
    "version": "version",
    "steps": "steps",
    "requests": "requests",
    "compactions": "compactions",
    "largest": "largest request, tokens",
    "window": "window, tokens",
    "overflows": "overflow errors",
    "seconds": "seconds",
    "result": "result",
}


def measured(seen: Trial) -> JsonObject:
    """Return the figures of a run."""
    return {
        "client": seen.client.name,
        "version": seen.client.version,
        "steps": len(seen.read),
        "requests": len(seen.agent_requests),
        "compactions": seen.compactions,
        "largest": max(seen.sizes, default=0),
        "window": seen.window,
        "overflows": seen.overflows,
        "seconds": round(seen.ended.seconds, 1),
        "result": "; ".join(seen.problems) or "finished",
    }


async def measure(client: Client, conditions: Conditions) -> tuple[JsonObject, bool]:
    """Run one client; returns its figures and whether all is well."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            seen = await trial.run(client, Path(folder), conditions)
        except MissingTool as missing:
            return {"client": client.name, "result": f"not run: {missing}"}, True
        except InstallFailed as failure:
            sys.stderr.write(f"{failure}\n")
            return {"client": client.name, "result": "not installed"}, False
    if seen.problems:
        sys.stderr.write(f"{seen.account}\n")
    return measured(seen), not seen.problems


def row(figures: JsonObject) -> str:
    """Return a line of the Markdown table."""
    cells = (figures.get(key, "") for key in COLUMNS)
    shown = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)
    return f"| {' | '.join(shown)} |"


async def run_all(clients: Sequence[Client], options: argparse.Namespace) -> int:
    """Run clients one after the other and print a line for each."""
    failures = 0
    if not options.json:
        rule = "|".join("---" for _ in COLUMNS)
        sys.stdout.write(f"{row(dict(COLUMNS))}\n|{rule}|\n")
    for client in clients:
        conditions = Conditions(options.steps, window=options.window, direct=options.direct)
        figures, well = await measure(client, conditions)
        failures += not well
        line = dumps(figures).decode() if options.json else row(figures)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 1 if failures else 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help="only these")
    parser.add_argument("--json", action="store_true", help="a JSON object a line, no table")
    parser.add_argument("--list", action="store_true", help="print the names of the clients")
    parser.add_argument("--steps", type=int, help="tool calls, instead of each client's own")
    parser.add_argument("--window", type=int, help="tokens, instead of each client's own")
    parser.add_argument("--direct", action="store_true", help="without the proxy, to compare")
    options = parser.parse_args(arguments)
    if options.list:
        sys.stdout.writelines(f"{client.name}\n" for client in ALL_CLIENTS)
        return 0
    known = {client.name: client for client in ALL_CLIENTS}
    if unknown := [name for name in map(as_text, options.clients) if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; --list shows the names")
    configure_log()
    clients = [known[name] for name in options.clients] or ALL_CLIENTS
    return asyncio.run(run_all(clients, options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
