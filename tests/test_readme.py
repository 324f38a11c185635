"""The README is true: its commands run, its output is what they print, its links lead somewhere."""

import asyncio
import contextlib
import re
import shlex
import socket
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.main import get_command

from proxy.__main__ import app
from proxy.codec import JsonObject, loads
from proxy.commands.demo_picture import turns_of
from proxy.commands.demo_play import WINDOW, Demo
from proxy.commands.demo_view import LineView
from proxy.compaction.clip import MARKER
from proxy.compactor.memory import FRESH_SECONDS, LEASE_SECONDS, MAX_PENDING
from proxy.compactor.turns import RENEW_SECONDS
from proxy.errors import ContextBudgetExceeded
from proxy.sessions.redis_check import OLDEST
from proxy.sessions.state import COOL_AFTER_FAILURES
from proxy.settings import environment_of_children
from proxy.settings.model import PREFIX, Settings, StoreSettings
from proxy.upstream.discovery import USUAL
from tests import example_record
from tests.clients import trial
from tests.clients.real_clients import ALL_CLIENTS, Client
from tests.upstream import Reply, ScriptedUpstream

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OUTPUT_KB = 6
UPSTREAM = "http://127.0.0.1:8080"
PROXY = "http://127.0.0.1:8787"
HOME = "/home/you"
_FENCE = re.compile(
    r"(?:<!-- recipe: (?P<recipe>[^>]+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.S
)
_BEFORE = frozenset({"pip", "install", "uv", "run", "&&"})
_VARIABLE = re.compile(rf"\b{PREFIX}[A-Z_]+\b")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    kind: str
    text: str
    recipe: str


BLOCKS = [Block(m["kind"], m["text"], m["recipe"] or "") for m in _FENCE.finditer(README)]
CONSOLES = [block for block in BLOCKS if block.kind == "console"]


