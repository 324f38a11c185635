"""What one compaction works on: the items it replaces, and the summary that it goes on from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from proxy import codec
from proxy.compaction import prompt as prompts
from proxy.compaction.checkpoint import Checkpoint, Fold, Sections, sections_text
from proxy.compaction.guard import guarded, neutralise
from proxy.compaction.language import language_of
from proxy.compaction.ledger import ledger as ledgers
from proxy.compaction.measure import exact_tokens, text_tokens
from proxy.compaction.plan import Compact
from proxy.compaction.policy import Budget, LedgerPolicy, Window
from proxy.compactor.ports import Rules
from proxy.transcript import Content, Item, Kind, Transcript
from proxy.upstream.routes import Route

MAX_CALLS = 4
"""Summariser calls that a request waits for, retries included."""

FRAME_TOKENS = 90
EXTRACT_TEXTS = 6
EXTRACT_CHARS = 500

Body = Sections | str
"""What a summariser wrote: sections, or plain text."""


@dataclass(frozen=True, slots=True)
class Base:
    """A summary of the first items, to go on from."""

    body: Body = field(default="", repr=False)
    covered: int = 0
    """How many items."""
    left_out: frozenset[int] = frozenset()
    """Those of them that it does not know, since they stayed in the request."""
    partial: bool = False

    @classmethod
    def of(cls, record: Checkpoint | Fold) -> "Base":
        """Read what was stored."""
        body = record.text if record.sections is None else Sections.model_validate(record.sections)
        if isinstance(record, Fold):
            return cls(body, record.covered, frozenset(record.left_out), record.partial)
        stayed = frozenset((*record.kept, *record.front, *record.pinned))
        covered = record.cut_length if record.covered is None else record.covered
        return cls(body, covered, stayed, record.partial and record.covered is not None)


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
    version: int | None = None
    """Of the stored state that it is based on."""
    calls: int = MAX_CALLS
    """Summariser calls at most."""
    background: bool = False
    """Whether nobody waits for it: then each call has the deadline for itself."""
    prompt_texts: Callable[[], Sequence[str]] = field(default=tuple, repr=False)
    """Gives the leading instructions, which are no part of what is stored."""

    @property
    def form(self) -> str:
        """Names the prompt, so that no running summary of another one is gone on from."""
        own = self.rules.instruction
        if own is None:
            return str(prompts.FORM)
        return f"{prompts.FORM}:{blake2b(own.encode(), digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Material:
    """What is written down of the items that a compaction replaces."""

    contents: Sequence[Content] = field(repr=False)
    replaced: tuple[int, ...]
    ledger: str = field(repr=False)
    omitted: int
    book: ledgers.Ledger = field(repr=False)
    policy: LedgerPolicy

    @classmethod
    def of(cls, job: FoldJob) -> "Material":
        """Read the items up to the cut."""
        cut = job.compact.cut
        contents = [job.read(item) for item in job.transcript.items[: cut.length]]
        replaced = cut.replaced()
        book = ledgers.build(contents, replaced)
        limits, policy = job.compact.limits, job.rules.policy.ledger
        text, omitted = ledgers.render(book, limits.ledger, limits.essentials, policy)
        return cls(contents, replaced, text, omitted, book, policy)

    def ledger_beside(self, body: Body, limits: Budget) -> tuple[str, int]:
        """Return the ledger and what it leaves out; it may have the room that a summary leaves."""
        text = body if isinstance(body, str) else sections_text(body, limits.checkpoint)
        room = limits.checkpoint - exact_tokens(text) - FRAME_TOKENS
        room = min(self.policy.max_tokens, room)
        if not self.omitted or room <= exact_tokens(self.ledger):
            return self.ledger, self.omitted
        return ledgers.render(self.book, room, policy=self.policy)

    def room(self, job: FoldJob) -> int:
        """Return the tokens that a checkpoint has beside its ledger."""
        return job.compact.limits.checkpoint - exact_tokens(self.ledger) - FRAME_TOKENS

    @property
    def language(self) -> str:
        """Name of the language that the user writes, where it is plain and not English."""
        return language_of([quote.text for quote in self.book.quotes if quote.role == "user"])

    def newest_texts(self, start: int) -> str:
        """Return the heads of what the assistant last wrote, of the items from `start` on."""
        heads = list[str]()
        for index in reversed(self.replaced):
            if index < start or len(heads) == EXTRACT_TEXTS:
                break
            content = self.contents[index]
            text = content.text.strip()
            if content.kind is Kind.ASSISTANT and text:
                heads.append("- " + guarded(text[:EXTRACT_CHARS]))
        if not heads:
            return ""
        title = "## What the assistant last wrote (excerpts, oldest first)\n"
        return title + "\n".join(heads[::-1])


@dataclass(slots=True)
class Reading:
    """How far the replaced items were read, and what came of it."""

    body: Body = field(repr=False)
    new: list[int]
    """What the summary did not know when it began, ascending."""
    covered: int
    partial: bool
    done: int = 0
    """How many of the new ones were read."""
    wary: bool = False
    """Whether calls leave room for a summariser that counts more than is estimated."""

    @classmethod
    def begin(cls, base: Base, replaced: Sequence[int]) -> "Reading":
        """Go on from a summary."""
        new = [i for i in replaced if i >= base.covered or i in base.left_out]
        return cls(base.body, new, base.covered, base.partial)

    @property
    def is_over(self) -> bool:
        """Whether everything was read."""
        return self.done == len(self.new)

    @property
    def first_unread(self) -> int | None:
        """Index of the first item that was not read; None when all were."""
        return None if self.is_over else self.new[self.done]

    def advance(self, count: int, body: Body, *, partial: bool) -> None:
        """Note that so many more were read."""
        self.done += count
        self.covered = max(self.covered, self.new[self.done - 1] + 1)
        self.body, self.partial = body, self.partial or partial

    def as_fold(self, job: FoldJob, replaced: Sequence[int], now: float) -> Fold:
        """Return what is stored of it."""
        unread = {*range(self.covered)}.difference(replaced).union(self.new[self.done :])
        return Fold(
            digest=job.transcript.items[self.covered - 1].digest,
            form=job.form,
            covered=self.covered,
            left_out=tuple(sorted(i for i in unread if i < self.covered)),
            sections=as_json(self.body),
            text=self.body if isinstance(self.body, str) else "",
            partial=self.partial,
            created=now,
        )


def _cut(text: str, tokens: int) -> str:
    # Dense script costs up to a token a character, so the length is found by measuring.
    length = min(len(text), tokens * 4)
    while length > 0 and text_tokens(text[:length]) > tokens:
        length -= max(1, length // 8)
    return text[:length]


def previous(body: Body, tokens: int) -> str:
    """Write a summary for the summariser, within `tokens`: as JSON where that fits.

    What a model wrote is as little to be trusted as what it read.
    """
    if isinstance(body, str):
        return neutralise(guarded(_cut(body, tokens)))
    text = neutralise(guarded(codec.dumps(as_json(body)).decode()))
    return text if text_tokens(text) <= tokens else sections_text(body, tokens)


def as_json(body: Body) -> codec.JsonObject | None:
    """Return sections as they are stored; None for plain text."""
    if isinstance(body, str):
        return None
    value = codec.loads(body.model_dump_json(by_alias=True))
    return value if isinstance(value, dict) else None
