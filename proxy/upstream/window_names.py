"""Which entry of a list of models is the one that was asked for.

Servers write one model in several ways: in another case, with Ollama's `:latest`, with the path
of its file or the name of its publisher in front. An entry of another model is never taken: a
window twice as large as the real one is worse than none.
"""

from collections.abc import Callable, Sequence

from proxy import codec
from proxy.codec import Json, JsonObject

_NAMES = ("id", "name", "model", "key", "model_name")
_TAG = ":latest"
_FILE = ".gguf"


def listed(reply: Json) -> Sequence[JsonObject]:
    """Return the entries of a list of models: `data` or `models` of an object, or a bare array."""
    if isinstance(reply, dict):
        return codec.as_objects(reply.get("data")) or codec.as_objects(reply.get("models"))
    return codec.as_objects(reply)


def matching(entries: Sequence[JsonObject], model: str) -> Sequence[JsonObject]:
    """Return the entries of a model: those whose name is the nearest to the one asked for.

    There may be several of one name, as with a gateway's deployments.
    """
    if not model:
        return ()
    for spelling in _SPELLINGS:
        wanted = spelling(model)
        found = [entry for entry in entries if wanted in map(spelling, names(entry))]
        if found:
            return found
    found = [entry for entry in entries if any(_is_nearly(name, model) for name in names(entry))]
    return found if len(found) == 1 else ()


def names(entry: JsonObject) -> Sequence[str]:
    """Return what an entry calls its model, its aliases included."""
    aliases = entry.get("aliases")
    values = [*(entry.get(key) for key in _NAMES), *(aliases if isinstance(aliases, list) else ())]
    return [value for value in values if isinstance(value, str) and value]


def _as_is(name: str) -> str:
    return name


def _untagged(name: str) -> str:
    return name.casefold().removesuffix(_TAG)


_SPELLINGS: Sequence[Callable[[str], str]] = (_as_is, str.casefold, _untagged)


def _is_nearly(name: str, model: str) -> bool:
    # The last part alone may be that of another publisher's model, so one of both has no other.
    return _last_part(name) == _last_part(model) and not (_is_path(name) and _is_path(model))


def _is_path(name: str) -> bool:
    return "/" in _slashed(name).removeprefix("models/")


def _last_part(name: str) -> str:
    return _untagged(_slashed(name)).rpartition("/")[2].removesuffix(_FILE)


def _slashed(name: str) -> str:
    return name.replace("\\", "/")
