"""Settings of compaction, of the ledger and of the limits on a conversation."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from proxy.compaction.policy import LedgerPolicy

Fraction = Annotated[float, Field(ge=0.1, le=0.99)]
Target = Annotated[float, Field(ge=0.1, le=0.8)]
Turns = Annotated[int, Field(ge=0, le=20)]
OutputTokens = Annotated[int, Field(ge=256, le=200_000)]
ContextChars = Annotated[int, Field(ge=8000)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[int, Field(ge=0, le=100)]
Fallback = Literal["extractive", "none"]


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CompactionSettings(Section):
    """When and how conversations are compacted."""

    auto: bool = Field(True, description="Compact automatically.")
    threshold: Fraction = Field(0.85, description="Share of the window that triggers.")
    keep_turns: Turns = Field(2, description="Complete turns kept verbatim, at most.")
    max_output_tokens: OutputTokens = Field(
        16_000, description="Output limit of the summariser call, tokens."
    )
    target: Target = Field(0.4, description="Share of the trigger that a compaction comes down to.")
    deadline_seconds: Seconds = Field(
        60.0, description="Longest time that a request waits for a summary."
    )
    first_byte_seconds: Seconds = Field(
        45.0, description="Longest time until the summariser's first byte."
    )
    idle_seconds: Seconds = Field(45.0, description="Longest silence of the summariser.")
    concurrency: int = Field(4, ge=1, description="Summaries at once in this process.")
    fallback: Fallback = Field(
        "extractive",
        description="When the summariser fails: extractive writes the checkpoint by code, none "
        "leaves the request as it is.",
    )
    summarizer: str | None = Field(
        None, description="Model that writes summaries; unset uses the session's own."
    )
    prompt_file: Path | None = Field(
        None, description="File that replaces the summariser prompt ({fence}, {tokens} filled in)."
    )
    background: bool = Field(
        True,
        description="Finish after a reply what its request could not wait for: a summary that is "
        "an extract, or covers only the first part.",
    )


class LedgerSettings(Section):
    """What code carries over word for word from replaced messages, and how its room is divided."""

    max_tokens: int = Field(
        20_000,
        ge=0,
        description="Largest ledger, tokens; of a checkpoint it is two thirds at most, four fifths "
        "where rules and labelled statements need it.",
    )
    facts_share: Share = Field(
        0.7,
        description="What facts may take from user messages without a rule or a statement, where "
        "not all fits.",
    )
    failed_commands: Weight = Field(
        16,
        description="Weight of failed commands where not all facts fit; of this and the following, "
        "0 leaves the kind out.",
    )
    assistant_values: Weight = Field(12, description="Weight of what the assistant stated.")
    tool_values: Weight = Field(12, description="Weight of values that tools printed.")
    files_written: Weight = Field(16, description="Weight of paths that were written.")
    files_read: Weight = Field(14, description="Weight of paths that were read.")
    urls: Weight = Field(16, description="Weight of URLs.")
    errors: Weight = Field(2, description="Weight of error lines.")
    commands: Weight = Field(1, description="Weight of commands that went well.")
    binaries: Weight = Field(
        1, description="Weight of the lines about images and files that are no longer visible."
    )

    def policy(self) -> LedgerPolicy:
        """Return them as the pure floor takes them."""
        return LedgerPolicy(**self.model_dump())


class LimitSettings(Section):
    """Limits on the conversation."""

    max_context_chars: ContextChars = Field(
        800_000,
        description="Characters of instructions and conversation: triggers at the threshold; "
        "refuses above it when the window is unknown or when this is set.",
    )
