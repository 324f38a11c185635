"""The loader: sources and their order, files, and what is refused."""

import base64
from pathlib import Path

import pytest
from pydantic import SecretStr

from proxy.codec import JsonObject
from proxy.settings import SettingsError, load_settings
from proxy.settings.files import from_specification, merge, read_config
from proxy.settings.show import as_json, as_toml

KEY = "k1:" + base64.b64encode(b"k" * 32).decode()


def test_the_stronger_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text("[server]\nport = 1\nhost = 'file'\n[compaction]\nthreshold = 0.3\n")
    environment = {"FOLDGATE_SERVER__PORT": "2", "FOLDGATE_SERVER__DRAIN_SECONDS": "7"}
    settings = load_settings(file, {"server": {"port": 3}}, environment)
    assert settings.server.port == 3
    assert settings.server.drain_seconds == 7
    assert settings.server.host == "file"
    assert settings.compaction.threshold == 0.3
    assert settings.compaction.keep_turns == 2


def test_only_the_given_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDGATE_SERVER__PORT", "99")
    assert load_settings(None, {}, {}).server.port == 8787
    assert load_settings().server.port == 99


def test_names_of_variables_may_be_in_lower_case() -> None:
    assert load_settings(None, {}, {"foldgate_server__port": "5"}).server.port == 5


def test_foreign_variables_are_left_alone() -> None:
    environment = {"PORT": "1", "SERVER__PORT": "2", "FOLDGATEX": "3", "XFOLDGATE_PORT": "4"}
    assert load_settings(None, {}, environment) == load_settings(None, {}, {})


def test_lists_and_profiles_come_as_json() -> None:
    environment = {
        "FOLDGATE_PROFILES": '[{"model": "a*", "context_window": 9000}]',
        "FOLDGATE_SERVER__REQUEST_HEADERS": '["bypass"]',
    }
    settings = load_settings(None, {}, environment)
    assert settings.profiles[0].context_window == 9000
    assert settings.server.request_headers == ("bypass",)


def test_an_argument_names_the_config_file_before_the_variable(tmp_path: Path) -> None:
    for name, port in (("a", 1), ("b", 2)):
        (tmp_path / f"{name}.toml").write_text(f"[server]\nport = {port}\n")
    environment = {"FOLDGATE_CONFIG": str(tmp_path / "a.toml")}
    assert load_settings(None, {}, environment).server.port == 1
    assert load_settings(tmp_path / "b.toml", {}, environment).server.port == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"server": {"x": 1}}, "server.x: unknown setting; [server] has drain_seconds, host"),
        ({"x": {}}, "x: unknown setting; the sections are admin, compaction"),
        ({"tenancy": {"source": "header"}}, "source = header needs trusted_proxies"),
        ({"limits": {"max_context_chars": 10}}, "limits.max_context_chars: "),
        ({"upstream": {"base_url": "https://"}}, "must be an http:// or https:// URL with a host"),
        ({"store": {"url": "sqlite:///"}}, "store.url: must be sqlite:///PATH"),
        ({"store": {"url": "redis+sentinel://h"}}, "store.url: must name the service"),
        ({"store": {"timeout_ms": 10_001}}, "store.timeout_ms: "),
        ({"store": {"key_prefix": "{a}"}}, "store.key_prefix: "),
        ({"store": {"archive_days": 0}}, "store.archive_days: "),
        ({"store": {"encryption_keys": ["a"]}}, "store.encryption_keys: key 1 must be ID:BASE64"),
        ({"store": {"encryption_keys": [KEY]}}, "store.encryption_keys: works with Redis only"),
        (
            {"store": {"url": "sqlite:///x", "encryption_keys": [KEY]}},
            "store.encryption_keys: works with Redis only",
        ),
        ({"tenancy": {"key": "hex:12"}}, "tenancy.key: must be hex: and 64 hex digits"),
    ],
)
def test_what_is_refused_names_the_field(values: dict[str, JsonObject], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, values, {})
    assert expected in str(caught.value)


def test_every_mistake_is_named_at_once() -> None:
    values: dict[str, JsonObject] = {"server": {"port": -1, "x": 1}, "y": {}}
    with pytest.raises(SettingsError) as caught:
        load_settings(None, values, {})
    assert len(str(caught.value).splitlines()) == 3


def test_a_refused_value_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {"upstream": {"base_url": "http://me:hunter2@h/v1"}}, {})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"store": {"url": "redis://:hunter2@h:x"}},
        {"store": {"url": "redis://hunter2@h"}},
        {"store": {"url": "redis://h", "encryption_keys": ["a:hunter2"]}},
        {"store": {"url": "redis://h", "encryption_keys": ["hunter2", "hunter2"]}},
        {"store": {"url": "redis://h", "encryption_keys": "hunter2"}},
        {"tenancy": {"key": "hex:hunter2"}},
    ],
)
def test_a_refused_secret_is_not_repeated(values: dict[str, JsonObject]) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, values, {})
    assert "hunter2" not in str(caught.value)


def test_a_profile_key_must_be_set() -> None:
    environment = {"FOLDGATE_PROFILES": '[{"model": "a*", "key_variable": "A_KEY"}]'}
    with pytest.raises(SettingsError, match=r"profiles \(a\*\) key_variable: .* A_KEY is not set"):
        load_settings(None, {}, environment)
    assert load_settings(None, {}, {**environment, "A_KEY": "k"}).profiles[0].key_variable


