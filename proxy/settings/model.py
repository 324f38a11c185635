"""Every setting with its type, bounds, default and description.

The README table and `config/foldgate.example.toml` are checked against this model by a test.
"""

import re
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import platformdirs
from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.compaction.policy import CompactionPolicy
from proxy.sessions.sealing import parse_keys
from proxy.sessions.store_url import parse_store_url
from proxy.settings.compacting import (
    CompactionSettings,
    ContextChars,
    Fallback,
    Fraction,
    LedgerSettings,
    LimitSettings,
    OutputTokens,
    Seconds,
    Section,
    Target,
    Turns,
)
from proxy.upstream.overflow_rules import OverflowRules

PREFIX = "FOLDGATE_"
MIB = 1024 * 1024
HEX = "hex:"
_HEX_KEY = re.compile(HEX + "[0-9A-Fa-f]{64}")


def default_store_url() -> str:
    """Return the URL of the embedded store in the user's data folder."""
    folder = platformdirs.user_data_path("foldgate", appauthor=False)
    return f"sqlite:///{folder / 'foldgate.db'}"


def _http_url(value: str) -> str:
    scheme, _, rest = value.partition("://")
    if scheme not in {"http", "https"} or not rest.strip("/"):
        raise ValueError("must be an http:// or https:// URL with a host")
    if "@" in rest.partition("/")[0]:
        raise ValueError("must not hold a user name or password; use key_variable")
    if any(character.isspace() for character in value) or set("?#") & set(value):
        raise ValueError("must not hold spaces, a query or a fragment")
    try:
        port = urlsplit(value).port
    except ValueError:
        raise ValueError("must hold a host and a port from 1 to 65535 that can be read") from None
    if port == 0:
        raise ValueError("must not name port 0")
    return value.rstrip("/")


def _store_url(value: str) -> str:
    return parse_store_url(value).url


def _tenancy_key(value: SecretStr) -> SecretStr:
    if value.get_secret_value().startswith(HEX) and not _HEX_KEY.fullmatch(
        value.get_secret_value()
    ):
        raise ValueError(
            "must be hex: and 64 hex digits (make them with `openssl rand -hex 32`), or a text "
            "that does not begin with hex:"
        )
    return value


HttpUrl = Annotated[str, AfterValidator(_http_url)]
StoreUrl = Annotated[str, AfterValidator(_store_url)]
TenancyKey = Annotated[SecretStr, AfterValidator(_tenancy_key)]
Tokens = Annotated[int, Field(ge=256)]


