"""What all commands share."""

from collections.abc import Mapping
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
