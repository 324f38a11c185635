"""What `store.url` says: which store, where, and with which credentials.

Pure. Checks the shape only; what redis-py reads from the query of a redis://, rediss:// or
unix:// URL is left to redis-py. No error quotes any part of the URL: a badly written password can
be anywhere in it; only the name of an unknown option is repeated.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, unquote, unquote_plus

Kind = Literal["sqlite", "redis", "sentinel", "cluster"]

REDIS_PORT = 6379
SENTINEL_PORT = 26379

_SQLITE = "sqlite:///"
_KINDS: Mapping[str, Kind] = {
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
}
_FORMS = (
    "must be sqlite:///PATH, redis://HOST:PORT/DB, rediss://HOST:PORT/DB, unix:///SOCKET, "
    "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or redis+cluster://HOST:PORT,HOST:PORT"
)
_ENCODE = "; special characters in a user name or password are percent-encoded, / as %2F"
_PARTS = re.compile(r"([^/?]*)([^?]*)(?:\?(.*))?")
_HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?")
_NAME = re.compile(r"[a-z_]{1,40}")
_DB = re.compile(r"[0-9]{1,6}")

_TRUTH = frozenset({"true", "false"})
_TLS: Mapping[str, frozenset[str]] = {
    "ssl": _TRUTH,
    "ssl_ca_certs": frozenset(),
    "ssl_cert_reqs": frozenset({"none", "optional", "required"}),
    "ssl_check_hostname": _TRUTH,
}
"""Query keys of the forms that redis-py does not read, with their values; empty: any text."""
_SENTINEL = {**_TLS, "sentinel_username": frozenset[str](), "sentinel_password": frozenset[str]()}


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store URL, taken apart."""

    kind: Kind
    url: str = field(repr=False)
    """As given, with the password."""
    path: Path | None = None
    """The SQLite file, or the socket of a unix:// URL."""
    hosts: tuple[tuple[str, int], ...] = ()
    """Servers, sentinels or cluster nodes; none for a path."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    service: str | None = None
    """What the sentinels call the server."""
    db: int = 0
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The query, decoded; the first of equal keys counts, as in redis-py."""

    @property
    def shown(self) -> str:
        """The URL with every password replaced by ``***``."""
        if self.kind == "sqlite":
            return self.url
        scheme, _, rest = self.url.partition("://")
        authority, path, query = _split(rest)
        credentials, at, place = authority.rpartition("@")
        username, colon, password = credentials.partition(":")
        shown = f"{scheme}://{username}{colon}{'***' if password else ''}{at}{place}{path}"
        return shown if query is None else f"{shown}?{_hide(query)}"


def parse_store_url(text: str) -> StoreUrl:
    """Take a store URL apart.

    Raises:
        ValueError: saying what is wrong and how it is written.
    """
    if text.startswith(_SQLITE) and text != _SQLITE:
        return StoreUrl("sqlite", text, path=Path(text.removeprefix(_SQLITE)))
    scheme, separator, rest = text.partition("://")
    kind = _KINDS.get(scheme)
    if not separator or kind is None:
        raise ValueError(_FORMS)
    if not all("!" <= character <= "~" for character in text) or "#" in text:
        raise ValueError(f"must not hold blanks, '#' or characters beyond ASCII{_ENCODE}")
    authority, path, query = _split(rest)
    if "@" in (query or "") or ("@" in path and scheme != "unix"):
        # What stands before it may be the rest of a password with a '/' or '?'.
        raise ValueError(f"must not hold '@' after the hosts{_ENCODE}, @ as %40")
    credentials, at, place = authority.rpartition("@")
    username, password = _credentials(credentials) if at else (None, None)
    options = _options(kind, query or "")
    if kind == "redis":
        username = username or options.get("username")
        password = password or options.get("password")
    if scheme == "unix":
        if place or path in {"", "/"}:
            raise ValueError(f"must name a socket by its full path: unix:///PATH{_ENCODE}")
        socket = Path(unquote(path))
        db = _db(options.get("db", ""))
        return StoreUrl(kind, text, socket, (), username, password, None, db, options)
    hosts = _hosts(kind, place)
    service, db = _database(kind, path, options)
    return StoreUrl(kind, text, None, hosts, username, password, service, db, options)


