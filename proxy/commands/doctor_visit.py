"""An examination by `foldgate doctor`: the checks, in their order.

Every check yields findings, which are shown as they come. A check that finds that the ones after
it would only repeat its verdict ends the examination. No key and no message text is ever shown.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import typer

from proxy.codec import JsonObject
from proxy.commands import doctor_here as here
from proxy.commands.command_line import settled
from proxy.commands.doctor import DEFAULT_KEY
from proxy.commands.doctor_answers import (
    LOOK_SECONDS,
    check_cache,
    check_completion,
    check_streaming,
    check_structured,
)
from proxy.commands.doctor_case import Case, Findings, Key, Wire
from proxy.commands.doctor_key import check_key
from proxy.commands.doctor_models import check_models, check_window
from proxy.commands.doctor_paths import check_path
from proxy.commands.doctor_reach import check_reach
from proxy.commands.doctor_template import check_template
from proxy.commands.doctor_trouble import slow
from proxy.commands.store_report import check_lines
from proxy.sessions.store_check import Finding, Status
from proxy.settings import NO_VARIABLE, Settings, SettingsError, is_variable, key_of, load_settings
from proxy.settings.model import Profile
from proxy.upstream import discovery
from proxy.upstream.routes import Base

_REACH_SECONDS = 20.0
"""What the first questions may take beyond the time-out, to find out why there was no answer."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """One check, and what it means for those after it."""

    name: str
    check: Callable[[Case], Findings]
    is_decisive: bool = False
    """Whether nothing after it is worth asking when it fails."""
    costs: bool = False
    """Whether it has the model generate something."""
    more_seconds: float = 0.0
    """What it may take beyond the time-out."""


_STAGES = (
    _Stage("upstream", check_reach, is_decisive=True, more_seconds=_REACH_SECONDS),
    _Stage("key", check_key, is_decisive=True, more_seconds=_REACH_SECONDS),
    _Stage("path", check_path, is_decisive=True, more_seconds=_REACH_SECONDS),
    _Stage("models", check_models, is_decisive=True),
    _Stage("window", check_window),
    _Stage("completion", check_completion, costs=True, more_seconds=LOOK_SECONDS + 1),
    _Stage("template", check_template),
    _Stage("streaming", check_streaming, costs=True),
    _Stage("structured", check_structured, costs=True),
    _Stage("cache", check_cache, costs=True),
)


@dataclass(slots=True)
class Options:
    """What was asked for."""

    model: str | None
    key_variable: str | None
    timeout: float
    free: bool
    upstream: str | None = None
    """The URL of the command line."""


@dataclass(slots=True)
class Report:
    """Findings, shown as they come unless they are to be one JSON object."""

    as_json: bool
    upstream: str | None = None
    model: str | None = None
    found: list[Finding] = field(default_factory=list)

    def tell(self, finding: Finding) -> None:
        """Take a finding, and show it."""
        # Names of models come from elsewhere, and may hold anything.
        finding = replace(finding, text=_printable(finding.text), fix=_printable(finding.fix))
        self.found.append(finding)
        if not self.as_json:
            typer.echo("\n".join(check_lines(finding)))

    @property
    def failed(self) -> bool:
        """Whether anything failed."""
        return any(finding.status == "FAIL" for finding in self.found)

    def to_json(self) -> JsonObject:
        """Return everything as one JSON object."""
        return {
            "ok": not self.failed,
            "upstream": self.upstream,
            "model": self.model,
            "findings": [finding.to_json() for finding in self.found],
        }


def _printable(text: str) -> str:
    """Replace what could draw on a terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def read_settings(
    report: Report, config: Path | None, upstream: str | None, store: str | None
) -> Settings | None:
    """Return the settings; None when they cannot be used, which the report then says."""
    overrides: dict[str, JsonObject] = {}
    if upstream is not None:
        overrides["upstream"] = {"base_url": upstream}
    if store is not None:
        overrides["store"] = {"url": store}
    try:
        settings = load_settings(config, overrides)
    except SettingsError as error:
        for finding in here.settings_findings(error, upstream):
            report.tell(finding)
        return None
    changed = sum(len(getattr(settings, name).model_fields_set) for name in _sections(settings))
    text = f"{changed} set, all else as by default; `foldgate config` shows them"
    report.tell(Finding("settings", "ok", text if changed else "all as by default"))
    return settings


def _sections(settings: Settings) -> list[str]:
    return [name for name in settings.model_fields_set if name != "profiles"]


async def examine(report: Report, settings: Settings, options: Options) -> None:
    """Run every check that makes sense."""
    await _run_here(report, "port", here.check_port(settings), options.timeout)
    await _run_here(report, "store", here.check_store(settings), options.timeout)
    if options.upstream is None:
        settings = _of_profile(settings, options.model)
    key, is_usable = _key(report, settings, options)
    if is_usable:
        found = await _upstream(report, settings, options)
        if found is not None:
            await _visit(report, found, options, key)
    await _visit_profiles(report, settings, options)
    await _run_here(report, "tenancy", here.check_tenancy(settings, key), options.timeout)


