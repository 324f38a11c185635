"""Why no reply came from the upstream, and what to do about it."""

import asyncio
import contextlib
import errno
import ssl

import aiohttp

from proxy.commands.doctor_case import Answer, Case, NoAnswer
from proxy.server.tenancy import is_loopback
from proxy.sessions.store_check import Finding, Status
from proxy.settings import SettingsError, key_of
from proxy.upstream import discovery

_LOOK_SECONDS = 3.0
_START = {11434: "`ollama serve`", 1234: "`lms server start`", 8000: "`vllm serve MODEL`"}
_EXPIRED = 10
_UNTRUSTED = frozenset({18, 19, 20, 21})
_WRONG_NAME = frozenset({62, 63, 64})
"""OpenSSL's X509_V_ERR_… numbers."""
_PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY")
_LOOPBACKS = ("127.0.0.1", "::1", "localhost")
_ANY = frozenset({"0.0.0.0", "::"})
_CHALLENGES = ("just a moment", "captcha", "attention required", "cf-chl", "access denied")
_NO_WAY = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL})


async def trouble(case: Case, cause: BaseException) -> Finding:
    """Return the finding for a request that got no reply."""
    text, fix = await _explain(case, cause)
    return Finding("upstream", "FAIL", text, fix, {"url": case.base.url})


async def _explain(case: Case, cause: BaseException) -> tuple[str, str]:
    place = case.place
    if isinstance(cause, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError):
        return _proxy(case, cause)
    if isinstance(cause, aiohttp.InvalidURL | UnicodeError) or type(cause) is ValueError:
        return (
            f"{case.base.url} is no usable URL",
            "write it as http://HOST:PORT/v1 (--upstream, upstream.base_url)",
        )
    if isinstance(cause, aiohttp.ClientConnectorDNSError):
        return await _no_such_host(case)
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        return _certificate(case, cause.certificate_error)
    if _is_refused(cause):
        return await _nothing_listens(case, place)
    is_plain = case.base.origin.startswith("http:")
    if isinstance(cause, aiohttp.ConnectionTimeoutError) and (
        is_plain or not await _connects(case.host, case.port)
    ):
        return _silent(place)
    if isinstance(cause, aiohttp.ClientResponseError):
        return (
            f"{place} speaks no HTTP: what listens there is no model server",
            "correct host and port in the URL (--upstream, upstream.base_url)"
            + await _elsewhere(case),
        )
    # Who speaks TLS says so at once.
    is_silent = isinstance(cause, TimeoutError) and is_plain
    other = None if is_silent else await _other_scheme(case)
    if other:
        return other
    return _broken(case, cause, place)


def _is_refused(cause: BaseException) -> bool:
    if not isinstance(cause, OSError):
        return False
    # Of several addresses, each error is told in the text only.
    several = str(getattr(cause, "os_error", cause))
    return cause.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in several


def _broken(case: Case, cause: BaseException, place: str) -> tuple[str, str]:
    if isinstance(cause, aiohttp.ConnectionTimeoutError):
        return (
            f"{place} takes connections, but makes no TLS connection of them",
            "see whether the server speaks TLS at that port (http:// if not), or is stuck",
        )
    if isinstance(cause, TimeoutError):
        return (
            f"{place} takes connections but gave no reply within {case.patience:g} s",
            "see the server's log: is it busy, stuck or still loading? (--timeout waits longer)",
        )
    if isinstance(cause, aiohttp.ClientConnectorSSLError | ssl.SSLError):
        reason = getattr(getattr(cause, "os_error", cause), "reason", "") or "handshake failed"
        return (
            f"no TLS connection with {place} ({str(reason).lower().replace('_', ' ')})",
            "see whether the server speaks TLS at that port, and which versions; http:// if not",
        )
    if isinstance(cause, OSError) and cause.errno in _NO_WAY:
        return (
            f"there is no way to {place} ({cause.strerror})",
            "see the network, or the VPN" + _unused_proxy(),
        )
    return (
        f"{place} breaks the connection off without a reply ({type(cause).__name__})",
        "see whether host and port are those of the model server, and its log: has it crashed?",
    )


