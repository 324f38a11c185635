"""The canonical form of what both dialects have in common: contents, arguments, extra members.

It decides only whether two prefixes are the same conversation, and is never sent. Clients
re-serialise their own history, so what they are known to change is left out: null and empty
members, ids of items, reasoning, caching hints, the spelling of JSON arguments, the split of text
into parts. Unknown members count.
"""

import binascii
import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects import images

_IGNORED = frozenset(
    {
        "annotations",
        "logprobs",
        "index",
        "status",
        "obfuscation",
        "provider_specific_fields",
        "cache_control",
        "prompt_cache_breakpoint",
        "phase",
        "reasoning_content",
        "reasoning",
        "reasoning_details",
        "thinking",
    }
)
_TEXT_PARTS = (None, "", "text", "input_text", "output_text")
_ITEM_ID_PREFIXES = ("msg_", "fc_", "rs_")


def extras_of(members: Mapping[str, Json], known: AbstractSet[str]) -> JsonObject:
    """Return the members that count, besides the `known` ones."""
    extras: JsonObject = {}
    for key, value in members.items():
        if key in known or key in _IGNORED or key.startswith("parsed"):
            continue
        if value is None or value in ("", []):
            continue
        if key == "id" and codec.as_text(value).startswith(_ITEM_ID_PREFIXES):
            continue
        if key == "type" and value == "message":
            continue
        if key == "audio" and isinstance(value, dict):
            value = {k: v for k, v in value.items() if k not in {"data", "expires_at"}}
        extras[key] = value
    return extras


def arguments_form(text: str) -> Json:
    """Return arguments without their spelling; text that is not JSON stays text."""
    try:
        return [codec.loads(text)]
    except codec.MalformedJson:
        return text.strip()


def content_form(content: Json) -> Json:
    """Return a content with adjacent texts joined, however it was split into parts."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content.strip()] if content.strip() else []
    joined: list[Json] = []
    text = ""
    for part in codec.as_objects(content):
        plain = part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str)
        if plain and not extras_of(part, {"type", "text"}):
            text += codec.as_text(part["text"])
            continue
        if text.strip():
            joined.append(text.strip())
        text = ""
        joined.append(part_form(part))
    if text.strip():
        joined.append(text.strip())
    return joined


def part_form(part: JsonObject) -> Json:
    """Return a part that is not plain text, its data as a digest."""
    kind = codec.as_text(part.get("type"))
    inner = part.get(kind)
    rest = extras_of(part, {"type", kind})
    if kind == "input_image":
        inner = part.get("image_url")
        rest = extras_of(part, {"type", "image_url", "detail"})
    if kind in {"input_image", "image_url"}:
        url = codec.as_text(inner.get("url")) if isinstance(inner, dict) else codec.as_text(inner)
        fields = inner if isinstance(inner, dict) else {}
        more = extras_of(fields, {"url", "detail"})
        return ["image", data_form(url), rest, more]
    if isinstance(inner, dict):
        hashed: JsonObject = {
            key: data_form(value) if isinstance(value, str) else value
            for key, value in inner.items()
            if value is not None and value not in ("", [])
        }
        return [part.get("type"), hashed, rest]
    return [part.get("type"), inner, rest]


def data_form(text: str) -> Json:
    """Return a URL as it is, and data as a digest of what it decodes to."""
    split = images.split_data_url(text)
    if split is None:
        # Long bare base64 (audio, file data) is hashed to keep the canonical form small.
        return text if len(text) < 1024 else ["sha256", hashlib.sha256(text.encode()).hexdigest()]
    encoded = "".join(split[1].split())
    try:
        data = binascii.a2b_base64(encoded + "=" * (-len(encoded) % 4), strict_mode=True)
    except ValueError:
        # Not base64, for example an SVG as text: lenient decoding would skip what differs.
        return ["text", hashlib.sha256(text.encode()).hexdigest()]
    return ["data", hashlib.sha256(data).hexdigest()]
