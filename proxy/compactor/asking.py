"""One call of the summariser: how large it may be, what it says, what its refusal teaches."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from proxy.compaction import prompt as prompts
from proxy.compaction.answer import Answer, read_answer
from proxy.compaction.chunks import Span, fitted, in_one
from proxy.compaction.measure import text_tokens
from proxy.compaction.policy import SUMMARY_TOKENS
from proxy.compactor.material import MAX_CALLS, Body, FoldJob, Material, Reading, previous
from proxy.compactor.ports import Summarizer
from proxy.errors import SummaryFailed
from proxy.upstream.routes import Route
from proxy.upstream.summarizer import SummaryJob

MIN_SUMMARY_TOKENS = 96
INPUT_SAFETY = 0.85
"""Share of the summariser's window that an estimated input may take."""

WARY_SAFETY = 0.7
"""The same in a row of calls, while nobody knows how the summariser counts."""

MARGIN_TOKENS = 64
MARGIN_SHARE = 0.02
PREVIOUS_SHARE = 0.4

LESSON_SECONDS = 600.0
"""How long a refusal is remembered: a server may be started anew with another window."""

MAX_ROUTES = 256
_SLACK = 1.05
_MIN_STEP = 0.9
_RESERVE_AT_MOST = 4
"""The answer gets a quarter of the window at most."""

_LIKE_A_NONCE = "0" * 16
"""As long as those to come."""

_ENLARGED = frozenset({"truncated", "empty"})


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a summariser's answers and refusals told about its window and its count."""

    window: int | None = None
    factor: float = 0.0
    """What it counted for each estimated token, at most; 0 while it told nothing."""
    prompt: int | None = None
    """Largest prompt to try, estimated tokens, where it told too little."""
    until: float = 0.0


_NOTHING = Lesson()


