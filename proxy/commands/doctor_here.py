"""The doctor's checks of this machine: settings, port, store, clock, tenants."""

import asyncio
import errno
import re
import socket
import sys
import tempfile
import time
from contextlib import aclosing
from difflib import get_close_matches
from pathlib import Path

from proxy import codec
from proxy.commands.doctor_case import Answer, Case, Findings, Key, NoAnswer, Wire
from proxy.errors import StoreError
from proxy.server.stores import is_shared, make_check
from proxy.server.tenancy import source_of
from proxy.sessions.store_check import Finding
from proxy.sessions.store_url import parse_store_url
from proxy.settings import NO_VARIABLE, Settings, SettingsError
from proxy.settings.model import PREFIX, UpstreamSettings

_UNSET_VARIABLE = re.compile(r"environment variable (\S+) is not set")
_UNKNOWN = re.compile(r"(?P<place>\S+): unknown setting; .*?(?:has|are|reads?) (?P<known>.+)")
_PLACE = re.compile(r"([\w.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/[\w./-]*)?", re.ASCII)
_LIVE_SECONDS = 3.0
_WARN_SECONDS = 5.0
_FAIL_SECONDS = 60.0
_TOKEN = re.compile(r"eyJ[\w-]*\.[\w-]+\.[\w-]*")
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def settings_findings(error: SettingsError, upstream: str | None = None) -> list[Finding]:
    """Return one finding for each thing that is wrong with the settings.

    Args:
        error: what the settings say themselves.
        upstream: the URL of the command line.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    # The first line may only say which file the others are about.
    heading = lines.pop(0) + " " if len(lines) > 1 and lines[0].endswith(":") else ""
    found = list[Finding]()
    for line in lines:
        fix = _settings_fix(line)
        if line.startswith("upstream.base_url:") and upstream is not None:
            fix = _url_fix(upstream)
        found.append(Finding("settings", "FAIL", heading + line, fix))
    return found


def _url_fix(given: str) -> str:
    """Return how a URL may have been meant; nothing of it that may be secret."""
    url = re.split(r"[?#]", given.strip())[0]
    scheme, separator, rest = url.rpartition("://")
    scheme = scheme.lower() if separator else "http"
    meant = f"{scheme}://{rest.strip('/')}"
    if scheme in {"http", "https"} and meant != given and _PLACE.fullmatch(rest.strip("/")):
        return f"--upstream {meant}"
    return "--upstream http://HOST:PORT/v1 or https://HOST/v1 (an IPv6 HOST in brackets)"


def _settings_fix(line: str) -> str:
    place = line.partition(":")[0]
    if found := _UNSET_VARIABLE.search(line):
        return f"export {found[1]}=…, or take {place} out of the settings"
    if line.endswith(NO_VARIABLE):
        return f"{place} = the NAME of the variable; the key itself belongs into that variable"
    if found := _UNKNOWN.search(line):
        name = found["place"].rpartition(".")[2]
        known = re.split(r",\s*", found["known"].rstrip(")"))
        near = get_close_matches(name, known, 1)
        return f"write {near[0]}, or remove it" if near else "remove it, or write a known one"
    if line.startswith("config file"):
        return "correct the file, or name another one: --config FILE (FOLDGATE_CONFIG)"
    if place.upper().startswith(PREFIX):
        return f"unset {place}, or correct its name; the README lists all settings"
    if place.endswith("base_url"):
        return f"{place} = http://HOST:PORT/v1 or https://HOST/v1 (an IPv6 HOST in brackets)"
    section, _, key = place.partition(".")
    variable = f"{PREFIX}{section.upper()}__{key.upper()}" if key else f"{PREFIX}*"
    return f"correct {place} in the config file, in {variable}, or on the command line"


async def check_port(settings: Settings) -> Findings:
    """Say whether the address to listen on is free, or who has it."""
    host, port = settings.server.host, settings.server.port
    place = f"{f'[{host}]' if ':' in host else host}:{port}"
    if port == 0:
        yield Finding("port", "ok", f"a free one of {host} is picked at each start")
        return
    try:
        await _bind(host, port)
    except socket.gaierror:
        fix = "--host 127.0.0.1 (this machine only) or --host 0.0.0.0 (all networks)"
        yield Finding("port", "FAIL", f"there is no address {host}", fix)
        return
    except OSError as error:
        yield await _not_bound(settings, place, error)
        return
    yield Finding("port", "ok", f"{place} is free", facts={"port": port})


async def _bind(host: str, port: int) -> int:
    """Bind a port for a moment, as the server would; return its number."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    number = port
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as server:
            if sys.platform != "win32":
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            server.bind(address)
            number = int(server.getsockname()[1])
    return number


