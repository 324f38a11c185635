"""Streams that begin with comments, read by the SDKs that most clients are made with."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from proxy.codec import Json, JsonObject, dumps, loads
from tests import builders as b
from tests.clients import installed
from tests.clients.installed import MissingTool
from tests.clients.launches import MODEL, PROGRAMS
from tests.e2e.running import ROOT, Running
from tests.upstream import Reply, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

pytestmark = pytest.mark.slow

SECONDS = 120
SETTINGS: dict[str, Json] = {"upstream.context_window": 8000, "server.keepalive_seconds": 0.2}
READERS = [
    ("python", "sdk", "chat"),
    ("python", "sdk", "responses"),
    ("node", "sdk", "chat"),
    ("node", "sdk", "responses"),
    ("node", "ai", "chat"),
    ("node", "ai", "responses"),
    ("node", "compatible", "chat"),
]


def conversation() -> list[JsonObject]:
    messages = [b.system(b.SYSTEM)]
    for turn in range(16):
        messages += [b.user(b.prose(1200, turn)), b.assistant(b.prose(1200, 100 + turn))]
    return messages[:-1]


SUMMARY = plausible_checkpoint(conversation())


def command(language: str, folder: Path) -> list[str]:
    if language == "python":
        return [sys.executable, str(PROGRAMS / "stream_python.py")]
    # Node looks for packages beside the program, so it gets a copy there.
    (folder / "node_modules").symlink_to(installed.SDKS.install() / "node_modules")
    program = folder / "stream_node.mjs"
    program.write_bytes((PROGRAMS / "stream_node.mjs").read_bytes())
    return ["node", str(program)]


async def read(reader: tuple[str, str, str], url: str, folder: Path) -> JsonObject:
    """What a client saw of its streamed answer."""
    language, library, api = reader
    try:
        program = command(language, folder)
    except MissingTool as missing:
        pytest.skip(str(missing))
    file = folder / "conversation.json"
    file.write_bytes(dumps([*conversation()]))
    process = await asyncio.create_subprocess_exec(
        *program,
        f"{url}/v1",
        MODEL,
        library,
        api,
        str(file),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # noqa: TID251
    )
    try:
        async with asyncio.timeout(SECONDS):
            stdout, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    seen = loads(stdout)
    assert isinstance(seen, dict)
    return seen


@pytest.mark.parametrize("reader", READERS, ids="-".join)
async def test_comments_are_passed_over(reader: tuple[str, str, str], tmp_path: Path) -> None:
    async with ScriptedUpstream() as up, Running(up.base_url, tmp_path, **SETTINGS) as fold:
        up.summary_replies.append(Reply(text=SUMMARY, delay=1.0))
        up.replies.append(Reply(text="all is well"))
        seen = await read(reader, fold.url, tmp_path)
        started = fold.events.of_type("compaction_started")
    assert seen == {"text": "all is well", "error": None}
    assert up.violations == []
    assert (len(up.main), len(started)) == (1, 1)
    # The head went out early, so the reply could not have been compressed any more.
    assert up.main[0].headers["Accept-Encoding"] == "identity"


LATE = {
    "refused": Reply(
        status=400, raw_body=b'{"error":{"message":"too late","type":"t","param":null,"code":"c"}}'
    ),
    "gone": Reply(drop=True),
    "in the midst": Reply(text="half of an answer", cut=True),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("reader", READERS, ids="-".join)
async def test_an_error_after_comments_is_an_error(
    reader: tuple[str, str, str], tmp_path: Path, late: str
) -> None:
    """Never an answer that looks complete, and never the same request once more by the SDK."""
    async with ScriptedUpstream() as up, Running(up.base_url, tmp_path, **SETTINGS) as fold:
        up.summary_replies.append(Reply(text=SUMMARY, delay=1.0))
        up.replies.extend([LATE[late]] * 4)
        seen = await read(reader, fold.url, tmp_path)
        started = fold.events.of_type("compaction_started")
    assert seen["error"]
    assert seen["text"] == ""
    assert late != "refused" or "too late" in str(seen["error"])
    assert len(started) == 1
    # What is dropped at once is sent once more on another connection.
    assert len(up.main) <= (6 if late == "gone" else 3)
