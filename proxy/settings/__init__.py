"""Every setting, and the only place that reads the environment.

Sources, the strongest first: command line, ``FOLDGATE_<SECTION>__<KEY>`` variables, the config
file (TOML, or the JSON of the compaction specification), defaults. An unknown key anywhere
refuses to start and names itself.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource

from proxy.codec import JsonObject
from proxy.settings.files import SettingsError, merge, read_config
from proxy.settings.model import PREFIX, Profile, Settings

CONFIG_VARIABLE = "FOLDGATE_CONFIG"
NO_VARIABLE = (
    "no environment variable has the name that is given, which looks like a key and is not shown"
)
_VARIABLE = re.compile(r"[A-Za-z_]{1,40}|[A-Z][A-Z0-9]{0,15}(_[A-Z0-9]{1,15})*")
"""Names that people give to variables, and none that services give to keys."""

__all__ = [
    "NO_VARIABLE",
    "Profile",
    "Settings",
    "SettingsError",
    "environment_of_children",
    "is_variable",
    "key_of",
    "load_settings",
]


def load_settings(
    config: Path | None = None,
    overrides: Mapping[str, JsonObject] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings.

    Args:
        config: config file; without it the file that `FOLDGATE_CONFIG` names, if any.
        overrides: sections from the command line.
        environment: variables to read instead of the process's own.

    Raises:
        SettingsError: naming every field that is wrong and where it can be set.
    """
    variables = os.environ if environment is None else environment
    if config is None and variables.get(CONFIG_VARIABLE):
        config = Path(variables[CONFIG_VARIABLE])
    values = read_config(config) if config is not None else {}
    _check_variables(variables)
    for section in (_from_environment(variables), overrides or {}):
        values = merge(values, section)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None
    _check_files(settings)
    key_of(settings.upstream.key_variable, "upstream.key_variable", variables)
    for profile in settings.profiles:
        key_of(profile.key_variable, f"profiles ({profile.model}) key_variable", variables)
    return settings


def key_of(
    variable: str | None, field: str, environment: Mapping[str, str] | None = None
) -> SecretStr | None:
    """Return the key that a variable holds; None when no variable is named.

    Raises:
        SettingsError: when the variable is not set.
    """
    if variable is None:
        return None
    value = (os.environ if environment is None else environment).get(variable)
    if not value and not is_variable(variable):
        raise SettingsError(f"{field}: {NO_VARIABLE}")
    if not value:
        raise SettingsError(f"{field}: the environment variable {variable} is not set")
    return SecretStr(value)


def is_variable(name: str) -> bool:
    """Tell whether it may be the name of a variable, and not a key in its place.

    >>> is_variable("OPENAI_API_KEY"), is_variable("sk-abc123"), is_variable("hf_aBcD1234")
    (True, False, False)
    """
    return _VARIABLE.fullmatch(name) is not None


def environment_of_children() -> dict[str, str]:
    """Return this process's environment without Foldgate's own variables.

    They may hold keys and passwords, which another program has no business with.
    """
    return {
        name: value for name, value in os.environ.items() if not name.upper().startswith(PREFIX)
    }


class _Variables(EnvSettingsSource):
    """The environment source of pydantic-settings over a given mapping."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = {key.lower(): value for key, value in variables.items()}
        super().__init__(Settings)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._variables


def _from_environment(variables: Mapping[str, str]) -> JsonObject:
    try:
        found: JsonObject = _Variables(variables)()
    except ValueError:
        raise SettingsError(
            f"a {PREFIX}* variable holds a list or section that is not valid JSON"
        ) from None
    return found


def _check_variables(variables: Mapping[str, str]) -> None:
    known = set(Settings.model_fields)
    for name in variables:
        if not name.upper().startswith(PREFIX) or name.upper() == CONFIG_VARIABLE:
            continue
        section = name.lower().removeprefix(PREFIX.lower()).partition("__")[0]
        if section not in known:
            raise SettingsError(
                f"{name}: no such setting; variables are {PREFIX}<SECTION>__<KEY>, with two "
                f"underscores, and the sections are {', '.join(sorted(known))}"
            )


def _check_files(settings: Settings) -> None:
    for field, path in (
        ("upstream.ca_file", settings.upstream.ca_file),
        ("compaction.prompt_file", settings.compaction.prompt_file),
    ):
        if path is not None and not path.is_file():
            raise SettingsError(f"{field}: there is no file {path}")


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        place = ".".join(str(part) for part in problem["loc"]) or "settings"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{place}: unknown setting{_suggest(place)}")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{place}: {message[0].lower()}{message[1:]}")
    return "\n".join(lines)


def _suggest(place: str) -> str:
    section = place.partition(".")[0]
    field = Settings.model_fields.get(section)
    model = field.annotation if field is not None else None
    if isinstance(model, type) and issubclass(model, BaseModel):
        return f"; [{section}] has {', '.join(sorted(model.model_fields))}"
    return f"; the sections are {', '.join(sorted(Settings.model_fields))}"
