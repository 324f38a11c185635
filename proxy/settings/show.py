"""The settings in force, for people and programs; secrets are hidden."""

from collections.abc import Mapping

from pydantic import BaseModel

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.settings.model import Profile, Settings

HIDDEN = "**********"


def as_json(settings: Settings) -> str:
    """Return everything as one JSON object."""
    return codec.dumps(_plain(settings)).decode()


def as_toml(settings: Settings) -> str:
    """Return everything as TOML that `--config` reads again (hidden secrets aside).

    Settings that differ from their defaults are marked.
    """
    defaults = _plain(Settings.model_construct())
    lines: list[str] = []
    for name, section in _plain(settings).items():
        if isinstance(section, dict):
            default = defaults.get(name)
            lines += [
                "",
                f"[{name}]",
                *_members(section, default if isinstance(default, dict) else {}),
            ]
    if "max_context_chars" not in settings.limits.model_fields_set:
        # Written as a value it would count as set, and then it refuses, too.
        limit = f"max_context_chars = {settings.limits.max_context_chars}"
        lines[lines.index(limit)] = f"# {limit}"
    for profile in settings.profiles:
        lines += ["", "[[profiles]]", *_members(_dump(profile), {})]
    return "\n".join(lines[1:])


def _plain(settings: Settings) -> JsonObject:
    plain = _dump(settings)
    plain["profiles"] = [_dump(profile) for profile in settings.profiles]
    return plain


def _dump(model: BaseModel) -> JsonObject:
    value = codec.loads(model.model_dump_json(exclude_none=isinstance(model, Profile)))
    return value if isinstance(value, dict) else {}


def _members(members: Mapping[str, Json], defaults: Mapping[str, Json]) -> list[str]:
    lines = []
    for key, value in members.items():
        changed = "  # changed" if defaults and defaults.get(key) != value else ""
        if value is None:
            lines.append(f"# {key} is not set")
        else:
            lines.append(f"{key} = {_toml(value)}{changed}")
    return lines


def _toml(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        members = (f"{key} = {_toml(member)}" for key, member in value.items())
        return "{ " + ", ".join(members) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(member) for member in value) + "]"
    return codec.dumps(value).decode()