async def _not_bound(settings: Settings, place: str, error: OSError) -> Finding:
    host = settings.server.host
    if error.errno == errno.EADDRINUSE:
        live = await _who_is_there(settings)
        if live is not None and is_foldgate(live):
            return Finding("port", "ok", f"foldgate is running there ({place})")
        who = f" ({live.signature})" if live is not None and live.signature else ""
        text = f"{place} is taken by another program{who}"
        free = await _bind(host, 0)
        fix = f"--port {free} is free, and --port 0 picks a free one at each start (server.port)"
        return Finding("port", "FAIL", text, fix, {"free_port": free})
    if error.errno == errno.EACCES:
        fix = "--port 8787, or another one above 1023 (server.port)"
        return Finding("port", "FAIL", f"{place} is for administrators only", fix)
    text = f"{place} cannot be listened on ({error.strerror or type(error).__name__})"
    if error.errno == errno.EADDRNOTAVAIL:
        text = f"{host} is no address of this machine"
    fix = "--host 127.0.0.1 (this machine only) or --host 0.0.0.0 (all networks)"
    return Finding("port", "FAIL", text, fix)


async def _who_is_there(settings: Settings) -> Answer | None:
    host = _ANY_ADDRESS.get(settings.server.host, settings.server.host)
    host = f"[{host}]" if ":" in host else host
    wire = Wire(UpstreamSettings.model_construct(), _LIVE_SECONDS)
    try:
        return await wire.get(f"http://{host}:{settings.server.port}/_foldgate/live")
    except NoAnswer:
        return None
    finally:
        await wire.close()


def is_foldgate(live: Answer) -> bool:
    """Tell whether the answer of ``/_foldgate/live`` is Foldgate's, its health pages on or off."""
    if live.status == 200:
        return live.document == {"status": "ok"}
    error = live.members.get("error")
    return (
        live.status == 404
        and isinstance(error, dict)
        and codec.as_text(error.get("message")) == "There is no such page."
    )


async def check_store(settings: Settings) -> Findings:
    """Pass on what the check of the store finds wrong; say in one line that all is well."""
    where = parse_store_url(settings.store.url)
    if where.kind == "sqlite" and where.path is not None:
        wrong = await asyncio.to_thread(_file_trouble, where.path)
        if wrong is not None:
            yield wrong
            return
    good = list[str]()
    trouble = False
    check = make_check(settings.store, where.url)
    try:
        async with aclosing(check.findings()) as findings:
            async for finding in findings:
                if _is_new_file(finding):
                    good.append("there is no file yet, `foldgate serve` makes it")
                elif finding.status == "ok":
                    good += [finding.text] if finding.name in {"reachable", "contents"} else []
                else:
                    trouble = True
                    text = f"{where.shown}: {finding.name}: {finding.text}"
                    facts = {**finding.facts, "part": finding.name}
                    yield Finding("store", finding.status, text, finding.fix, facts)
    finally:
        await check.close()
    source = source_of(settings.tenancy.source, settings.server.host)
    if is_shared(settings.store) and settings.tenancy.key is None and source != "fixed":
        trouble = True
        text = f"tenancy.key is not set; a shared store needs it to tell tenants by {source}"
        fix = f"set {PREFIX}TENANCY__KEY=hex:… for all replicas: `openssl rand -hex 32`"
        yield Finding("store", "FAIL", text, fix)
    if not trouble:
        yield Finding("store", "ok", f"{where.shown}: {'; '.join(good)}")


