"""`foldgate doctor`: says why things do not work, or that they do."""

from typing import Annotated

import typer

from proxy import codec
from proxy.commands.command_line import INTERRUPTED, ConfigOption, run_interruptible

DEFAULT_KEY = "OPENAI_API_KEY"


def doctor_command(
    upstream: Annotated[
        str | None,
        typer.Option(
            help="Base URL of the upstream; without it that of the settings, or a server on this "
            "machine."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to try; without it the first chat model listed.")
    ] = None,
    key_variable: Annotated[
        str | None,
        typer.Option(
            help="Environment variable with the key to try; without it upstream.key_variable, or "
            f"{DEFAULT_KEY} when the upstream asks for a key.",
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Store URL; without it that of the settings.")
    ] = None,
    config: ConfigOption = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Write one JSON object instead of lines.")
    ] = False,
    free: Annotated[
        bool, typer.Option("--free", help="Ask for no completions, which cost tokens.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Longest time of a check, seconds.")] = 30,
) -> None:
    """Say why things do not work, and how to fix them; or that all is well."""
    # Nobody who serves should wait for what only an examination needs.
    from proxy.commands.doctor_visit import Options, Report, examine, read_settings

    report = Report(json_output)
    options = Options(model, key_variable, timeout, free, upstream)
    settings = read_settings(report, config, upstream, store)
    if settings is not None:
        try:
            run_interruptible(examine(report, settings, options))
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if json_output:
        typer.echo(codec.dumps(report.to_json()).decode())
    raise typer.Exit(1 if report.failed else 0)
