"""What was said to the assistant, word for word, and what has become of it.

Every user message and every system message from the middle of the conversation, in order. Code
marks which are answered, which state a rule, and which a later one withdrew or replaced; it
never changes a word. A message that is cut keeps its beginning, its end and its rules.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from proxy.compaction import rules
from proxy.compaction.binaries import describe_binary
from proxy.compaction.rules import Statement
from proxy.compaction.sentences import Span, is_mixed, sentences
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
            quotes.append(Quote(text, said[index], content.role))
    return _resolved(quotes)


def answers(contents: Sequence[Content]) -> list[bool]:
    """Tell for each item whether the assistant wrote a text, and no call, before the next user."""
    answered, found = False, [False] * len(contents)
    for index in range(len(contents) - 1, -1, -1):
        found[index] = answered
        content = contents[index]
        if content.kind is Kind.USER:
            answered = False
        elif content.kind is Kind.ASSISTANT and not content.calls and content.text.strip():
            answered = True
    return found


def _quoted(content: Content) -> str:
    lines = [content.text, *map(describe_binary, content.binaries)]
    return "\n".join(line for line in lines if line.strip())


def _resolved(quotes: list[Quote]) -> tuple[Quote, ...]:
    statements = [_statements(quote.text, number) for number, quote in enumerate(quotes, 1)]
    ends = _ends([s for of_message in statements for s in of_message])
    seen: dict[str, int] = {}
    resolved: list[Quote] = []
    for quote, stated in zip(quotes, statements, strict=True):
        first = seen.setdefault(quote.text, len(resolved))
        resolved.append(_ranked(quote, stated, ends))
        if first < len(resolved) - 1:
            # Said again; where it was said first, it is as answered as it is now.
            again = (*resolved[first].again, len(resolved))
            marks, is_over = resolved[-1].marks, resolved[-1].is_over
            resolved[first] = replace(
                resolved[first], again=again, answered=quote.answered, marks=marks, is_over=is_over
            )
    return tuple(resolved)


def _ranked(quote: Quote, stated: Sequence[Statement], ends: dict[tuple[int, int], str]) -> Quote:
    marks, over = [], 0
    for statement in stated:
        end = ends.get((statement.message, statement.start))
        if end is None:
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
        is_over=bool(over) and over == len(stated),
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
        is_rule = rules.is_rule(sentence) or rules.withdraws(sentence)
        if not is_rule and sentence.endswith("?"):
            continue
        if is_rule or (exact and rules.has_value(sentence)) or rules.is_labelled(sentence):
            words = rules.subject(sentence)
            found.append(Statement(sentence, number, start, end, is_rule, words))
    if len(found) <= MAX_STATEMENTS:
        return found
    half = MAX_STATEMENTS // 2
    return found[:half] + found[-half:]


def _ends(statements: Sequence[Statement]) -> dict[tuple[int, int], str]:
    """Return what became of the statements that do not hold as they were said, by place."""
    ends: dict[tuple[int, int], str] = {}
    patterns: dict[str, Statement] = {}
    in_force: list[Statement] = []
    index = _Index()
    for statement in statements:
        if rules.withdraws(statement.text):
            for rule in rules.withdrawn_by(statement.text, in_force[-MAX_RULES:]):
                if rule.message != statement.message:
                    ends[rule.message, rule.start] = f"withdrawn in {statement.message}"
                    in_force.remove(rule)
        pattern = rules.pattern(statement.text)
        old = patterns.get(pattern) if pattern else None
        if old is not None and old.text != statement.text and old.message != statement.message:
            ends.setdefault((old.message, old.start), f"superseded in {statement.message}")
            in_force = [rule for rule in in_force if rule is not old]
        elif statement.is_rule or pattern or rules.may_restate(statement.text):
            for earlier in index.alike(statement):
                place = earlier.message, earlier.start
                ends.setdefault(place, f"superseded in {statement.message} {HINT}")
        if pattern:
            patterns[pattern] = statement
        index.add(statement)
        if statement.is_rule:
            in_force.append(statement)
    return ends


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


_MARKUP = re.compile(r"^(?=\[\d+[\],]|## )", re.M)


def guarded(text: str) -> str:
    """Set off lines of a quote that look like the ledger's own, so that none can be forged."""
    if "\n[" in text or "\n## " in text or text.startswith(("## ", "[")):
        return _MARKUP.sub(" ", text)
    return text
