"""The recipes of the README, each taken from there as it stands and followed."""

import shlex
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import test_readme
from tests.clients import installed, trial
from tests.clients.installed import MissingTool, NodePackages
from tests.clients.launches import Launch
from tests.clients.test_run_clients import responses
from tests.e2e.running import Running
from tests.upstream import Recorded, Reply, ScriptedUpstream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="process groups and shells of POSIX"),
]

ANSWER = "hello from the model"
ASK = "Say hello."
MODEL = "your-model"
KEY = "sk-of-the-user"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a recipe is followed."""

    url: str
    home: Path

    def recipe(self, name: str) -> str:
        """A recipe, for the proxy of this test instead of the usual one."""
        return test_readme.recipe(name).replace(test_readme.PROXY, self.url)

    def write(self, name: str, path: str) -> None:
        """Put a recipe where the README says that it belongs."""
        assert f"`~/{path}`" in test_readme.README
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.recipe(name))

    def command(self, name: str) -> tuple[list[str], dict[str, str]]:
        """A recipe of one line: the words of its command and its variables."""
        words = shlex.split(self.recipe(name))
        variables = dict(word.split("=", 1) for word in words if word.partition("=")[0].isupper())
        return words[len(variables) :], variables


def _bin(packages: NodePackages, name: str) -> str:
    return str(packages.install() / "node_modules" / ".bin" / name)


def opencode(place: Place) -> Launch:
    place.write("opencode", ".config/opencode/opencode.json")
    program = _bin(installed.OPENCODE, "opencode")
    variables = {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }
    return Launch([program, "run", "--model", f"foldgate/{MODEL}", ASK], variables)


def pi(place: Place) -> Launch:
    place.write("pi models", ".pi/agent/models.json")
    place.write("pi settings", ".pi/agent/settings.json")
    program = _bin(installed.PI, "pi")
    variables = {"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"}
    return Launch([program, "--provider", "foldgate", "--model", MODEL, "-p", ASK], variables)


def qwen(place: Place) -> Launch:
    place.write("qwen settings", ".qwen/settings.json")
    words, variables = place.command("qwen command")
    assert words[0] == "qwen"
    return Launch([_bin(installed.QWEN, "qwen"), *words[1:], "-p", ASK], variables)


def aider(place: Place) -> Launch:
    words, variables = place.command("aider command")
    assert words[0] == "aider"
    program = str(installed.AIDER.install() / "bin" / "aider")
    options = [
        "--message",
        ASK,
        "--yes-always",
        "--no-git",
        "--no-check-update",
        "--analytics-disable",
    ]
    # Without a network LiteLLM would wait for prices.
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return Launch([program, *words[1:], *options], {**variables, **offline})


def _node(name: str) -> Callable[[Place], Launch]:
    def launch(place: Place) -> Launch:
        folder = place.home / "program"
        folder.mkdir()
        (folder / "main.mjs").write_text(place.recipe(name))
        (folder / "node_modules").symlink_to(installed.SDKS.install() / "node_modules")
        return Launch(["node", str(folder / "main.mjs")])

    return launch


def langgraph(place: Place) -> Launch:
    program = place.home / "main.py"
    program.write_text(place.recipe("langgraph"))
    return Launch([str(installed.LANGGRAPH.python), str(program)])


def codex(place: Place) -> Launch:
    place.write("codex", ".codex/config.toml")
    program = _bin(installed.CODEX, "codex")
    return Launch([program, "exec", "--skip-git-repo-check", ASK])


RECIPES: dict[str, Callable[[Place], Launch]] = {
    "opencode": opencode,
    "pi": pi,
    "qwen-code": qwen,
    "aider": aider,
    "node": _node("node"),
    "ai-sdk": _node("ai-sdk"),
    "langgraph": langgraph,
}


@pytest.fixture
async def up() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(window=131_072, model=MODEL, key=KEY) as upstream:
        upstream.reply = _answer
        yield upstream


def _answer(_: Recorded) -> Reply:
    return Reply(text=ANSWER)


@pytest.mark.parametrize("name", RECIPES)
async def test_a_recipe_works_as_it_stands(name: str, up: ScriptedUpstream, tmp_path: Path) -> None:
    await follow(RECIPES[name], up.base_url, tmp_path)
    assert {request.json["model"] for request in up.main} == {MODEL}


async def test_the_recipe_for_codex_works_as_it_stands(tmp_path: Path) -> None:
    async with responses(ANSWER) as up:
        await follow(codex, up.url, tmp_path)
    assert [body["model"] for body in up.bodies] == [MODEL]


async def follow(recipe: Callable[[Place], Launch], upstream: str, folder: Path) -> None:
    """Run a client as a recipe says, and see that the model's answer gets through."""
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    async with Running(upstream, folder) as fold:
        try:
            launch = recipe(Place(fold.url, home))
        except MissingTool as missing:
            pytest.skip(str(missing))
        # What the recipe itself sets, where it does, stands for "no key".
        variables = {**launch.variables, "OPENAI_API_KEY": KEY}
        ended = await trial.end_of(Launch(launch.command, variables), home, work, 180)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert ANSWER in ended.stdout
