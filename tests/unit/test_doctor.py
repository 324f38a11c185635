"""The parts of the doctor that need no server."""

import errno
import os
import socket
import ssl
import tempfile
from pathlib import Path

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import SecretStr
from yarl import URL

from proxy.codec import Json, dumps
from proxy.commands import doctor_here, doctor_key, doctor_models, doctor_paths, doctor_trouble
from proxy.commands.doctor_case import Answer, Case, Key, Wire
from proxy.sessions.store_check import Finding
from proxy.settings import SettingsError, is_variable, load_settings
from proxy.upstream import discovery
from proxy.upstream.routes import Base
from tests.contract.test_redis_tls import certificate

PLACE = ConnectionKey("h.example", 443, True, True, None, None, None)


@pytest.fixture(autouse=True)
def nothing_nearby(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find() -> list[discovery.LocalServer]:
        return []

    monkeypatch.setattr(discovery, "find_local_servers", find)


def answer(status: int, body: Json | bytes = b"", kind: str = "application/json") -> Answer:
    raw = body if isinstance(body, bytes) else dumps(body)
    headers = CIMultiDictProxy(CIMultiDict({"Content-Type": kind}))
    return Answer(status, headers, raw, 0.0)


# --- what a reply to an empty chat request means


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (answer(400, {"error": {"message": "'messages' is required"}}), True),
        (answer(422, {"detail": []}), True),
        (answer(401, {}), True),
        (answer(429, {}), True),
        (answer(500, b"boom", "text/plain"), True),
        (answer(200, {"choices": []}), True),
        (answer(404, {"error": {"message": "model '' not found"}}), True),
        (answer(404, {"error": {"code": "DeploymentNotFound"}}), True),
        (answer(404, {"error": {"message": "File Not Found"}}), False),
        (answer(404, {"error": {"message": "nothing at /v1/models/chat/completions"}}), False),
        (answer(404, {"detail": "Not Found"}), False),
        (answer(404, b"404 page not found", "text/plain"), False),
        (answer(405, {"detail": "Method Not Allowed"}), False),
        (answer(501, b"<html>", "text/html"), False),
        (answer(200, b"<!doctype html>", "text/plain"), False),
        (answer(403, b"<html>blocked", "text/html"), False),
        (answer(200, {"error": "Unexpected endpoint or method. (POST /models)"}), False),
        (answer(200, {"hello": "world"}), False),
        (answer(308, {}), False),
        (answer(502, {}), False),
    ],
)
def test_whether_it_is_a_chat_endpoint(found: Answer, expected: bool) -> None:
    assert doctor_paths.has_chat(found) is expected


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (answer(200, {"data": [{"id": "a"}, {"x": 1}]}), ["a"]),
        (answer(200, [{"id": "a"}]), ["a"]),
        (answer(200, {"models": [{"name": "a"}]}), ["a"]),
        (answer(200, {"object": "list", "data": None}), []),
        (answer(200, {"hello": "world"}), None),
        (answer(200, b"<html>", "text/html"), None),
        (answer(404, {"data": [{"id": "a"}]}), None),
    ],
)
def test_lists_of_models(found: Answer, names: list[str] | None) -> None:
    models = doctor_paths.listed(found)
    assert (models and [*map(doctor_paths.model_name, models)]) == (names or models)
    assert (models is None) == (names is None)


def test_only_words_that_are_safe_are_shown_of_an_error() -> None:
    assert answer(401, {"error": {"code": "invalid_api_key"}}).reason == "401 invalid_api_key"
    assert answer(400, {"error": {"code": 400, "type": "bad_request"}}).reason == "400 bad_request"
    assert answer(401, {"error": {"code": "Bad key sk-123!"}}).reason == "401"
    assert answer(401, {"error": {"type": "sk-abcdef1234567890"}}).reason == "401"
    assert answer(400, {"error": "text"}).reason == "400"


@pytest.mark.parametrize("value", ["sk-1\n", " sk-1", "'sk-1'", '"sk-1', "sk-é1", "Bearer sk-1"])
def test_keys_of_a_wrong_form(value: str) -> None:
    found = doctor_key.misshapen(Key("NAME", SecretStr(value)))
    assert found is not None
    assert value.strip() not in f"{found.text}{found.fix}"


def test_a_key_of_a_usual_form() -> None:
    assert doctor_key.misshapen(Key("NAME", SecretStr("sk-or-v1_A.b=~+/"))) is None


# --- settings


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("upstream.base_ur: unknown setting; [upstream] has base_url, ca_file", "write base_url"),
        ("upstrem: unknown setting; the sections are server, upstream", "write upstream"),
        ("xyz: unknown setting; the sections are server, upstream", "remove it"),
        ("upstream.key_variable: the environment variable K is not set", "export K=…"),
        ("config file /x: No such file or directory", "--config FILE"),
        ("FOLDGATE_X__Y: no such setting; variables are …", "unset FOLDGATE_X__Y"),
        ("server.port: input should be less than 65536", "FOLDGATE_SERVER__PORT"),
        ("settings: odd", "FOLDGATE_*"),
    ],
)
def test_how_settings_are_put_right(text: str, fix: str) -> None:
    (found,) = doctor_here.settings_findings(SettingsError(text))
    assert fix in found.fix
    assert (found.name, found.status, found.text) == ("settings", "FAIL", text)


