"""Making one checkpoint: ledger from the originals, summary from the model, or extract.

The ledger is always built from the items that the client resent. What is new since the last
summary is read in chunks, each call going on from what the one before wrote; what every call
wrote is kept, so that the next attempt goes on from there. A request waits for a few calls only;
what they do not reach is left to the background.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.compaction.checkpoint import Checkpoint, Sections, carried, render, sections_text
from proxy.compaction.chunks import Span
from proxy.compaction.layout import arrange, size_of_layout, validate
from proxy.compaction.measure import exact_tokens
from proxy.compactor.asking import Asker, Told
from proxy.compactor.folds import StoredFolds
from proxy.compactor.grounding import grounded, regrounded
from proxy.compactor.material import Base, Body, FoldJob, Material, Reading, as_json
from proxy.compactor.ports import Environment, Summarizer
from proxy.errors import SummaryFailed
from proxy.transcript import Size, total

MAX_EXTRACT_TOKENS = 4000
"""What is stored as the text of an extract, of an earlier summary."""

MAX_SHRUNK = 2
"""How often a prompt that was too long is sent again, smaller."""

_REPAIRABLE = frozenset(
    {
        "empty",
        "tool_call",
        "too_short",
        "refusal",
        "unrelated",
        "malformed_json",
        "error_text",
        "truncated",
        "http_400",
        "malformed_reply",
    }
)


@dataclass(frozen=True, slots=True)
class Folded:
    """A checkpoint and how it came about."""

    checkpoint: Checkpoint
    failure: str = ""
    """Reason word when the summariser failed: it is an extract, or covers less than it might."""
    detail: str = ""
    spent: Sequence[bytes] = ()
    """Keys of running summaries that are needed no longer once it is stored."""


@dataclass(slots=True)
class _Tries:
    """What one attempt may still do."""

    calls: int
    shrunk: int = 0
    repaired: bool = False
    took: float = 0.0
    """Seconds of the last call."""
    saved: list[bytes] = field(default_factory=list)

    def may_repeat(self, error: SummaryFailed) -> bool:
        """Tell whether another body may help, and count it as tried."""
        if error.overflowed:
            self.shrunk += 1
            return self.shrunk <= MAX_SHRUNK
        if error.reason not in _REPAIRABLE or self.repaired:
            return False
        self.repaired = True
        return True


class Folder:
    """Makes checkpoints; limits how many summaries run at once."""

    def __init__(
        self,
        summarizer: Summarizer,
        environment: Environment,
        concurrency: int,
        folds: StoredFolds,
    ) -> None:
        """Take the summarizer, time and chance, the limit, and where running summaries are."""
        self.concurrency = concurrency
        self._asker = Asker(summarizer, environment.new_id)
        self._environment = environment
        self._slots = asyncio.Semaphore(concurrency)
        self._folds = folds

    async def fold(self, job: FoldJob) -> Folded:
        """Return the checkpoint for a due compaction.

        Raises:
            SummaryFailed: when the summariser failed and the rules allow no extract, or nobody
                waits for one.
        """
        # A long history takes a while to read; others are served meanwhile.
        material = await asyncio.to_thread(Material.of, job)
        stored = await self._folds.on_chain(job.transcript, job.compact.cut.length)
        base = Base() if job.parent is None else Base.of(job.parent)
        for fold in stored:
            if fold.form == job.form and fold.covered > base.covered:
                base = Base.of(fold)
        reading = Reading.begin(base, material.replaced)
        tries = _Tries(job.calls, saved=[fold.key for fold in stored])
        may_extract = job.rules.fallback == "extractive" and not job.background
        if job.compact.extractive_only and may_extract and not reading.is_over:
            return Folded(self._extract(job, material, base), "cooldown")
        failure: SummaryFailed | None = None
        try:
            await self._read(job, material, reading, tries)
        except SummaryFailed as error:
            if not may_extract and not (reading.done and job.background):
                raise
            failure = error
        reason, detail = (failure.reason, failure.detail) if failure else ("", "")
        if not reading.done and not reading.is_over:
            return Folded(self._extract(job, material, base), reason, detail)
        body = await asyncio.to_thread(regrounded, material, reading.body)
        record = self._record(
            job, material, body, partial=reading.partial, covered=reading.first_unread
        )
        return Folded(record, reason, detail, tries.saved if reading.is_over else ())

    def forget(self, job: FoldJob, spent: Sequence[bytes]) -> None:
        """Let running summaries go that a stored checkpoint has taken the place of."""
        self._folds.drop(job.transcript.anchor, spent)

    async def _read(
        self, job: FoldJob, material: Material, reading: Reading, tries: _Tries
    ) -> None:
        """Have the rest read, as far as calls and time allow.

        Raises:
            SummaryFailed: when a call failed that could not be repeated; what came before counts.
        """
        if reading.is_over:
            return
        clock = asyncio.get_running_loop().time
        deadline = clock() + job.rules.deadline_seconds
        span = await self._asker.span(job, material, reading)
        failed: SummaryFailed | None = None
        while not reading.is_over:
            late = not job.background and clock() + tries.took > deadline
            if tries.calls <= 0 or (late and (failed or reading.done)):
                if failed:
                    raise failed
                return
            try:
                told = await self._call(job, material, reading, tries, span, deadline, failed)
            except SummaryFailed as error:
                if not tries.may_repeat(error):
                    raise
                failed = error
                continue
            failed = None
            await self._take(job, material, reading, tries, told)

    async def _call(
        self,
        job: FoldJob,
        material: Material,
        reading: Reading,
        tries: _Tries,
        span: Span,
        deadline: float,
        failed: SummaryFailed | None,
    ) -> Told:
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout_at(None if job.background else deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise SummaryFailed("busy", "too many summaries at once") from None
        started = clock()
        if job.background:
            deadline = started + job.rules.deadline_seconds
        # A prompt that was too long comes again smaller, not worded otherwise.
        reason = "" if failed is None or failed.overflowed else failed.reason
        try:
            told = await self._asker.ask(job, material, reading, span, deadline, reason)
        except SummaryFailed as error:
            tries.calls -= error.calls
            raise
        else:
            tries.calls -= told.calls
            return told
        finally:
            tries.took = clock() - started
            self._slots.release()

    async def _take(
        self,
        job: FoldJob,
        material: Material,
        reading: Reading,
        tries: _Tries,
        told: Told,
    ) -> None:
        answer = told.answer
        body: Body = answer.text
        if answer.sections is not None:
            body = answer.sections
            if answer.partial and isinstance(reading.body, Sections):
                body = carried(body, reading.body)
        body = await asyncio.to_thread(grounded, job, material, body, reading.body)
        reading.advance(told.count, body, partial=answer.partial)
        if job.background:
            # Each chunk may be repaired once; a request waits for one repair in all.
            tries.repaired, tries.shrunk = False, 0
        if not reading.is_over:
            fold = reading.as_fold(job, material.replaced, self._environment.now())
            tries.saved.append(fold.key)
            self._folds.keep(job.transcript.anchor, fold, job.version)

    def _extract(self, job: FoldJob, material: Material, base: Base) -> Checkpoint:
        # What a model wrote before is still the best that is known of the older part.
        known = regrounded(material, base.body)
        return self._record(job, material, known, extractive=True)

    def _record(
        self,
        job: FoldJob,
        material: Material,
        body: Body,
        *,
        partial: bool = False,
        extractive: bool = False,
        covered: int | None = None,
    ) -> Checkpoint:
        compact, items = job.compact, job.transcript.items
        ledger, omitted = material.ledger_beside(body, compact.limits)
        excerpts = ""
        if extractive or covered is not None:
            excerpts = material.newest_texts(covered or 0)
        rendered, dropped = render(
            nonce=self._environment.new_id(),
            body=body,
            ledger=ledger,
            replaced=len(material.replaced),
            tokens=compact.limits.checkpoint,
            newest=excerpts,
        )
        size = Size(len(rendered), exact_tokens(rendered))
        pieces = arrange(items, compact.cut, rendered, joined=compact.joined)
        validate(job.transcript, pieces)
        base = total(job.transcript.instructions).tokens + job.transcript.catalogue.tokens
        return Checkpoint(
            id=self._environment.new_id(),
            session=job.session,
            cut_digest=items[compact.cut.length - 1].digest,
            cut_length=compact.cut.length,
            kept=compact.cut.kept,
            front=compact.cut.front,
            pinned=compact.cut.pinned,
            frontier=compact.frontier,
            parent=job.replaces.id if job.replaces else None,
            rendered=rendered,
            chars=size.chars,
            tokens=size.tokens,
            sections=None if extractive else as_json(body),
            text=_as_text(body, excerpts) if extractive else body if isinstance(body, str) else "",
            partial=partial,
            extractive=extractive,
            tokens_before=compact.outlook.after.tokens,
            tokens_after=base + size_of_layout(pieces, size, compact.clipped).tokens,
            span_items=len(material.replaced),
            span_tokens=sum(items[i].tokens for i in material.replaced),
            omitted=omitted + dropped,
            model=job.route.model,
            created=self._environment.now(),
            covered=covered,
        )


def _as_text(body: Body, excerpts: str) -> str:
    known = body if isinstance(body, str) else sections_text(body, MAX_EXTRACT_TOKENS)
    return "\n\n".join(part for part in (known, excerpts) if part)
