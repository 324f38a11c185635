"""How clients are pointed at the proxy: names, environment, flags."""

import tomllib
from collections.abc import Mapping

import pytest

from proxy.codec import Json, JsonObject, dumps, loads
from proxy.commands.clients import NO_KEY, arguments, client_of, environment

URL = "http://127.0.0.1:4711"
ONE: Mapping[str, int | None] = {"qwen3:8b": 40_960}
TWO: Mapping[str, int | None] = {"big": 100_000, "small": None}


@pytest.mark.parametrize(
    ("command", "name", "index"),
    [
        ("codex", "codex", 1),
        ("/usr/local/bin/codex exec hi", "codex", 1),
        (r"C:\Tools\Codex.EXE exec", "codex", 1),
        (r"node_modules\.bin\opencode.cmd", "opencode", 1),
        ("opencode-ai run", "opencode", 1),
        ("npx opencode-ai@latest run", "opencode", 2),
        ("npx -y @openai/codex@0.171.0 exec", "codex", 3),
        ("npx -y -p @openai/codex -- codex exec", "codex", 6),
        ("npx --package=@openai/codex codex exec", "codex", 3),
        ("bunx --bun @openai/codex", "codex", 3),
        ("bun x @openai/codex", "codex", 3),
        ("pnpm dlx @openai/codex", "codex", 3),
        ("yarn dlx @openai/codex", "codex", 3),
        ("uvx --from aider-chat aider --model x", "aider", 4),
        ("uvx --python 3.12 --from aider-chat@latest aider", "aider", 6),
        ("uv tool run --from aider-chat aider", "aider", 6),
        ("pipx run --spec aider-chat aider", "aider", 5),
        ("uv run aider", "uv", 1),
        ("npx", "npx", 1),
        ("npx --version", "npx", 1),
        ("npx -p", "npx", 1),
        ("bun", "bun", 1),
        ("my-codex", "my-codex", 1),
    ],
)
def test_a_client_is_known_by_its_name(command: str, name: str, index: int) -> None:
    assert client_of(command.split(" ")) == (name, index)


def test_an_empty_command_has_no_name() -> None:
    assert client_of([""]) == ("", 1)


