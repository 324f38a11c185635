"""Ending what a command started, and what that started in turn.

Descendants are found through their parents, and by a mark in their environment, which each of them
inherits: a parent that died, a process group or a session of its own does not hide them. As a
program (``python -m proxy.commands.processes MARK``) it waits until its standard input ends, which
happens when its parent dies, however it dies, and ends what the parent left behind.
"""

import os
import signal
import sys
from collections.abc import Iterable

import psutil

MARK = "RUN_BY_FOLDGATE"
"""Variable that holds the mark."""
GRACE_SECONDS = 3.0
FINISHED = b"finished"
"""What the parent writes when nothing is left to be done."""
_ROUNDS = 3
"""A process may start another one while we look."""


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
    return list(found.values())


def end(processes: Iterable[psutil.Process]) -> None:
    """Ask processes to end, and kill those that have not within `GRACE_SECONDS`."""
    asked = list(processes)
    for process in asked:
        _signal(process, signal.SIGTERM)
        # A stopped one would never hear of it.
        _signal(process, getattr(signal, "SIGCONT", signal.SIGTERM))
    _, alive = psutil.wait_procs(asked, timeout=GRACE_SECONDS)
    for process in alive:
        _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    psutil.wait_procs(alive, timeout=GRACE_SECONDS)


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


def watch(mark: str) -> None:
    """Wait until standard input ends, then end the family, unless it says that all is done.

    What comes before the end is the process id of the family's first member.
    """
    said = sys.stdin.buffer.read()
    if said.endswith(FINISHED):
        return
    root = int(said) if said.strip().isdigit() else None
    for _ in range(_ROUNDS):
        end(family(mark, root))


if __name__ == "__main__":
    # The terminal's signals are for the client.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(sys.argv[1])
