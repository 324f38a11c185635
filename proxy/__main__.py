"""The command line."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from proxy.codec import JsonObject
from proxy.commands.command_line import (
    ConfigOption,
    fail,
    find_upstream,
    load,
    run_fast,
    settled,
)
from proxy.commands.demo import demo_command
from proxy.commands.doctor import doctor_command
from proxy.commands.run import run_command
from proxy.commands.store import store_app
from proxy.errors import ProxyError
from proxy.server.serve import CannotListen, serve
from proxy.server.workers import Serving, WorkerFailed, supervise
from proxy.settings import Settings, SettingsError, load_settings
from proxy.settings.show import as_json, as_toml
from proxy.telemetry import EventLog, EventSink, JsonLines, configure_log

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A reverse proxy for OpenAI-compatible APIs. Long conversations no longer die of a full "
    "context window: old turns become a checkpoint, recent ones stay as they are.",
)

app.add_typer(store_app, name="store")
app.command("demo")(demo_command)
app.command("doctor")(doctor_command)
app.command("run", context_settings={"allow_interspersed_args": False})(run_command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foldgate {version('foldgate')}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


@app.command("serve")
def serve_command(
    upstream: Annotated[
        str | None,
        typer.Option(
            help="Base URL of the upstream, with or without /v1; without it a server on this "
            "machine is looked for: llama.cpp, Ollama, LM Studio, vLLM."
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on (8787); 0 picks a free one.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that serve the port (1); not on Windows.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Where session state is kept: sqlite:///PATH, redis://HOST/DB, …"),
    ] = None,
    config: ConfigOption = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Write the ready line and every event as JSON lines.")
    ] = False,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Decide and report, but change nothing.")
    ] = False,
) -> None:
    """Run the proxy until it is told to stop (SIGTERM or Ctrl-C)."""
    overrides = _overrides(upstream, host, port, workers, store, shadow)
    settings = load(config, overrides)
    found = find_upstream(settings)
    settings = settled(settings, found)
    configure_log()
    several = settings.server.workers > 1
    lines = JsonLines(sys.stdout, shared=several)
    sink: EventSink = lines if json_lines else EventLog()

    def announce(line: JsonObject, text: str) -> None:
        if json_lines:
            lines.write(line)
        else:
            typer.echo(text)
            sys.stdout.flush()

    def reload() -> Settings:
        return settled(load_settings(config, overrides), found)

    try:
        if several:
            supervise(settings, Serving(sink, announce, reload, run_fast))
        else:
            run_fast(serve(settings, sink, announce, reload))
    except (SettingsError, CannotListen, WorkerFailed, ProxyError, OSError) as error:
        fail(str(error))


@app.command("config")
def config_command(
    config: ConfigOption = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Write JSON instead of TOML.")
    ] = False,
) -> None:
    """Show the settings in force, secrets hidden; changed ones are marked."""
    settings = load(config, {})
    typer.echo(as_json(settings) if json_output else as_toml(settings))


def _overrides(
    upstream: str | None,
    host: str | None,
    port: int | None,
    workers: int | None,
    store: str | None,
    shadow: bool,
) -> dict[str, JsonObject]:
    server: JsonObject = {}
    if host is not None:
        server["host"] = host
    if port is not None:
        server["port"] = port
    if workers is not None:
        server["workers"] = workers
    if shadow:
        server["shadow"] = True
    overrides: dict[str, JsonObject] = {"server": server} if server else {}
    if upstream is not None:
        overrides["upstream"] = {"base_url": upstream}
    if store is not None:
        overrides["store"] = {"url": store}
    return overrides


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
