"""Real clients finish long tasks through the proxy, with several compactions on the way."""

import sys
from pathlib import Path

import pytest

from tests.clients import trial
from tests.clients.installed import MissingTool
from tests.clients.real_clients import ALL_CLIENTS, Client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="process groups and shells of POSIX"),
]


@pytest.mark.parametrize("client", ALL_CLIENTS, ids=lambda client: client.name.replace(" ", "-"))
async def test_a_long_task_is_finished(client: Client, tmp_path: Path) -> None:
    try:
        seen = await trial.run(client, tmp_path)
    except MissingTool as missing:
        pytest.skip(str(missing))
    assert seen.problems == [], seen.account
