"""Real clients, installed once at fixed versions by their registries' ordinary tools.

They live in the user's cache folder, or where the variable ``TEST_CLIENTS_HOME`` says. An install
appears there whole or not at all, in a folder named after its pins, so other pins are another
folder and several test runs may install at the same time.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from proxy.codec import Json, JsonObject, as_text, dumps, loads

HOME_VARIABLE = "TEST_CLIENTS_HOME"
_INSTALL_SECONDS = 600


class MissingTool(RuntimeError):
    """Node or npm is not on this machine, so clients for it cannot be run here."""


class InstallFailed(AssertionError):
    """A client could not be installed; says what was tried and what came of it."""


def need_node() -> None:
    """Make sure that clients of Node can be installed and run here.

    Raises:
        MissingTool: when they cannot; it says what is missing.
    """
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise MissingTool(f"{tool} is not on the PATH")


@dataclass(frozen=True, slots=True)
class NodePackages:
    """Packages of the npm registry, in a folder of their own."""

    name: str
    pins: Mapping[str, str]

    def install(self) -> Path:
        """Return the folder that holds ``node_modules``."""
        need_node()
        return _once(self.name, self.pins, self._fill)

    def version(self, package: str) -> str:
        """Return the version of a package as it was installed."""
        card = loads((self.install() / "node_modules" / package / "package.json").read_bytes())
        assert isinstance(card, dict)
        return as_text(card["version"])

    def _fill(self, folder: Path) -> None:
        dependencies: dict[str, Json] = dict(self.pins)
        manifest: JsonObject = {
            "name": f"client-{self.name}",
            "private": True,
            "dependencies": dependencies,
        }
        (folder / "package.json").write_bytes(dumps(manifest))
        _run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", folder=folder)


@dataclass(frozen=True, slots=True)
class PythonPackages:
    """Python distributions in a virtual environment; without pins, the one this runs in."""

    name: str
    pins: Mapping[str, str]

    def install(self) -> Path:
        """Return the environment's folder."""
        return _once(self.name, self.pins, self._fill) if self.pins else Path(sys.prefix)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.install() / "bin" / "python" if self.pins else Path(sys.executable)

    def version(self, package: str) -> str:
        """Return the version of a distribution as it was installed."""
        folders = [str(path) for path in self.install().glob("lib/python*/site-packages")]
        found = importlib.metadata.distributions(name=package, path=folders)
        return next(iter(found)).version

    def _fill(self, folder: Path) -> None:
        # Relocatable, since the folder is renamed when it is ready.
        _run("uv", "venv", "-q", "--relocatable", "--python", sys.executable, ".", folder=folder)
        wanted = [f"{name}=={version}" for name, version in self.pins.items()]
        _run("uv", "pip", "install", "-q", "--python", "bin/python", *wanted, folder=folder)


Packages = NodePackages | PythonPackages


def clients_home() -> Path:
    """Return the folder of all installs."""
    chosen = os.environ.get(HOME_VARIABLE)  # noqa: TID251  -- the proxy does not read this one
    cache = platformdirs.user_cache_path("foldgate-tests", appauthor=False)
    return Path(chosen).expanduser() if chosen else cache / "clients"


def _once(name: str, pins: Mapping[str, str], fill: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256(dumps(dict(sorted(pins.items())))).hexdigest()[:10]
    home = clients_home()
    folder = home / f"{name}-{digest}"
    if folder.exists():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=home))
    try:
        fill(draft)
        with contextlib.suppress(OSError):  # somebody else was faster
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    assert folder.is_dir()
    return folder


def _run(*command: str, folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"{_shown(command)}: {error}") from error
    if done.returncode:
        raise InstallFailed(f"{_shown(command)}: exit code {done.returncode}\n{done.stdout}")


def _shown(command: Sequence[str]) -> str:
    return " ".join(command)


SDKS = NodePackages(
    "node-sdks",
    {
        "openai": "6.49.0",
        "ai": "6.0.326",
        "@ai-sdk/openai": "3.0.141",
        "@ai-sdk/openai-compatible": "2.0.92",
        "zod": "4.6.7",
    },
)
PI = NodePackages("pi", {"@mariozechner/pi-coding-agent": "0.73.1"})
OPENCODE = NodePackages("opencode", {"opencode-ai": "1.18.33"})
CODEX = NodePackages("codex", {"@openai/codex": "0.171.0"})
QWEN = NodePackages("qwen", {"@qwen-code/qwen-code": "0.15.10"})
OPENAI_PYTHON = PythonPackages("openai", {})
LANGGRAPH = PythonPackages(
    "langgraph", {"langchain": "1.5.2", "langchain-openai": "1.7.4", "langgraph": "1.2.24"}
)
PYDANTIC_AI = PythonPackages("pydantic-ai", {"pydantic-ai-slim[openai]": "2.68.0"})
OPENAI_AGENTS = PythonPackages("openai-agents", {"openai-agents": "0.24.0"})
AIDER = PythonPackages("aider", {"aider-chat": "0.86.2"})
LITELLM = PythonPackages("litellm", {"litellm": "1.110.2"})