async def _visit(report: Report, settings: Settings, options: Options, key: Key | None) -> None:
    base = Base.of(settings.upstream.base_url or "")
    try:
        wire = Wire(settings.upstream, options.timeout)
    except OSError:
        fix = "upstream.ca_file = a file of certificates in PEM form"
        report.tell(Finding("upstream", "FAIL", "upstream.ca_file holds no certificates", fix))
        return
    case = Case(settings, base, wire, options.timeout, free=options.free, asked_model=options.model)
    named = options.key_variable or settings.upstream.key_variable
    case.spare = None if named else key
    case.use(key if named else None)
    report.upstream = base.url
    try:
        for stage in _STAGES:
            if stage.costs and (options.free or _is_mute(case, stage)):
                continue
            seconds = options.timeout + stage.more_seconds
            status: Status = "FAIL" if stage.is_decisive else "warn"
            late = slow(case, stage.name, status)
            fine = await _run(report, stage.check(case), seconds, late)
            if stage.is_decisive and not fine:
                break
        report.model = case.model or None
        if case.chat is not None or wire.clock_offsets:
            await _run_here(report, "clock", here.check_clock(case), options.timeout)
    finally:
        await wire.close()


def _of_profile(settings: Settings, model: str | None) -> Settings:
    """Return the settings with the upstream to which requests for a model go."""
    matching = (p for p in settings.profiles if model and fnmatchcase(model, p.model))
    profile = next(matching, None)
    if profile is None or profile.base_url is None:
        return settings
    return _at_profile(settings, profile)


def _at_profile(settings: Settings, profile: Profile) -> Settings:
    own = {"base_url": profile.base_url, "key_variable": profile.key_variable}
    return settings.model_copy(update={"upstream": settings.upstream.model_copy(update=own)})


async def _visit_profiles(report: Report, settings: Settings, options: Options) -> None:
    """See whether the other upstreams that profiles name are there."""
    seen = {report.upstream}
    for profile in settings.profiles:
        base = Base.of(profile.base_url or "")
        if profile.base_url is None or base.url in seen:
            continue
        seen.add(base.url)
        glance = _glance(_at_profile(settings, profile), profile, options)
        await _run_here(report, "profile", glance, options.timeout + _REACH_SECONDS)


async def _glance(settings: Settings, profile: Profile, options: Options) -> Findings:
    try:
        wire = Wire(settings.upstream, options.timeout)
    except OSError:
        # What is wrong with the file has been said.
        return
    base = Base.of(profile.base_url or "")
    case = Case(settings, base, wire, options.timeout)
    checks = [check_reach]
    if profile.key_variable is not None:
        value = key_of(profile.key_variable, "profiles")
        case.use(Key(profile.key_variable, value) if value is not None else None)
        checks += [check_key, check_path]
    try:
        for check in checks:
            async for finding in check(case):
                if finding.status == "FAIL":
                    more = "base_url of the profile; `foldgate doctor --model NAME` tells more"
                    text = f"{profile.model}: {finding.text}"
                    yield Finding("profile", "FAIL", text, f"{finding.fix} ({more})", finding.facts)
                    return
        yield Finding("profile", "ok", f"{profile.model}: {base.url} answers")
    finally:
        await wire.close()


def _is_mute(case: Case, stage: _Stage) -> bool:
    """Whether a check asks for completions that were seen to fail."""
    return stage.name != "completion" and not case.completes


async def _run(report: Report, findings: Findings, seconds: float, late: Finding) -> bool:
    """Show the findings of a check, or `late`; False when it failed or took too long."""
    before = len(report.found)
    try:
        async with asyncio.timeout(seconds), aclosing(findings):
            async for finding in findings:
                report.tell(finding)
    except TimeoutError:
        report.tell(late)
        return False
    return not any(finding.status == "FAIL" for finding in report.found[before:])


async def _run_here(report: Report, name: str, findings: Findings, seconds: float) -> None:
    late = Finding(
        name, "FAIL", f"no answer within {seconds:g} s", "--timeout SECONDS waits longer"
    )
    await _run(report, findings, seconds, late)


def _key(report: Report, settings: Settings, options: Options) -> tuple[Key | None, bool]:
    """Return the key to try, and whether the one that was named is there."""
    named = options.key_variable or settings.upstream.key_variable
    variable = named or DEFAULT_KEY
    try:
        value = key_of(variable, "--key-variable")
    except SettingsError:
        if named is None:
            return None, True
        if not is_variable(variable):
            fix = "--key-variable NAME of a variable; the key itself belongs into that variable"
            report.tell(Finding("key", "FAIL", f"--key-variable: {NO_VARIABLE}", fix))
            return None, False
        text = f"the environment variable {variable} is not set"
        fix = f"export {variable}=… with the key, or name another one: --key-variable NAME"
        report.tell(Finding("key", "FAIL", text, fix))
        return None, False
    return (Key(variable, value) if value is not None else None), True


async def _upstream(report: Report, settings: Settings, options: Options) -> Settings | None:
    """Return the settings with an upstream; one of this machine when they name none."""
    if settings.upstream.base_url is not None:
        return settings
    own = f":{settings.server.port}/"
    servers = await discovery.find_local_servers() if settings.upstream.discover else []
    found = [server for server in servers if own not in server.url]
    if not found:
        usual = ", ".join(server.name for server in discovery.USUAL)
        text = "none is named, and no model server answers on this machine"
        fix = f"--upstream URL (upstream.base_url), or start a server here: {usual}"
        if not settings.upstream.discover:
            text = "none is named, and upstream.discover is off"
            fix = "--upstream URL (upstream.base_url)"
        report.tell(Finding("upstream", "FAIL", text, fix))
        return None
    others = ", ".join(f"{server.name} at {server.url}" for server in found[1:])
    also = f"; also there: {others} (choose with --upstream)" if others else ""
    text = f"none is named; {found[0].name} found at {found[0].url}{also}"
    report.tell(Finding("upstream", "ok", text, facts={"found": found[0].url}))
    return settled(settings, found[0])
