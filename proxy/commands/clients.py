"""How known clients are pointed at a base URL.

Most take it from the environment. Those that do not get a command-line flag or a configuration of
one run; nothing is written to any file of theirs.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from proxy import codec

NO_KEY = "foldgate"
"""Stands in where no key is set: SDKs refuse to start without one, local servers ignore it."""

NAME_MODELS = frozenset({"aider", "codex", "opencode", "qwen"})
"""Clients that must be told by name which models there are."""
CONFIGURED_IN = {
    "pi": "~/.pi/agent/models.json",
    "cline": "`cline auth`",
    "kilo": "kilo.json",
    "cn": "~/.continue/config.yaml",
    "vibe": "~/.vibe/config.toml",
    "llm": "extra-openai-models.yaml",
    "crush": "crush.json",
}
"""Clients that cannot be told in any other way, and where they are told."""
_LAUNCHERS = (
    ("npx",),
    ("bunx",),
    ("pnpx",),
    ("uvx",),
    ("bun", "x"),
    ("pnpm", "dlx"),
    ("yarn", "dlx"),
    ("uv", "tool", "run"),
    ("pipx", "run"),
)
"""Commands that fetch a client and start it."""
_WITH_VALUE = frozenset({"-p", "--package", "--from", "--with", "--spec", "--python"})
"""Options of theirs that take the next argument as their value."""
_EVERYTHING = "*"
_LOOPBACK = "127.0.0.1,localhost"


def client_of(command: Sequence[str]) -> tuple[str, int]:
    """Return the name of the client that a command starts, and the index behind its name.

    >>> client_of(["/usr/bin/codex", "exec"]), client_of(["npx", "-y", "@openai/codex@latest"])
    (('codex', 1), ('codex', 3))
    """
    name = _name(command[0])
    for launcher in _LAUNCHERS:
        if (name, *command[1 : len(launcher)]) == launcher:
            return _launched(command, len(launcher)) or (name, 1)
    return name, 1


def _launched(command: Sequence[str], start: int) -> tuple[str, int] | None:
    is_value = False
    for index, argument in enumerate(command[start:], start):
        if not is_value and not argument.startswith("-"):
            return _name(argument), index + 1
        is_value = argument in _WITH_VALUE
    return None


def _name(argument: str) -> str:
    name = PurePath(argument.replace("\\", "/")).name.lower()
    name = name.partition("@")[0]
    for ending in (".exe", ".cmd", ".bat", ".ps1"):
        name = name.removesuffix(ending)
    return {"opencode-ai": "opencode", "aider-chat": "aider", "pi-coding-agent": "pi"}.get(
        name, name
    )


def environment(
    inherited: Mapping[str, str], url: str, client: str, models: Mapping[str, int | None]
) -> dict[str, str]:
    """Return the environment of a client.

    Args:
        inherited: what it would get without us.
        url: of the proxy, without /v1.
        client: its name.
        models: what the upstream serves and in which window, as far as that is known.
    """
    base = f"{url}/v1"
    # The host without a path is goose's, the one with API in it Open WebUI's.
    variables = {
        **inherited,
        "OPENAI_BASE_URL": base,
        "OPENAI_API_BASE": base,
        "OPENAI_API_BASE_URL": base,
        "OPENAI_HOST": url,
    }
    if not inherited.get("OPENAI_API_KEY"):
        variables["OPENAI_API_KEY"] = NO_KEY
    # A proxy for the outside world cannot reach us. Who reads one spelling ignores the other one,
    # so what is in only one of them must be in both.
    direct = inherited.get("no_proxy") or inherited.get("NO_PROXY") or ""
    for name in ("NO_PROXY", "no_proxy"):
        own = inherited.get(name) or direct
        # In a list it would not mean everything any more.
        variables[name] = (
            own if own.strip() == _EVERYTHING else ",".join(filter(None, (own, _LOOPBACK)))
        )
    if client == "opencode" and models:
        variables["OPENCODE_CONFIG_CONTENT"] = _opencode(
            inherited.get("OPENCODE_CONFIG_CONTENT", ""), base, models
        )
    model = _only(models)
    if client == "qwen" and model:
        variables.setdefault("OPENAI_MODEL", model)
    if client == "aider" and model:
        variables.setdefault("AIDER_MODEL", f"openai/{model}")
    return variables


def _only(models: Mapping[str, int | None]) -> str:
    """Return the name of the one model there is; empty when the choice is the user's."""
    return next(iter(models)) if len(models) == 1 else ""


def arguments(command: Sequence[str], url: str, models: Mapping[str, int | None]) -> list[str]:
    """Return a command with the flags that point its client at the proxy."""
    client, index = client_of(command)
    return [*command[:index], *_flags(client, f"{url}/v1", _only(models)), *command[index:]]


def _flags(client: str, base: str, model: str) -> list[str]:
    if client == "codex":
        # Its built-in provider prefers WebSockets and its own login.
        provider = "model_providers.foldgate"
        values: dict[str, codec.Json] = {
            "model_provider": "foldgate",
            f"{provider}.name": "Foldgate",
            f"{provider}.base_url": base,
            f"{provider}.env_key": "OPENAI_API_KEY",
            f"{provider}.wire_api": "responses",
        }
        if model:
            values["model"] = model
        # A JSON string is one of TOML too.
        settings = (f"{key}={codec.dumps(value).decode()}" for key, value in values.items())
        return [flag for setting in settings for flag in ("-c", setting)]
    if client == "aider":
        return ["--openai-api-base", base]
    return []


def _opencode(own: str, base: str, models: Mapping[str, int | None]) -> str:
    """Return opencode's configuration of one run: one more provider, with the upstream's models."""
    try:
        config = codec.loads(own.encode()) if own else {}
    except codec.MalformedJson:
        return own
    if not isinstance(config, dict):
        return own
    providers = config.get("provider")
    entries: codec.JsonObject = {
        name: {"name": name, "tool_call": True, **_limit(window)} for name, window in models.items()
    }
    ours: codec.JsonObject = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Foldgate",
        "options": {"baseURL": base, "apiKey": "{env:OPENAI_API_KEY}"},
        "models": entries,
    }
    defaults: codec.JsonObject = {"model": f"foldgate/{next(iter(models))}"}
    if all(models.values()):
        # Where we know the window, its own compaction would only come before ours.
        defaults["compaction"] = {"auto": False, "prune": False}
    merged: codec.JsonObject = {
        **defaults,
        **config,
        "provider": {**(providers if isinstance(providers, dict) else {}), "foldgate": ours},
    }
    return codec.dumps(merged).decode()


def _limit(window: int | None) -> codec.JsonObject:
    if window is None:
        return {}
    return {"limit": {"context": window, "output": min(8192, window // 4)}}