def test_each_line_of_a_file_is_a_finding_that_names_the_file() -> None:
    error = SettingsError("config file /x:\n  a.b: unknown setting\n  c.d: unknown setting")
    found = doctor_here.settings_findings(error)
    assert [f.text.partition(": ")[0] for f in found] == ["config file /x"] * 2


# --- why there was no reply


async def explained(cause: BaseException, url: str = "https://h.example/v1", **env: str) -> Finding:
    settings = load_settings(None, {"upstream": {"base_url": url}}, env)
    wire = Wire(settings.upstream, 5.0)
    try:
        return await doctor_trouble.trouble(Case(settings, Base.of(url), wire, 5.0), cause)
    finally:
        await wire.close()


def certificate_error(number: int) -> aiohttp.ClientConnectorCertificateError:
    error = ssl.SSLCertVerificationError("no")
    error.verify_code = number
    return aiohttp.ClientConnectorCertificateError(PLACE, error)


@pytest.mark.parametrize(
    ("number", "said", "fix"),
    [
        (10, "has expired", "renew"),
        (18, "nobody that is trusted", "upstream.ca_file"),
        (19, "nobody that is trusted", "upstream.ca_file"),
        (20, "nobody that is trusted", "upstream.ca_file"),
        (62, "another name than h.example", "name that the certificate is for"),
        (9, "not accepted", "upstream.ca_file"),
    ],
)
async def test_certificates(number: int, said: str, fix: str) -> None:
    found = await explained(certificate_error(number))
    assert said in found.text
    assert fix in found.fix


async def test_a_ca_file_of_another_ca(tmp_path: Path) -> None:
    file, _ = certificate(tmp_path)
    found = await explained(certificate_error(18), FOLDGATE_UPSTREAM__CA_FILE=str(file))
    assert "this file holds another one" in found.fix


def connecting(number: int) -> aiohttp.ClientConnectorError:
    return aiohttp.ClientConnectorError(PLACE, OSError(number, os.strerror(number)))


async def test_a_refused_connection_elsewhere() -> None:
    found = await explained(connecting(errno.ECONNREFUSED), "http://h.example:81/v1")
    assert "nothing listens on h.example:81" in found.text
    assert "start the model server on h.example" in found.fix
    several = OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] Connect call failed")
    found = await explained(aiohttp.ClientConnectorError(PLACE, several), "http://localhost:81/v1")
    assert "nothing listens on localhost:81" in found.text


@pytest.mark.parametrize(
    ("port", "how"), [(11434, "`ollama serve`"), (1234, "`lms"), (8000, "`vllm"), (8080, "`llama")]
)
async def test_how_a_server_is_started(port: int, how: str) -> None:
    found = await explained(connecting(errno.ECONNREFUSED), f"http://127.0.0.1:{port}/v1")
    assert how in found.fix


async def test_a_silent_host() -> None:
    found = await explained(aiohttp.ConnectionTimeoutError("x"), "http://h.example/v1")
    assert "timed out" in found.text
    assert "firewall" in found.fix


async def test_a_name_that_is_not_found() -> None:
    cause = aiohttp.ClientConnectorDNSError(PLACE, socket.gaierror(-2, "unknown"))
    found = await explained(cause)
    assert "h.example was not found" in found.text


async def test_a_proxy_that_refuses_to_connect() -> None:
    info = aiohttp.RequestInfo(URL("http://h"), "CONNECT", CIMultiDictProxy(CIMultiDict()))
    found = await explained(aiohttp.ClientHttpProxyError(info, (), status=403))
    assert "HTTP proxy lets nothing through" in found.text
    found = await explained(aiohttp.ClientHttpProxyError(info, (), status=407))
    assert "password" in found.text


# --- who has the port, and whose models these are


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        (answer(200, {"status": "ok"}), True),
        (answer(200, {"status": "ok", "more": 1}), False),
        (answer(404, {"error": {"message": "There is no such page."}}), True),
        (answer(404, {"error": {"message": "File Not Found"}}), False),
        (answer(404, {"error": "x"}), False),
    ],
)
def test_whether_it_is_foldgate(live: Answer, expected: bool) -> None:
    assert doctor_here.is_foldgate(live) is expected


async def test_a_port_for_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bind(_: str, __: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(doctor_here, "_bind", bind)
    settings = load_settings(None, {"server": {"port": 80}}, {})
    (found,) = [f async for f in doctor_here.check_port(settings)]
    assert found.status == "FAIL"
    assert "above 1023" in found.fix


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    found = doctor_here._file_trouble(tmp_path / "new" / "store.db")
    assert found is not None
    assert f"{tmp_path} is not writable" in found.text


@pytest.mark.parametrize(
    ("model", "names", "expected"),
    [
        ("a", ["a"], True),
        ("a", ["a:latest"], True),
        ("openai/gpt", ["openai/*"], True),
        ("a", ["b"], False),
    ],
)
def test_names_of_models(model: str, names: list[str], expected: bool) -> None:
    assert doctor_models._is_listed(model, names) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("OPENAI_API_KEY", True), ("KEY2", True), ("MyKey", True), ("AZURE_KEY_2", True)),
        *(("sk-abcdef123456", False), ("hf_aBcDeF123456", False), ("A1B2C3D4E5F6A7B8C9D0", False)),
        *(("gsk_0a1b2c3d", False), ("0a1b2c3d", False), ("", False)),
    ],
)
def test_names_of_variables_are_told_from_keys(name: str, expected: bool) -> None:
    assert is_variable(name) is expected
