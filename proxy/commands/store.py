"""The commands that look after the session store: `foldgate store check` and `migrate`."""

import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Annotated

import typer

from proxy import codec
from proxy.codec import JsonObject
from proxy.commands.command_line import (
    INTERRUPTED,
    ConfigOption,
    fail,
    load,
    run_interruptible,
)
from proxy.commands.store_report import Report, Watch, check_lines
from proxy.errors import StoreError
from proxy.server.stores import OpenableStore, make_check, make_store
from proxy.server.tenancy import source_of
from proxy.sessions.migration import TENANCY, Migration, carry_key
from proxy.sessions.store_check import Finding
from proxy.sessions.store_url import StoreUrl, parse_store_url
from proxy.settings import Settings
from proxy.settings.model import HEX, PREFIX

KEY_VARIABLE = f"{PREFIX}TENANCY__KEY"

_FILES = (".db", ".sqlite", ".sqlite3")

store_app = typer.Typer(
    no_args_is_help=True, help="Look after the session store: check it, or move to another one."
)

JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of lines.")]


@store_app.command("check")
def check_command(
    url: Annotated[
        str | None, typer.Argument(help="A store URL; without it store.url of the settings.")
    ] = None,
    config: ConfigOption = None,
    json_output: JsonOption = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make Redis's listing of sessions anew.")
    ] = False,
) -> None:
    """Say whether the store can be used and what it holds, and how to fix what is wrong."""
    named = [] if url is None else [_parsed("URL", url)]
    settings = _settings(config, named)
    where = named[0] if named else parse_store_url(settings.store.url)
    found: list[Finding] = []

    async def look() -> None:
        check = make_check(settings.store, where.url, repair=repair)
        try:
            async for finding in check.findings():
                tell(finding)
        finally:
            await check.close()
        for finding in _configured(settings, where):
            tell(finding)

    def tell(finding: Finding) -> None:
        found.append(finding)
        if not json_output:
            typer.echo("\n".join(check_lines(finding)))

    if not json_output:
        typer.echo(f"store {where.shown}")
    try:
        run_interruptible(look())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    failed = any(finding.status == "FAIL" for finding in found)
    if json_output:
        lines: JsonObject = {
            "store": where.shown,
            "ok": not failed,
            "findings": [finding.to_json() for finding in found],
        }
        typer.echo(codec.dumps(lines).decode())
    raise typer.Exit(1 if failed else 0)


@store_app.command("migrate")
def migrate_command(
    source: Annotated[str, typer.Argument(help="A store URL, or the path of a .db file.")],
    target: Annotated[str, typer.Argument(help="Another one; a file is made if need be.")],
    config: ConfigOption = None,
    json_output: JsonOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and count everything, write nothing.")
    ] = False,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help=f"Write {KEY_VARIABLE} of the source into a new file that only you may read."
        ),
    ] = None,
) -> None:
    """Copy all sessions and recorded responses to another store, and compare what arrived.

    The source stays as it is and may be in use. Repeat it at will: after an interruption, or to
    catch up with what was used meanwhile.
    """
    ends = _parsed("SOURCE", source), _parsed("TARGET", target)
    if _is_same(*ends):
        fail("SOURCE and TARGET are the same store")
    if ends[0].kind == "sqlite" and ends[0].path is not None and not ends[0].path.is_file():
        fail(f"SOURCE: there is no file {ends[0].path}")
    settings = _settings(config, ends)
    watch = Watch()
    report = Report(ends[0], ends[1], settings.tenancy.key_bytes(), dry_run, key_file)
    start = time.monotonic()
    try:
        with watch:
            run_interruptible(_migrate(settings, report, watch))
    except StoreError as error:
        report.error = str(error)
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = time.monotonic() - start
    if json_output:
        typer.echo(codec.dumps(report.to_json()).decode())
    else:
        for line, is_trouble in report.lines():
            typer.echo(line, err=is_trouble)
    raise typer.Exit(INTERRUPTED if report.interrupted else 0 if report.is_fine else 1)


