"""The line that stands for an image, sound or file that is no longer visible."""

import re

from proxy.compaction.ledger.addressed import is_instruction
from proxy.transcript import Binary

_TYPE = re.compile(r"[\w.+/-]{1,60}")
"""What a type looks like; a client may have put anything in its place."""

_NAME = re.compile(r"[\w ()+@&.,-]{1,100}")
_PARTING = re.compile(r"[\W_]+")


def describe_binary(binary: Binary) -> str:
    """Say what it was: its kind, type, pixels, size and name, as far as they are known.

    A name that reads like a request, or holds more than names do, is left out.

    >>> describe_binary(Binary("image", "image/png", 3, 4))
    '[image no longer visible: image/png, 3x4]'
    """
    pixels = f", {binary.width}x{binary.height}" if binary.width else ""
    size = f", {_size(binary.size_bytes)}" if binary.size_bytes else ""
    media_type = binary.media_type if _TYPE.fullmatch(binary.media_type) else "unknown type"
    return f"[{binary.kind} no longer visible: {media_type}{pixels}{size}{_named(binary.name)}]"


def _named(name: str) -> str:
    if not _NAME.fullmatch(name) or is_instruction(_PARTING.sub(" ", name)):
        return ""
    return f", {name.strip()}"


def _size(size_bytes: int) -> str:
    return f"{size_bytes} bytes" if size_bytes < 1024 else f"{size_bytes // 1024} KB"