def _silent(place: str) -> tuple[str, str]:
    return (
        f"connecting to {place} timed out",
        "see host and port, and whether a firewall lets it through" + _unused_proxy(),
    )


async def _no_such_host(case: Case) -> tuple[str, str]:
    fix = f"correct the host name {case.host} in the URL (--upstream, upstream.base_url)"
    return f"the host name {case.host} was not found", fix + _unused_proxy() + await _elsewhere(
        case
    )


async def _nothing_listens(case: Case, place: str) -> tuple[str, str]:
    text = f"nothing listens on {place} (connection refused)"
    if is_own_address(case):
        text = f"{case.base.origin} is the address of Foldgate itself (server.port)"
        fix = "--upstream URL of the model server, not of Foldgate"
    elif case.host in _LOOPBACKS and (there := await _other_loopback(case)):
        fix = f"--upstream {there}: something listens there, but not on {case.host}"
    elif is_loopback(case.host) or case.host in _ANY:
        how = _START.get(case.port, f"`llama-server -m MODEL.gguf --port {case.port}`, for example")
        fix = f"start the model server on port {case.port} ({how}), or correct the port in the URL"
    else:
        fix = f"start the model server on {case.host}, or correct host and port in the URL"
        if case.settings.upstream.http_proxy is None:
            fix += "; a server that listens on 127.0.0.1 only is not seen from here"
    return text, fix + await _elsewhere(case)


async def _other_loopback(case: Case) -> str | None:
    """Return the same URL with another name of this machine, if something listens there."""
    for host in _LOOPBACKS:
        if host != case.host and await _connects(host, case.port):
            shown = f"[{host}]" if ":" in host else host
            scheme = case.base.origin.partition("://")[0]
            return f"{scheme}://{shown}:{case.port}{case.base.versioned or case.base.root}"
    return None


