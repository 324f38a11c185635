"""How a person takes a rule back, and which of the rules said before is meant.

A mark on a rule that still holds does more harm than a mark that is missing. So a rule is taken
for withdrawn only when the sentence names it (or allows just what it forbids, or spares just what
it demands), without a condition, and when no other rule may be meant as well. What falls short of
that is a hint: the two may conflict.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from proxy.compaction.ledger import lifting_words, liftings
from proxy.compaction.ledger.rules import QUESTION_MARKS, Statement, apart, subject
from proxy.compaction.ledger.sentences import stems
from proxy.compaction.ledger.wordings import ASCII_WORD, TASK, is_plain

MIN_SHARED = 0.6
"""What names a rule shares so much of its telling words with it."""

MIN_OF_RULE = 0.3
"""What allows or spares something speaks of so much of a rule, to be sure that it is meant."""

_VALUE = re.compile(
    r"`[^`]+`|\"[^\"]+\"|(?<![\w.-])[\w.-]*[\d/\\@_][\w./\\@:-]*"
    r"|(?<![\w-])[\w-]+\.[a-z]{1,5}\b"
)
_QUOTED = re.compile(r"[\"\u201c][^\"\u201c\u201d]+ [^\"\u201c\u201d]+[\"\u201d]")
_WORD = re.compile(r"[^\W_]+")
_PREFIX = 4
_MIN_STEM = 3


class Form(StrEnum):
    """How a sentence takes something back."""

    REVOKES = "revokes"
    """It names a rule and takes it back."""
    RELIEVES = "relieves"
    """It says that something need not be done."""
    PERMITS = "permits"
    """It says that something may be done."""
    POINTS = "points"
    """It takes back what was said last."""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What a sentence says of rules that were said before it."""

    form: Form
    text: str
    """The part that says it, in small letters."""
    is_sure: bool
    """Whether it says so without a condition and for good."""


class Rule:
    """A rule in force, and what is looked at to tell whether it is taken back."""

    __slots__ = ("forbidden", "is_joined", "is_open", "relieves", "statement", "values", "words")

    def __init__(self, statement: Statement) -> None:
        low = _plain(statement.text)
        self.statement = statement
        self.words = statement.words - lifting_words.SCOPES
        self.values = _values(statement.text)
        # What it demands besides was never forbidden.
        forbidden = " ".join(filter(liftings.FORBIDS.search, liftings.CLAUSES.split(low)))
        self.forbidden = self._in_order(forbidden) if restricts(low) else ()
        self.is_joined = bool(liftings.JOINED.search(low))
        demands = bool(liftings.DEMANDS.search(low))
        self.relieves = demands or not liftings.FORBIDS.search(low)
        """Whether it demands something that one may be spared."""
        self.is_open = bool(demands or liftings.CONTRAST.search(low) or _demands_first(low))
        """Whether to allow what it forbids may leave it as it is."""

    def ends_with_any(self, low: str) -> bool:
        """Tell whether the last thing that it forbids is named in a text, letter by letter."""
        last = self.forbidden[-1:]
        same = set(_WORD.findall(low)).intersection(_WORD.findall(_plain(self.statement.text)))
        return any(stems(word).intersection(last) for word in same)

    def _in_order(self, text: str) -> tuple[str, ...]:
        found = [stem for word in _WORD.findall(apart(text)) for stem in sorted(stems(word))]
        return tuple(dict.fromkeys(s for s in found if s in self.words)) or tuple(self.words)


def read(sentence: str) -> Withdrawal | None:
    """Return what a sentence takes back, if anything.

    >>> read("Forget the rule about tabs.").form, read("Remove the unused import.")
    (<Form.REVOKES: 'revokes'>, None)
    """
    low = _plain(sentence)
    if not lifting_words.may_lift(ASCII_WORD.findall(low)) and (
        is_plain(low) or not lifting_words.ROOTS.search(low)
    ):
        return None
    # What is quoted, somebody else said.
    low = _QUOTED.sub(" ", low)
    for part in liftings.BUT.split(low):
        form, is_clear = _form(part)
        if form:
            if low.endswith(QUESTION_MARKS) or liftings.OPPOSITE.search(low):
                return None
            is_open = liftings.TENTATIVE.search(low) or TASK.match(low)
            is_sure = is_clear and not is_open
            return Withdrawal(form, _clause(form, part), is_sure)
    return None


def _clause(form: Form, part: str) -> str:
    """Return the part up to the comma after what is allowed; the rest is another matter."""
    ends = liftings.PERMITTED if form is Form.PERMITS else liftings.ENDED
    if form in {Form.PERMITS, Form.REVOKES} and (found := ends.search(part)):
        end = _COMMA.search(part, found.end())
        first = part[: end.start()] if end else part
        # ``The freeze is over`` alone says not what was frozen.
        return first if form is Form.PERMITS or _about(form, first) else part
    return part


