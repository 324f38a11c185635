"""`foldgate run`: the client gets a proxy of its own, and nothing is left when it is over."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import pytest
from typer.testing import CliRunner

from proxy import __main__ as command_line
from proxy.codec import JsonObject, as_text, loads
from proxy.commands import processes, run
from tests import builders as b
from tests.e2e.running import Finished
from tests.upstream import Reply, ScriptedUpstream

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and shells of POSIX")

NOWHERE = ("--upstream", "http://127.0.0.1:9/v1")
TOKEN = "TEST_RUN_TOKEN"
SECONDS = 30.0

Argument = str | bytes | Path


@dataclass(slots=True)
class Fold:
    """A `foldgate run` of a test."""

    process: asyncio.subprocess.Process

    @property
    def watchers(self) -> list[psutil.Process]:
        """The process that watches over it, when there is one."""
        return [
            child
            for child in psutil.Process(self.process.pid).children()
            if processes.__file__ in child.cmdline()
        ]

    async def line(self) -> str:
        """Return the next line that the client wrote."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS):
            return (await self.process.stdout.readline()).decode().strip()

    async def family(self) -> list[psutil.Process]:
        """Return the processes that the client names in its next line, and the watcher."""
        return [*(psutil.Process(int(pid)) for pid in (await self.line()).split()), *self.watchers]

    async def say(self, text: str = "\n") -> None:
        """Write to the client."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        await self.process.stdin.drain()

    async def end(self, data: bytes = b"") -> Finished:
        """Wait for its end, and until nobody holds its output any more."""
        async with asyncio.timeout(SECONDS):
            stdout, stderr = await self.process.communicate(data or None)
        assert self.process.returncode is not None
        return Finished(
            self.process.returncode,
            *((data or b"").decode(errors="surrogateescape") for data in (stdout, stderr)),
        )


@asynccontextmanager
async def running(
    *args: Argument,
    folder: Path,
    env: Mapping[str, str] | None = None,
    before: str = "",
    stderr: int = asyncio.subprocess.PIPE,
) -> AsyncIterator[Fold]:
    """`foldgate run ARGS`; the folder is its home, and no process of it outlives the block.

    `before` is Python that runs in the same process before it.
    """
    token = secrets.token_hex(8)
    inherited = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251
        if not name.startswith(("XDG_", "OPENAI_")) and name.lower() != "no_proxy"
    }
    # As the installed command is started: the working directory is no place for modules.
    command: list[Argument] = [sys.executable, "-P", "-m", "proxy", "run"]
    if before:
        command = [sys.executable, "-P", "-c", before + EXEC, *command]
    process = await asyncio.create_subprocess_exec(
        *command,
        *args,
        cwd=folder,
        env={**inherited, "HOME": str(folder), "COLUMNS": "200", TOKEN: token, **(env or {})},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=heed_signals,
    )
    try:
        yield Fold(process)
    finally:
        for left in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if left.environ().get(TOKEN) == token:
                    left.kill()
        async with asyncio.timeout(SECONDS):
            await process.wait()


def heed_signals() -> None:
    """Undo what the tests may have inherited, from nohup for example."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


EXEC = "\nimport os, sys\nos.execv(sys.argv[1], sys.argv[1:])"


async def foldgate(
    *args: Argument,
    folder: Path,
    env: Mapping[str, str] | None = None,
    before: str = "",
    data: bytes = b"",
) -> Finished:
    """Run it to its end."""
    async with running(*args, folder=folder, env=env, before=before) as fold:
        return await fold.end(data)


async def gone(family: Sequence[psutil.Process]) -> bool:
    """Whether all processes have ended; waits for it."""
    await asyncio.to_thread(processes._wait, family)
    return not any(map(processes._lives, family))


def python(program: str, *args: str) -> list[str]:
    return ["--", sys.executable, "-c", program, *args]


def shell(program: str) -> list[str]:
    return ["--", "sh", "-c", program]


def closing(finished: Finished) -> JsonObject:
    """The closing line of a run with `--json`."""
    line = loads(finished.stderr.splitlines()[-1])
    assert isinstance(line, dict)
    return line


