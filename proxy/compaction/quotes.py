"""What was said to the assistant, word for word, and what has become of it.

Every user message and every system message from the middle of the conversation, in order. Code
marks which are answered, which state a rule, and which a later one withdrew or replaced; it
never changes a word. A message that is cut keeps its beginning, its end and its rules.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proxy.compaction import rules, withdrawals
from proxy.compaction.binaries import describe_binary
from proxy.compaction.pastes import Span
from proxy.compaction.rules import Statement
from proxy.compaction.sentences import is_mixed, sentences
from proxy.compaction.withdrawals import Rule
from proxy.transcript import Content, Kind

PLAIN, EXACT, STATED, RULE = 0, 1, 2, 3
"""Ranks of a message, by the best that it holds: nothing of note, something exact, a statement
under a label, a rule. What is left out first comes first."""

MAX_LINE_CHARS = 300
"""A rule keeps its whole line with it when that is no longer than this."""

MAX_NOTE_CHARS = 120
MAX_QUOTED_RULES = 4
HINT = "where they conflict"
"""Ends the mark of what a later message may have replaced."""

MAX_STATEMENTS = 200
"""What one message may state; of more, the first and the last count."""

MAX_EXACT_CHARS = 2000
MAX_RULES = 200
"""So many of the latest rules in force a withdrawal may mean."""

MAX_WITHDRAWALS = 300
"""Of one ledger; later ones are quoted, and mark nothing."""

MAX_COMPARED = 8
"""A statement is compared with so many earlier ones for each of its rarest words."""

MAX_COMPARISONS = 4_000
"""Of one ledger; what is said after so many is marked by its pattern alone."""

_GAP = 48
"""Leaving out fewer characters than the note about it takes saves nothing."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A user or system message, word for word."""

    text: str
    answered: bool
    role: str = "user"
    rank: int = PLAIN
    keep: tuple[Span, ...] = ()
    """Where its rules and facts stand; these stay when it is cut."""
    marks: tuple[str, ...] = ()
    """What a later message did to it, for example ``withdrawn in 9``."""
    again: tuple[int, ...] = ()
    """Numbers of the later messages that say exactly the same."""
    is_over: bool = False
    """Whether all that it states was withdrawn or replaced."""
    at: int = field(default=0, compare=False)
    """Index of the item that says it."""


def collect(contents: Sequence[Content], replaced: Sequence[int]) -> tuple[Quote, ...]:
    """Quote the messages at `replaced`, numbered from 1 in the order they were said.

    Args:
        contents: every item up to the cut.
        replaced: indexes of those that the checkpoint stands for, ascending.
    """
    said = answers(contents)
    quotes: list[Quote] = []
    for index in replaced:
        content = contents[index]
        if content.kind not in {Kind.USER, Kind.INSTRUCTION}:
            continue
        text = _quoted(content)
        if text:
            quotes.append(Quote(text, said[index], content.role, at=index))
    return _resolved(quotes)


def answers(contents: Sequence[Content]) -> list[bool]:
    """Tell for each item whether the assistant wrote a text, and no call, before the next user.

    Of messages that a user sent one right after the other, one answer answers all.
    """
    answered, shared, found = False, False, [False] * len(contents)
    for index in range(len(contents) - 1, -1, -1):
        content = contents[index]
        found[index] = answered
        if content.kind is Kind.USER:
            found[index] = shared = answered or shared
            answered = False
        elif content.kind in {Kind.ASSISTANT, Kind.RESULT}:
            shared = False
            if content.kind is Kind.ASSISTANT and not content.calls and content.text.strip():
                answered = True
    return found


def _quoted(content: Content) -> str:
    lines = [content.text, *map(describe_binary, content.binaries)]
    return "\n".join(line for line in lines if line.strip())