class Lessons:
    """What was learned of each summariser, by upstream and model."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Take a clock, in seconds."""
        self._now = now
        self._known: OrderedDict[tuple[str, str, bytes], Lesson] = OrderedDict()

    def of(self, route: Route) -> Lesson:
        """Return what is known."""
        lesson = self._known.get(_key(route), _NOTHING)
        return lesson if self._now() < lesson.until else _NOTHING

    def counted(self, route: Route, sent: int, counted: int) -> None:
        """Learn from an answer to a prompt of `sent` estimated tokens."""
        old = self.of(route)
        factor = max(old.factor, counted / max(1, sent))
        # What was told of the window is no newer for that.
        until = old.until or self._now() + LESSON_SECONDS
        self._note(route, Lesson(old.window, factor, old.prompt, until))

    def learn(self, route: Route, sent: int, error: SummaryFailed) -> None:
        """Learn from a refusal of a prompt of `sent` estimated tokens: the next is smaller."""
        old = self.of(route)
        factor = old.factor
        if error.prompt is not None:
            factor = max(factor, _SLACK * error.prompt / max(1, sent))
        told = [window for window in (old.window, error.limit) if window is not None]
        prompt = old.prompt
        enough = factor and told and INPUT_SAFETY * min(told) / factor < _MIN_STEP * sent
        if not enough:
            prompt = min(sent // 2, sent if prompt is None else prompt)
        until = self._now() + LESSON_SECONDS
        self._note(route, Lesson(min(told, default=None), factor, prompt, until))

    def _note(self, route: Route, lesson: Lesson) -> None:
        self._known[_key(route)] = lesson
        self._known.move_to_end(_key(route))
        if len(self._known) > MAX_ROUTES:
            self._known.popitem(last=False)


def _key(route: Route) -> tuple[str, str, bytes]:
    # What one tenant was told counts for it alone.
    return route.base.url, route.model, route.tenant


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bounds of one call, tokens."""

    window: int
    asked: int
    """The length that the summary is asked for."""
    output: int
    """The output limit, by the model's own count."""
    prompt: int
    """Largest prompt, estimated."""

    @property
    def previous(self) -> int:
        """Largest summary to go on from: it must leave room for what is new."""
        return int(PREVIOUS_SHARE * self.prompt)


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one call."""

    answer: Answer
    count: int
    """Passages that were read."""
    calls: int
    """How often the upstream was asked for it."""


class Asker:
    """Makes single calls."""

    def __init__(self, summarizer: Summarizer, new_id: Callable[[], str]) -> None:
        """Take the summarizer, and what draws the nonces of fences."""
        self._summarizer = summarizer
        self._new_id = new_id
        self._lessons = Lessons(lambda: asyncio.get_running_loop().time())

    async def span(self, job: FoldJob, material: Material, reading: Reading) -> Span:
        """Prepare what is new for being read in a few calls."""
        # A long history takes a while to measure; others are served meanwhile.
        parts = await asyncio.to_thread(prompts.passages, material.contents, reading.new)
        first, _ = self._rooms(job, material, reading)
        one = await asyncio.to_thread(in_one, parts, first)
        if one is not None:
            return one
        # Of one call a refusal is soon made good; a row of them should not begin with one.
        reading.wary = job.compact.factor == 1.0
        rooms = self._rooms(job, material, reading)
        return await asyncio.to_thread(fitted, parts, *rooms, MAX_CALLS)

    def _rooms(self, job: FoldJob, material: Material, reading: Reading) -> tuple[int, int]:
        """Return what the first chunk and a later one may cost."""
        sizes = self._sizes(job, material.room(job), wary=reading.wary)
        # What fits one call shall fit its repair.
        first = sizes.prompt - self._frame(job, material, sizes, reading.body, repair=True)
        # What the first call will write is not known yet, only how long it is to be.
        likely = "x " * 2 * min(2 * sizes.asked, sizes.output)
        return first, sizes.prompt - self._frame(job, material, sizes, likely)

    async def ask(
        self,
        job: FoldJob,
        material: Material,
        reading: Reading,
        span: Span,
        deadline: float,
        failed: str,
    ) -> "Told":
        """Have the next chunk read.

        Args:
            job: the compaction.
            material: what it replaces.
            reading: how far it was read.
            span: what is new in it.
            deadline: loop time at which what was written must do.
            failed: reason word of the try before, if that was for the same chunk.

        Raises:
            SummaryFailed: when nothing usable came.
        """
        sizes = self._sizes(job, material.room(job), failed, wary=reading.wary)
        known = previous(reading.body, sizes.previous)
        frame = self._frame(job, material, sizes, known, repair=bool(failed))
        room = sizes.prompt - frame
        # It does not say what was wrong; less may help.
        chunk = span.take(reading.done, room // 2 if failed == "http_400" else room)
        if not chunk.text.strip():
            raise SummaryFailed("empty_span", "nothing of the span fits the summariser's window")
        nonce = self._new_id()
        instruction = prompts.instruction(
            _template(job, sizes),
            nonce,
            sizes.asked,
            merge=bool(known),
            repair=bool(failed),
            language=material.language,
        )
        prompt = prompts.assemble(instruction, nonce, known, chunk.text)
        call = SummaryJob(job.route, prompt, prompts.schema(sizes.asked), sizes.output, deadline)
        try:
            written = await self._summarizer.summarise(call)
        except SummaryFailed as error:
            if error.overflowed:
                self._lessons.learn(job.route, frame + chunk.tokens, error)
            raise
        if written.prompt_tokens is not None:
            self._lessons.counted(job.route, frame + chunk.tokens, written.prompt_tokens)
        try:
            answer = read_answer(written.text, cut=written.cut, span_text=known + chunk.text)
        except SummaryFailed as error:
            error.calls = written.calls
            raise
        return Told(answer, chunk.count, written.calls)

    def _frame(
        self, job: FoldJob, material: Material, sizes: Sizes, body: Body, *, repair: bool = False
    ) -> int:
        """Return what a prompt costs besides its chunk."""
        known = previous(body, sizes.previous)
        instruction = prompts.instruction(
            _template(job, sizes),
            _LIKE_A_NONCE,
            sizes.asked,
            merge=bool(known),
            repair=repair,
            language=material.language,
        )
        return text_tokens(prompts.assemble(instruction, _LIKE_A_NONCE, known, ""))

    def _sizes(self, job: FoldJob, room: int, failed: str = "", *, wary: bool) -> Sizes:
        policy, lesson = job.rules.policy, self._lessons.of(job.route)
        window = job.window.trusted or policy.max_context_chars // 4
        if lesson.window is not None:
            window = min(window, lesson.window)
        quarter = max(MIN_SUMMARY_TOKENS, window // _RESERVE_AT_MOST)
        output = min(policy.max_output_tokens, quarter)
        if failed not in _ENLARGED:
            # A reasoning model may have spent it all before it wrote anything.
            output = min(output, max(MIN_SUMMARY_TOKENS, job.compact.limits.checkpoint))
        margin = max(MARGIN_TOKENS, int(MARGIN_SHARE * window))
        # The whole may be less dense than was estimated, and a chunk of it not.
        factor = max(1.0, job.compact.factor, lesson.factor)
        safety = WARY_SAFETY if wary and not lesson.factor else INPUT_SAFETY
        prompt = int(safety * (window - output - margin) / factor)
        if lesson.prompt is not None:
            prompt = min(prompt, lesson.prompt)
        asked = max(MIN_SUMMARY_TOKENS, min(SUMMARY_TOKENS, room))
        return Sizes(window, asked, output, prompt)


def _template(job: FoldJob, sizes: Sizes) -> str:
    return job.rules.instruction or prompts.default_instruction(sizes.window)
