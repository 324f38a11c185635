"""What overflow errors taught of context windows (design section 9).

A limit that an error told is exact. One that was guessed is kept close to what was accepted, so
that what follows is not refused; it rises to the largest prompt that was accepted since, and step
by step to what was guessed at first. What one tenant's errors taught binds that tenant alone,
until another tenant's agree: an upstream may give tenants different limits, and a tenant may make
errors up. All of it is forgotten when the server turns out to have loaded the model with another
window.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from proxy.compaction.policy import Window

LEARNED_SECONDS = 6 * 3600.0
"""How long a lesson holds; a server that is asked for its window may end it sooner."""

MAX_LESSONS = 4096
LEARNED, GUESSED, TRUNCATED = "error", "guess", "truncation"
"""Sources of windows, as events name them."""

MIN_TOKENS = 256
RISE_SECONDS = 30.0
RISE = 1.5
"""How often, and by how much, a guess is tried a little higher."""

ACCEPTED_SHARE = 0.8
"""Share of a window at which compaction is due with most settings, so what was accepted is this
part of the window to believe in."""

REFUSED_SHARE = 0.15
"""Share of what was refused that is believed to fit, however little was tried."""

MAX_ACCEPTED = 4096
_MAX_STEPS = 40
_Key = tuple[str, str, bytes]
Undo = Callable[[], None]


@dataclass(slots=True)
class _Lesson:
    tokens: int
    exact: bool
    input_only: bool
    until: float
    ceiling: int = 0
    """What a guess rises to by itself."""
    since: float = 0.0
    """When it began to rise."""
    source: str = ""

    def at(self, now: float) -> int:
        """Return the limit at a time, in tokens."""
        if self.ceiling <= self.tokens:
            return self.tokens
        steps = min(int((now - self.since) / RISE_SECONDS), _MAX_STEPS)
        return min(self.ceiling, int(self.tokens * RISE**steps))


class LearnedWindows:
    """The lessons of one process, by base URL, model and tenant."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Take a monotonic clock, in seconds."""
        self._clock = clock
        self._lessons: OrderedDict[_Key, _Lesson] = OrderedDict()
        self._agreed: OrderedDict[tuple[str, str], _Lesson] = OrderedDict()
        self._accepted: OrderedDict[_Key, int] = OrderedDict()

    @property
    def knows_any(self) -> bool:
        """Whether there is any lesson."""
        return bool(self._lessons)

    def window(self, base: str, model: str, tenant: bytes) -> Window | None:
        """Return the window that errors taught a tenant; None when they taught nothing."""
        if not self._lessons:
            return None
        now = self._clock()
        own = self._lessons.get((base, model, tenant))
        lesson = own if own is not None and own.until > now else self._agreed.get((base, model))
        if lesson is None or lesson.until <= now:
            return None
        return Window(lesson.at(now), lesson.source, lesson.input_only)

    def learn(
        self,
        base: str,
        model: str,
        tenant: bytes,
        tokens: int,
        *,
        exact: bool,
        input_only: bool = False,
        source: str = "",
    ) -> None:
        """Take a limit.

        Args:
            base: the upstream's base URL.
            model: the model that was asked.
            tenant: whose request it was.
            tokens: the limit; an absurdly small one is not believed.
            exact: whether the error told it.
            input_only: whether it is a limit of the input alone.
            source: how it came to be known, where it was not by an error.
        """
        if tokens < MIN_TOKENS:
            return
        lesson = _Lesson(
            tokens,
            exact,
            input_only,
            self._clock() + LEARNED_SECONDS,
            source=source or (LEARNED if exact else GUESSED),
        )
        key = (base, model, tenant)
        if exact and any(
            known[:2] == key[:2]
            and known[2] != tenant
            and other.exact
            and other.tokens == tokens
            and other.until > self._clock()
            for known, other in self._lessons.items()
        ):
            self._agreed[base, model] = lesson
            _bound(self._agreed)
        self._lessons[key] = lesson
        self._lessons.move_to_end(key)
        _bound(self._lessons)

    def guess(self, base: str, model: str, tenant: bytes, refused: int) -> Undo:
        """Guess a limit below a prompt that was refused; return what takes that back.

        It is half of the prompt, or what was accepted before when that is more.
        """
        key = (base, model, tenant)
        accepted = self._accepted.get(key, 0)
        tokens = max(refused // 2, accepted if accepted < refused else 0)
        before = self._lessons.get(key)
        self.learn(base, model, tenant, tokens, exact=False)

        def undo() -> None:
            self._lessons.pop(key, None)
            if before is not None:
                self._lessons[key] = before

        return undo

    def settle(self, base: str, model: str, tenant: bytes, accepted: int, refused: int) -> None:
        """Note that a guess helped: one prompt was refused and a smaller one was accepted.

        The limit may be anywhere in between. It is taken to be near what was accepted, so that
        what comes next is not refused, and then to rise. Both in estimated tokens.
        """
        lesson = self._lessons.get((base, model, tenant))
        near = int(max(accepted / ACCEPTED_SHARE, REFUSED_SHARE * refused))
        if lesson is not None and not lesson.exact and near < lesson.tokens:
            lesson.ceiling, lesson.since = lesson.tokens, self._clock()
            lesson.tokens = max(near, self._accepted.get((base, model, tenant), 0))

    def accepted(self, base: str, model: str, tenant: bytes, tokens: int) -> None:
        """Note that a prompt of so many tokens was taken, as the upstream counts them.

        A guess that says less was wrong.
        """
        key = (base, model, tenant)
        if tokens > self._accepted.get(key, 0):
            self._accepted[key] = tokens
            self._accepted.move_to_end(key)
            if len(self._accepted) > MAX_ACCEPTED:
                self._accepted.popitem(last=False)
        lesson = self._lessons.get(key) if self._lessons else None
        if lesson is not None and not lesson.exact:
            lesson.tokens = max(lesson.tokens, tokens)

    def forget(self, base: str, model: str) -> None:
        """Forget a model, since its server has loaded it anew with another window."""
        self._agreed.pop((base, model), None)
        for key in [key for key in self._lessons if key[:2] == (base, model)]:
            del self._lessons[key]
        for key in [key for key in self._accepted if key[:2] == (base, model)]:
            del self._accepted[key]


def _bound(lessons: "OrderedDict[_Key, _Lesson] | OrderedDict[tuple[str, str], _Lesson]") -> None:
    if len(lessons) > MAX_LESSONS:
        lessons.popitem(last=False)
