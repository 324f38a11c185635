"""The stored form of values in a database that others may read: an envelope, encrypted or not.

byte 0: state schema version; byte 1: length of the key id, 0 when the value is not encrypted;
then the id, and either the packed value or 12 bytes of nonce and an AES-256-GCM ciphertext. The
header and the caller's context (where the value belongs) are authenticated, so an encrypted
value that was changed or moved elsewhere cannot be opened. A value that is not encrypted is read
with and without keys: encryption can be turned on over data that is there.

Nonces are random: one key is good for 2^32 values, then a new one goes to the front of the list.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from proxy.compaction.checkpoint import SCHEMA_VERSION
from proxy.errors import StateCorrupt, StateLocked

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32

_ID = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_NONCE_BYTES = 12
_TAG_BYTES = 16
_PACKED = b"\x28\xb5\x2f\xfd"
"""How `pack`'s output begins (RFC 8878, 3.1.1). No key id does, so an encrypted value whose
length byte was damaged to 0 is not taken for one that is not encrypted."""


def parse_keys(texts: Sequence[str]) -> list[tuple[str, bytes]]:
    """Read keys written as ``ID:BASE64``; the first one encrypts, all decrypt.

    Raises:
        ValueError: naming the position of the key that is wrong, never its text.
    """
    keys: dict[str, bytes] = {}
    for position, text in enumerate(texts, 1):
        name, separator, encoded = text.strip().partition(":")
        if not separator or _ID.fullmatch(name) is None:
            raise ValueError(
                f"key {position} must be ID:BASE64, with an ID of 1 to 32 letters, digits, "
                "'_', '.' or '-'"
            )
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise ValueError(
                f"key {position} must hold {KEY_BYTES} bytes as base64 after the ID; make one "
                "with `openssl rand -base64 32`"
            )
        if name in keys:
            raise ValueError(f"key {position} has the ID of an earlier one; each needs its own")
        keys[name] = key
    return list(keys.items())


class Sealer:
    """Turns packed values into their stored form and back."""

    def __init__(self, keys: Sequence[tuple[str, bytes]] = ()) -> None:
        """Take the keys by id; the first one encrypts, all decrypt, none leaves values plain."""
        self._ciphers = {name: _cipher(_derive(key, b"seal")) for name, key in keys}
        self._first = keys[0][0] if keys else ""
        self._address_key = _derive(keys[0][1], b"address") if keys else b""

    @property
    def key_names(self) -> str:
        """The ids of the keys that are there, each between commas."""
        return f",{','.join(self._ciphers)},"

    def seal(self, packed: bytes, context: bytes) -> bytes:
        """Return the stored form of what `state.pack` returned.

        Raises:
            ValueError: when the value is not packed; `open` would refuse it.
        """
        if not packed.startswith(_PACKED):
            raise ValueError("only a packed value can be sealed")
        name = self._first.encode()
        header = bytes((SCHEMA_VERSION, len(name))) + name
        if not name:
            return header + packed
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return header + nonce + self._ciphers[self._first].encrypt(nonce, packed, header + context)

    def open(self, data: bytes, context: bytes) -> bytes:
        """Return the packed value.

        Raises:
            StateCorrupt: when the value is damaged, was sealed for another context or is newer
                than this program (see `version_of`).
            StateLocked: when it was sealed with a key that is not there.
        """
        version = self.version_of(data)
        if version > SCHEMA_VERSION:
            raise StateCorrupt("a stored value was written by a newer version")
        if version == 0 or len(data) < 2:
            raise StateCorrupt("a stored value is damaged")
        end = 2 + data[1]
        header, body = data[:end], data[end:]
        if data[1]:
            return self._decrypt(header, body, context)
        if not body.startswith(_PACKED):
            raise StateCorrupt("a stored value is damaged")
        return body

    def address(self, raw: bytes) -> bytes:
        """Return the 32 bytes that name this content.

        With encryption they depend on the first key: who only reads the database cannot confirm
        a guess of the content. After a change of that key equal content has another address.
        """
        if self._address_key:
            return hmac.digest(self._address_key, raw, "sha256")
        return hashlib.sha256(raw).digest()

    @staticmethod
    def version_of(data: bytes) -> int:
        """Return the schema version of a stored value.

        A caller asks before `open`: a version above `SCHEMA_VERSION` counts as absent, not as
        damaged, and is never overwritten.

        Raises:
            StateCorrupt: when the value is empty.
        """
        if not data:
            raise StateCorrupt("a stored value is empty")
        return data[0]

    def _decrypt(self, header: bytes, body: bytes, context: bytes) -> bytes:
        name = header[2:].decode("latin-1")
        if _ID.fullmatch(name) is None or len(body) < _NONCE_BYTES + _TAG_BYTES:
            raise StateCorrupt("a stored value is damaged")
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise StateLocked(name)
        nonce, ciphertext = body[:_NONCE_BYTES], body[_NONCE_BYTES:]
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(nonce, ciphertext, header + context)
        except InvalidTag:
            raise StateCorrupt("a stored value is damaged") from None


def _cipher(key: bytes) -> "AESGCM":
    # A heavy import, for those only who encrypt.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _derive(key: bytes, purpose: bytes) -> bytes:
    """Return a key for one purpose, so that no key is used for two."""
    return hmac.digest(key, b"foldgate " + purpose, "sha256")