_COMMA = re.compile(r"[,;:\uff0c]")


def _form(low: str) -> tuple[Form | None, bool]:
    """Return how a part of a sentence takes something back, and whether it says so plainly."""
    if liftings.NAMES.search(low):
        if liftings.LIFTS.search(low):
            return Form.REVOKES, True
        if liftings.LIFTED.search(low) or liftings.ENDED.search(low):
            return Form.REVOKES, True
        if liftings.DELETES.search(low):
            # A program has rules, too.
            return Form.REVOKES, bool(liftings.SPOKEN.search(low))
    if liftings.BAN_DROPPED.search(low):
        return Form.REVOKES, True
    if liftings.POINTS.match(low):
        return Form.POINTS, True
    return _allowing(low)


def _allowing(low: str) -> tuple[Form | None, bool]:
    if liftings.PERMITTED.search(low):
        return Form.PERMITS, _is_for_us(low)
    if liftings.RELIEVED.search(low):
        return Form.RELIEVES, True
    if liftings.NOT_NEEDED.search(low) or liftings.LIFTED.search(low):
        return Form.RELIEVES, False
    if liftings.FORGETS.search(low):
        return Form.REVOKES, False
    return None, False


def _is_for_us(low: str) -> bool:
    """Tell whether it is not somebody else who may do something: customers, tests, a colleague."""
    found = liftings.OTHERS.match(low)
    return not found or bool(liftings.DOES.search(found[1]))


def withdrawn_by(
    sentence: str, number: int, earlier: Sequence[Rule]
) -> Iterator[tuple[Rule, bool]]:
    """Yield the rules that `sentence` may take back, and whether it surely does.

    Args:
        sentence: one that `read` finds something in; another takes nothing back.
        number: of the message that says it.
        earlier: the rules in force, oldest first; those of the same message are left alone.
    """
    found = read(sentence)
    rules = [rule for rule in earlier if rule.statement.message < number]
    if found is None or not rules:
        return
    about = _about(found.form, found.text)
    if numbered := liftings.NUMBERED.search(found.text):
        yield from _numbered(found, numbered[1], rules)
    elif found.form is Form.POINTS:
        yield from _last_said(rules, number)
    elif about:
        yield from _meant(found, about, _values(sentence), rules)
    elif found.form is Form.REVOKES and liftings.ALL.search(found.text):
        is_own = bool(liftings.OWN.search(found.text))
        yield from ((rule, is_own and found.is_sure) for rule in rules)
    elif found.form is Form.REVOKES and liftings.THIS.search(found.text):
        last = rules[-1].statement.message
        is_last = len(rules) == 1 or last == number - 1
        is_single = sum(rule.statement.message == last for rule in rules) == 1
        yield rules[-1], found.is_sure and is_single and is_last


def _about(form: Form, text: str) -> set[str]:
    text = liftings.PREFACE.sub("", liftings.STOPPED.sub(r"\1", text))
    text = liftings.IN_FORCE.sub(" ", liftings.NAMES.sub(" ", text))
    if not text.isascii():
        text = lifting_words.CJK_FILLERS.sub(" ", text)
    telling = (word for word in _WORD.findall(apart(text)) if word not in lifting_words.WORDS)
    about = stems(" ".join(telling)) - lifting_words.SCOPES
    return about - lifting_words.VERBS if form in {Form.REVOKES, Form.POINTS} else about


def _numbered(found: Withdrawal, number: str, rules: Sequence[Rule]) -> Iterator[tuple[Rule, bool]]:
    named = [
        rule
        for rule in rules
        if (own := liftings.NUMBERED.search(_plain(rule.statement.text))) and own[1] == number
    ]
    yield from ((rule, found.is_sure and len(named) == 1) for rule in named)


def _last_said(rules: Sequence[Rule], number: int) -> Iterator[tuple[Rule, bool]]:
    # It means the message before, which may have been no rule at all.
    if rules[-1].statement.message == number - 1:
        yield rules[-1], rules[-1].statement.is_alone


def _meant(
    found: Withdrawal, about: set[str], values: frozenset[str], rules: Sequence[Rule]
) -> Iterator[tuple[Rule, bool]]:
    scored = []
    for rule in rules:
        if values and rule.values and values.isdisjoint(rule.values):
            continue
        score = _score(found, about, rule)
        if score:
            # What it names besides is not of the rule.
            scored.append((score if values <= rule.values else _HINT, rule))
    best = max((score for score, _ in scored), default=0.0)
    first = [rule for score, rule in scored if score == best]
    # Of several that fit as well, any may be meant; the same rule twice is one.
    is_single = len({rule.words for rule in first}) == 1
    has_many = bool(liftings.SEVERAL.search(found.text))
    if best == 1.0 and found.is_sure and not has_many:
        # What fits as a whole is meant; others are not even hinted at.
        scored = [(score, rule) for score, rule in scored if score == best]
    for score, rule in scored:
        is_best = score == 1.0 or (score == best and is_single)
        is_meant = score > _HINT and (has_many or is_best)
        yield rule, found.is_sure and is_meant