def _resolved(quotes: list[Quote]) -> tuple[Quote, ...]:
    statements = [_statements(quote.text, number) for number, quote in enumerate(quotes, 1)]
    stated_all = [s for of_message in statements for s in of_message]
    ends = _ends(stated_all)
    newest = {s.text: s.message for s in stated_all}
    seen: dict[str, int] = {}
    resolved: list[Quote] = []
    for quote, stated in zip(quotes, statements, strict=True):
        first = seen.setdefault(quote.text, len(resolved))
        resolved.append(_ranked(quote, stated, ends, newest))
        if first < len(resolved) - 1:
            # Said again; where it was said first, it is as answered as it is now.
            again = (*resolved[first].again, len(resolved))
            marks, is_over = resolved[-1].marks, resolved[-1].is_over
            resolved[first] = replace(
                resolved[first], again=again, answered=quote.answered, marks=marks, is_over=is_over
            )
    return tuple(resolved)


def _ranked(
    quote: Quote,
    stated: Sequence[Statement],
    ends: dict[tuple[int, int], str],
    newest: Mapping[str, int],
) -> Quote:
    marks, over, again = [], 0, 0
    for statement in stated:
        end = ends.get((statement.message, statement.start))
        if end is None:
            again += newest[statement.text] > statement.message
            continue
        over += not end.endswith(HINT)
        alone = len(stated) == 1
        marks.append(end if alone else f'{end}: "{_note(statement.text)}"')
    rank = max(map(_rank, stated), default=PLAIN)
    keep = tuple(_with_line(quote.text, s) for s in stated)
    if rank == RULE and is_mixed(quote.text):
        # Which of its words are a rule is said, so that nothing pasted is taken for one.
        own = [s.text for s in stated if s.is_rule and (s.message, s.start) not in ends]
        marks += [f'rule: "{_note(text)}"' for text in own[-MAX_QUOTED_RULES:]]
    return replace(
        quote,
        rank=rank,
        keep=keep,
        marks=tuple(dict.fromkeys(marks)),
        # What a later message says again, word for word, is not lost with this one.
        is_over=bool(over) and over + again == len(stated),
    )


def _rank(statement: Statement) -> int:
    if statement.is_rule:
        return RULE
    return STATED if rules.is_labelled(statement.text) else EXACT


