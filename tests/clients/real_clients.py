"""The clients: what to install, and how each is started without a terminal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from proxy.codec import JsonObject, dumps
from tests.clients import installed
from tests.clients.installed import NodePackages, Packages, PythonPackages

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


@dataclass(frozen=True, slots=True)
class Client:
    """A client in one way of using it."""

    name: str
    package: str
    packages: Packages
    launch: Callable[[Place], Launch]
    window: int = 16_384
    side_requests: int = 0
    """Requests without tools that it is known to make."""
    alternates: bool = True
    """Whether all its own requests, side requests too, alternate user and assistant."""
    seconds: float = 180
    """Time limit, for a busy machine: some need half a minute to start there."""

    @property
    def version(self) -> str:
        return self.packages.version(self.package)


def _node_program(name: str, mode: str) -> Callable[[Place], Launch]:
    def launch(place: Place) -> Launch:
        # Node looks for packages beside the program, so it gets a copy there.
        folder = place.home / "program"
        folder.mkdir()
        program = folder / name
        program.write_bytes((PROGRAMS / name).read_bytes())
        (folder / "node_modules").symlink_to(installed.SDKS.install() / "node_modules")
        return Launch(["node", str(program), place.url, MODEL, place.task, mode])

    return launch


def _python_program(packages: PythonPackages, name: str, mode: str) -> Callable[[Place], Launch]:
    def launch(place: Place) -> Launch:
        program = str(PROGRAMS / name)
        command = [str(packages.python), program, place.url, MODEL, place.task, mode]
        # Without it LiteLLM asks the network for prices first.
        return Launch(command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})

    return launch


def _executable(packages: NodePackages, name: str) -> str:
    return str(packages.install() / "node_modules" / ".bin" / name)


def _write(path: Path, content: JsonObject) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps(content))


def _pi(place: Place) -> Launch:
    folder = place.home / ".pi" / "agent"
    model: JsonObject = {
        "id": MODEL,
        "name": MODEL,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": place.own_window,
        "maxTokens": 4096,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider: JsonObject = {
        "baseUrl": place.url,
        "api": "openai-completions",
        "apiKey": "LOCAL_KEY",
        "models": [model],
    }
    _write(folder / "models.json", {"providers": {"local": provider}})
    _write(folder / "settings.json", {"compaction": {"enabled": True, "reserveTokens": RESERVE}})
    program = _executable(installed.PI, "pi")
    return Launch(
        [program, "--provider", "local", "--model", MODEL, "-p", place.task],
        {"LOCAL_KEY": "sk-test", "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1"},
    )


def _opencode(place: Place) -> Launch:
    name = f"local/{MODEL}"
    limits: JsonObject = {"context": place.own_window, "output": RESERVE}
    provider: JsonObject = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Local",
        "options": {"baseURL": place.url, "apiKey": "sk-test"},
        "models": {MODEL: {"name": MODEL, "tool_call": True, "limit": limits}},
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


def _qwen(place: Place) -> Launch:
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


def _sdk(name: str, package: str, packages: Packages, program: str) -> list[Client]:
    found: list[Client] = []
    for mode, suffix in (("whole", ""), ("stream", ", streaming")):
        launch = (
            _node_program(program, mode)
            if isinstance(packages, NodePackages)
            else _python_program(packages, program, mode)
        )
        found.append(Client(name + suffix, package, packages, launch))
    return found


CLIENTS: list[Client] = [
    *_sdk("openai for Python", "openai", installed.OPENAI_PYTHON, "openai_python.py"),
    *_sdk("openai for Node", "openai", installed.SDKS, "openai_node.mjs"),
    *_sdk("AI SDK", "ai", installed.SDKS, "ai_sdk.mjs"),
    *_sdk("LangGraph", "langgraph", installed.LANGGRAPH, "langgraph_agent.py"),
    Client("pi", "@mariozechner/pi-coding-agent", installed.PI, _pi),
    Client(
        "opencode",
        "opencode-ai",
        installed.OPENCODE,
        _opencode,
        window=24_576,
        side_requests=1,  # for a title; the question and the user's text are two user messages
        alternates=False,
    ),
    Client("qwen-code", "@qwen-code/qwen-code", installed.QWEN, _qwen, window=40_960),
    *_sdk("Pydantic AI", "pydantic-ai-slim", installed.PYDANTIC_AI, "pydantic_ai_agent.py"),
    *_sdk("OpenAI Agents SDK", "openai-agents", installed.OPENAI_AGENTS, "openai_agents.py"),
    *_sdk("LiteLLM", "litellm", installed.LITELLM, "litellm_agent.py"),
]
