"""Whose conversation a request belongs to."""

from ipaddress import ip_network

import pytest
from multidict import CIMultiDict

from proxy.server.tenancy import Tenancy, is_loopback

KEY = b"k" * 32
NETWORK = (ip_network("10.0.0.0/8"),)


def origin(tenancy: Tenancy, headers: dict[str, str], remote: str | None = "10.1.2.3") -> bytes:
    return tenancy.origins(CIMultiDict(headers), remote, "chat")[0]


def test_each_credential_is_a_tenant() -> None:
    tenancy = Tenancy("credential", KEY)
    one = origin(tenancy, {"Authorization": "Bearer one"})
    assert one == origin(tenancy, {"Authorization": "Bearer one"})
    others = [{"Authorization": "Bearer two"}, {"api-key": "Bearer one!"}, {}]
    others += [{"x-goog-api-key": "a"}, {"Cookie": "b"}]
    assert len({one, *(origin(tenancy, headers) for headers in others)}) == 6


def test_fixed_is_one_tenant_for_all() -> None:
    tenancy = Tenancy("fixed", KEY)
    assert origin(tenancy, {"Authorization": "a"}) == origin(tenancy, {"Authorization": "b"})


def test_the_key_keeps_stores_apart() -> None:
    headers = {"Authorization": "a"}
    assert origin(Tenancy("credential", KEY), headers) != origin(
        Tenancy("credential", b"other"), headers
    )


def test_a_header_is_believed_from_a_trusted_proxy_only() -> None:
    tenancy = Tenancy("header", KEY, "X-Tenant", NETWORK)
    trusted = origin(tenancy, {"X-Tenant": "a", "Authorization": "k"})
    assert trusted == origin(tenancy, {"X-Tenant": "a", "Authorization": "other"})
    assert trusted != origin(tenancy, {"X-Tenant": "b", "Authorization": "k"})
    for remote in ("192.168.1.1", None, "not an address"):
        stranger = origin(tenancy, {"X-Tenant": "a", "Authorization": "k"}, remote)
        assert stranger == origin(tenancy, {"Authorization": "k"}, remote)
        assert stranger != trusted


def test_a_tenant_header_is_no_credential() -> None:
    tenancy = Tenancy("header", KEY, "X-Tenant", NETWORK)
    named = origin(tenancy, {"X-Tenant": "Bearer k"})
    assert named != origin(tenancy, {"Authorization": "Bearer k"})


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.2", False),
        ("example.org", False),
    ],
)
def test_what_reaches_this_machine_only(host: str, local: bool) -> None:
    assert is_loopback(host) is local
