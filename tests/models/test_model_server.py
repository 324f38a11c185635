"""The model server with a file that it is given."""

import asyncio
import contextlib
import sys
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import JsonObject, as_objects, dumps, loads
from proxy.commands.model_server import NoModelServer, model_path, model_server
from proxy.commands.model_server import __file__ as program

pytestmark = pytest.mark.slow


async def test_a_file_that_is_given_is_served_under_its_name(tmp_path: Path) -> None:
    file = tmp_path / "-another name.gguf"
    file.symlink_to(model_path())
    async with (
        model_server(512, model=file) as server,
        aiohttp.ClientSession() as http,
        http.get(f"{server}/v1/models") as reply,
    ):
        found = loads(await reply.read())
    assert isinstance(found, dict)
    assert [card["id"] for card in as_objects(found["data"])] == ["-another name"]


async def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.gguf"
    file.write_text("no model at all")
    with pytest.raises(NoModelServer, match="did not start") as refused:
        async with model_server(512, model=file):
            raise AssertionError("it started")
    assert str(file) in str(refused.value)


async def test_it_ends_with_its_standard_input_in_the_middle_of_a_reply() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", program, "--window", "4096"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        body: JsonObject = {
            "prompt": "Once upon a time",
            "n_predict": 4000,
            "ignore_eos": True,
            "stream": True,
        }
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{url}/completion", data=dumps(body)) as reply,
        ):
            assert await reply.content.readline()
            process.stdin.close()
            async with asyncio.timeout(20):
                await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