class ServerSettings(Section):
    """The listening side."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8787, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(
        1, ge=1, le=64, description="Processes that serve the port; on Windows only 1."
    )
    max_body_bytes: int = Field(
        64 * MIB, ge=1024, description="Larger request bodies are streamed through unread."
    )
    memo_bytes: int = Field(
        32 * MIB, ge=0, description="Memory for parsed prefixes of conversations; 0 turns it off."
    )
    keepalive_seconds: Seconds = Field(
        10.0, description="A streaming client gets a comment this often while a compaction runs."
    )
    drain_seconds: float = Field(
        30.0, ge=0, description="How long running requests may finish after SIGTERM."
    )
    reply_headers: bool = Field(True, description="Send x-foldgate-* reply headers.")
    request_headers: tuple[Literal["bypass", "compact", "context-window", "threshold"], ...] = (
        Field(
            ("bypass", "compact", "context-window", "threshold"),
            description="Which x-foldgate-* request headers clients may use.",
        )
    )
    shadow: bool = Field(
        False, description="Decide and report, but forward every request as it came."
    )


class UpstreamSettings(Section):
    """The upstream that requests go to unless a profile says otherwise."""

    base_url: HttpUrl | None = Field(
        None, description="Base URL, with or without /v1, for example http://127.0.0.1:8080/v1."
    )
    discover: bool = Field(
        True, description="Look for a model server on this machine when base_url is not set."
    )
    context_window: Tokens | None = Field(
        None, description="Context window in tokens; asked from the server when not set."
    )
    key_variable: str | None = Field(
        None,
        description="Environment variable with the key to send; unset passes the client's key on.",
    )
    ca_file: Path | None = Field(None, description="PEM file of the CA to trust, for https.")
    http_proxy: HttpUrl | None = Field(None, description="HTTP proxy for upstream connections.")
    connect_seconds: Seconds = Field(10.0, description="Longest time to connect.")
    idle_seconds: Seconds = Field(600.0, description="Longest silence of the upstream.")
    probe_seconds: Seconds = Field(2.0, description="Longest wait for a window probe.")
    overflow_rules: OverflowRules = Field(
        (),
        description="Wordings of an overflow that the built-in table lacks: pattern, kind, "
        "statuses, input_only.",
    )


class StoreSettings(Section):
    """Where session state is kept."""

    url: StoreUrl = Field(
        default_factory=default_store_url,
        repr=False,
        description="sqlite:///PATH (default: in the user's data folder), redis://HOST:PORT/DB, "
        "rediss:// (TLS), unix:///SOCKET, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or "
        "redis+cluster://HOST:PORT,HOST:PORT; credentials as USER:PASSWORD@ before the host.",
    )
    timeout_ms: int = Field(
        50, ge=1, le=10_000, description="Longest that a request waits for Redis to answer."
    )
    session_days: float = Field(30.0, gt=0, description="Days a session is kept after last use.")
    archive_bytes: int = Field(
        2048 * MIB,
        ge=0,
        description="Replaced messages kept for auditing, compressed bytes; SQLite only.",
    )
    archive_days: float = Field(
        7.0, gt=0, description="Days that Redis keeps replaced messages; Redis only."
    )
    response_bytes: int = Field(
        64 * MIB,
        ge=0,
        description="Largest conversation that is recorded for previous_response_id and "
        "item_reference, bytes of its messages; 0 records none.",
    )
    key_prefix: str = Field(
        "foldgate",
        pattern=r"^[A-Za-z0-9_.:-]{1,64}$",
        description="What the names of all keys begin with; Redis only.",
    )
    encryption_keys: tuple[SecretStr, ...] = Field(
        (),
        description="Keys for stored values, each ID:BASE64 of 32 bytes (openssl rand -base64 "
        "32); the first one encrypts, all decrypt; Redis only.",
    )

    @field_validator("encryption_keys")
    @classmethod
    def _keys_fit(
        cls, keys: tuple[SecretStr, ...], info: ValidationInfo[None]
    ) -> tuple[SecretStr, ...]:
        parse_keys([key.get_secret_value() for key in keys])
        if keys and info.data.get("url", "").startswith("sqlite:"):
            raise ValueError("works with Redis only; leave it out, or set store.url to Redis")
        return keys

    @field_serializer("url", when_used="json")
    def _hide_password(self, url: str) -> str:
        return parse_store_url(url).shown

    @property
    def shown_url(self) -> str:
        """The URL for logs and messages: without its password."""
        return parse_store_url(self.url).shown

    def sealing_keys(self) -> list[tuple[str, bytes]]:
        """Return the encryption keys by id, the one that encrypts first."""
        return parse_keys([key.get_secret_value() for key in self.encryption_keys])


class TenancySettings(Section):
    """Whose conversations are whose."""

    source: Literal["auto", "credential", "header", "fixed"] = Field(
        "auto",
        description="What tells tenants apart; auto is fixed on a loopback address, else "
        "credential.",
    )
    header: str = Field(
        "x-tenant-id", description="Header that names the tenant, for source = header."
    )
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = Field(
        (), description="Networks whose tenant header is believed; required for source = header."
    )
    key: TenancyKey | None = Field(
        None,
        description="Key that credentials are hashed with, a text or hex: and 64 hex digits; "
        "drawn and stored when not set.",
    )

    @model_validator(mode="after")
    def _header_needs_proxies(self) -> "TenancySettings":
        if self.source == "header" and not self.trusted_proxies:
            raise ValueError("source = header needs trusted_proxies, for example [10.0.0.0/8]")
        return self

    def key_bytes(self) -> bytes | None:
        """Return the key itself; None when it is to be drawn."""
        if self.key is None:
            return None
        text = self.key.get_secret_value()
        return bytes.fromhex(text.removeprefix(HEX)) if text.startswith(HEX) else text.encode()


class PluginHookSettings(Section):
    """Bounds of plugin hooks."""

    timeout_ms: int = Field(
        15_000, ge=1, description="Longest time of one hook; no plugin is loaded in this version."
    )


class AdminSettings(Section):
    """Our own pages."""

    health: bool = Field(True, description="Serve /_foldgate/live and /_foldgate/ready.")


class Profile(Section):
    """Settings of the models that match a pattern."""

    model: str = Field(description="Model name or pattern with * and ?.")
    base_url: HttpUrl | None = Field(None, description="Another upstream for these models.")
    key_variable: str | None = Field(
        None, description="Environment variable with that upstream's key."
    )
    context_window: Tokens | None = Field(None, description="Context window in tokens.")
    auto: bool | None = None
    threshold: Fraction | None = None
    keep_turns: Turns | None = None
    max_output_tokens: OutputTokens | None = None
    target: Target | None = None
    max_context_chars: ContextChars | None = None
    fallback: Fallback | None = None


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    server: ServerSettings = Field(default_factory=ServerSettings)
    upstream: UpstreamSettings = Field(default_factory=UpstreamSettings)
    compaction: CompactionSettings = Field(default_factory=CompactionSettings)
    ledger: LedgerSettings = Field(default_factory=LedgerSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    tenancy: TenancySettings = Field(default_factory=TenancySettings)
    plugin_hooks: PluginHookSettings = Field(default_factory=PluginHookSettings)
    admin: AdminSettings = Field(default_factory=AdminSettings)
    profiles: tuple[Profile, ...] = ()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what `load_settings` merged and nothing else; it has read the environment."""
        return (init_settings,)

    def policy(self, profile: Profile | None = None) -> CompactionPolicy:
        """Return the policy for a profile, or the general one."""
        compaction, limits = self.compaction, self.limits
        chosen: dict[str, bool | int | float] = {
            "auto": compaction.auto,
            "threshold": compaction.threshold,
            "keep_turns": compaction.keep_turns,
            "target": compaction.target,
            "max_output_tokens": compaction.max_output_tokens,
            "max_context_chars": limits.max_context_chars,
        }
        explicit = "max_context_chars" in limits.model_fields_set
        if profile is not None:
            overrides = profile.model_dump(include=set(chosen), exclude_none=True)
            chosen.update(overrides)
            explicit = explicit or "max_context_chars" in overrides
        return CompactionPolicy(
            auto=bool(chosen["auto"]),
            threshold=float(chosen["threshold"]),
            keep_turns=int(chosen["keep_turns"]),
            target=float(chosen["target"]),
            max_output_tokens=int(chosen["max_output_tokens"]),
            max_context_chars=int(chosen["max_context_chars"]),
            hard_limit_explicit=explicit,
            ledger=self.ledger.policy(),
        )