_HINT = 0.01


def _demands_first(rule: str) -> bool:
    """Tell whether a rule begins with something else than what it forbids."""
    first = liftings.CLAUSES.split(rule)[0]
    return bool(subject(first)) and not liftings.FORBIDS.search(first)


def _score(found: Withdrawal, about: set[str], rule: Rule) -> float:
    """Tell how well a rule is what is spoken of: 0 not at all, `_HINT` perhaps."""
    permits = found.form is Form.PERMITS
    if (permits and not rule.forbidden) or (found.form is Form.RELIEVES and not rule.relieves):
        # What it never forbade, or never demanded, stays.
        return 0.0
    theirs = rule.forbidden if permits else rule.words
    shared = _shared(about, theirs, bends=not found.text.isascii())
    if not shared:
        return 0.0
    named, of_rule = shared / len(about), min(1.0, shared / len(theirs))
    score = _fit(found, rule, about, shared, named, of_rule)
    if permits and rule.is_open and not _allows_without(found, about, rule):
        # To allow once what needs an approval each time is no withdrawal.
        return min(score, _HINT)
    return score


def _allows_without(found: Withdrawal, about: set[str], rule: Rule) -> bool:
    """Tell whether what is allowed is all that a rule speaks of, its approval included."""
    is_spared = liftings.WITHOUT.search(found.text) and liftings.AGAIN.search(found.text)
    return bool(is_spared) and _shared(about, rule.words, bends=False) == len(rule.words)


def _fit(
    found: Withdrawal, rule: Rule, about: set[str], shared: int, named: float, of_rule: float
) -> float:
    is_named = found.form is Form.REVOKES
    if any(map(_is_pair, about)):
        # Pairs of CJK characters overlap their neighbours, so part of them always differ.
        if named >= _PAIRS_SURE and (shared >= _MIN_SHARED or is_named):
            return named
        return _HINT if named >= _PAIRS_PERHAPS else 0.0
    if named == 1.0:
        if of_rule == 1.0:
            return 1.0
        if rule.is_joined:
            # It speaks of more than one thing.
            return _HINT
        is_whole = is_named or (of_rule >= MIN_OF_RULE and _restores(found, about, rule))
        return of_rule if is_whole else _HINT
    is_close = shared >= _MIN_SHARED and named >= MIN_SHARED
    if is_named:
        # Unless all that it names is of the rule, a task about some other rule is more likely.
        return of_rule if is_close and found.is_sure else 0.0
    return _HINT if is_close or of_rule == 1.0 else 0.0


def _restores(found: Withdrawal, about: set[str], rule: Rule) -> bool:
    """Tell whether what speaks of a part of a rule only may mean all of it.

    To push again ends the ban on pushing to main, but not the one on forced pushes.
    """
    if found.form is not Form.PERMITS:
        return True
    if not liftings.AGAIN.search(found.text):
        return False
    if _shared(about, rule.forbidden[:1], bends=False):
        return True
    # Of a thing that is allowed again, everything is: what was forbidden to do with it, too.
    return not liftings.DOES.search(found.text) and rule.ends_with_any(found.text)


_MIN_SHARED = 2
_PAIRS_SURE = 0.75
_PAIRS_PERHAPS = 0.5


def _shared(about: set[str], theirs: Collection[str], *, bends: bool) -> int:
    others = [word for word in about if word not in theirs]
    return len(about) - len(others) + sum(_alike_any(word, theirs, bends) for word in others)


def _alike_any(word: str, theirs: Collection[str], bends: bool) -> bool:
    start = word[:_MIN_STEM]
    return any(other.startswith(start) and _alike(word, other, bends) for other in theirs)


def _is_pair(word: str) -> bool:
    return len(word) == 2


def _alike(one: str, other: str, bends: bool) -> bool:
    """Tell whether two stems are of one word; some languages bend words more than English."""
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    if bends and len(short) >= _MIN_STEM:
        least = max(_MIN_STEM, len(short) - 1)
        return short[:least] == long[:least]
    # ``push`` and ``pushing``, ``test`` and ``tests``, but not ``main`` and ``maintain``.
    is_one_longer = len(short) == _PREFIX and len(long) == _PREFIX + 1
    return is_one_longer and long.startswith(short) and long[-1] in "sien"


def _values(text: str) -> frozenset[str]:
    found = (value.strip('`".,;:!?()').lower() for value in _VALUE.findall(text))
    return frozenset(value for value in found if value)


def _plain(text: str) -> str:
    return text.lower().replace("\u2019", "'")


def restricts(rule: str) -> bool:
    """Tell whether a rule, in small letters, forbids something or ties it to a condition."""
    return bool(liftings.RESTRICTS.search(rule))
