"""The README and the example configuration against the code."""

import re
import tomllib
from pathlib import Path
from typing import cast

import pytest
from pydantic import BaseModel

from proxy import telemetry
from proxy.settings import load_settings
from proxy.settings.model import Profile, Settings
from proxy.telemetry import Event

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
KEY_LINE = re.compile(r"(?:# )?([a-z_]+) = ")
EXAMPLE = ROOT / "config" / "foldgate.example.toml"


def sections() -> dict[str, type[BaseModel]]:
    return {
        name: cast("type[BaseModel]", field.annotation)
        for name, field in Settings.model_fields.items()
        if name != "profiles"
    }


def settings_table() -> str:
    """The README's table, generated."""
    lines = ["| setting | default | what it does |", "|---|---|---|"]
    for name, model in sections().items():
        for key, field in model.model_fields.items():
            default = field.get_default(call_default_factory=False)
            if name == "store" and key == "url":
                shown = "user data folder"
            elif default is None or default == ():
                shown = "not set"
            elif isinstance(default, bool):
                shown = str(default).lower()
            elif isinstance(default, tuple):
                shown = ", ".join(map(str, default))
            else:
                shown = str(default)
            lines.append(f"| `{name}.{key}` | {shown} | {field.description} |")
    return "\n".join(lines)


def test_the_settings_table_of_the_readme_is_the_model() -> None:
    text = README.read_text()
    begin, end = "<!-- settings -->\n", "\n<!-- /settings -->"
    assert settings_table() == text[text.index(begin) + len(begin) : text.index(end)]


@pytest.mark.parametrize("name", sections())
def test_the_example_names_every_setting(name: str) -> None:
    text = EXAMPLE.read_text()
    body = text[text.index(f"\n[{name}]\n") :].removeprefix(f"\n[{name}]\n").split("\n\n")[0]
    named = {found[1] for line in body.splitlines() if (found := KEY_LINE.match(line))}
    assert named == set(sections()[name].model_fields)


def test_the_example_is_the_defaults() -> None:
    assert load_settings(EXAMPLE, {}, {}) == load_settings(None, {}, {})


def test_the_example_is_valid_with_every_setting_taken_over(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    lines = []
    for line in text.splitlines():
        setting = KEY_LINE.match(line) or line.startswith("# [[")
        lines.append(line.removeprefix("# ") if setting else line)
    changed = "\n".join(lines).replace("/etc/ssl/certs/my-ca.pem", str(EXAMPLE))
    changed = changed.replace("/etc/foldgate/summary-prompt.txt", str(EXAMPLE))
    path = tmp_path / "all.toml"
    path.write_text(changed)
    variables = {"OPENAI_API_KEY": "k", "QWEN_KEY": "k"}
    settings = load_settings(path, {}, variables)
    profile = tomllib.loads(changed)["profiles"][0]
    assert set(profile) == set(Profile.model_fields)
    assert settings.profiles[0].context_window == profile["context_window"]


def test_the_readme_names_every_event() -> None:
    text = README.read_text()
    names = [
        value
        for name, value in vars(telemetry).items()
        if name.isupper() and isinstance(value, str) and not name.startswith("_")
    ]
    assert len(names) >= 6
    missing = [name for name in names if f"| `{name}` |" not in text]
    assert not missing


def test_an_event_says_schema_type_time_and_session_first() -> None:
    line = Event("compaction_started", 0.0, "s1", {"reason": "force"}).to_json()
    assert list(line.items()) == [
        ("schema", 1),
        ("type", "compaction_started"),
        ("time", "1970-01-01T00:00:00.000Z"),
        ("session", "s1"),
        ("reason", "force"),
    ]