async def _migrate(settings: Settings, report: Report, watch: Watch) -> None:
    async with AsyncExitStack() as stack:
        source = await _opened(settings, report.source, "SOURCE", stack)
        target = None
        if report.dry_run:
            await _reach(settings, report.target)
        else:
            target = await _opened(settings, report.target, "TARGET", stack)
        report.key = await source.known_secret(TENANCY)
        if report.key_file is not None:
            _write_key(report.key_file, report.key, dry_run=report.dry_run)
        report.key_fate = await carry_key(source, target)
        migration = Migration(source, target, watch.show)
        report.tally = migration.tally
        await migration.copy()
        await migration.verify()
        report.is_complete = True


async def _opened(
    settings: Settings, where: StoreUrl, name: str, stack: AsyncExitStack
) -> OpenableStore:
    store = make_store(settings.store, where.url)
    stack.push_async_callback(store.close)
    try:
        await store.open()
    except StoreError as error:
        raise StoreError(f"{name} {where.shown}: {error}") from None
    return store


async def _reach(settings: Settings, where: StoreUrl) -> None:
    """See whether a target could be used, without writing anything."""
    check = make_check(settings.store, where.url)
    try:
        async with aclosing(check.findings()) as findings:
            async for finding in findings:
                if finding.status == "FAIL":
                    raise StoreError(f"TARGET {where.shown}: {finding.text}; {finding.fix}")
                if finding.name == "mode":
                    return
    finally:
        await check.close()


def _write_key(path: Path, key: bytes | None, *, dry_run: bool) -> None:
    if key is None:
        fail("--key-file: SOURCE holds no tenancy key; keep tenancy.key as it is")
    line = f"{KEY_VARIABLE}={HEX}{key.hex()}\n".encode()
    try:
        if path.exists():
            # Of an earlier run that was interrupted.
            if path.read_bytes() == line:
                return
            fail(f"--key-file: {path} is there already, and it is not overwritten")
        if dry_run:
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(line)
    except OSError as error:
        fail(f"--key-file: {path} cannot be written ({error.strerror})")


def _parsed(name: str, text: str) -> StoreUrl:
    """Take a store URL, or the path of a file, from the command line."""
    if "://" not in text and (text.endswith(_FILES) or Path(text).is_file()):
        text = f"sqlite:///{text}"
    try:
        return parse_store_url(text)
    except ValueError as error:
        fail(f"{name}: {error}")


def _settings(config: Path | None, named: Sequence[StoreUrl]) -> Settings:
    # Some settings of the store are allowed for Redis only, so that is what it must be.
    redis = next((where.url for where in named if where.kind != "sqlite"), None)
    return load(config, {"store": {"url": redis}} if redis else {})


def _is_same(one: StoreUrl, other: StoreUrl) -> bool:
    if one.kind == "sqlite" and other.kind == "sqlite" and one.path and other.path:
        both = one.path.exists() and other.path.exists()
        same = both and one.path.samefile(other.path)
        return same or one.path.resolve() == other.path.resolve()
    place = (one.path, one.service, one.db)
    if one.kind != other.kind or place != (other.path, other.service, other.db):
        return False
    return not one.hosts or bool(set(one.hosts) & set(other.hosts))


def _configured(settings: Settings, where: StoreUrl) -> list[Finding]:
    """Say what the settings mean for a store."""
    shared = where.kind != "sqlite"
    keys = settings.store.sealing_keys() if shared else []
    if keys:
        text = f"on: key '{keys[0][0]}' encrypts, {len(keys)} can be read"
    else:
        text = "off: whoever reads the database reads conversations" if shared else "off"
    found = [Finding("encryption", "ok", text, facts={"encrypted": bool(keys)})]
    tenancy = settings.tenancy
    source = source_of(tenancy.source, settings.server.host)
    if tenancy.key is not None:
        found.append(Finding("tenancy", "ok", "tenancy.key is set"))
    elif shared and source != "fixed":
        text = f"tenancy.key is not set; a shared store needs it to tell tenants by {source}"
        fix = (
            f"set {KEY_VARIABLE}=hex:… for all replicas: `openssl rand -hex 32`, or that of a "
            "store you come from: `foldgate store migrate --key-file`"
        )
        found.append(Finding("tenancy", "FAIL", text, fix))
    else:
        found.append(Finding("tenancy", "ok", "its key is kept in the store"))
    return found
