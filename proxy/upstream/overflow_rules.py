"""Wordings of an overflow that an operator adds for servers that the table does not know."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from proxy.upstream.overflow_table import VETOED_STATUSES

GROUPS = frozenset({"N", "L", "X"})
"""Names of groups that are read: tokens of the prompt, the limit, the excess."""

MAX_RULES = 64
_MAX_PATTERN = 500
_NESTED = re.compile(r"(?<!\\)[+*}]\)[+*{]")
"""A repeated group that ends with a repetition: its work may double with each character."""


def _compiled(value: object) -> re.Pattern[str]:
    text = value.pattern if isinstance(value, re.Pattern) else value
    if not isinstance(text, str) or not text.strip():
        raise ValueError("must be a regular expression, for example 'context full: (?P<N>\\d+)'")
    if len(text) > _MAX_PATTERN:
        raise ValueError(f"must have at most {_MAX_PATTERN} characters; quote less of the message")
    if _NESTED.search(text):
        raise ValueError(
            "must not repeat a group that ends with a repetition, as (a+)+ does: it could take for "
            "ever; repeat only one of the two"
        )
    try:
        pattern = re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"is not a regular expression of Python: {error}; in TOML write it between single "
            "quotes, which leave every \\ as it is"
        ) from None
    unknown = sorted(set(pattern.groupindex) - GROUPS)
    if unknown:
        raise ValueError(
            f"has the group {unknown[0]}; only (?P<N>…) for tokens of the prompt, (?P<L>…) for the "
            "limit and (?P<X>…) for the excess are read, and (?:…) groups without a name"
        )
    if pattern.search(""):
        raise ValueError("matches an empty message, so every error; name a word of the message")
    return pattern


def _status(value: int) -> int:
    if value in VETOED_STATUSES:
        raise ValueError(
            f"must not be {value}: that tells of keys, rights or rate limits, and is passed on"
        )
    return value


def _some(value: tuple[int, ...]) -> tuple[int, ...]:
    if not value:
        raise ValueError(
            "must name at least 1 status, for example [400]; leave it out for usual ones"
        )
    return value


Status = Annotated[int, Field(ge=400, le=599), AfterValidator(_status)]


class OverflowRule(BaseModel):
    """One wording, and what it means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: Annotated[re.Pattern[str], BeforeValidator(_compiled)] = Field(
        description="Regular expression that is searched in the error's texts, whatever their "
        "case; groups N, L and X hold tokens of the prompt, the limit and the excess."
    )
    kind: Literal["input", "total"] = Field(
        "input",
        description="input: the conversation is compacted; total: the output limit is lowered for "
        "that try.",
    )
    statuses: Annotated[tuple[Status, ...], AfterValidator(_some)] = Field(
        (400, 404, 413, 422), description="HTTP statuses that the rule holds for."
    )
    input_only: bool = Field(
        False, description="Whether L is a limit on the input alone, not the whole window."
    )


OverflowRules = Annotated[tuple[OverflowRule, ...], Field(max_length=MAX_RULES)]
"""The type of the setting."""
