"""How each client is started without a terminal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from proxy.codec import Json, JsonObject, dumps
from tests.clients import installed
from tests.clients.installed import NodePackages, PythonPackages
from tests.upstream import CHAT, RESPONSES

PROGRAMS = Path(__file__).parent / "programs"
MODEL = "test-model"
RESERVE = 8192
"""Tokens that clients with a compaction of their own leave free below the window we tell them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client runs and what it is told."""

    url: str
    """Base URL of the API."""
    task: str = field(repr=False)
    window: int
    """The upstream's, in tokens."""
    home: Path
    work: Path

    @property
    def own_window(self) -> int:
        """The window to tell clients that compact by themselves.

        With it they would begin as soon as a reply reports a prompt that fills the real window.
        """
        return self.window + RESERVE


@dataclass(frozen=True, slots=True)
class Launch:
    """A command and what it needs."""

    command: list[str]
    variables: Mapping[str, str] = field(default_factory=dict)


Start = Callable[[Place], Launch]


def node_program(name: str, *modes: str) -> Start:
    def launch(place: Place) -> Launch:
        # Node looks for packages beside the program, so it gets a copy there.
        folder = place.home / "program"
        folder.mkdir()
        program = folder / name
        program.write_bytes((PROGRAMS / name).read_bytes())
        (folder / "node_modules").symlink_to(installed.SDKS.install() / "node_modules")
        return Launch(["node", str(program), place.url, MODEL, place.task, *modes])

    return launch


def python_program(packages: PythonPackages, name: str, *modes: str) -> Start:
    def launch(place: Place) -> Launch:
        program = str(PROGRAMS / name)
        command = [str(packages.python), program, place.url, MODEL, place.task, *modes]
        # Without it LiteLLM asks the network for prices first.
        return Launch(command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})

    return launch


def _executable(packages: NodePackages, name: str) -> str:
    return str(packages.install() / "node_modules" / ".bin" / name)


def _write(path: Path, content: JsonObject) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps(content))


def _reasons(api: str) -> bool:
    """Whether to say that the model reasons, so that sealed reasoning is asked for and echoed."""
    return api == RESPONSES


def pi(api: str) -> Start:
    names = {CHAT: "openai-completions", RESPONSES: "openai-responses"}

    def launch(place: Place) -> Launch:
        folder = place.home / ".pi" / "agent"
        model: JsonObject = {
            "id": MODEL,
            "name": MODEL,
            "reasoning": _reasons(api),
            "input": ["text"],
            "contextWindow": place.own_window,
            "maxTokens": 4096,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        }
        provider: JsonObject = {
            "baseUrl": place.url,
            "api": names[api],
            "apiKey": "LOCAL_KEY",
            "models": [model],
        }
        _write(folder / "models.json", {"providers": {"local": provider}})
        own: JsonObject = {"enabled": True, "reserveTokens": RESERVE}
        _write(folder / "settings.json", {"compaction": own})
        program = _executable(installed.PI, "pi")
        return Launch(
            [program, "--provider", "local", "--model", MODEL, "-p", place.task],
            {"LOCAL_KEY": "sk-test", "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"},
        )

    return launch


def opencode(api: str) -> Start:
    packages = {CHAT: "@ai-sdk/openai-compatible", RESPONSES: "@ai-sdk/openai"}

    def launch(place: Place) -> Launch:
        name = f"local/{MODEL}"
        limits: JsonObject = {"context": place.own_window, "output": RESERVE}
        model: JsonObject = {
            "name": MODEL,
            "tool_call": True,
            "reasoning": _reasons(api),
            "limit": limits,
        }
        provider: JsonObject = {
            "npm": packages[api],
            "name": "Local",
            "options": {"baseURL": place.url, "apiKey": "sk-test"},
            "models": {MODEL: model},
        }
        settings: JsonObject = {
            "autoupdate": False,
            "share": "disabled",
            "model": name,
            "small_model": name,
            "provider": {"local": provider},
        }
        _write(place.home / ".config" / "opencode" / "opencode.json", settings)
        program = _executable(installed.OPENCODE, "opencode")
        return Launch(
            [program, "run", "--model", name, place.task],
            {
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            },
        )

    return launch


def qwen(place: Place) -> Launch:
    generation: JsonObject = {"contextWindowSize": place.own_window}
    settings: JsonObject = {
        "model": {"generationConfig": generation},
        # With its terminal emulation it loses the ends of outputs now and then.
        "tools": {"shell": {"enableInteractiveShell": False}},
    }
    _write(place.home / ".qwen" / "settings.json", settings)
    program = _executable(installed.QWEN, "qwen")
    options = ["--auth-type", "openai", "--approval-mode", "yolo", "-p", place.task]
    return Launch(
        [program, *options],
        {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": place.url, "OPENAI_MODEL": MODEL},
    )


def codex(place: Place) -> Launch:
    """Start it with a provider of its configuration, which speaks HTTP."""
    table = "model_providers.local"
    return _codex(
        place,
        {
            "model_provider": "local",
            f"{table}.name": "Local",
            f"{table}.base_url": place.url,
            f"{table}.env_key": "LOCAL_KEY",
            f"{table}.wire_api": "responses",
        },
    )


def codex_built_in(place: Place) -> Launch:
    """Start it with its own provider at another address, which tries a WebSocket first."""
    return _codex(place, {"model_provider": "openai", "openai_base_url": place.url})


def _codex(place: Place, provider: Mapping[str, Json]) -> Launch:
    settings: dict[str, Json] = {
        "model": MODEL,
        # It compacts by itself when a reply reports nearly as much.
        "model_context_window": 100_000_000,
        "check_for_update_on_startup": False,
        **provider,
    }
    folder = place.home / ".codex"
    folder.mkdir()
    # JSON's texts, numbers and booleans are TOML's too.
    lines = (f"{key} = {dumps(value).decode()}\n" for key, value in settings.items())
    (folder / "config.toml").write_text("".join(lines), encoding="utf-8")
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Launch(
        [_executable(installed.CODEX, "codex"), "exec", *options, place.task],
        {"LOCAL_KEY": "sk-test", "OPENAI_API_KEY": "sk-test", "CODEX_API_KEY": "sk-test"},
    )