def _split(rest: str) -> tuple[str, str, str | None]:
    """Return authority, path and query (None without a ``?``), all as written."""
    found = _PARTS.fullmatch(rest)
    return (found[1], found[2], found[3]) if found else ("", "", None)


def _hide(query: str) -> str:
    parts = []
    for part in query.split("&"):
        name, equals, _ = part.partition("=")
        secret = equals and "password" in unquote_plus(name).lower()
        parts.append(f"{name}=***" if secret else part)
    return "&".join(parts)


def _credentials(text: str) -> tuple[str | None, str | None]:
    username, colon, password = text.partition(":")
    if not colon:
        # Who means a password would see it shown as a user name.
        raise ValueError("must give credentials as USER:PASSWORD@ or :PASSWORD@, with the colon")
    if "[" in text or "]" in text:
        raise ValueError(f"must not hold a bracket in a user name or password{_ENCODE}")
    return unquote(username) or None, unquote(password) or None


def _options(kind: Kind, query: str) -> dict[str, str]:
    if kind == "redis":
        return {name: found[0] for name, found in parse_qs(query).items()}
    known = _SENTINEL if kind == "sentinel" else _TLS
    options: dict[str, str] = {}
    for name, found in parse_qs(query, keep_blank_values=True).items():
        if name not in known:
            raise ValueError(f"must not have the option {_quote(name)}; known are {_list(known)}")
        value = found[0]
        if not value or (known[name] and value not in known[name]):
            raise ValueError(f"must give {name} as {_list(known[name]) or 'a text'}")
        options[name] = value
    if options.get("ssl") != "true" and any(name.startswith("ssl_") for name in options):
        raise ValueError("must have ssl=true beside the other ssl_ options")
    return options


def _hosts(kind: Kind, place: str) -> tuple[tuple[str, int], ...]:
    places = place.split(",")
    if len(places) > 1 and kind == "redis":
        raise ValueError(
            "must name one host; for several write redis+sentinel://… or redis+cluster://…"
        )
    return tuple(_host(one, SENTINEL_PORT if kind == "sentinel" else REDIS_PORT) for one in places)


def _host(text: str, port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError(
            f"must name each host as HOST or HOST:PORT (without: {port}), with an IPv6 address "
            f"in brackets{_ENCODE}"
        )
    if found["port"] is not None:
        port = int(found["port"])
    if not 1 <= port <= 65535:
        raise ValueError("must have ports from 1 to 65535")
    if found["v6"] is not None and not _is_ipv6(found["v6"]):
        raise ValueError("must have an IPv6 address between the brackets")
    return unquote(found["v6"]) if found["v6"] else found["name"], port


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def _database(kind: Kind, path: str, options: Mapping[str, str]) -> tuple[str | None, int]:
    """Return the service of a sentinel URL and the number of the database."""
    first, _, second = path.removeprefix("/").partition("/")
    if kind == "sentinel":
        service = unquote(first)
        if not service:
            raise ValueError("must name the service after the hosts: redis+sentinel://…/SERVICE")
        return service, _db(second)
    if kind == "cluster":
        if first not in {"", "0"} or second:
            raise ValueError("must not name a database: a Redis cluster has only number 0")
        return None, 0
    if second:
        raise ValueError("must end with the number of the database, as in redis://HOST:PORT/0")
    # As in redis-py, the query goes before the path.
    path_db = _db(first)
    return None, _db(options["db"]) if "db" in options else path_db


def _db(text: str) -> int:
    if not text:
        return 0
    if _DB.fullmatch(text) is None:
        raise ValueError("must give the database as a number, as in /0")
    return int(text)


def _quote(name: str) -> str:
    return f"'{name}'" if _NAME.fullmatch(name) else "(unreadable)"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
