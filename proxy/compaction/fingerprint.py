"""The name of a prefix: a chain of digests over the canonical form of its items.

``d_0 = H(tenant, dialect, version)`` and ``d_i = H(d_{i-1}, canonical(item_i))``. Equal
chains mean equal content for one tenant; nothing about position, ids or time goes in.
"""

import hashlib

CANONICAL_VERSION = 1
"""Raised whenever the canonical form of any item changes: old state is then simply not found."""

DIGEST_BYTES = 20


def origin(tenant: str, dialect: str) -> bytes:
    """Return ``d_0`` of a tenant's conversations in one dialect."""
    seed = f"{CANONICAL_VERSION}\x00{dialect}\x00{tenant}".encode()
    return hashlib.blake2b(seed, digest_size=DIGEST_BYTES, person=b"foldgate-prefix").digest()


def extend(prefix: bytes, canonical_item: bytes) -> bytes:
    """Return the digest of the prefix `prefix` followed by one more item."""
    return hashlib.blake2b(canonical_item, digest_size=DIGEST_BYTES, key=prefix).digest()
