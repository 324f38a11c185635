"""Config files: TOML, and the JSON of the compaction specification."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from proxy import codec
from proxy.codec import Json, JsonObject


class SettingsError(ValueError):
    """The settings cannot be used; the text names each field and the fix."""


def merge(base: JsonObject, more: Mapping[str, Json] | Mapping[str, JsonObject]) -> JsonObject:
    """Return `base` with `more` laid over it, section by section."""
    merged = dict(base)
    for key, value in more.items():
        old = merged.get(key)
        merged[key] = (
            merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def read_config(path: Path) -> JsonObject:
    """Read a config file: TOML, or by the ending ``.json`` the specification's JSON.

    Raises:
        SettingsError: when it cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"config file {path}: {error.strerror}") from None
    if path.suffix.lower() == ".json":
        return from_specification(path, data)
    try:
        parsed: JsonObject = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {path} is not valid TOML: {error}") from None
    return parsed


_SPECIFICATION = {
    ("compaction", "auto"): ("compaction", "auto"),
    ("compaction", "threshold"): ("compaction", "threshold"),
    ("compaction", "keepTurns"): ("compaction", "keep_turns"),
    ("compaction", "maxOutputTokens"): ("compaction", "max_output_tokens"),
    ("provider", "contextWindow"): ("upstream", "context_window"),
    ("limits", "maxContextChars"): ("limits", "max_context_chars"),
    ("pluginHooks", "timeoutMs"): ("plugin_hooks", "timeout_ms"),
}
_AGENT_SECTIONS = {"limits", "provider", "pluginHooks"}


def from_specification(path: Path, data: bytes) -> JsonObject:
    """Translate the specification's JSON.

    Raises:
        SettingsError: naming each key that a proxy does not have, and why.
    """
    try:
        document = codec.loads(data)
    except codec.MalformedJson:
        raise SettingsError(f"config file {path} is not valid JSON") from None
    if not isinstance(document, dict):
        raise SettingsError(f"config file {path}: must be a JSON object")
    values: JsonObject = {}
    problems = []
    for section, members in document.items():
        if not isinstance(members, dict):
            problems.append(f"{section}: must be an object")
            continue
        for key, value in members.items():
            target = _SPECIFICATION.get((section, key))
            if target is None:
                problems.append(_refuse_key(section, key))
                continue
            values = merge(values, {target[0]: {target[1]: value}})
    if problems:
        raise SettingsError(f"config file {path}:\n  " + "\n  ".join(problems))
    return values


def _refuse_key(section: str, key: str) -> str:
    known = sorted(k for s, k in _SPECIFICATION if s == section)
    if section in _AGENT_SECTIONS:
        return (
            f"{section}.{key}: this setting steers the agent itself, which a proxy does not do; "
            f"remove it (of {section} the proxy reads {', '.join(known)})"
        )
    readable = ", ".join(sorted({s for s, _ in _SPECIFICATION}))
    hint = f"known are {', '.join(known)}" if known else f"the sections are {readable}"
    return f"{section}.{key}: unknown setting; {hint}"