def test_variables_name_the_proxy() -> None:
    own = {"PATH": "/bin", "OPENAI_BASE_URL": "http://there.test", "OPENAI_ORG_ID": "me"}
    assert environment(own, URL, "any", {}) == {
        "PATH": "/bin",
        "OPENAI_ORG_ID": "me",
        "OPENAI_BASE_URL": f"{URL}/v1",
        "OPENAI_API_BASE": f"{URL}/v1",
        "OPENAI_API_BASE_URL": f"{URL}/v1",
        "OPENAI_HOST": URL,
        "OPENAI_API_KEY": NO_KEY,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


@pytest.mark.parametrize(("own", "expected"), [("sk-own", "sk-own"), ("", NO_KEY)])
def test_a_key_of_the_users_own_stays(own: str, expected: str) -> None:
    assert environment({"OPENAI_API_KEY": own}, URL, "any", {})["OPENAI_API_KEY"] == expected


@pytest.mark.parametrize(
    ("own", "upper", "lower"),
    [
        ({"NO_PROXY": "a.test"}, "a.test,127.0.0.1,localhost", "a.test,127.0.0.1,localhost"),
        ({"no_proxy": "b.test"}, "b.test,127.0.0.1,localhost", "b.test,127.0.0.1,localhost"),
        (
            {"NO_PROXY": "a.test", "no_proxy": "b.test"},
            "a.test,127.0.0.1,localhost",
            "b.test,127.0.0.1,localhost",
        ),
        # Curl and Python know it alone only.
        ({"NO_PROXY": "*"}, "*", "*"),
        ({"NO_PROXY": "a.test", "no_proxy": "*"}, "a.test,127.0.0.1,localhost", "*"),
    ],
)
def test_what_is_reached_directly_stays_so(own: Mapping[str, str], upper: str, lower: str) -> None:
    variables = environment(own, URL, "any", {})
    assert (variables["NO_PROXY"], variables["no_proxy"]) == (upper, lower)


@pytest.mark.parametrize(
    ("client", "variable", "value"),
    [("qwen", "OPENAI_MODEL", "qwen3:8b"), ("aider", "AIDER_MODEL", "openai/qwen3:8b")],
)
def test_the_one_model_is_named(client: str, variable: str, value: str) -> None:
    assert environment({}, URL, client, ONE)[variable] == value
    assert environment({variable: "mine"}, URL, client, ONE)[variable] == "mine"
    # Of several, the user chooses.
    assert variable not in environment({}, URL, client, TWO)
    assert variable not in environment({}, URL, "any", ONE)


def test_others_get_no_flags() -> None:
    command = ["opencode", "run", "--model", "x"]
    assert arguments(command, URL, ONE) == command


def test_aider_gets_a_flag_that_beats_its_configuration() -> None:
    command = ["uvx", "--from", "aider-chat", "aider", "--model", "x"]
    assert arguments(command, URL, {}) == [
        *("uvx", "--from", "aider-chat", "aider", "--openai-api-base", f"{URL}/v1"),
        *("--model", "x"),
    ]


@pytest.mark.parametrize("model", ['a "quoted" \\ name', "qwen3:8b", "größer"])
def test_codex_gets_a_provider(model: str) -> None:
    name, *flags, last = arguments(["codex", "exec"], URL, {model: None})
    assert (name, last) == ("codex", "exec")
    assert set(flags[::2]) == {"-c"}
    settings = tomllib.loads("\n".join(flags[1::2]))
    assert settings == {
        "model_provider": "foldgate",
        "model": model,
        "model_providers": {
            "foldgate": {
                "name": "Foldgate",
                "base_url": f"{URL}/v1",
                "env_key": "OPENAI_API_KEY",
                "wire_api": "responses",
            }
        },
    }


def test_codex_chooses_among_several_models_itself() -> None:
    assert not [flag for flag in arguments(["codex"], URL, TWO) if flag.startswith("model=")]


def opencode(own: str, models: Mapping[str, int | None] = TWO) -> str:
    return environment({"OPENCODE_CONFIG_CONTENT": own}, URL, "opencode", models)[
        "OPENCODE_CONFIG_CONTENT"
    ]


PROVIDER: Json = {
    "npm": "@ai-sdk/openai-compatible",
    "name": "Foldgate",
    "options": {"baseURL": f"{URL}/v1", "apiKey": "{env:OPENAI_API_KEY}"},
    "models": {
        "big": {
            "name": "big",
            "tool_call": True,
            "limit": {"context": 100_000, "output": 8192},
        },
        "small": {"name": "small", "tool_call": True},
    },
}


def test_opencode_does_not_compact_where_we_know_every_window() -> None:
    known = loads(opencode("", ONE))
    assert isinstance(known, dict)
    assert known["compaction"] == {"auto": False, "prune": False}
    own = loads(opencode('{"compaction": {"auto": true}}', ONE))
    assert isinstance(own, dict)
    assert own["compaction"] == {"auto": True}


def test_opencode_gets_a_provider_with_the_models() -> None:
    expected: JsonObject = {"model": "foldgate/big", "provider": {"foldgate": PROVIDER}}
    assert loads(opencode("")) == expected


def test_a_small_window_leaves_room_for_the_prompt() -> None:
    assert '"limit":{"context":4096,"output":1024}' in opencode("", {"x": 4096})


def test_opencode_keeps_a_configuration_of_the_users_own() -> None:
    own: JsonObject = {"model": "mine/x", "theme": "dark", "provider": {"mine": {"name": "Mine"}}}
    assert loads(opencode(dumps(own).decode())) == {
        "model": "mine/x",
        "theme": "dark",
        "provider": {"mine": {"name": "Mine"}, "foldgate": PROVIDER},
    }


@pytest.mark.parametrize("own", ["// a comment\n{}", "[]", "7"])
def test_a_configuration_that_we_cannot_read_stays(own: str) -> None:
    assert opencode(own) == own


def test_without_models_opencode_is_left_alone() -> None:
    assert "OPENCODE_CONFIG_CONTENT" not in environment({}, URL, "opencode", {})
