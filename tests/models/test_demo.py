"""The demo, for real: `foldgate demo` with llama.cpp and the small model."""

import signal
import sys
from pathlib import Path

import psutil
import pytest

from proxy.codec import JsonObject, loads
from proxy.commands.demo_picture import turns_of
from proxy.commands.demo_session import TASK
from tests.e2e.running import command, started

pytestmark = pytest.mark.slow


def model_servers() -> set[int]:
    return {
        process.pid
        for process in psutil.process_iter()
        if any(part.endswith("model_server.py") for part in command_line(process))
    }


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    svg = tmp_path / "session.svg"
    ended = await command("demo", "--json", "--picture", str(svg), folder=tmp_path, seconds=600)
    lines = [line for text in ended.stdout.splitlines() if isinstance(line := loads(text), dict)]
    assert ended.code == 0, ended.stderr
    (result,) = of_type(lines, "result")
    assert result["ok"] is True
    assert result["direct"] != result["foldgate"]
    turns = of_type(lines, "turn")
    assert [turn.number for turn in turns_of(svg.read_text("utf-8"))] == [
        turn["turn"] for turn in turns
    ]
    statuses = [turn["foldgate"] for turn in turns]
    assert all(isinstance(status, dict) and status["status"] == 200 for status in statuses)
    (checkpoint,) = of_type(lines, "checkpoint")
    assert TASK in str(checkpoint["text"])
    assert result["compactions"] == 2


def of_type(lines: list[JsonObject], type_: str) -> list[JsonObject]:
    return [line for line in lines if line["type"] == type_]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
async def test_a_stopped_demo_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    others = model_servers()
    async with started("demo", folder=tmp_path) as process:
        assert process.stdout is not None
        await process.stdout.readuntil(b"ok, 56 tokens")
        ours = [psutil.Process(pid) for pid in model_servers() - others]
        assert ours
        process.send_signal(number)
        assert await process.wait() == code
    gone, alive = psutil.wait_procs(ours, timeout=20)
    assert (len(gone), alive) == (len(ours), [])
