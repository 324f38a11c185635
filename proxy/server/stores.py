"""Which session store stands behind a URL."""

from typing import Protocol

from proxy.sessions.sqlite_store import SqliteStore
from proxy.sessions.store import SessionStore
from proxy.sessions.store_url import parse_store_url
from proxy.settings.model import StoreSettings

DAY_SECONDS = 86_400.0


class OpenableStore(SessionStore, Protocol):
    """A store as the application makes it."""

    async def open(self) -> None:
        """Prepare the store; raises `StoreError` when it cannot be used now."""


def is_shared(settings: StoreSettings) -> bool:
    """Tell whether the store is a service that other machines use too."""
    return parse_store_url(settings.url).kind != "sqlite"


def make_store(settings: StoreSettings, url: str | None = None) -> OpenableStore:
    """Return the store of the settings, not opened yet; `url` is used instead of theirs."""
    where = parse_store_url(url or settings.url)
    seconds = settings.session_days * DAY_SECONDS
    if where.path is not None and where.kind == "sqlite":
        return SqliteStore(
            where.path, retention_seconds=seconds, archive_bytes=settings.archive_bytes
        )
    # A store of one's own should not pay 25 MB and a third of a second for what it has no use for.
    from proxy.sessions.redis_store import RedisStore, Retention
    from proxy.sessions.sealing import Sealer

    return RedisStore(
        where,
        Retention(seconds, settings.archive_days * DAY_SECONDS),
        prefix=settings.key_prefix,
        sealer=Sealer(settings.sealing_keys()),
    )
