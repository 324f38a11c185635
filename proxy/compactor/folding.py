"""Making one checkpoint: ledger from the originals, summary from the model, or extract.

The ledger is always built from the items that the client resent. The summariser reads the
previous checkpoint and only what is new since then; after an extractive checkpoint, everything.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy import codec
from proxy.compaction import ledger as ledgers
from proxy.compaction import prompt as prompts
from proxy.compaction.answer import Answer, read_answer
from proxy.compaction.checkpoint import Checkpoint, Sections, bound, ground, render, sections_text
from proxy.compaction.layout import arrange, size_of_layout, validate
from proxy.compaction.measure import text_tokens
from proxy.compaction.plan import Compact
from proxy.compaction.policy import SUMMARY_TOKENS, Window
from proxy.compactor.ports import Environment, Rules, Summarizer
from proxy.errors import SummaryFailed
from proxy.transcript import Content, Item, Kind, Size, Transcript, total
from proxy.upstream.routes import Route
from proxy.upstream.summarizer import SummaryJob

MIN_SUMMARY_TOKENS = 96
INPUT_SAFETY = 0.85
"""Share of the summariser's window that an estimated input may take."""

MARGIN_TOKENS = 64
MARGIN_SHARE = 0.02
PREVIOUS_SHARE = 0.4
KNOWN_SHARE = 0.6
EXTRACT_TEXTS = 6
EXTRACT_CHARS = 500
_FRAME_TOKENS = 90

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
class FoldJob:
    """Everything one compaction works on."""

    transcript: Transcript
    compact: Compact
    parent: Checkpoint | None
    """The newest checkpoint a model wrote; None when there is none."""
    replaces: Checkpoint | None
    """The checkpoint in force until now."""
    session: str
    route: Route
    """Where the summariser is."""
    window: Window
    """The summariser's window."""
    rules: Rules
    read: Callable[[Item], Content] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Folded:
    """A checkpoint and how it came about."""

    checkpoint: Checkpoint
    failure: str = ""
    """Reason word when the summariser failed and the checkpoint is an extract."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Material:
    contents: Sequence[Content]
    replaced: tuple[int, ...]
    ledger: str
    omitted: int
    said: tuple[str, ...]


class Folder:
    """Makes checkpoints; limits how many summaries run at once."""

    def __init__(self, summarizer: Summarizer, environment: Environment, concurrency: int) -> None:
        """Take the summarizer, time and chance, and the limit."""
        self._summarizer = summarizer
        self._environment = environment
        self._slots = asyncio.Semaphore(concurrency)

    async def fold(self, job: FoldJob) -> Folded:
        """Return the checkpoint for a due compaction.

        Raises:
            SummaryFailed: when the summariser failed and the rules allow no extract.
        """
        material = _gather(job)
        if job.compact.extractive_only and job.rules.fallback == "extractive":
            return Folded(self._extract(job, material), "cooldown")
        try:
            answer = await self._ask(job, material)
        except SummaryFailed as error:
            if job.rules.fallback != "extractive":
                raise
            return Folded(self._extract(job, material), error.reason, error.detail)
        if answer.sections is None:
            body: Sections | str = answer.text
        else:
            body = bound(ground(answer.sections, material.said))
        return Folded(self._record(job, material, body, partial=answer.partial))

    async def _ask(self, job: FoldJob, material: _Material) -> Answer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + job.rules.deadline_seconds
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise SummaryFailed("busy", "too many summaries at once") from None
        try:
            return await self._ask_twice(job, material, deadline)
        finally:
            self._slots.release()

    async def _ask_twice(self, job: FoldJob, material: _Material, deadline: float) -> Answer:
        try:
            return await self._ask_once(job, material, deadline, failed="")
        except SummaryFailed as error:
            left = deadline - asyncio.get_running_loop().time()
            if error.reason not in _REPAIRABLE or left <= 1:
                raise
            return await self._ask_once(job, material, deadline, failed=error.reason)

    async def _ask_once(
        self, job: FoldJob, material: _Material, deadline: float, *, failed: str
    ) -> Answer:
        nonce = self._environment.new_id()
        limits = job.compact.limits
        room = limits.checkpoint - text_tokens(material.ledger) - _FRAME_TOKENS
        asked = max(MIN_SUMMARY_TOKENS, min(SUMMARY_TOKENS, room))
        known = job.window.trusted or job.rules.policy.max_context_chars // 4
        window = int(known / job.compact.factor)
        margin = max(MARGIN_TOKENS, int(MARGIN_SHARE * window))
        output = min(
            job.rules.policy.max_output_tokens,
            max(MIN_SUMMARY_TOKENS, limits.checkpoint),
            max(MIN_SUMMARY_TOKENS, window // 4),
        )
        if failed in {"truncated", "empty"}:
            # A reasoning model may have spent it all before it wrote anything.
            output = max(output, min(job.rules.policy.max_output_tokens, window // 4))
        template = job.rules.instruction or prompts.default_instruction(window)
        # The previous checkpoint must leave room for what is new.
        previous = _previous(job.parent, int(PREVIOUS_SHARE * (window - output - margin)))
        instruction = prompts.instruction(
            template, nonce, asked, merge=bool(previous), repair=bool(failed)
        )
        frame = text_tokens(prompts.assemble(instruction, nonce, previous, ""))
        budget = int(INPUT_SAFETY * (window - output - margin)) - frame
        span = _span(job, material, budget // 2 if failed == "http_400" else budget)
        if not span:
            raise SummaryFailed("empty_span", "nothing of the span fits the summariser's window")
        written = await self._summarizer.summarise(
            SummaryJob(
                job.route,
                prompts.assemble(instruction, nonce, previous, span),
                prompts.schema(asked),
                output,
                deadline,
            )
        )
        return read_answer(written.text, cut=written.cut, span_text=previous + span)

    def _extract(self, job: FoldJob, material: _Material) -> Checkpoint:
        # What a model wrote before is still the best that is known of the older part.
        room = job.compact.limits.checkpoint - text_tokens(material.ledger) - _FRAME_TOKENS
        known = "" if job.parent is None else _known(job.parent, int(KNOWN_SHARE * room))
        newest = _newest_texts(material)
        body = "\n\n".join(part for part in (known, newest) if part)
        return self._record(job, material, body, extractive=True)

    def _record(
        self,
        job: FoldJob,
        material: _Material,
        body: Sections | str,
        *,
        partial: bool = False,
        extractive: bool = False,
    ) -> Checkpoint:
        compact, items = job.compact, job.transcript.items
        rendered, dropped = render(
            nonce=self._environment.new_id(),
            body=body,
            ledger=material.ledger,
            replaced=len(material.replaced),
            tokens=compact.limits.checkpoint,
        )
        size = Size(len(rendered), text_tokens(rendered))
        pieces = arrange(items, compact.cut, rendered)
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
            sections=_as_json(body),
            text=body if isinstance(body, str) else "",
            partial=partial,
            extractive=extractive,
            tokens_before=compact.outlook.after.tokens,
            tokens_after=base + size_of_layout(pieces, size, compact.clipped).tokens,
            span_items=len(material.replaced),
            span_tokens=sum(items[i].tokens for i in material.replaced),
            omitted=material.omitted + dropped,
            model=job.route.model,
            created=self._environment.now(),
        )


def _gather(job: FoldJob) -> _Material:
    cut = job.compact.cut
    contents = [job.read(item) for item in job.transcript.items[: cut.length]]
    replaced = cut.replaced()
    book = ledgers.build(contents, replaced)
    text, omitted = ledgers.render(book, job.compact.limits.ledger)
    said = tuple(c.text for c in contents if c.kind in {Kind.USER, Kind.INSTRUCTION})
    return _Material(contents, replaced, text, omitted, said)


def _span(job: FoldJob, material: _Material, tokens: int) -> str:
    """Return what is new since the previous checkpoint, as far as it fits."""
    seen = 0
    if job.parent is not None:
        seen = job.parent.cut_length
        stayed = {*job.parent.kept, *job.parent.front, *job.parent.pinned}
    else:
        stayed = set[int]()
    new = [i for i in material.replaced if i >= seen or i in stayed]
    parts = prompts.passages(material.contents, new)
    if not parts or tokens <= 0:
        return ""
    text, _ = prompts.fit_span(parts, tokens)
    return text


def _previous(parent: Checkpoint | None, tokens: int) -> str:
    if parent is None:
        return ""
    if parent.sections is None:
        return parent.text[: tokens * 4]
    text = codec.dumps(parent.sections).decode()
    if text_tokens(text) <= tokens:
        return text
    return sections_text(Sections.model_validate(parent.sections), tokens)


def _known(parent: Checkpoint, tokens: int) -> str:
    if tokens <= 0:
        return ""
    if parent.sections is None:
        return parent.text[: tokens * 4]
    return sections_text(Sections.model_validate(parent.sections), tokens)


def _as_json(body: Sections | str) -> codec.JsonObject | None:
    if isinstance(body, str):
        return None
    value = codec.loads(body.model_dump_json(by_alias=True))
    return value if isinstance(value, dict) else None


def _newest_texts(material: _Material) -> str:
    heads = []
    for index in reversed(material.replaced):
        content = material.contents[index]
        text = content.text.strip()
        if content.kind is Kind.ASSISTANT and text:
            heads.append("- " + text[:EXTRACT_CHARS])
        if len(heads) == EXTRACT_TEXTS:
            break
    if not heads:
        return ""
    return "## What the assistant last wrote (excerpts, oldest first)\n" + "\n".join(heads[::-1])
