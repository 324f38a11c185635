"""Whose conversation a request belongs to.

A tenant is a keyed hash of the caller's credential (or of what a trusted proxy says), so that
nobody's state is ever found by anybody else and no credential is stored.
"""

import hmac
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address

from multidict import MultiMapping

from proxy.compaction import fingerprint
from proxy.upstream.headers import credential_of


class Tenancy:
    """Finds the tenant of a request."""

    def __init__(
        self,
        source: str,
        key: bytes,
        header: str = "",
        trusted: tuple[IPv4Network | IPv6Network, ...] = (),
    ) -> None:
        """Take a resolved source: ``fixed``, ``credential`` or ``header``."""
        self._source = source
        self._key = key
        self._header = header
        self._trusted = trusted
        self._origins_of = lru_cache(maxsize=4096)(self._origins)

    def origins(
        self, headers: MultiMapping[str], remote: str | None, dialect: str
    ) -> tuple[bytes, bytes]:
        """Return the first digest of the caller's conversations, and the caller's own.

        The second is of no dialect: what is learned of a model holds however it is asked. A
        tenant header from an address that is not trusted is not believed; such a caller is told
        apart by its credential.
        """
        if self._source == "fixed":
            return self._origins_of("fixed", dialect)
        if self._source == "header" and self._believes(remote):
            named = headers.get(self._header)
            if named:
                return self._origins_of(f"header:{named}", dialect)
        credential = credential_of(headers)
        if credential:
            return self._origins_of(f"credential:{credential}", dialect)
        return self._origins_of("anonymous", dialect)

    def _believes(self, remote: str | None) -> bool:
        try:
            address = ip_address(remote or "")
        except ValueError:
            return False
        return any(address in network for network in self._trusted)

    def _origins(self, name: str, dialect: str) -> tuple[bytes, bytes]:
        tenant = hmac.new(self._key, name.encode("utf-8", "replace"), "sha256").hexdigest()
        return fingerprint.origin(tenant, dialect), fingerprint.origin(tenant, "")


def source_of(source: str, host: str) -> str:
    """Resolve the setting ``auto`` by the address to listen on."""
    if source == "auto":
        return "fixed" if is_loopback(host) else "credential"
    return source


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on reaches this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