def only(folder: Path, pattern: str) -> Path:
    """The one file below a folder that has a name like this."""
    (found,) = folder.rglob(pattern)
    return found


REPORT = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
ASK = """
import os, sys, urllib.error, urllib.request
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
for name in sys.argv[1:]:
    request = urllib.request.Request(url, open(name, "rb").read(), headers)
    try:
        print(urllib.request.urlopen(request).status, flush=True)
    except urllib.error.HTTPError as error:
        print(error.code, flush=True)
"""


@pytest.fixture
def question(tmp_path: Path) -> str:
    """Name of a file with a small request."""
    (tmp_path / "question.json").write_bytes(b.chat_body([b.user("hi")]))
    return "question.json"


# What the client gets


@pytest.mark.slow
async def test_the_client_is_told_in_the_environment(up: ScriptedUpstream, tmp_path: Path) -> None:
    env = {
        "FOLDGATE_UPSTREAM__BASE_URL": up.base_url,
        "FOLDGATE_TENANCY__KEY": "a-secret-hash-key",
        "OPENAI_BASE_URL": "http://elsewhere.test/v1",
        "NO_PROXY": "intra.test",
        "http_proxy": "http://127.0.0.1:9",
    }
    options = ["--port", "1", "--json", "--upstream", "x", "--log=y", "--help", "--", "-c"]
    # Without the two dashes, the client's options are still its own.
    finished = await foldgate(sys.executable, "-c", REPORT, *options, folder=tmp_path, env=env)
    assert finished.code == 0
    reported = loads(finished.stdout)
    assert isinstance(reported, list)
    arguments, variables = reported
    assert arguments == options
    assert isinstance(variables, dict)
    url = as_text(variables["OPENAI_HOST"])
    assert url.startswith("http://127.0.0.1:")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_BASE_URL"):
        assert variables[name] == f"{url}/v1"
    assert variables["OPENAI_API_KEY"] == "foldgate"
    assert variables["NO_PROXY"] == variables["no_proxy"] == "intra.test,127.0.0.1,localhost"
    assert not [name for name in variables if name.upper().startswith("FOLDGATE")]
    # An upstream without a window is worth one line, the end another one.
    warning, line = finished.stderr.splitlines()
    assert f"{up.base_url} does not tell its context window" in warning
    assert line == "foldgate: 0 requests, 0 compactions, 0 tokens kept out"
    log = only(tmp_path, "run.log")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.slow