def between(name: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    return README[README.index(begin) + len(begin) : README.index(end)]


def recipe(name: str) -> str:
    (found,) = [block.text for block in BLOCKS if block.recipe == name]
    return found


# Commands and what they print


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a console block, and what it prints."""

    command: str
    output: str


def steps(block: Block) -> list[Step]:
    found = []
    for part in f"\n{block.text}".split("\n$ ")[1:]:
        command, _, output = part.partition("\n")
        found.append(Step(command, output))
    return found


STEPS = [step for block in CONSOLES for step in steps(block)]


async def run(command: str, folder: Path) -> str:
    """Run a command in a shell; a server is stopped once it has said that it listens."""
    inherited = environment_of_children()
    inherited.pop("XDG_DATA_HOME", None)
    inherited.pop("OPENAI_API_KEY", None)
    variables = {
        **inherited,
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}:{inherited['PATH']}",
        "COLUMNS": "500",
    }
    is_server = command.startswith("foldgate serve")
    if is_server:
        variables["FOLDGATE_SERVER__PORT"] = "0"
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        f"exec {command}",
        env=variables,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            if is_server:
                return (await process.stdout.readline()).decode()
            return (await process.stdout.read()).decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


def normal(output: str) -> str:
    """Leave out what differs from one run to the next: ports, times, names of servers."""
    output = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", output)
    output = re.sub(r"^ok    clock  .*", "ok    clock", output, flags=re.M)
    return re.sub(r"\(\d[\d.]* m?s[^)]*\)", "(TIME)", output).strip()


def test_there_are_console_blocks() -> None:
    assert len(STEPS) >= 3


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.command)
async def test_a_command_prints_what_the_readme_says(step: Step, tmp_path: Path) -> None:
    if "doctor" in step.command:
        with socket.socket() as port:
            if port.connect_ex(("127.0.0.1", 8787)) == 0:
                pytest.skip("something listens on port 8787 of this machine")
    async with ScriptedUpstream(window=16_384) as up:
        printed = await run(step.command.replace(UPSTREAM, up.url), tmp_path)
        printed = printed.replace(up.url, UPSTREAM).replace(str(tmp_path), HOME)
    assert normal(printed) == normal(step.output)


def test_the_demo_block_is_the_run_of_the_picture(capsys: pytest.CaptureFixture[str]) -> None:
    demo = Demo([], lambda _: None)
    view = LineView()
    with view:
        for turn in turns_of((ROOT / ".github" / "session.svg").read_text("utf-8")):
            demo.turns.append(turn)
            view.show(turn)
    demo.compactions = demo.turns[-1].compactions
    shown = capsys.readouterr().out
    view.close(demo)
    closing = capsys.readouterr().out.strip().splitlines()[-3:-1]
    expected = f"```text\n{shown}\n" + "\n".join(closing) + "\n```\n"
    assert between("demo") == expected


def test_the_record_is_what_the_code_writes() -> None:
    assert between("record") == f"```text\n{example_record.example()}\n```\n"


# Flags, variables, files


def shell_lines() -> Iterator[str]:
    for block in BLOCKS:
        if block.kind in {"sh", "console"}:
            joined = block.text.replace("\\\n", " ")
            for line in joined.splitlines():
                if block.kind == "sh" or line.startswith("$ "):
                    yield line.removeprefix("$ ")


def foldgate_commands() -> list[list[str]]:
    """Every call of the command, in blocks and in running text, without what comes before it."""
    texts = [*shell_lines(), *re.findall(r"`([^`\n]*\bfoldgate [^`\n]*)`", README)]
    found = []
    for text in texts:
        words = shlex.split(text, comments=True)
        before = words[: words.index("foldgate")] if "foldgate" in words else ["other"]
        if all("=" in word or word in _BEFORE for word in before):
            arguments = words[words.index("foldgate") + 1 :]
            # What follows is the client's.
            found.append(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    return found


def test_every_foldgate_command_and_flag_exists() -> None:
    commands = foldgate_commands()
    assert len(commands) >= 12
    for words in commands:
        command = get_command(app)
        rest = words
        while rest and (nested := getattr(command, "commands", None)) is not None:
            assert rest[0] in nested or rest[0].startswith("--"), words
            if rest[0].startswith("--"):
                break
            command, rest = nested[rest[0]], rest[1:]
        known = {name for parameter in command.params for name in parameter.opts}
        flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert flags <= {*known, "--help"}, words


def test_every_variable_is_a_setting() -> None:
    names = set(_VARIABLE.findall(README))
    assert f"{PREFIX}UPSTREAM__CONTEXT_WINDOW" in names
    for name in names - {PREFIX, f"{PREFIX}CONFIG"}:
        section, _, key = name.removeprefix(PREFIX).lower().partition("__")
        members = getattr(Settings.model_fields[section].annotation, "model_fields", {})
        assert key in members, name


def test_every_setting_in_running_text_exists() -> None:
    sections = "|".join(name for name in Settings.model_fields if name != "profiles")
    for section, key in re.findall(rf"`(?:foldgate )?({sections})\.([a-z_]+)\b", README):
        members = getattr(Settings.model_fields[section].annotation, "model_fields", {})
        assert key in members, f"{section}.{key}"


@pytest.mark.parametrize("kind", ["json", "toml"])
def test_every_configuration_can_be_read(kind: str) -> None:
    texts = [block.text for block in BLOCKS if block.kind == kind]
    assert texts
    for text in texts:
        assert loads(text.encode()) if kind == "json" else tomllib.loads(text)


def test_every_flag_in_running_text_is_one_of_ours_or_of_a_program_named_there() -> None:
    ours = {flag for command in _walk(get_command(app)) for flag in _flags(command)}
    of_others = {
        "--add-host": "Docker",
        "--compaction": "Cline",
        "--direct": "python -m tests.clients",
        "--max-chat-history-tokens": "aider",
        "--tool-call-parser": "vLLM",
    }
    spans = re.findall(r"`(--[a-z-]+)[^`]*`", re.sub(r"```.*?```", "", README, flags=re.S))
    assert len(spans) >= 12
    assert set(spans) <= {*ours, "--help", *of_others}


def _walk(command: object) -> Iterator[object]:
    yield command
    for nested in getattr(command, "commands", {}).values():
        yield from _walk(nested)


def _flags(command: object) -> Iterator[str]:
    for parameter in getattr(command, "params", ()):
        yield from parameter.opts


def test_our_own_address_is_the_default_one() -> None:
    ports = set(re.findall(r"(?:127\.0\.0\.1|host\.docker\.internal|localhost):(\d+)", README))
    usual = {urlsplit(server.url).port for server in USUAL}
    # One more is what `foldgate run` happened to pick.
    assert ports - {"8787", "40123"} <= {str(port) for port in usual}
    for server in USUAL:
        port = urlsplit(server.url).port
        assert re.search(rf"{re.escape(server.name)} \((?:port )?{port}\)", README)


# What the code has as constants


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("within 15 seconds", LEASE_SECONDS + RENEW_SECONDS <= 15),
        ("looked up less than\n30 seconds ago", FRESH_SECONDS == 30),
        ("for up to 30\nseconds after a compaction", FRESH_SECONDS == 30),
        (MARKER, True),
        ("(6.2 or newer, or Valkey)", OLDEST == (6, 2)),
        ("after three failures in a row", COOL_AFTER_FAILURES == 3),
        ("(256 changes at most)", MAX_PENDING == 256),
        ("deleted 30 days after their last use", StoreSettings().session_days == 30),
        ("more than 2 GiB", StoreSettings().archive_bytes == 2 * 2**30),
        ("Python 3.11 or newer", PROJECT["requires-python"] == ">=3.11"),
        (f"some {OUTPUT_KB} KB of output", trial.OUTPUT_CHARS // 1000 == OUTPUT_KB),
        (
            'code: "context_length_exceeded"',
            ContextBudgetExceeded.code == "context_length_exceeded",
        ),
    ],
)
def test_a_figure(said: str, value: bool) -> None:
    assert said in README
    assert value


# Links


def anchors() -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", README, flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_every_link_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", README)
    assert len(targets) >= 8
    for target in targets:
        if target.startswith("#"):
            assert target[1:] in anchors(), target
        else:
            assert not target.startswith("http"), "a link that no test can follow"
            assert (ROOT / target).is_file(), target


# Figures


def test_the_table_of_clients_is_of_the_clients_that_are_tested() -> None:
    heading, _, *rows = between("clients").strip().splitlines()
    assert heading.startswith("| client | version | steps |")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [(row[0], row[1]) for row in cells] == [(c.name, pinned(c)) for c in ALL_CLIENTS]
    assert {row[-1] for row in cells} == {"finished"}
    named = [cell.strip() for cell in heading.strip("|").split("|")]
    rows_by_name = [dict(zip(named, row, strict=True)) for row in cells]
    for row, client in zip(rows_by_name, ALL_CLIENTS, strict=True):
        assert row["overflow errors"] == "0"
        assert row["window, tokens"] == f"{client.window:,}"
        assert int(row["largest request, tokens"].replace(",", "")) > client.window
        assert (row["steps"], row["requests"]) == (str(client.steps), str(client.steps + 1))
        assert int(row["compactions"]) >= 2
    assert f"a task of {trial.STEPS} tool calls" in README


def pinned(client: Client) -> str:
    """The version that is installed for the test; nothing is installed for telling it."""
    pins = {name.partition("[")[0]: version for name, version in client.packages.pins.items()}
    return pins[client.package] if pins else version(client.package)


def test_the_figures_of_the_demo() -> None:
    assert f"a window of {WINDOW:,} tokens" in README


# Recipes


async def test_the_recipe_for_python_runs(tmp_path: Path) -> None:
    async with ScriptedUpstream() as up:
        up.replies.append(Reply(text="hello from the model"))
        program = recipe("python").replace(PROXY, up.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            env={**environment_of_children(), "OPENAI_API_KEY": "sk-test"},
            stdout=asyncio.subprocess.PIPE,
            cwd=tmp_path,
        )
        printed, _ = await process.communicate()
    assert (process.returncode, printed.decode()) == (0, "hello from the model\n")
    assert up.main[0].json["model"] == "your-model"


def test_the_recipes_point_at_the_proxy() -> None:
    named = {block.recipe for block in BLOCKS if block.recipe}
    assert {"opencode", "pi models", "codex", "python", "node", "ai-sdk", "langgraph"} <= named
    for block in BLOCKS:
        if block.recipe and "settings" not in block.recipe:
            assert f"{PROXY}/v1" in block.text


def test_switching_off_is_told_as_the_table_says() -> None:
    assert _object(recipe("opencode"))["compaction"] == {"auto": False, "prune": False}
    assert _object(recipe("pi settings")) == {"compaction": {"enabled": False}}


def _object(text: str) -> JsonObject:
    value = loads(text.encode())
    assert isinstance(value, dict)
    return value
