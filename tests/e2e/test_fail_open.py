"""The one fail-open point: a fault of our own never costs the client its answer."""

from pathlib import Path

import aiohttp
import pytest

from proxy.dialects.chat_completions import ChatCompletions
from tests import builders as b
from tests.e2e.running import Running
from tests.upstream import ScriptedUpstream

SECRET = "do-not-print-me"


async def test_a_bug_of_ours_sends_the_request_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise KeyError(SECRET)

    body = b.chat_body([b.user(f"{SECRET} {b.prose(3000, 1)}")])
    async with ScriptedUpstream() as up, Running(up.base_url, tmp_path) as fold:
        monkeypatch.setattr(ChatCompletions, "parse", broken)
        async with aiohttp.ClientSession() as client:
            url = f"{fold.url}/v1/chat/completions"
            async with client.post(url, data=body) as reply:
                assert reply.status == 200
                assert reply.headers["x-foldgate-compaction"] == "failed-open"
    assert [r.body for r in up.main] == [body]
    failed = fold.events.of_type("compaction_failed")
    assert [(e["reason"], e["detail"]) for e in failed] == [("internal", "KeyError")]
    assert SECRET not in "".join(capfd.readouterr())