async def _connects(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.transport.abort()
    return True


def is_own_address(case: Case) -> bool:
    """Tell whether the upstream is where Foldgate itself listens or will listen."""
    own = case.settings.server
    if own.port != case.port:
        return False
    return own.host == case.host or (
        is_loopback(case.host) and (is_loopback(own.host) or own.host in {"0.0.0.0", "::"})
    )


async def _elsewhere(case: Case) -> str:
    """Name a server of this machine that does answer."""
    found = await other_servers(case)
    return f"; or --upstream {found[0].url}: {found[0].name} answers there" if found else ""


async def other_servers(case: Case) -> list[discovery.LocalServer]:
    """Return the model servers of this machine, except this upstream and Foldgate."""
    own = case.settings.server.port
    return [
        server
        for server in await discovery.find_local_servers()
        if not server.url.startswith(f"{case.base.origin}/") and f":{own}/" not in server.url
    ]


def _certificate(case: Case, error: Exception) -> tuple[str, str]:
    number = getattr(error, "verify_code", 0)
    if number == _EXPIRED:
        return "the upstream's certificate has expired", "renew it on the server; see the clock too"
    if number in _WRONG_NAME:
        return (
            f"the upstream's certificate is for another name than {case.host}",
            "use the name that the certificate is for in the URL (--upstream)",
        )
    if number in _UNTRUSTED:
        if case.settings.upstream.ca_file is not None:
            fix = "upstream.ca_file must name the CA that signed it: this file holds another one"
        else:
            fix = (
                "upstream.ca_file = the PEM file of the CA that signed it, or of the certificate "
                "itself when it is self-signed (FOLDGATE_UPSTREAM__CA_FILE=FILE)"
            )
        return "the upstream's certificate is signed by nobody that is trusted here", fix
    reason = getattr(error, "verify_message", "") or "not accepted"
    return f"the upstream's certificate was not accepted ({reason})", "see upstream.ca_file"


async def _other_scheme(case: Case) -> tuple[str, str] | None:
    """See whether the upstream answers when http and https are swapped."""
    if case.settings.upstream.http_proxy is not None:
        return None
    scheme, _, rest = case.base.origin.partition("://")
    path = case.base.versioned or case.base.root
    place = case.place
    if scheme == "https":
        try:
            plain = await case.wire.get(f"http://{rest}", _LOOK_SECONDS)
        except NoAnswer:
            return None
        if plain.status == 400 and plain.says("https"):
            # It says itself that this is a port for TLS.
            return None
        fix = f"--upstream http://{rest}{path}"
        return f"{place} speaks plain HTTP, not TLS", fix
    return await tls_instead(case)


async def tls_instead(case: Case) -> tuple[str, str] | None:
    """See whether a server that was asked in plain HTTP speaks TLS."""
    context = ssl.create_default_context()
    # Nothing is sent: only whether it is TLS is of interest.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            _, writer = await asyncio.open_connection(case.host, case.port, ssl=context)
    except OSError:
        return None
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    rest = case.base.origin.partition("://")[2]
    fix = f"--upstream https://{rest}{case.base.versioned or case.base.root}"
    return f"{case.place} speaks TLS, not plain HTTP", fix


def _proxy(
    case: Case, cause: aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError
) -> tuple[str, str]:
    without = "leave upstream.http_proxy out when the upstream can be reached without it"
    if isinstance(cause, aiohttp.ClientHttpProxyError):
        if cause.status == 407:
            return proxy_login()
        return (
            f"the HTTP proxy lets nothing through to {case.place} ({cause.status})",
            f"allow it there, or {without}",
        )
    return (
        "the HTTP proxy cannot be reached (upstream.http_proxy)",
        f"correct upstream.http_proxy, or {without}",
    )


def proxy_login() -> tuple[str, str]:
    """Return what to say of an HTTP proxy that wants a login."""
    return (
        "the HTTP proxy wants a user name and password (407)",
        "name one in upstream.http_proxy that lets this machine through without; a login there is "
        "not supported",
    )


def _unused_proxy() -> str:
    """Name the proxy variables of the environment, which Foldgate does not follow."""
    for variable in _PROXY_VARIABLES:
        try:
            key_of(variable, variable)
        except SettingsError:
            continue
        return f"; {variable} is set but not followed: upstream.http_proxy is the setting for it"
    return ""


async def broken_off(case: Case, name: str, cause: BaseException, late: Status = "warn") -> Finding:
    """Return the finding for a later request that got no reply."""
    if isinstance(cause, TimeoutError):
        return slow(case, name, late)
    if isinstance(cause, aiohttp.ServerDisconnectedError | ConnectionResetError):
        text = "the server broke the connection off in the middle of a request"
        return Finding(name, "FAIL", text, "see its log: has it crashed, or run out of memory?")
    found = await trouble(case, cause)
    return Finding(name, "FAIL", f"the connection broke: {found.text}", found.fix)


def slow(case: Case, name: str, status: Status = "warn") -> Finding:
    """Return the finding for a check that took too long."""
    return Finding(
        name,
        status,
        f"no answer within {case.timeout:g} s",
        "--timeout SECONDS waits longer; a model as slow as this needs a longer "
        "compaction.first_byte_seconds and compaction.deadline_seconds too",
    )


def is_wall(answer: Answer) -> bool:
    """Tell whether it is the page of something that lets programs through only by its rules."""
    return answer.is_page and (answer.status == 403 or answer.says(*_CHALLENGES))


def wall(answer: Answer) -> tuple[str, str]:
    """Return what to say of such a page."""
    who = f", {answer.signature}" if answer.signature else ""
    return (
        f"a web page refuses us, something in front of the upstream ({answer.status}{who})",
        "let this machine through there (bot protection, firewall, login), or --upstream with the "
        "URL of the API itself",
    )


def odd_status(case: Case, answer: Answer) -> tuple[str, str]:
    """Return what a status says that tells that the upstream is not there for us."""
    behind = case.settings.upstream.http_proxy is not None
    if answer.status == 407:
        return proxy_login()
    if is_wall(answer):
        return wall(answer)
    if answer.says("loading model"):
        return "it is still loading its model (503)", "wait until it has, and look again"
    if behind:
        return (
            f"the HTTP proxy, or the upstream behind it, answers {answer.status}",
            "leave upstream.http_proxy out when the upstream can be reached without it, or see "
            "the proxy's log",
        )
    if answer.status == 500:
        return "it answers 500: something fails within the server", "see the model server's log"
    return (
        f"it answers {answer.status}: it is not ready, or what it stands for is away",
        "see the model server's log; behind a gateway, whether the model server runs",
    )
