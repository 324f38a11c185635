"""What was said to the assistant, word for word, and what has become of it.

Every user message and every system message from the middle of the conversation, in order. Code
marks which are answered, which state a rule, and which a later one withdrew or replaced; it
never changes a word. A message that is cut keeps its beginning, its end and its rules.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from proxy.compaction.binaries import describe_binary
from proxy.compaction.guard import one_line
from proxy.compaction.ledger import rules, said, withdrawals
from proxy.compaction.ledger.pastes import Span
from proxy.compaction.ledger.rules import Statement
from proxy.compaction.ledger.withdrawals import Rule
from proxy.transcript import Content, Kind

PLAIN, EXACT, STATED, RULE = 0, 1, 2, 3
"""Ranks of a message, by the best that it holds: nothing of note, something exact, a statement
under a label, a rule. What is left out first comes first."""

MAX_REST_CHARS = 200
"""What stands under a label goes on to the end of a line that is no longer than this."""

MAX_GOES_ON_CHARS = 140
MAX_NOTE_CHARS = 120
MAX_QUOTED_RULES = 4
HINT = "where they conflict"
"""Ends the mark of what a later message may have replaced."""

MAX_RULES = 200
"""So many of the latest rules in force a withdrawal may mean."""

MAX_WITHDRAWALS = 300
"""Of one ledger; later ones are quoted, and mark nothing."""

MAX_COMPARED = 8
"""A statement is compared with so many earlier ones for each of its rarest words."""

MAX_COMPARISONS = 4_000
"""Of one ledger; what is said after so many is marked by its pattern alone."""

_QUOTE = '"'
_BULLETS = " \t-*\u2022"
_STOP = re.compile(r"[.!](?=\s|$)")
_GAP = 48
"""Leaving out fewer characters than the note about it takes saves nothing."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A user or system message, word for word."""

    text: str
    answered: bool
    role: str = "user"
    rank: int = PLAIN
    worth: int = PLAIN
    """Its rank, or that of a rule when what reads like one may be a part of a paste."""
    keep: tuple[Span, ...] = ()
    """Where its rules and facts stand; these stay when it is cut."""
    core: tuple[Span, ...] = ()
    """Where its rules and what is stated under a label stand, without what is around them, what
    no longer holds, and what a later message says again."""
    notes: tuple[tuple[int, str], ...] = ()
    """What surely became of a line of several, and where it ends, in order."""
    marks: tuple[str, ...] = ()
    """What a later message did to it, for example ``withdrawn in 9``."""
    again: tuple[int, ...] = ()
    """Numbers of the later messages that say exactly the same."""
    is_echo: bool = False
    """Whether nothing that it states under a label or rules stands in it alone."""
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
    answered = answers(contents)
    quotes: list[Quote] = []
    for index in replaced:
        content = contents[index]
        if content.kind not in {Kind.USER, Kind.INSTRUCTION}:
            continue
        text = _quoted(content)
        if text and not content.text.strip():
            text += _caption(contents, index)
        if text:
            quotes.append(Quote(text, answered[index], content.role, at=index))
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


def _caption(contents: Sequence[Content], index: int) -> str:
    """Return what the assistant says next, which tells what it saw."""
    for content in contents[index + 1 :]:
        if content.kind is Kind.USER:
            break
        if content.kind is Kind.ASSISTANT and content.text.strip():
            told = one_line(content.text, MAX_NOTE_CHARS).replace(_QUOTE, "'")
            return f' the assistant: "{told}"'
    return ""


def _resolved(quotes: list[Quote]) -> tuple[Quote, ...]:
    read = [said.statements(quote.text, number) for number, quote in enumerate(quotes, 1)]
    stated_all = [s for of_message, _ in read for s in of_message]
    ends = _ends(stated_all)
    newest = {s.text: s.message for s in stated_all}
    seen: dict[str, int] = {}
    resolved: list[Quote] = []
    for quote, (stated, is_mixed) in zip(quotes, read, strict=True):
        first = seen.setdefault(quote.text, len(resolved))
        resolved.append(_ranked(quote, stated, ends, newest, is_mixed=is_mixed))
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
    *,
    is_mixed: bool,
) -> Quote:
    marks, notes = list[str](), list[tuple[int, str]]()
    over = again = 0
    for statement in stated:
        end = ends.get((statement.message, statement.start))
        if end is None:
            again += newest[statement.text] > statement.message
            continue
        over += not end.endswith(HINT)
        alone = statement.is_alone
        marks.append(end if alone else f'{end}: "{_note(statement.text)}"')
        if not end.endswith(HINT) and "\n" in quote.text.strip():
            notes.append((statement.end, f" [{end}]"))
    rank = max(map(_rank, stated), default=PLAIN)
    keep = tuple(said.line_of(quote.text, s.start, s.end) for s in stated)
    core = tuple(
        _with_rest(quote.text, s)
        for s in stated
        if _rank(s) >= STATED
        and newest[s.text] == s.message
        and not s.text.endswith(":")
        and ends.get((s.message, s.start), HINT).endswith(HINT)
    )
    if rank == RULE and is_mixed:
        # Which of its words are a rule is said, so that nothing pasted is taken for one.
        own = [s.text for s in stated if s.is_rule and (s.message, s.start) not in ends]
        marks += [f'rule: "{_note(text)}"' for text in own[-MAX_QUOTED_RULES:]]
    return replace(
        quote,
        rank=rank,
        worth=max([rank, *(RULE for s in stated if s.is_pasted and rules.is_rule(s.text))]),
        keep=keep,
        core=core,
        is_echo=rank >= STATED and not core,
        notes=tuple(notes),
        marks=tuple(dict.fromkeys(marks)),
        # What a later message says again, word for word, is not lost with this one.
        is_over=bool(over)
        and over + again == len(stated)
        and _says_little_else(quote.text, stated),
    )