def _is_new_file(finding: Finding) -> bool:
    return finding.status == "warn" and "no such file yet" in finding.text


def _file_trouble(path: Path) -> Finding | None:
    """Return why a file cannot be opened or made at all; None when it can."""
    fix = "--store sqlite:///PATH of a file in a folder that you may write to (store.url)"
    try:
        if path.exists():
            if path.is_file():
                return None
            return Finding("store", "FAIL", f"{path} is not a file", fix)
        above = next(folder for folder in path.absolute().parents if folder.exists())
    except OSError as error:
        return Finding("store", "FAIL", f"{path} cannot be reached ({error.strerror})", fix)
    if not above.is_dir():
        return Finding("store", "FAIL", f"{path} cannot be made: {above} is not a folder", fix)
    try:
        # Only trying tells for sure; nothing of it stays.
        with tempfile.TemporaryFile(dir=above):
            return None
    except OSError as error:
        text = f"{path} cannot be made: {above} is not writable ({error.strerror})"
        return Finding("store", "FAIL", text, fix)


async def check_clock(case: Case) -> Findings:
    """Compare this machine's clock with the upstream's and with Redis's."""
    offsets = case.wire.clock_offsets
    if offsets:
        # A `Date` has whole seconds, and a reply takes its time: the smallest tells most.
        yield _clock("the upstream", min(offsets, key=abs))
    else:
        yield Finding("clock", "ok", "not compared: the upstream sends no Date")
    if is_shared(case.settings.store):
        ahead = await _ahead_of_redis(case.settings)
        if ahead is not None:
            yield _clock("Redis", ahead)


async def _ahead_of_redis(settings: Settings) -> float | None:
    from proxy.sessions.redis_client import RedisClient

    client = RedisClient(parse_store_url(settings.store.url))
    try:
        replies = await client.on_each("TIME")
    except StoreError:
        # The check of the store has said what is wrong with it.
        return None
    finally:
        await client.close()
    reply: object = replies[0]
    if not isinstance(reply, list | tuple) or not reply:
        return None
    return time.time() - int(reply[0])


def _clock(other: str, ahead: float) -> Finding:
    facts: codec.JsonObject = {"seconds_ahead": round(ahead, 1), "of": other}
    if abs(ahead) <= _WARN_SECONDS:
        return Finding("clock", "ok", f"agrees with that of {other}", facts=facts)
    way = "ahead of" if ahead > 0 else "behind"
    text = f"this machine is {abs(ahead):,.0f} s {way} {other}"
    fix = "set the clock that is wrong by NTP (Linux: `timedatectl set-ntp true`)"
    return Finding("clock", "FAIL" if abs(ahead) > _FAIL_SECONDS else "warn", text, fix, facts)


async def check_tenancy(settings: Settings, key: Key | None) -> Findings:
    """Say how tenants are told apart, and whether the key suits that."""
    source = source_of(settings.tenancy.source, settings.server.host)
    facts: codec.JsonObject = {"source": source}
    if source != "credential" or key is None or not _TOKEN.fullmatch(key.value.get_secret_value()):
        text = "one tenant for all" if source == "fixed" else f"tenants are told apart by {source}"
        yield Finding("tenancy", "ok", text, facts=facts)
        return
    text = (
        f"tenants are told apart by credential, and that in {key.variable} is a token (JWT) as "
        "they are renewed often: with each new one all conversations would begin anew"
    )
    fix = (
        'tenancy.source = "header" behind a proxy that names the tenant (tenancy.header, '
        'tenancy.trusted_proxies), or tenancy.source = "fixed" when there is one user only'
    )
    yield Finding("tenancy", "warn", text, fix, facts)
