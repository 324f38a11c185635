"""Each check of a trial fails when it should."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps
from tests.clients import installed, trial
from tests.clients.agent_script import Script, ScriptedAgent
from tests.clients.installed import InstallFailed, MissingTool, NodePackages, PythonPackages
from tests.clients.launches import Launch, Place
from tests.clients.real_clients import ALL_CLIENTS, CHAIN, CLIENTS, REFERENCES, Client
from tests.clients.trial import Conditions, Trial
from tests.e2e.running import ROOT
from tests.upstream import CHAT, Recorded, Reply
from tests.upstream_responses import Stored

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="process groups and shells of POSIX"),
]

PYTHON = CLIENTS[0]
SHORT = Conditions(steps=2)


def command(*words: str, seconds: float = 20) -> Client:
    """Something that is no client."""
    return replace(PYTHON, launch=lambda place: Launch([*words]), seconds=seconds)


def interrupting(at: int, reply: Reply) -> Callable[[Script], Callable[[Recorded], Reply]]:
    """Make an upstream that answers request number `at` with something else."""

    def make(script: Script) -> Callable[[Recorded], Reply]:
        agent, count = ScriptedAgent(script), iter(range(1, 1000))
        return lambda request: reply if next(count) == at else agent(request)

    return make


def named(name: str) -> Client:
    (found,) = (client for client in ALL_CLIENTS if client.name == name)
    return found


async def run(client: Client, folder: Path, conditions: Conditions | None = None) -> Trial:
    try:
        return await trial.run(client, folder, conditions)
    except MissingTool as missing:
        pytest.skip(str(missing))


def about(seen: Trial, text: str) -> list[str]:
    return [problem for problem in seen.problems if text in problem]


async def test_a_window_that_never_fills(tmp_path: Path) -> None:
    seen = await trial.run(PYTHON, tmp_path, Conditions(window=200_000))
    assert [problem.partition(":")[0] for problem in seen.problems] == [
        "only 0 compactions",
        "the client never sent more than the window",
    ]


async def test_without_the_proxy_the_same_task_fails(tmp_path: Path) -> None:
    seen = await trial.run(PYTHON, tmp_path, Conditions(direct=True))
    assert about(seen, "exit code 1")
    assert about(seen, "the upstream refused: ['window: ")
    assert about(seen, "error replies reached the client: [400]")
    assert (seen.overflows, seen.compactions) == (1, 0)


async def test_an_overflow_that_reaches_the_client(tmp_path: Path) -> None:
    """Nobody stands in between: the proxy would cure it."""
    refusal = Reply(status=400, text="maximum context length is 8 tokens")
    conditions = Conditions(agent=interrupting(3, refusal), window=200_000, direct=True)
    seen = await trial.run(PYTHON, tmp_path, conditions)
    assert about(seen, "exit code 1")
    assert about(seen, "error replies reached the client: [400]")
    assert seen.overflows == 1


async def test_an_error_within_a_stream(tmp_path: Path) -> None:
    error = b'data: {"error":{"message":"maximum context length","code":null}}\n\n'
    conditions = Conditions(agent=interrupting(3, Reply(chunks=[error])))
    seen = await trial.run(CLIENTS[1], tmp_path, conditions)
    assert about(seen, "exit code 1")
    assert about(seen, "error replies reached the client: [200]")
    assert seen.overflows == 1


async def test_a_client_that_tries_again_in_silence(tmp_path: Path) -> None:
    busy = Reply(status=503, text="busy", headers={"retry-after-ms": "10"})
    seen = await trial.run(PYTHON, tmp_path, Conditions(agent=interrupting(3, busy)))
    assert seen.ended.code == 0
    assert about(seen, "error replies reached the client: [503]")
    assert about(seen, "26 requests with tools left the client, not 25")


async def test_a_client_that_compacts_by_itself(tmp_path: Path) -> None:
    pi = named("pi")

    def with_a_small_window(place: Place) -> Launch:
        return pi.launch(replace(place, window=6000))

    seen = await run(replace(pi, launch=with_a_small_window), tmp_path)
    assert about(seen, "side requests, known are 0")


async def test_a_client_that_does_nothing(tmp_path: Path) -> None:
    seen = await trial.run(command("true"), tmp_path, SHORT)
    assert about(seen, "the final answer was not printed")
    assert about(seen, "results that never reached the model whole: [1, 2]")
    assert about(seen, "0 requests with tools left the client, not 3")


async def test_a_client_that_hangs(tmp_path: Path) -> None:
    stubborn = command("bash", "-c", "trap '' TERM; sleep 60 & wait", seconds=0.5)
    seen = await trial.run(stubborn, tmp_path, SHORT)
    assert "killed at its time limit" in seen.problems
    assert seen.ended.seconds < 5


async def test_what_reached_the_model_is_looked_at(tmp_path: Path) -> None:
    seen = await trial.run(PYTHON, tmp_path, Conditions())
    assert seen.problems == []
    *others, last = seen.main

    def changed(old: str, new: str) -> Trial:
        body = last.body.replace(old.encode(), new.encode())
        assert body != last.body
        return replace(seen, main=[*others, replace(last, body=body)])

    def task_lost() -> Trial:
        return changed("never skip a file", "skip nothing")

    def output_lost() -> Trial:
        return changed(seen.script.steps[-1].mark, "step-24")

    def call_lost() -> Trial:
        return changed('"tool_call_id":"call_024"', '"tool_call_id":"call_999"')

    assert task_lost().problems == ["requests without the task: [25]"]
    assert output_lost().problems == ["results that never reached the model whole: [24]"]
    assert about(replace(seen, main=others), "24 requests with tools reached the upstream")
    shrunk = replace(seen, sent=[*seen.sent[:-1], {**seen.sent[-1], "messages": []}])
    assert about(shrunk, "its own compaction fired")
    assert about(call_lost(), "rules are broken")
    assert {text.partition(":")[0] for text in call_lost().violations} == {"pairing"}
    assert about(replace(seen, window=500), "rules are broken: ['window")
    assert replace(seen, refusals=["window: n"]).problems == ["the upstream refused: ['window: n']"]
    assert replace(seen, events=seen.events[:2]).problems == ["only 1 compactions"]
    failed: JsonObject = {"type": "compaction_failed"}
    assert about(replace(seen, events=[*seen.events, failed]), "the proxy reported")


def edited(seen: Trial, edit: Callable[[JsonObject], JsonObject | None]) -> Trial:
    """The same, but the items of the last request were edited before they arrived, or left out."""
    *others, last = seen.main
    body = last.json
    items: list[Json] = [
        item for given in as_objects(body["input"]) if (item := edit(given)) is not None
    ]
    assert items != body["input"]
    return replace(seen, main=[*others, replace(last, body=dumps({**body, "input": items}))])


def without(type_: str) -> Callable[[JsonObject], JsonObject | None]:
    return lambda item: None if item.get("type") == type_ else item


async def test_what_reached_the_model_as_items_is_looked_at(tmp_path: Path) -> None:
    seen = await trial.run(named("openai for Python, Responses"), tmp_path)
    assert seen.problems == []
    taskless = edited(seen, lambda item: {**item, "content": ""} if "role" in item else item)
    assert taskless.problems == ["requests without the task: [25]"]
    silent = edited(seen, without("function_call_output"))
    assert about(silent, "rules are broken: ['pairing")
    assert about(silent, "results that never reached the model whole: [24]")
    thoughtless = edited(seen, without("reasoning"))
    assert {text.partition(":")[0] for text in thoughtless.violations} == {"reasoning"}
    chat = replace(seen, client=replace(seen.client, api=CHAT))
    assert about(chat, "it used another API: {'responses'}")
    referring = replace(seen, client=replace(seen.client, carries=REFERENCES))
    later = [*range(2, 26)]
    assert referring.problems == [f"requests without item_reference: {later}"]


async def test_without_the_proxy_the_same_task_fails_in_items(tmp_path: Path) -> None:
    streaming = named("openai for Python, Responses, streaming")
    seen = await trial.run(streaming, tmp_path, Conditions(direct=True))
    assert about(seen, "exit code 1")
    assert about(seen, "error replies reached the client: [200]")
    assert seen.overflows == 1


@pytest.mark.parametrize(
    ("name", "rule", "without_task"),
    [
        (f"openai for Python, {CHAIN}", "chain", [2, 3]),
        ("AI SDK, Responses", "ids", []),
    ],
)
async def test_what_the_upstream_keeps_was_read_too(
    name: str, rule: str, without_task: list[int], tmp_path: Path
) -> None:
    conditions = Conditions(steps=2, window=200_000, direct=True)
    seen = await run(named(name), tmp_path, conditions)
    assert [problem.partition(":")[0] for problem in seen.problems] == [
        "only 0 compactions",
        "the client never sent more than the window",
    ]
    forgetful = replace(seen, stored=Stored())
    assert {text.partition(":")[0] for text in forgetful.violations} == {rule}
    assert forgetful.without_task == without_task


async def test_what_a_client_left_of_an_output_is_looked_at(tmp_path: Path) -> None:
    seen = await run(named("Codex, built-in provider"), tmp_path, Conditions(steps=3))
    assert seen.read == {1, 2, 3}
    assert not about(seen, "error replies")

    def cut(item: JsonObject) -> JsonObject:
        output = as_text(item.get("output"))
        return {**item, "output": output[:-1]} if output else item

    clipped = edited(seen, cut)
    assert clipped.read == {1, 2}
    assert replace(seen, client=replace(seen.client, shortens=False)).read == set()
    assert replace(seen, sent=[]).read == set()
    stubborn = replace(seen, client=replace(seen.client, tries_websocket=False))
    assert about(stubborn, "error replies reached the client: [426]")


def test_an_install_that_fails_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(installed.HOME_VARIABLE, str(tmp_path))
    broken = PythonPackages("broken", {"not a name": "0"})
    with pytest.raises(InstallFailed, match="uv pip install"):
        broken.install()
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="node is not on the PATH"):
        NodePackages("none", {"none": "0"}).install()


@pytest.mark.parametrize("required", [True, False])
def test_node_can_be_required(required: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", __file__]
    done = subprocess.run(
        [*command, *(["--require-node"] if required else [])],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = "ERROR: node is not on the PATH, and real clients need it"
    expected = (pytest.ExitCode.USAGE_ERROR, said) if required else (pytest.ExitCode.OK, "")
    assert (done.returncode, done.stderr.strip()) == expected
