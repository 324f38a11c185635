"""`foldgate demo`: one session, straight to a small real model and through the proxy."""

from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from proxy.commands.command_line import INTERRUPTED, fail, run_interruptible
from proxy.commands.demo_picture import picture
from proxy.commands.demo_play import Demo
from proxy.commands.demo_session import session
from proxy.commands.demo_view import make_view
from proxy.commands.model_server import NoModelServer
from proxy.telemetry import configure_log


def demo_command(
    json_output: Annotated[
        bool, typer.Option("--json", help="Write each turn and the result as a JSON line.")
    ] = False,
    picture_file: Annotated[
        Path | None, typer.Option("--picture", help="Draw what happened into an SVG file.")
    ] = None,
) -> None:
    """Show a session outliving its window: a real llama.cpp, a small model, nothing downloaded.

    Ends with 0 when the session overflowed without Foldgate and never with it.
    """
    if picture_file is not None and not picture_file.absolute().parent.is_dir():
        fail(f"--picture: there is no folder {picture_file.absolute().parent}")
    configure_log(quiet=True)
    view = make_view(json_output=json_output)
    demo = Demo(session(), view.tell)

    async def play() -> None:
        async for turn in demo.play():
            view.show(turn)

    try:
        with view:
            run_interruptible(play())
    except NoModelServer as error:
        fail(str(error))
    except (aiohttp.ClientError, TimeoutError) as error:
        fail(f"the model server gave no answer ({type(error).__name__}); is the machine very busy?")
    except KeyboardInterrupt:
        typer.echo("foldgate: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if picture_file is not None:
        picture_file.write_text(picture(demo.turns), "utf-8")
    view.close(demo)
    raise typer.Exit(0 if demo.is_fine else 1)