def _says_little_else(text: str, stated: Sequence[Statement]) -> bool:
    """Tell whether a message is not much more than its statements: a request beside them is."""
    return 2 * sum(s.end - s.start for s in stated) > len(text.strip())


def _rank(statement: Statement) -> int:
    if statement.is_rule:
        return RULE
    return STATED if statement.is_pasted or rules.is_labelled(statement.text) else EXACT


def _note(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_NOTE_CHARS else text[: MAX_NOTE_CHARS - 1] + "…"


def _with_rest(text: str, statement: Statement) -> Span:
    """Return where a statement stands, with what still belongs to its label."""
    start, end = statement.start, statement.end
    if not rules.is_labelled(statement.text):
        return start, end
    line = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last
    if not text[line:start].strip(_BULLETS):
        return (start, last) if last - start <= MAX_REST_CHARS else (start, end)
    # Behind a label in the midst of a line, short sentences may go on with it.
    stops = _STOP.finditer(text, end, min(last, start + MAX_GOES_ON_CHARS))
    return start, max((stop.end() for stop in stops), default=end)


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
        self._in_force: dict[tuple[int, int], Statement] = {}
        """By place, in the order they were said."""
        self._rules: dict[tuple[int, int], Rule] = {}
        """What a withdrawal has looked at."""
        self._withdrawals = 0
        self._index = _Index()

    def add(self, new: Statement) -> None:
        """Take in the next statement, in the order they were made."""
        if new.is_pasted:
            self._patterns.setdefault(new.pattern, new)
            self._index.add(new)
            return
        if new.takes_back:
            self._withdraw(new)
        self._supersede(new)
        self._index.add(new)
        if new.is_rule and (not new.takes_back or rules.is_rule(new.text)):
            self._in_force[new.message, new.start] = new

    def _withdraw(self, new: Statement) -> None:
        self._withdrawals += 1
        if self._withdrawals > MAX_WITHDRAWALS:
            return
        last = islice(reversed(self._in_force.items()), MAX_RULES)
        earlier = [self._rule(place, statement) for place, statement in last][::-1]
        for rule, is_sure in withdrawals.withdrawn_by(new.text, new.message, earlier):
            self._mark(rule.statement, f"withdrawn in {new.message}", is_sure=is_sure)

    def _rule(self, place: tuple[int, int], statement: Statement) -> Rule:
        rule = self._rules.get(place)
        if rule is None:
            rule = self._rules[place] = Rule(statement)
        return rule

    def _supersede(self, new: Statement) -> None:
        pattern, mark = new.pattern, f"superseded in {new.message}"
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
            self._in_force.pop(place, None)


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
        return noted(quote)
    head = cap * 2 // 3
    spans = [(0, head), (len(text) - (cap - head), len(text))]
    for start, end in reversed(quote.keep):
        if end - start <= keep_chars:
            keep_chars -= end - start
            spans.append((start, end))
    return "".join(_joined(quote, sorted(spans)))


def noted(quote: Quote, start: int = 0, end: int | None = None) -> str:
    """Return a part of a message, with what became of each of its lines behind it."""
    text, end = quote.text, len(quote.text) if end is None else end
    if not quote.notes:
        return text[start:end]
    parts = []
    for at, note in quote.notes:
        if start < at <= end:
            parts += [text[start:at], note]
            start = at
    return "".join([*parts, text[start:end]])


def essence(quote: Quote, keep_chars: int, *, core: bool = False) -> str:
    """Shorten a message to its rules and facts alone, the last of them first.

    Args:
        quote: the message.
        keep_chars: how much may stay.
        core: leave out what stands around rules and labelled statements, too.
    """
    spans = []
    for start, end in dict.fromkeys(reversed(quote.core if core else quote.keep)):
        if end - start <= keep_chars:
            keep_chars -= end - start
            spans.append((start, end))
    return "\n".join(["…", *_separate(quote, sorted(spans))])


def _separate(quote: Quote, spans: Sequence[Span]) -> Iterator[str]:
    at = 0
    for start, end in spans:
        if end > at:
            yield noted(quote, max(start, at), end).strip()
            at = end


def _joined(quote: Quote, spans: Sequence[Span]) -> Iterator[str]:
    at = 0
    for start, end in spans:
        if start - at > _GAP:
            before = "\n" if at else ""
            yield f"{before}[… {start - at} characters left out …]\n"
        elif start > at:
            yield noted(quote, at, start)
        if end > at:
            yield noted(quote, max(start, at), end)
            at = end
