"""What all commands share."""

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from proxy.codec import JsonObject
from proxy.settings import Settings, SettingsError, load_settings

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


def fail(message: str) -> NoReturn:
    """End the program with a message."""
    for line in message.splitlines():
        typer.echo(f"foldgate: {line}", err=True)
    raise typer.Exit(1)


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