def _note(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_NOTE_CHARS else text[: MAX_NOTE_CHARS - 1] + "…"


def _with_line(text: str, statement: Statement) -> Span:
    start = text.rfind("\n", 0, statement.start) + 1
    end = text.find("\n", statement.end)
    end = len(text) if end < 0 else end
    if end - start <= MAX_LINE_CHARS:
        return start, end
    return statement.start, statement.end


def _statements(text: str, number: int) -> list[Statement]:
    # Numbers in a long paste are many, and seldom what its author stated.
    exact = len(text) <= MAX_EXACT_CHARS
    found: list[Statement] = []
    for start, end in sentences(text):
        sentence = text[start:end]
        takes_back = withdrawals.read(sentence) is not None
        is_rule = takes_back or rules.is_rule(sentence)
        if not is_rule and sentence.endswith("?"):
            continue
        if is_rule or (exact and rules.has_value(sentence)) or rules.is_labelled(sentence):
            words = rules.subject(sentence)
            is_alone = end - start == len(text.strip())
            found.append(
                Statement(sentence, number, start, end, is_rule, words, is_alone, takes_back)
            )
    if len(found) <= MAX_STATEMENTS:
        return found
    half = MAX_STATEMENTS // 2
    return found[:half] + found[-half:]


def _ends(statements: Sequence[Statement]) -> dict[tuple[int, int], str]:
    """Return what became of the statements that do not hold as they were said, by place."""
    fates = _Fates()
    for statement in statements:
        fates.add(statement)
    return fates.ends


class _Fates:
    """Follows what becomes of statements as later ones are made."""

    def __init__(self) -> None:
        self.ends: dict[tuple[int, int], str] = {}
        self._patterns: dict[str, Statement] = {}
        self._in_force: list[Rule] = []
        self._withdrawals = 0
        self._index = _Index()

    def add(self, new: Statement) -> None:
        """Take in the next statement, in the order they were made."""
        if new.takes_back:
            self._withdraw(new)
        self._supersede(new)
        self._index.add(new)
        if new.is_rule and (not new.takes_back or rules.is_rule(new.text)):
            self._in_force.append(Rule(new))

    def _withdraw(self, new: Statement) -> None:
        self._withdrawals += 1
        if self._withdrawals > MAX_WITHDRAWALS:
            return
        earlier = self._in_force[-MAX_RULES:]
        for rule, is_sure in withdrawals.withdrawn_by(new.text, new.message, earlier):
            self._mark(rule.statement, f"withdrawn in {new.message}", is_sure=is_sure)

    def _supersede(self, new: Statement) -> None:
        pattern, mark = rules.pattern(new.text), f"superseded in {new.message}"
        old = self._patterns.get(pattern) if pattern else None
        if pattern:
            self._patterns[pattern] = new
        if old is not None and old.message != new.message and old.text != new.text:
            self._mark(old, mark, is_sure=rules.is_one_value(new.text, old.text))
        elif not new.takes_back and (new.is_rule or pattern or rules.may_restate(new.text)):
            for earlier in self._index.alike(new):
                self._mark(earlier, mark, is_sure=False)

    def _mark(self, old: Statement, mark: str, *, is_sure: bool) -> None:
        place = old.message, old.start
        if not is_sure:
            self.ends.setdefault(place, f"{mark} {HINT}")
        elif self.ends.get(place, HINT).endswith(HINT):
            # What is known for sure replaces a hint.
            self.ends[place] = mark
            self._in_force = [r for r in self._in_force if r.statement is not old]


class _Index:
    """Earlier statements by the words they share, so that few need to be compared."""

    def __init__(self) -> None:
        self._by_word: dict[str, list[Statement]] = defaultdict(list)
        self._left = MAX_COMPARISONS

    def add(self, statement: Statement) -> None:
        for word in statement.words:
            self._by_word[word].append(statement)

    def alike(self, new: Statement) -> Iterator[Statement]:
        """Yield earlier statements that a differently worded one seems to restate."""
        if self._left <= 0:
            return
        near: dict[tuple[int, int], Statement] = {}
        for word in sorted(new.words, key=lambda word: (len(self._by_word[word]), word))[:6]:
            for earlier in self._by_word[word][-MAX_COMPARED:]:
                near[earlier.message, earlier.start] = earlier
        self._left -= len(near)
        for earlier in near.values():
            is_other = earlier.message != new.message and earlier.text != new.text
            if is_other and rules.restates(new, earlier):
                yield earlier


def cut(quote: Quote, cap: int, keep_chars: int = 0) -> str:
    """Shorten a message to about `cap` characters from its beginning and its end.

    Its rules and facts stay besides, up to `keep_chars`, rules at the end of the message first.
    """
    text = quote.text
    if len(text) <= cap + _GAP:
        return text
    head = cap * 2 // 3
    spans = [(0, head), (len(text) - (cap - head), len(text))]
    for start, end in reversed(quote.keep):
        if end - start <= keep_chars:
            keep_chars -= end - start
            spans.append((start, end))
    return "".join(_joined(text, sorted(spans)))


def essence(quote: Quote, keep_chars: int) -> str:
    """Shorten a long message to its rules and facts alone, the last of them first."""
    spans = []
    for start, end in dict.fromkeys(reversed(quote.keep)):
        if end - start <= keep_chars:
            keep_chars -= end - start
            spans.append((start, end))
    return "\n".join(["…", *(quote.text[start:end] for start, end in sorted(spans))])


def _joined(text: str, spans: Sequence[Span]) -> Iterator[str]:
    at = 0
    for start, end in spans:
        if start - at > _GAP:
            before = "\n" if at else ""
            yield f"{before}[… {start - at} characters left out …]\n"
        elif start > at:
            yield text[at:start]
        if end > at:
            yield text[max(start, at) : end]
            at = end
