"""What the store commands show: findings, how far a copy is, and what came of it."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from proxy.codec import JsonObject
from proxy.sessions.migration import KeyFate, Stage, Tally
from proxy.sessions.store_check import Finding, counted, unreadable_text
from proxy.sessions.store_url import StoreUrl

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_SECONDS = 5.0
REPEAT = "the same command again goes on from here"


def check_lines(finding: Finding) -> Iterator[str]:
    """Return a finding as lines."""
    yield f"{finding.status:4}  {finding.name:11}  {finding.text}"
    if finding.fix:
        yield f"      fix: {finding.fix}"


class Watch:
    """Shows on stderr how far a copy is: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage: Stage | None = None
        self._next = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Nobody else needs it.
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.progress import TimeRemainingColumn as Remaining

            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            console = Console(stderr=True)
            self._bar = Progress(*columns, Remaining(), console=console)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, stage: Stage, done: int, total: int | None) -> None:
        """Take how many sessions of how many are done; without a total, how many responses."""
        if self._bar is not None:
            if stage != self._stage or self._task is None:
                self._task = self._bar.add_task(stage, total=total)
            self._bar.update(self._task, completed=done, total=total)
        elif stage != self._stage or done == total or time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            of = "so far" if total is None else f"of {counted(total, 'session')}"
            sys.stderr.write(f"{stage}: {done:,} {of}\n")
            sys.stderr.flush()
        self._stage = stage


@dataclass(slots=True)
class Report:
    """One migration: what was asked for and what came of it."""

    source: StoreUrl
    target: StoreUrl
    configured_key: bytes | None = field(repr=False)
    dry_run: bool = False
    key_file: Path | None = None
    key: bytes | None = field(default=None, repr=False)
    """The source's own tenancy key."""
    key_fate: KeyFate = "none"
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    is_complete: bool = False
    interrupted: bool = False
    error: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether everything that can be copied is there."""
        tally = self.tally
        different = tally.different or tally.different_responses
        return self.is_complete and not (different or tally.left_behind)

    def to_json(self) -> JsonObject:
        """Return it as one JSON object; it holds no key."""
        return {
            "source": self.source.shown,
            "target": self.target.shown,
            "dry_run": self.dry_run,
            "complete": self.is_complete,
            "ok": self.is_fine,
            "interrupted": self.interrupted,
            "error": self.error or None,
            **self.tally.to_json(),
            "seconds": round(self.seconds, 3),
            "tenancy_key": self.key_fate,
            "key_file": str(self.key_file) if self.key_file and not self.dry_run else None,
            "warnings": [*self.warnings()],
            "notes": [*self.notes()],
        }

    def lines(self) -> Iterator[tuple[str, bool]]:
        """Yield lines for people, and whether each tells of trouble."""
        tally = self.tally
        if self.error:
            yield f"foldgate: {self.error}", True
        if not self.is_complete and tally.total:
            how = "interrupted" if self.interrupted else "stopped"
            done = f"{tally.sessions:,} of {counted(tally.total, 'session')} are copied"
            yield f"foldgate: {how}: {done}; {REPEAT}", True
        elif self.interrupted:
            yield f"foldgate: interrupted before anything was copied; {REPEAT}", True
        if self.is_complete:
            yield from ((line, False) for line in self._summary())
            yield from ((f"warning: {text}", True) for text in self.warnings())
            yield from ((f"note: {text}", False) for text in self.notes())

    def _summary(self) -> Iterator[str]:
        tally = self.tally
        what = "would copy" if self.dry_run else "copied"
        yield f"{what} {self.source.shown} -> {self.target.shown}"
        parts = (
            counted(tally.sessions, "session"),
            counted(tally.checkpoints, "checkpoint"),
            counted(tally.clip_decisions, "clip decision"),
            counted(tally.archived, "archived message"),
            counted(tally.events, "event"),
            counted(tally.responses, "recorded response"),
        )
        yield f"  {', '.join(parts)}"
        yield f"  {counted(tally.bytes, 'byte')} in {self.seconds:.1f} seconds"
        if not self.dry_run:
            what = counted(tally.verified, "session")
            if tally.responses and not tally.different_responses:
                what += f" and {counted(tally.responses, 'recorded response')}"
            yield f"verified: {what} equal in the target"

    def warnings(self) -> Iterator[str]:
        """Yield what needs doing something about."""
        tally = self.tally
        for value, number in sorted(tally.unreadable.items(), key=str):
            text, fix = unreadable_text(value, number)
            advice = "" if value.why == "damaged" else f": {fix}, and repeat"
            yield f"left out: {text}{advice}"
        if tally.different:
            count = counted(len(tally.different), "session")
            first = ", ".join(tally.different[:3])
            yield (
                f"{count} not equal in the target ({first}): was it used meanwhile, or is it full "
                "or damaged? Repeat, then see `foldgate store check`"
            )
        if tally.different_responses:
            count = counted(tally.different_responses, "recorded response")
            yield (
                f"{count} not equal in the target: was it used meanwhile, or is it full, damaged "
                "or of a newer version? Repeat, then see `foldgate store check`"
            )
        if self.key_fate == "other" and self.configured_key is None:
            yield (
                "the target has another tenancy key: copied sessions will not be found unless "
                "tenancy.key is set to the source's, which --key-file FILE writes"
            )

    def notes(self) -> Iterator[str]:
        """Yield what is good to know."""
        if self.tally.out_of_reach:
            count = counted(self.tally.out_of_reach, "old checkpoint")
            yield f"{count} left behind, which no request finds any more"
        if self.key is None:
            yield "the source holds no tenancy key of its own: keep tenancy.key as it is"
        elif self.configured_key not in (None, self.key):
            yield (
                "tenancy.key is set and is not the key stored in the source; sessions are found "
                "under the one they were made with"
            )
        elif self.target.kind != "sqlite" and self.configured_key is None:
            yield self._about_replicas()

    def _about_replicas(self) -> str:
        if self.key_file is not None and not self.dry_run:
            return f"give all replicas the tenancy key in {self.key_file}"
        return (
            "replicas that tell tenants apart by credential need tenancy.key set to the source's; "
            "--key-file FILE writes it"
        )
