"""Which session store stands behind a URL."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Protocol

from proxy.sessions.sqlite_check import SqliteCheck
from proxy.sessions.sqlite_store import SqliteStore
from proxy.sessions.store import WholeStore
from proxy.sessions.store_check import Finding
from proxy.sessions.store_url import StoreUrl, parse_store_url
from proxy.settings.model import StoreSettings

if TYPE_CHECKING:
    from proxy.sessions.redis_store import RedisStore

DAY_SECONDS = 86_400.0


class OpenableStore(WholeStore, Protocol):
    """A store as the application makes it."""

    async def open(self) -> None:
        """Prepare the store; raises `StoreError` when it cannot be used now."""


class StoreCheck(Protocol):
    """Looks at a store without using it."""

    def findings(self) -> AsyncGenerator[Finding, None]:
        """Yield what is found; ends early when the store cannot be used at all."""
        ...

    async def close(self) -> None:
        """Release everything."""


def is_shared(settings: StoreSettings) -> bool:
    """Tell whether the store is a service that other machines use too."""
    return parse_store_url(settings.url).kind != "sqlite"


def make_store(settings: StoreSettings, url: str | None = None) -> OpenableStore:
    """Return the store of the settings, not opened yet; `url` is used instead of theirs."""
    where = parse_store_url(url or settings.url)
    if where.path is not None and where.kind == "sqlite":
        return SqliteStore(
            where.path,
            retention_seconds=settings.session_days * DAY_SECONDS,
            archive_bytes=settings.archive_bytes,
        )
    return _redis_store(settings, where)


def make_check(settings: StoreSettings, url: str, *, repair: bool = False) -> StoreCheck:
    """Return the check of a store; with `repair` it makes the listing of sessions whole."""
    where = parse_store_url(url)
    if where.path is not None and where.kind == "sqlite":
        return SqliteCheck(where.path)
    from proxy.sessions.redis_check import RedisCheck
    from proxy.sessions.sealing import Sealer

    async def relist() -> int:
        store = _redis_store(settings, where)
        try:
            return await store.relist()
        finally:
            await store.close()

    sealer = Sealer(settings.sealing_keys())
    return RedisCheck(
        where, settings.key_prefix, sealer, settings.timeout_ms, relist if repair else None
    )


def _redis_store(settings: StoreSettings, where: StoreUrl) -> "RedisStore":
    # A store of one's own should not pay 25 MB and a third of a second for what it has no use for.
    from proxy.sessions.redis_store import RedisStore, Retention
    from proxy.sessions.sealing import Sealer

    return RedisStore(
        where,
        Retention(settings.session_days * DAY_SECONDS, settings.archive_days * DAY_SECONDS),
        prefix=settings.key_prefix,
        sealer=Sealer(settings.sealing_keys()),
    )
