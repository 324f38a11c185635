"""What the end-to-end tests share: a strict upstream and a client that adds nothing."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.e2e.apis import APIS, Api
from tests.upstream import ScriptedUpstream


@pytest.fixture
async def up() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as upstream:
        yield upstream


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        yield session


@pytest.fixture(params=APIS, ids=str)
def api(request: pytest.FixtureRequest) -> Api:
    """The test runs once for each API."""
    assert isinstance(request.param, Api)
    return request.param
