"""Lasting rules: what a person told the assistant to do or not to do from then on.

A rule is recognised by its wording (a command or a prohibition with a word of scope) in the
languages that people mostly write. It stays in force until its author withdraws it or states it
anew with another value. Nothing here decides what a message is worth; `quotes` does.
"""

import re
from dataclasses import dataclass

from proxy.compaction.ledger import liftings, wordings
from proxy.compaction.ledger.paste_marks import folded
from proxy.compaction.ledger.sentences import stems

_VALUE_FORMS = (
    r"(?<!\w)\w+://\S+|(?:[$€£¥]\s?)?\d[\w.,:/%+-]*|(?<![\w.-])[\w.-]+[/\\@][\w./\\@:-]+"
    r"|(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]+"
    r"|\b[A-Z][A-Z0-9_-]{2,}\b|`[^`]+`|\"[^\"]+\""
)
_VALUE = re.compile(_VALUE_FORMS)
_WORDS_OR_VALUE = re.compile(rf"(?<![\w.-])((?:[a-z]++(?=[\s,;!?]|$)[\s,;]*+)++)|{_VALUE_FORMS}")
"""Plain words are taken in one go: none of them is a value, and most of a text is plain words."""

_EXACT = re.compile(r"[0-9`\"/\\@_A-Z](?:(?<![A-Z])|[A-Z]{2})")
_IN_VALUE = re.compile(r"[\d:/\\@`\"A-Z]")
"""One of these stands in all that `_VALUE` finds."""

_NUMERIC = re.compile(r"(?:[$€£¥]\s?)?\d[\d.,:/%-]*\w{0,2}\b")
_SETS = re.compile(
    r"\W*(?:please\s+|now\s+)?(?:use|set|limit|cap|raise|lower|change|stay|aim|target)\b", re.I
)
_LIMITS = re.compile(
    r"\b(?:more than|exceed|pass|over|under|below|above|at most|at least|up to"
    r"|max(?:im\w+)?|min(?:im\w+)?|limit\w*"
    r"|within|no later than|by|capped|cap)\b|[$€£¥]\s?\d",
    re.I,
)
_NAME = re.compile(r"\b[A-Z][\w-]*(?:\s+[A-Z][\w-]*)*")
_COPULA = re.compile(r"\b(?:is|are|was|were|be|ist|sind|est|es|è|é)\b|[:=]|\uff1a")
_STATED_LABEL = re.compile(
    r"^(?:[-*#>\s]*)(?:\*\*)?[A-Z][\w/-]*(?: [\w/-]+){0,3}(?:\*\*)?:(?:\*\*)?\s+\S"
)
_LABELLED = re.compile(r"[A-Z][A-Z ]{2,30}:\s*")
_MASK = "\0"
_GLUED = re.compile(
    "(?<=[a-zA-Z0-9])(?=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff])"
    "|(?<=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff])(?=[a-zA-Z0-9])"
)
_NOW = re.compile(
    r"\b(?:now|currently|from now on|as of (?:now|today)|jetzt|nun|ab jetzt|ab sofort|maintenant"
    r"|désormais|ahora|ora|adesso|agora|nu|voortaan|teraz|теперь|сейчас|art\u0131k)\b\s*|现在"
    r"|今後は?|이제 ?",
    re.I,
)
"""Says that something is new, and nothing else."""

