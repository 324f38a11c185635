"""What all commands share."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from proxy.codec import JsonObject
from proxy.settings import Settings, SettingsError, load_settings
from proxy.upstream.discovery import USUAL, LocalServer, find_local_servers

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
_LAST_STANDARD_STREAM = 2
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Config file: TOML, or the JSON of the specification."),
]


def load(config: Path | None, overrides: Mapping[str, JsonObject]) -> Settings:
    """Return the settings, or end the program with what is wrong with them."""
    try:
        return load_settings(config, overrides)
    except SettingsError as error:
        fail(str(error))


def say(text: str) -> None:
    """Write a line for people; nothing depends on whether they still listen."""
    with suppress(OSError):
        typer.echo(text, err=True)


def fail(message: str, code: int = 1) -> NoReturn:
    """End the program with a message."""
    for line in message.splitlines():
        say(f"foldgate: {line}")
    raise typer.Exit(code)


def settled(settings: Settings, found: LocalServer | None) -> Settings:
    """Return the settings with the server that was found, where they name none."""
    if found is None or settings.upstream.base_url is not None:
        return settings
    upstream = settings.upstream.model_copy(update={"base_url": found.url})
    return settings.model_copy(update={"upstream": upstream})


def find_upstream(settings: Settings) -> LocalServer | None:
    """Look for a server on this machine when the settings name no upstream; say which it is.

    Ends the program when there is none.
    """
    if settings.upstream.base_url is not None or not settings.upstream.discover:
        return None
    found = asyncio.run(find_local_servers())
    if not found:
        asked = ", ".join(f"{server.name} ({_port(server)})" for server in USUAL)
        fail(
            "upstream.base_url: not set, and no model server answers on this machine; looked for "
            f"{asked}. Start one, or name the upstream: --upstream URL"
        )
    taken, *others = found
    also = "; also there: " + ", ".join(f"{s.name} on {s.url}" for s in others) if others else ""
    choose = ", choose with --upstream" if others else ""
    say(f"foldgate: found {taken.name} on {taken.url}{also}{choose}")
    return taken


def _port(server: LocalServer) -> str:
    return server.url.rpartition(":")[2].partition("/")[0]


def run_fast(work: Coroutine[None, None, None]) -> None:
    """Run what serves, on the fastest event loop there is."""
    if sys.platform == "win32":
        asyncio.run(work)
        return
    import uvloop

    _fill_standard_streams()
    uvloop.run(work)


def _fill_standard_streams() -> None:
    """Open what of the first three descriptors is closed; children do not inherit that.

    Else a socket would be one of them, and libuv aborts when it is to close such a descriptor.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD_STREAM:
        pass
    os.close(descriptor)


def run_interruptible(work: Coroutine[None, None, None]) -> None:
    """Run a command's work until it ends or Ctrl-C ends it.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when the work has tidied up.
    """
    asyncio.run(_until_interrupted(work))


async def _until_interrupted(work: Coroutine[None, None, None]) -> None:
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()
    # Elsewhere there is no such handler, and Ctrl-C ends the program less gently.
    if sys.platform != "win32" and threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGINT, interrupted.set)
    task, waiting = loop.create_task(work), loop.create_task(interrupted.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        while interrupted.is_set() and not task.done():
            # More than once, if need be: a library may swallow a cancellation.
            task.cancel()
            await asyncio.wait({task}, timeout=0.2)
    finally:
        waiting.cancel()
    if task.cancelled():
        raise KeyboardInterrupt
    await task
