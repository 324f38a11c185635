"""The parts that contents and outputs are made of, in both dialects: texts, and what is no text."""

from collections.abc import Callable

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects import images
from proxy.transcript import Binary

TEXT_KEYS = ("text", "refusal")
"""Members of a part that hold text, the first that is there counts."""


def text_key(part: Json) -> str | None:
    """Return the member of a part that holds its text; None when it has none."""
    if not isinstance(part, dict):
        return None
    return next((key for key in TEXT_KEYS if isinstance(part.get(key), str)), None)


def text_of(part: Json, key: str) -> str:
    """Return a text member of a part, or an empty string."""
    return codec.as_text(part.get(key)) if isinstance(part, dict) else ""


def member_text(raw: bytes) -> str:
    """Return a member of a body as text: what a string says, the JSON of anything else."""
    return codec.as_text(codec.loads(raw)) if raw[:1] == b'"' else raw.decode("utf-8", "replace")


def read_parts(
    content: Json, binary: Callable[[JsonObject], Binary]
) -> tuple[list[str], list[Binary]] | None:
    """Return the texts of a content, and its other parts as `binary` reads them.

    None when it is of a shape that cannot be interpreted.
    """
    if content is None:
        return [], []
    if isinstance(content, str):
        return [content], []
    if not isinstance(content, list):
        return None
    texts: list[str] = []
    binaries: list[Binary] = []
    for part in content:
        if not isinstance(part, dict):
            return None
        key = text_key(part)
        if key is not None:
            texts.append(text_of(part, key))
        else:
            binaries.append(binary(part))
    return texts, binaries


def image_of(source: Json, *, low_detail: bool) -> Binary:
    """Read an image: its URL, or an object that holds it."""
    inner = source.get("url") if isinstance(source, dict) else source
    split = images.split_data_url(codec.as_text(inner))
    if split is None:
        return Binary("image", low_detail=low_detail)
    media_type, data = split
    width, height = images.dimensions(images.decode_base64(data, images.HEAD_BYTES))
    return Binary("image", media_type, width, height, _decoded_size(data), low_detail)


def audio_of(fields: JsonObject) -> Binary:
    """Read a sound by its members ``data`` and ``format``."""
    data = codec.as_text(fields.get("data"))
    return Binary("audio", codec.as_text(fields.get("format")), size_bytes=_decoded_size(data))


def file_of(fields: JsonObject) -> Binary:
    """Read a file by its member ``file_data``; any other part counts as a file too."""
    data = codec.as_text(fields.get("file_data"))
    split = images.split_data_url(data)
    name = codec.as_text(fields.get("filename"))
    return Binary("file", split[0] if split else "", size_bytes=_decoded_size(data), name=name)


def _decoded_size(data: str) -> int:
    return len(data) * 3 // 4