_NOW_WORDS = (
    *("now", "currently", "as of today", "jetzt", "nu", "ab sofort", "maintenant", "désormais"),
    *("ora", "adesso", "voortaan", "teraz", "теперь", "сейчас", "artik", "现在", "今後", "이제"),
)
_ORDERS = re.compile(
    r"\W*(?:(?:that|to|you|we|please|dass|de|que|di) )*(?:never|always|not|no|don['\u2019]t|do not"
    r"|nie\w*|kein\w*|nicht|ne|no|non|não|to \w+)\b",
    re.I,
)
_NAMED = re.compile(
    r"(?:\b(?:issues?|tickets?|bugs?|parts?|steps?|sections?|chapters?|lines?|pages?|prs?|mrs?|pull"
    r" requests?|commits?|cases?|tests?|tasks?|items?|phases?|tables?|figures?|examples?|options?"
    r"|todos?|stor(?:y|ies)|questions?|points?|rows?|columns?|files?|no\.?|number)\s*|#)$",
    re.I,
)
"""Before a number that tells one thing from another."""
_LONGEST_NOUN = 16
_OF = re.compile(r" of \d")


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence that may outlast its message."""

    text: str
    message: int
    """Number of the message that says it."""
    start: int
    end: int
    is_rule: bool
    words: frozenset[str] = frozenset()
    """What it is about, its label aside."""
    is_alone: bool = False
    """Whether the message says nothing else."""
    takes_back: bool = False
    """Whether it takes back a rule that was said before."""
    is_pasted: bool = False
    """Whether it may be a part of what was pasted; such a one marks nothing."""
    pattern: str = ""
    """What the function of that name returns for it."""


def is_rule(sentence: str) -> bool:
    """Tell whether a sentence asks for something that holds from then on.

    >>> is_rule("Never push to main."), is_rule("I never saw that file.")
    (True, False)
    """
    low = sentence.lower()
    is_plain = wordings.is_plain(low)
    words = wordings.ASCII_WORD.findall(low)
    is_english = not wordings.TRIGGERS.isdisjoint(words)
    is_foreign = not is_plain or not wordings.FOREIGN_TRIGGERS.isdisjoint(words)
    if not (is_english or is_foreign):
        return False
    if low.endswith(QUESTION_MARKS):
        if is_question(low):
            return False
        low = wordings.TAG.sub("", low)
    if is_foreign and _is_foreign_rule(low, is_plain=is_plain):
        return True
    return is_english and _is_english_rule(low)


QUESTION_MARKS = ("?", "\uff1f", "\u061f", "吗", "か", "か\u3002")


def is_question(low: str) -> bool:
    """Tell whether a sentence, in small letters, asks a question and asks for nothing else."""
    if not low.endswith(QUESTION_MARKS):
        return False
    return not (wordings.ASKS.match(low) or wordings.TAG.search(low))


def _is_foreign_rule(low: str, *, is_plain: bool) -> bool:
    if wordings.EUROPEAN.search(low):
        told = wordings.EUROPEAN_REPORT.sub(" ", low)
        if told == low or wordings.EUROPEAN.search(told):
            return True
    return not is_plain and bool(
        wordings.ASIAN.search(low) and wordings.ASIAN.search(wordings.ASIAN_REPORT.sub(" ", low))
    )


def _is_english_rule(low: str) -> bool:
    if wordings.RULE_LABEL.match(low):
        return True
    if not _reads_like_a_rule(low) or wordings.OTHER.match(low):
        return False
    told = wordings.REPORT.sub(" _ ", low)
    if wordings.TASK.match(told):
        told = wordings.OF_TASK.sub(" _ ", told)
    return told == low or _reads_like_a_rule(told) or bool(wordings.HABIT.search(low))


def _reads_like_a_rule(low: str) -> bool:
    return bool(
        wordings.MANNER.match(low)
        or wordings.HABIT.search(low)
        or wordings.ENGLISH.search(low)
        or wordings.ENGLISH_COMMAND.match(low)
    )


def has_value(sentence: str) -> bool:
    """Tell whether a sentence states something exact: a number, a name in code, a label."""
    return bool(_EXACT.search(sentence)) or is_labelled(sentence)


def subject(sentence: str) -> frozenset[str]:
    """Return what a sentence is about, its label aside."""
    return frozenset(stems(apart(_LABELLED.sub("", sentence, count=1))))


def apart(text: str) -> str:
    """Set words in Latin letters apart from the dense script that they stand in."""
    return text if text.isascii() else _GLUED.sub(" ", text)


def _values_of(sentence: str) -> frozenset[str]:
    if not _IN_VALUE.search(sentence):
        return frozenset()
    found = _VALUE.findall(_LABELLED.sub("", sentence, count=1))
    return frozenset(value.rstrip(".,:") for value in found)


def is_labelled(sentence: str) -> bool:
    """Tell whether a sentence begins with a label, as in ``Deadline: Friday``."""
    return ":" in sentence and bool(_STATED_LABEL.match(sentence))


def pattern(sentence: str) -> str:
    """Return the sentence with its values masked; equal patterns state the same thing anew.

    Where something is said to be a value, only what follows may vary: ``Step 3 is done`` and
    ``Step 4 is done`` are two facts. Elsewhere only the numbers of settings and limits vary:
    after ``Fix issue 12``, ``Fix issue 15`` is another request. Empty when nothing may vary.

    >>> pattern("The port is 80.") == pattern("The port is 8080.")
    True
    >>> pattern("Step 3 is done.") == pattern("Step 4 is done.")
    False
    """
    label = _LABELLED.match(sentence) or wordings.RULE_LABEL.match(sentence)
    offset = label.end() if label else 0
    body = sentence[offset:]
    copula = _COPULA.search(body)
    if copula and stems(body[: copula.start()]):
        if _ORDERS.match(body, copula.end()) and not _LIMITS.search(body, copula.end()):
            # What follows is a command of its own: the next one is another, no new value.
            return ""
        head, tail = body[: copula.end()], body[copula.end() :]
        # After the copula a name may be what changes, too.
        tail = _NAME.sub(_MASK, _without_values(tail))
    elif _SETS.match(body) or (_LIMITS.search(body) and not copula):
        head, tail = "", _masked(body)
    else:
        return ""
    if _MASK not in tail:
        return ""
    squeezed = re.sub(r"\0(?:[\s,]*\0)*", _MASK, tail)
    whole = _lasting(sentence[:offset] + head + squeezed)
    return " ".join(whole.lower().rstrip(".!;").split())


def _without_values(text: str) -> str:
    if not _IN_VALUE.search(text):
        return text
    return _WORDS_OR_VALUE.sub(lambda found: found[1] or _MASK, text)


def _lasting(sentence: str) -> str:
    low = folded(sentence)
    return _NOW.sub("", sentence) if any(word in low for word in _NOW_WORDS) else sentence


def _masked(body: str) -> str:
    """Mask numbers that are values; what numbers a thing, as in ``issue 12``, is its name."""
    return _NUMERIC.sub(lambda found: found[0] if _is_name(found) else _MASK, body)


def _is_name(number: "re.Match[str]") -> bool:
    start = number.start()
    if _OF.match(number.string, number.end()):
        # How far something has come, as in ``phase 2 of 5``.
        return False
    return bool(_NAMED.search(number.string, max(0, start - _LONGEST_NOUN), start))


def is_one_value(new: str, old: str) -> bool:
    """Tell whether two sentences of one pattern differ in a single value.

    >>> is_one_value("The port is 80.", "The port is 8080.")
    True
    >>> is_one_value("The deadline is May for Ann.", "The deadline is June for Bo.")
    False
    """
    ours, theirs = (_lasting(text).lower().rstrip(".!;").split() for text in (new, old))
    for end in (0, -1):
        while ours and theirs and ours[end] == theirs[end]:
            del ours[end], theirs[end]
    return not set(ours) & set(theirs)


def may_restate(sentence: str) -> bool:
    """Tell whether a sentence that is no rule may replace an earlier one: a label, an update."""
    return is_labelled(sentence) or bool(_UPDATE.search(sentence.lower()))


def restates(new: Statement, old: Statement) -> bool:
    """Tell whether two differently worded statements seem to speak of the same thing.

    It needs half of the telling words in common and no qualifier that tells them apart; what it
    finds is a hint, never proof.
    """
    mine, yours = _telling(new), _telling(old)
    shared, is_update = len(mine & yours), bool(_UPDATE.search(new.text.lower()))
    # Under one label a single telling word may be what both are about.
    is_kin = is_update or _same_label(new.text, old.text)
    least, share = 1 if is_kin else _MIN_SHARED, _UPDATED if is_update else _RESTATED
    if shared < least or shared < share * min(len(mine), len(yours)):
        return False
    if _says_the_same(new, old) or _names_another(new.text, old.text):
        return False
    if not is_update and _is_contrast(new.text, old.text):
        return False
    values, earlier = _values_of(new.text), _values_of(old.text)
    # Where nothing else is a value, the day may be it.
    for others in _QUALIFIERS if values or earlier else _QUALIFIERS[:-1]:
        ours, theirs = new.words & others, old.words & others
        if ours and theirs and ours != theirs:
            return False
    return not values or values != earlier


def _same_label(new: str, old: str) -> bool:
    label = _LABELLED.match(new)
    return label is not None and old.startswith(label[0])


def _telling(statement: Statement) -> frozenset[str]:
    """Return the words that say what a statement is about, without values and common words."""
    return statement.words - stems(" ".join(_values_of(statement.text))) - _COMMON


def _says_the_same(new: Statement, old: Statement) -> bool:
    """Tell whether one repeats the other, with no other value and in the same sense."""
    if not (new.words <= old.words or old.words <= new.words):
        return False
    ours, theirs = _values_of(new.text), _values_of(old.text)
    return not ours - theirs and forbids(new.text) == forbids(old.text)


def _is_contrast(new: str, old: str) -> bool:
    """Tell whether the two speak of different things in the same words.

    ``Max upload size is 5 MB`` and ``Max image size is 2 MB`` hold side by side; so do two
    prohibitions, or two commands, of which each names another thing.
    """
    mine, yours = _unlabelled(new), _unlabelled(old)
    if len(mine) != len(yours):
        return False
    differing = [(a, b) for a, b in zip(mine, yours, strict=True) if a != b]
    others = [(a, b) for a, b in differing if not (_is_exact(a) and _is_exact(b))]
    if not others:
        # What is forbidden is another thing; or a setting that is described at length.
        is_short = len(stems(new) & stems(old)) < _MIN_FRAME - 1
        return _is_numbered(new) or (is_short and forbids(new) and not _LIMITS.search(new))
    return len(others) == 1 and len(others) < len(differing) and len(mine) >= _MIN_FRAME


def _is_exact(word: str) -> bool:
    return bool(_EXACT.search(word)) or "." in word.rstrip(".,;:")


def _is_numbered(sentence: str) -> bool:
    return any(map(_is_name, _NUMERIC.finditer(sentence)))


def _names_another(new: str, old: str) -> bool:
    """Tell whether both speak of things with numbers, and of none that is the same."""
    mine, yours = _numbers(new), _numbers(old)
    return bool(mine and yours) and mine.isdisjoint(yours)


def _numbers(sentence: str) -> set[str]:
    return {found[0] for found in _NUMERIC.finditer(sentence) if _is_name(found)}


def _unlabelled(sentence: str) -> list[str]:
    return _LABELLED.sub("", sentence, count=1).lower().rstrip(".!;").split()


def forbids(sentence: str) -> bool:
    """Tell whether a sentence forbids something."""
    return bool(liftings.FORBIDS.search(sentence.lower().replace("\u2019", "'")))


_COMMON = stems(
    "under circumstances without every needs wants user users please away keep stay any use"
)
_MIN_FRAME = 4
_MIN_SHARED = 2
_RESTATED = 0.5
_UPDATED = 0.3
_UPDATE = re.compile(
    r"\b(?:update[ds]?|now|changed|moved|switched|new|no longer|instead|correction|from now on"
    r"|ab jetzt|jetzt|neu|geändert"
    r"|maintenant|désormais|nouveau|ahora|nuevo|cambió|ora|nuovo|agora|novo"
    r"|теперь|новый)\b|现在|改为|更新|今後|変更|이제|변경",
)
_QUALIFIERS = tuple(
    stems(line)
    for line in (
        "production staging development test testing local live",
        "primary backup secondary main replica",
        "unit integration smoke acceptance performance",
        "project travel conference team marketing product trip",
        "launch docs documentation release freeze review",
        "approver reviewer owner author lead",
        "client server frontend backend database",
        "read write delete create update",
        "monday tuesday wednesday thursday friday saturday sunday",
    )
)
