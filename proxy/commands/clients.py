"""How known clients are pointed at a base URL.

Most take it from the environment. Those that do not get a command-line flag or a configuration of
one run; nothing is written to any file of theirs.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from proxy import codec

NO_KEY = "foldgate"
"""Stands in where no key is set: SDKs refuse to start without one, local servers ignore it."""

NAME_MODELS = frozenset({"opencode", "qwen"})
"""Clients that must be told by name which models there are."""
_LAUNCHERS = frozenset({"npx", "bunx", "uvx", "pnpx"})
_LOOPBACK = "127.0.0.1,localhost"


def client_of(command: Sequence[str]) -> tuple[str, int]:
    """Return the name of the client that a command starts, and the index behind its name.

    >>> client_of(["/usr/bin/codex", "exec"]), client_of(["npx", "-y", "@openai/codex@latest"])
    (('codex', 1), ('codex', 3))
    """
    name = _name(command[0])
    if name not in _LAUNCHERS:
        return name, 1
    for index, argument in enumerate(command[1:], 2):
        if not argument.startswith("-"):
            return _name(argument), index
    return name, 1


def _name(argument: str) -> str:
    name = PurePath(argument.replace("\\", "/")).name.lower()
    name = name.partition("@")[0]
    for ending in (".exe", ".cmd", ".bat", ".ps1"):
        name = name.removesuffix(ending)
    return {"opencode-ai": "opencode", "aider-chat": "aider"}.get(name, name)


def environment(
    inherited: Mapping[str, str], url: str, client: str, models: Sequence[str], window: int | None
) -> dict[str, str]:
    """Return the environment of a client.

    Args:
        inherited: what it would get without us.
        url: of the proxy, without /v1.
        client: its name.
        models: what the upstream serves, as far as that is known.
        window: context window of the upstream, tokens.
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
    for name in ("NO_PROXY", "no_proxy"):
        # A proxy for the outside world cannot reach us.
        variables[name] = ",".join(filter(None, (inherited.get(name), _LOOPBACK)))
    if client == "opencode" and models:
        variables["OPENCODE_CONFIG_CONTENT"] = _opencode(
            inherited.get("OPENCODE_CONFIG_CONTENT", ""), base, models, window
        )
    if client == "qwen" and len(models) == 1:
        variables.setdefault("OPENAI_MODEL", models[0])
    return variables


def arguments(command: Sequence[str], url: str) -> list[str]:
    """Return a command with the flags that point its client at the proxy."""
    client, index = client_of(command)
    return [*command[:index], *_flags(client, f"{url}/v1"), *command[index:]]


def _flags(client: str, base: str) -> list[str]:
    if client == "codex":
        # Its built-in provider prefers WebSockets and its own login.
        provider = "model_providers.foldgate"
        values = {
            "model_provider": "foldgate",
            f"{provider}.name": "Foldgate",
            f"{provider}.base_url": base,
            f"{provider}.env_key": "OPENAI_API_KEY",
            f"{provider}.wire_api": "responses",
        }
        return [flag for key, value in values.items() for flag in ("-c", f'{key}="{value}"')]
    if client == "aider":
        return ["--openai-api-base", base]
    return []


def _opencode(own: str, base: str, models: Sequence[str], window: int | None) -> str:
    """Return opencode's configuration of one run: one more provider, with the upstream's models."""
    try:
        config = codec.loads(own.encode()) if own else {}
    except codec.MalformedJson:
        return own
    if not isinstance(config, dict):
        return own
    providers = config.get("provider")
    limit: codec.JsonObject = {}
    if window is not None:
        limit = {"limit": {"context": window, "output": min(8192, window // 4)}}
    entries: codec.JsonObject = {
        name: {"name": name, "tool_call": True, **limit} for name in models
    }
    ours: codec.JsonObject = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Foldgate",
        "options": {"baseURL": base, "apiKey": "{env:OPENAI_API_KEY}"},
        "models": entries,
    }
    merged: codec.JsonObject = {
        "model": f"foldgate/{models[0]}",
        **config,
        "provider": {**(providers if isinstance(providers, dict) else {}), "foldgate": ours},
    }
    return codec.dumps(merged).decode()