def test_secrets_are_hidden() -> None:
    settings = load_settings(None, {"tenancy": {"key": "hunter2"}}, {})
    assert settings.tenancy.key == SecretStr("hunter2")
    assert "hunter2" not in repr(settings)


def test_the_store_password_and_keys_are_hidden() -> None:
    store: JsonObject = {"url": "redis://u:hunter2@h:1/2", "encryption_keys": [KEY]}
    settings = load_settings(None, {"store": store}, {})
    for text in (as_toml(settings), as_json(settings), repr(settings)):
        assert "hunter2" not in text
        assert KEY[3:] not in text
    assert 'url = "redis://u:***@h:1/2"  # changed' in as_toml(settings)
    assert settings.store.shown_url == "redis://u:***@h:1/2"
    assert settings.store.url == "redis://u:hunter2@h:1/2"


def test_encryption_keys_come_in_their_order() -> None:
    environment = {
        "FOLDGATE_STORE__URL": "redis://h",
        "FOLDGATE_STORE__ENCRYPTION_KEYS": f'["{KEY}", "b:{KEY[3:]}"]',
    }
    store = load_settings(None, {}, environment).store
    assert store.sealing_keys() == [("k1", b"k" * 32), ("b", b"k" * 32)]
    assert load_settings(None, {}, {}).store.sealing_keys() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("a text \u00e9", "a text \u00e9".encode()),
        ("hex:" + "0aF1" * 16, b"\x0a\xf1" * 16),
    ],
)
def test_the_tenancy_key_is_a_text_or_hex(text: str | None, expected: bytes | None) -> None:
    assert load_settings(None, {"tenancy": {"key": text}}, {}).tenancy.key_bytes() == expected


def test_an_explicit_limit_is_known_as_such() -> None:
    default = load_settings(None, {}, {})
    explicit = load_settings(None, {"limits": {"max_context_chars": 800_000}}, {})
    assert not default.policy().hard_limit_explicit
    assert explicit.policy().hard_limit_explicit


def test_a_profile_overrides_the_policy() -> None:
    environment = {"FOLDGATE_PROFILES": '[{"model": "a", "threshold": 0.2, "auto": false}]'}
    settings = load_settings(None, {"compaction": {"keep_turns": 5}}, environment)
    policy = settings.policy(settings.profiles[0])
    assert (policy.threshold, policy.auto, policy.keep_turns) == (0.2, False, 5)
    assert settings.policy().threshold == 0.85


def test_the_specification_is_translated(tmp_path: Path) -> None:
    data = b"""{"compaction": {"auto": false, "threshold": 0.5, "keepTurns": 1,
      "maxOutputTokens": 300}, "provider": {"contextWindow": 5000},
      "limits": {"maxContextChars": 9000}, "pluginHooks": {"timeoutMs": 7}}"""
    settings = load_settings(None, {}, {})
    values = from_specification(tmp_path / "x.json", data)
    (tmp_path / "x.JSON").write_bytes(data)
    assert read_config(tmp_path / "x.JSON") == values
    settings = load_settings(tmp_path / "x.JSON", {}, {})
    policy = settings.policy()
    assert (policy.auto, policy.threshold, policy.keep_turns) == (False, 0.5, 1)
    assert (policy.max_output_tokens, policy.max_context_chars) == (300, 9000)
    assert settings.upstream.context_window == 5000
    assert settings.plugin_hooks.timeout_ms == 7


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"[]", "must be a JSON object"),
        (b"{", "is not valid JSON"),
        (b'{"compaction": 1}', "compaction: must be an object"),
        (b'{"other": {"x": 1}}', "other.x: unknown setting; the sections are compaction, limits"),
        (b'{"limits": {"maxTokens": 1}}', "steers the agent itself, which a proxy does not do"),
        (b'{"provider": {"apiKey": "k"}}', "of provider the proxy reads contextWindow"),
    ],
)
def test_a_bad_specification(data: bytes, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_specification(Path("x.json"), data)
    assert expected in str(caught.value)


def test_merging_goes_by_section() -> None:
    base: JsonObject = {"a": {"x": 1, "y": 2}, "b": 3}
    more: JsonObject = {"a": {"y": 4}, "c": {"z": 5}}
    assert merge(base, more) == {"a": {"x": 1, "y": 4}, "b": 3, "c": {"z": 5}}
    assert base == {"a": {"x": 1, "y": 2}, "b": 3}


@pytest.mark.parametrize("key", ["sk-abc123def456", "hf_aBcD1234efgh", "gsk_0a1b2c3d4e5f", "a b"])
def test_a_key_in_the_place_of_its_variable_is_not_shown(key: str) -> None:
    with pytest.raises(SettingsError, match=r"^upstream\.key_variable: ") as refused:
        load_settings(None, {"upstream": {"key_variable": key}}, {})
    assert key not in str(refused.value)


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(SettingsError, match="the environment variable MY_KEY_2 is not set"):
        load_settings(None, {"upstream": {"key_variable": "MY_KEY_2"}}, {})