async def test_requests_of_the_client_are_counted(
    up: ScriptedUpstream, tmp_path: Path, question: str
) -> None:
    up.window, up.key = 32_000, "sk-own"
    env = {"OPENAI_API_KEY": "sk-own", "http_proxy": "http://127.0.0.1:9"}
    log = tmp_path / "deep" / "down" / "my.log"
    options = ("--upstream", up.base_url, "--log", log)
    finished = await foldgate(*options, *python(ASK, question), folder=tmp_path, env=env)
    assert (finished.code, finished.stdout) == (0, "200\n")
    # The key is the client's, so only with it the window could be found.
    assert finished.stderr == "foldgate: 1 request, 0 compactions, 0 tokens kept out\n"
    assert up.main[0].headers["Authorization"] == "Bearer sk-own"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_runs_at_once_have_ports_of_their_own_and_share_the_store(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    up.window = 8000
    runs = 3
    for number in range(runs):
        body = b.chat_body(b.tool_session(15, seed=number))
        (tmp_path / f"session{number}.json").write_bytes(body)
    program = "import os\nprint(os.environ['OPENAI_BASE_URL'], flush=True)\ninput()" + ASK
    async with contextlib.AsyncExitStack() as stack:
        folds = [
            await stack.enter_async_context(
                running(
                    *("--json", "--upstream", up.base_url),
                    *python(program, f"session{number}.json"),
                    folder=tmp_path,
                )
            )
            for number in range(runs)
        ]
        assert len({await fold.line() for fold in folds}) == runs
        ended = await asyncio.gather(*(fold.end(b"\n") for fold in folds))
    for finished in ended:
        assert (finished.code, finished.stdout) == (0, "200\n")
        (line,) = finished.stderr.splitlines()
        counts = loads(line)
        assert isinstance(counts, dict)
        assert (counts["requests"], counts["compactions"], counts["warnings"]) == (1, 1, 0)
        assert int(str(counts["tokens_kept_out"])) > 1000
    assert only(tmp_path, "*.db").is_file()
    log = only(tmp_path, "run.log")
    assert log.read_text().count('"compaction_completed"') == runs
    assert up.violations == []


@pytest.mark.slow
async def test_opencode_is_told_the_models(up: ScriptedUpstream, tmp_path: Path) -> None:
    up.window = 32_000
    program = tmp_path / "opencode"
    program.write_text('#!/bin/sh\nprintf %s "$OPENCODE_CONFIG_CONTENT"\n')
    program.chmod(0o755)
    finished = await foldgate(
        "--json", "--upstream", up.base_url, "--", "./opencode", folder=tmp_path
    )
    assert finished.code == 0, finished.stderr
    config = loads(finished.stdout)
    assert isinstance(config, dict)
    assert config["model"] == "foldgate/test-model"
    assert '"limit":{"context":32000,"output":8000}' in finished.stdout
    # Our own question is not the client's.
    assert closing(finished)["requests"] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
async def test_a_full_disk_under_the_log_stops_nothing(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    up.window = 4000
    messages = b.tool_session(12, result_chars=1200)
    (tmp_path / "long.json").write_bytes(b.chat_body(messages))
    options = ("--upstream", up.base_url, "--log", "/dev/full", "--json")
    up.summary_replies.extend([Reply(status=500)] * 4)
    finished = await foldgate(*options, *python(ASK, "long.json"), folder=tmp_path)
    assert (finished.code, finished.stdout) == (0, "200\n")
    line = closing(finished)
    assert line["compactions"] == 1
    # The background may have tried, too, before the program ended.
    assert line["warnings"] in (1, 2)


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
@pytest.mark.slow
async def test_the_clients_own_base_url_is_the_upstream(
    name: str, up: ScriptedUpstream, tmp_path: Path, question: str
) -> None:
    """Whoever has set one expects that it is still used, only with the proxy before it."""
    up.window = 32_000
    finished = await foldgate(*python(ASK, question), folder=tmp_path, env={name: up.base_url})
    assert finished.stdout == "200\n"
    assert len(up.main) == 1
    said, line = finished.stderr.splitlines()
    assert said == f"foldgate: the upstream is {up.base_url}, from {name}"
    assert line.startswith("foldgate: 1 request,")


async def test_a_client_with_a_file_of_its_own_is_named(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    up.window = 32_000
    (tmp_path / "pi").write_text("#!/bin/sh\necho $OPENAI_HOST\n")
    (tmp_path / "pi").chmod(0o700)
    finished = await foldgate("--upstream", up.base_url, "--", "./pi", folder=tmp_path)
    said, _ = finished.stderr.splitlines()
    assert "pi takes its base URL from ~/.pi/agent/models.json" in said
    assert f"put {finished.stdout.strip()}/v1 there" in said


@pytest.mark.slow
async def test_bytes_pass_untouched(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    name = b"\xff\xfe name"
    program: list[Argument] = ["--", "sh", "-c", 'printf "%s" "$1"; exec cat', "sh", name]
    finished = await foldgate(*NOWHERE, *program, folder=tmp_path, data=data)
    assert finished.code == 0
    assert finished.stdout.encode(errors="surrogateescape") == name + data


# How it ends


async def test_the_clients_exit_code(tmp_path: Path) -> None:
    finished = await foldgate(
        *NOWHERE, *shell("echo $OPENAI_BASE_URL; exec >&-; exit 7"), folder=tmp_path
    )
    assert finished.code == 7
    assert finished.stdout.startswith("http://127.0.0.1:")
    assert finished.stdout.endswith("/v1\n")


@pytest.mark.slow
async def test_an_upstream_that_is_not_there(tmp_path: Path, question: str) -> None:
    # Not even a key that no header can hold keeps the client from starting.
    env = {"OPENAI_API_KEY": "not\rfor a header"}
    program = "import os\nos.environ['OPENAI_API_KEY'] = 'x'" + ASK
    finished = await foldgate(*NOWHERE, *python(program, question), folder=tmp_path, env=env)
    assert (finished.code, finished.stdout) == (0, "502\n")
    warning, _ = finished.stderr.splitlines()
    assert "http://127.0.0.1:9/v1 does not answer" in warning


class Here(Protocol):
    def __call__(self, *args: str) -> Finished: ...


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Here:
    """Runs it in this process, which is faster; what it logs is thrown away."""
    monkeypatch.setattr(run, "configure_log", lambda stream: None)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*args: str) -> Finished:
        result = CliRunner().invoke(command_line.app, ["run", *args])
        assert result.stdout == ""
        return Finished(result.exit_code, capfd.readouterr().out, result.stderr)

    return invoke


@pytest.mark.parametrize(
    ("program", "code"), [("exit 255", 255), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)]
)
def test_exit_codes_are_those_of_a_shell(here: Here, program: str, code: int) -> None:
    assert here(*NOWHERE, *shell(f"ulimit -c 0; {program}")).code == code


@pytest.mark.parametrize(
    ("client", "code", "reason"),
    [
        ("no-such-client", 127, "no such command"),
        ("./a-text", 126, "Permission denied"),
        ("./a-folder", 126, "Permission denied"),
        ("./a-program", 126, "Exec format error"),
    ],
)
def test_a_client_that_cannot_be_started(
    here: Here, tmp_path: Path, client: str, code: int, reason: str
) -> None:
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-text").touch()
    (tmp_path / "a-program").write_bytes(b"\x7fELF, but not really")
    (tmp_path / "a-program").chmod(0o755)
    finished = here(*NOWHERE, "--", client, "--option")
    assert (finished.code, finished.stdout) == (code, "")
    assert finished.stderr.endswith(f"foldgate: {client}: {reason}\n")


def test_an_upstream_that_is_silent_keeps_no_client_waiting(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDGATE_UPSTREAM__PROBE_SECONDS", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        finished = here("--upstream", url, *shell("exit 3"))
    assert finished.code == 3
    assert "does not answer" in finished.stderr


def test_a_port_that_is_taken_starts_no_client(here: Here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        finished = here(*NOWHERE, "--port", port, *shell("echo started"))
    assert (finished.code, finished.stdout) == (1, "")
    assert finished.stderr.startswith(f"foldgate: cannot listen on 127.0.0.1:{port} (")


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        ((*NOWHERE, "--store", "redis:x"), 1, "foldgate: store.url: must be"),
        (("--upstream", "ftp://x"), 1, "foldgate: upstream.base_url: must be"),
        ((*NOWHERE, "--log", "taken/run.log"), 1, "foldgate: cannot write the log taken/run.log ("),
        ((*NOWHERE, "--no-such-option"), 2, "--no-such-option"),
        (NOWHERE, 2, "CLIENT"),
    ],
    ids=["store", "upstream", "log", "option", "client"],
)
def test_a_refusal_starts_no_client(
    here: Here, tmp_path: Path, args: tuple[str, ...], code: int, expected: str
) -> None:
    (tmp_path / "taken").touch()
    client = shell("echo started") if expected != "CLIENT" else []
    finished = here(*args, *client)
    assert (finished.code, finished.stdout) == (code, "")
    assert expected in finished.stderr


def test_a_long_log_is_put_aside(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with log.open("wb") as stream:
        stream.truncate(run.LOG_BYTES + 1)
    with run._opened(log) as stream:
        assert log.stat().st_size == 0
    assert (tmp_path / "run.old.log").stat().st_size > run.LOG_BYTES


# Nothing is left

FAMILY = """
import os, signal, subprocess, sys
def ignore():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
if "all" in sys.argv:
    ignore()
sleep = ["/bin/sleep", "1000"]
orphan = ["/bin/sh", "-c", "sleep 1000 >&- 2>&- & echo $!"]
pids = [
    os.getpid(),
    subprocess.Popen(sleep).pid,
    subprocess.Popen(sleep, start_new_session=True).pid,
    subprocess.Popen(sleep, env={}, start_new_session=True).pid,
    int(subprocess.check_output(orphan)),
    int(subprocess.check_output(orphan, start_new_session=True)),
]
if sys.argv[1:]:
    ignore()
print(*pids, flush=True)
while True:
    signal.pause()
"""
"""Prints the ids of itself and of children of all sorts, and waits."""

HOSTILE = ("json.py", "psutil.py", "os.py", "signal.py", "proxy/__init__.py", "aiohttp/__init__.py")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A project that has modules with the names of ours and of those that we use."""
    for name in HOSTILE:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit('this is the project of somebody else')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        (signal.SIGINT, 130),
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(signal.SIGSEGV, -signal.SIGSEGV, marks=pytest.mark.slow),
    ],
)
async def test_whatever_ends_it_ends_the_family(
    hostile: Path, number: signal.Signals, code: int
) -> None:
    client = ["--", sys.executable, "-P", "-c", FAMILY]
    async with running(*NOWHERE, *client, folder=hostile) as fold:
        family = await fold.family()
        assert len(family) == 7
        fold.process.send_signal(number)
        finished = await fold.end()
        assert await gone(family)
    # Python's own end by Ctrl-C is the signal, after its traceback.
    assert finished.code == code
    if code > 0:
        assert finished.stderr.endswith("foldgate: 0 requests, 0 compactions, 0 tokens kept out\n")


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["client", "all"])
async def test_who_does_not_listen_is_killed(tmp_path: Path, deaf: str) -> None:
    async with running(*NOWHERE, *python(FAMILY, deaf), folder=tmp_path) as fold:
        family = await fold.family()
        fold.process.send_signal(signal.SIGTERM)
        fold.process.send_signal(signal.SIGHUP)
        fold.process.send_signal(signal.SIGTERM)
        finished = await fold.end()
        assert await gone(family)
    # Which of several pending signals comes first is the system's to say.
    assert finished.code in {128 + signal.SIGTERM, 128 + signal.SIGHUP}


CARELESS = """
import subprocess
print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
input()
"""


def test_what_does_not_listen_is_killed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.2)
    with subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo deaf; sleep 1000"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as deaf:
        assert deaf.stdout is not None
        assert deaf.stdout.readline() == b"deaf\n"
        processes.end([psutil.Process(deaf.pid)])
        assert deaf.wait(SECONDS) == -signal.SIGKILL
        os.killpg(deaf.pid, signal.SIGKILL)


def test_what_nobody_collects_has_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", SECONDS)
    command = [sys.executable, "-c", CARELESS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        started = time.monotonic()
        processes.end([child])
        assert time.monotonic() - started < SECONDS
        assert child.status() == psutil.STATUS_ZOMBIE
        parent.communicate("\n")


@pytest.mark.slow
async def test_a_run_within_a_run_ends_with_it(tmp_path: Path) -> None:
    inner = ["--", sys.executable, "-P", "-m", "proxy", "run", *NOWHERE]
    async with running(*NOWHERE, *inner, *python(FAMILY), folder=tmp_path) as fold:
        family = await fold.family()
        everybody = psutil.Process(fold.process.pid).children(recursive=True)
        assert len({*family, *everybody}) == 7 + 2
        fold.process.kill()
        await fold.end()
        assert await gone([*family, *everybody])


LEAVER = """
import os, subprocess, sys
pids = [
    subprocess.Popen(["sleep", "1000"], stdout=2, start_new_session=alone).pid
    for alone in (False, True)
]
print(*pids, flush=True)
input()
sys.exit(3)
"""


@pytest.mark.slow
async def test_a_normal_end_ends_what_the_client_left_but_no_daemons(tmp_path: Path) -> None:
    options = (*NOWHERE, *python(LEAVER))
    async with running(*options, folder=tmp_path, stderr=asyncio.subprocess.DEVNULL) as fold:
        leftover, daemon, watcher = await fold.family()
        finished = await fold.end(b"\n")
        assert finished.code == 3
        assert await gone([leftover, watcher])
        assert daemon.is_running()


DAEMON = """
import os, signal, sys
if os.fork():
    sys.exit(5)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
os.close(1), os.close(2)
signal.pause()
"""


@pytest.mark.slow
async def test_a_client_that_becomes_a_daemon_stays(tmp_path: Path) -> None:
    # The first child may not have got its session when the client is gone: it has a moment.
    program = DAEMON.replace("sys.exit(5)", "os.wait(), sys.exit(5)")
    async with running(*NOWHERE, *python(program), folder=tmp_path) as fold:
        daemon = psutil.Process(int(await fold.line()))
        assert (await fold.end()).code == 5
        assert daemon.is_running()


# Terminals, and what is inherited

IGNORE = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"


@pytest.mark.slow
async def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    program = "echo ready; read line; exit 9"
    before = IGNORE + "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    async with running(*NOWHERE, *shell(program), folder=tmp_path, before=before) as fold:
        assert await fold.line() == "ready"
        fold.process.send_signal(signal.SIGHUP)
        finished = await fold.end(b"\n")
    # Parents that ignore the end of children would lose the exit code.
    assert finished.code == 9


async def test_without_standard_streams(tmp_path: Path) -> None:
    program = "[ -e /dev/fd/0 ] || [ -e /dev/fd/2 ] || echo closed; exit 6"
    before = "import os\nos.close(0), os.close(2)"
    finished = await foldgate(*NOWHERE, *shell(program), folder=tmp_path, before=before)
    assert (finished.code, finished.stdout) == (6, "closed\n")


async def test_nobody_reads_what_it_says(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        async with running(*NOWHERE, *shell("exit 8"), folder=tmp_path, stderr=writer) as fold:
            assert (await fold.end()).code == 8
    finally:
        os.close(writer)


CONTROL = """
import fcntl, os, termios
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
"""
HANDLER = """
import os, signal, sys
if sys.argv[1:]:
    os.setpgid(0, 0)
signal.signal(signal.SIGINT, lambda *_: print("caught", flush=True))
signal.signal(signal.SIGQUIT, lambda *_: print("quit", flush=True))
print("ready", flush=True)
while True:
    line = os.read(int(os.environ["GATE"]), 1)
    print("got", line.decode(), flush=True)
    if line == b"x":
        sys.exit(4)
"""
"""Tells of keys; ends at an x from a pipe. With an argument, in a process group of its own."""


@pytest.mark.parametrize("group", ["ours", "own"])
@pytest.mark.slow
async def test_the_keys_of_a_terminal_are_the_clients(tmp_path: Path, group: str) -> None:
    import pty

    master, slave = pty.openpty()
    gate_out, gate_in = os.pipe()
    command = [sys.executable, "-P", "-c", CONTROL + EXEC, sys.executable, "-P", "-m", "proxy"]
    args = ["run", *NOWHERE, *python(HANDLER, *(["own"] if group == "own" else []))]
    # A client gets no more descriptors than the first three, so the gate is its input.
    os.set_inheritable(gate_out, True)
    process = await asyncio.create_subprocess_exec(
        *command,
        *args,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "GATE": "0"},  # noqa: TID251
        stdin=gate_out,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=heed_signals,
    )
    os.close(slave)
    terminal = Terminal(master)
    try:
        await terminal.shows("ready")
        os.write(master, b"\x03")
        await terminal.shows("caught")
        os.write(gate_in, b"1")
        await terminal.shows("got 1")
        os.write(master, b"\x1c")
        await terminal.shows("quit")
        os.write(gate_in, b"x")
        await terminal.shows("tokens kept out")
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == 4
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        for descriptor in (master, gate_out, gate_in):
            os.close(descriptor)
    assert terminal.text.count("caught") == terminal.text.count("quit") == 1


@dataclass(slots=True)
class Terminal:
    """The other side of a pseudo-terminal."""

    descriptor: int
    text: str = ""

    async def shows(self, text: str) -> None:
        """Return once the text was written."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(SECONDS):
            while text not in self.text:
                readable = asyncio.Event()
                loop.add_reader(self.descriptor, readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(self.descriptor)
                self.text += os.read(self.descriptor, 4096).decode(errors="replace")
