"""`rediss://`: a server that speaks TLS only, with a certificate of our own."""

import datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from proxy.errors import StoreUnavailable
from tests import redis_servers as servers
from tests.contract.session_store_contract import ANCHOR, checkpoint_change, make_checkpoint
from tests.contract.test_redis_store import RedisHarness


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for the loopback address and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "foldgate test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file


async def test_a_server_that_speaks_tls(tmp_path: Path) -> None:
    if servers.default_binary() is None:
        pytest.skip(servers.NO_SERVER)
    cert, key = certificate(tmp_path)
    tls_port = servers.free_port()
    args = ["--tls-port", str(tls_port), "--tls-cert-file", str(cert), "--tls-key-file", str(key)]
    args += ["--tls-ca-cert-file", str(cert), "--tls-auth-clients", "no"]
    server = servers.RedisServer(tmp_path / "data", args=args)
    try:
        await server.start()
    except servers.NotStarted:
        pytest.skip("this redis-server was built without TLS")
    url = f"rediss://127.0.0.1:{tls_port}/0"
    try:
        harness = RedisHarness(f"{url}?ssl_ca_certs={cert}")
        store = await harness.open()
        await store.commit(checkpoint_change(make_checkpoint("cp1")))
        assert await store.load_checkpoint(ANCHOR, "cp1") == make_checkpoint("cp1")
        await harness.close()

        stranger = RedisHarness(url)
        with pytest.raises(StoreUnavailable, match="Redis: certificate"):
            await stranger.open()
        await stranger.close()
    finally:
        server.end()
