"""Ending what a command started, and what that started in turn.

Descendants are found through their parents, and by a mark in their environment, which each of them
inherits: a parent that died, a process group or a session of its own does not hide them. As a
program (``python -m proxy.commands.processes MARK``) it waits until its standard input ends, which
happens when its parent dies, however it dies, and ends what the parent left behind.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable

import psutil

MARK = "RUN_BY_FOLDGATE"
"""Variable that holds the mark."""
GRACE_SECONDS = 3.0
FINISHED = b"finished"
"""What the parent writes when nothing is left to be done."""
_ROUNDS = 3
"""A process may start another one while we look."""
_LOOK_SECONDS = 0.02


def family(mark: str, root: int | None = None) -> list[psutil.Process]:
    """Return the processes with a mark and the descendants of `root`, except this one."""
    found = {process.pid: process for process in psutil.process_iter() if _mark_of(process) == mark}
    if root is not None:
        try:
            top = psutil.Process(root)
            found |= {process.pid: process for process in (top, *top.children(recursive=True))}
        except psutil.Error:
            # It has ended; the mark finds what it left.
            pass
    found.pop(os.getpid(), None)
    return [process for process in found.values() if _lives(process)]


def end(processes: Iterable[psutil.Process]) -> None:
    """Ask processes to end, and kill those that have not within `GRACE_SECONDS`."""
    asked = list(processes)
    for process in asked:
        _signal(process, signal.SIGTERM)
        # A stopped one would never hear of it.
        _signal(process, getattr(signal, "SIGCONT", signal.SIGTERM))
    alive = _wait(asked)
    for process in alive:
        _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    _wait(alive)


def _wait(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Wait until they have ended, but not longer than `GRACE_SECONDS`; returns those that live."""
    until = time.monotonic() + GRACE_SECONDS
    alive = [process for process in processes if _lives(process)]
    while alive and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        alive = [process for process in alive if _lives(process)]
    return alive


def _lives(process: psutil.Process) -> bool:
    try:
        # In a container there may be nobody who collects what has ended.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_daemon(process: psutil.Process) -> bool:
    """Whether a process has made a session of its own, as what is meant to stay does."""
    if sys.platform == "win32":
        return False
    try:
        return os.getsid(process.pid) != os.getsid(0)
    except OSError:
        return False


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        return


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):
        # Gone meanwhile, or another user's.
        return None


def keys_reach_us() -> bool:
    """Whether the keys of a terminal reach this process."""
    if sys.platform == "win32":
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def is_in_our_group(pid: int) -> bool:
    """Whether a process is in our process group; one that has ended counts as if it were."""
    if sys.platform == "win32":
        return True
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return True


def watch(mark: str) -> None:
    """Wait until standard input ends, then end the family, unless it says that all is done.

    What comes before the end is the process id of the family's first member.
    """
    said = sys.stdin.buffer.read()
    if said.endswith(FINISHED):
        return
    root = int(said) if said.strip().isdigit() else None
    for _ in range(_ROUNDS):
        if not (left := family(mark, root)):
            return
        end(left)


if __name__ == "__main__":
    # The terminal's signals are for the client.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(sys.argv[1])
