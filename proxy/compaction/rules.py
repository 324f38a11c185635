"""Lasting rules: what a person told the assistant to do or not to do from then on.

A rule is recognised by its wording (a command or a prohibition with a word of scope) in the
languages that people mostly write. It stays in force until its author withdraws it or states it
anew with another value. Nothing here decides what a message is worth; `quotes` does.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.compaction import wordings
from proxy.compaction.sentences import stems

_VALUE = re.compile(
    r"(?:[$€£¥]\s?)?\d[\w.,:/%+-]*|[\w.-]+[/\\@][\w./\\@:-]+|\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]+"
    r"|\b[A-Z][A-Z0-9_-]{2,}\b|`[^`]+`|\"[^\"]+\""
)
_EXACT = re.compile(r"[0-9`\"/\\@_]|[A-Z]{3}")
_NUMERIC = re.compile(r"(?:[$€£¥]\s?)?\d[\d.,:/%-]*\w{0,2}\b")
_SETS = re.compile(
    r"\W*(?:please\s+|now\s+)?(?:use|set|keep|limit|cap|raise|lower|change|stay|aim|target)\b", re.I
)
_LIMITS = re.compile(
    r"\b(?:more than|exceed|pass|over|under|below|above|at most|at least|up to"
    r"|max\w*|min\w*|limit\w*"
    r"|within|no later than|by|capped|cap)\b|[$€£¥]\s?\d",
    re.I,
)
_NAME = re.compile(r"\b[A-Z][\w-]*(?:\s+[A-Z][\w-]*)*")
_COPULA = re.compile(r"\b(?:is|are|was|were|be|ist|sind|est|es|è|é)\b|[:=]|\uff1a")
_STATED_LABEL = re.compile(
    r"^(?:[-*#>\s]*)(?:\*\*)?[A-Z][\w/-]*(?: [\w/-]+){0,3}(?:\*\*)?:(?:\*\*)?\s+\S"
)
_LABELLED = re.compile(r"[A-Z][A-Z ]{2,30}:\s*")
_ASKED = re.compile(r"\W*(?:can|could|would|will) you\b", re.I)
_MASK = "\0"


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


def is_rule(sentence: str) -> bool:
    """Tell whether a sentence asks for something that holds from then on.

    >>> is_rule("Never push to main."), is_rule("I never saw that file.")
    (True, False)
    """
    low = sentence.lower()
    if not low.isascii() and (wordings.ASIAN.search(low) or wordings.EUROPEAN.search(low)):
        return True
    words = wordings.ASCII_WORD.findall(low)
    is_english = not wordings.TRIGGERS.isdisjoint(words)
    is_foreign = not wordings.FOREIGN_TRIGGERS.isdisjoint(words)
    if not (is_english or is_foreign):
        return False
    if sentence.endswith("?") and not _ASKED.match(sentence):
        return False
    if wordings.RULE_LABEL.match(sentence) or (is_foreign and wordings.EUROPEAN.search(low)):
        return True
    return is_english and _is_english_rule(sentence, low)


def _is_english_rule(sentence: str, low: str) -> bool:
    if wordings.MANNER.match(sentence) or wordings.HABIT.search(low):
        return True
    if wordings.ENGLISH.search(wordings.SELF_REPORT.sub(" ", low)):
        return True
    return bool(wordings.ENGLISH_COMMAND.match(sentence))


def has_value(sentence: str) -> bool:
    """Tell whether a sentence states something exact: a number, a name in code, a label."""
    return bool(_EXACT.search(sentence) or _STATED_LABEL.match(sentence))


def subject(sentence: str) -> frozenset[str]:
    """Return what a sentence is about, its label aside."""
    return frozenset(stems(_LABELLED.sub("", sentence, count=1)))


def _values_of(sentence: str) -> frozenset[str]:
    return frozenset(_VALUE.findall(_LABELLED.sub("", sentence, count=1)))


def is_labelled(sentence: str) -> bool:
    """Tell whether a sentence begins with a label, as in ``Deadline: Friday``."""
    return bool(_STATED_LABEL.match(sentence))


def withdraws(sentence: str) -> bool:
    """Tell whether a sentence takes a rule back, or allows again what one forbids.

    >>> withdraws("Forget the rule about tabs."), withdraws("Remove the unused import.")
    (True, False)
    """
    low = sentence.lower()
    if low.isascii() and wordings.LIFTING.isdisjoint(wordings.ASCII_WORD.findall(low)):
        return False
    if sentence.endswith("?") or wordings.REMINDS.search(low):
        return False
    if wordings.LIFTED.search(low) or wordings.PERMITTED.search(low):
        return True
    return bool(wordings.LIFTS.search(low) and wordings.RULE_NOUN.search(low))


def withdrawn_by(sentence: str, earlier: Sequence[Statement]) -> list[Statement]:
    """Return the rules that `sentence` takes back: those it speaks of, else the one it points at.

    Args:
        sentence: one for which `withdraws` holds.
        earlier: the rules stated before it, oldest first.
    """
    about = stems(wordings.REFERS.sub(" ", sentence)) - wordings.LIFTING_WORDS
    if about:
        # What names no rule must share more than one word with the rule that it takes back.
        least = 1 if wordings.RULE_NOUN.search(sentence.lower()) else 2
        scored = [(_likeness(about, rule.words, least), rule) for rule in earlier]
        best = max((score for score, _ in scored), default=0.0)
        if best >= _MIN_LIKENESS:
            return [rule for score, rule in scored if score >= max(_MIN_LIKENESS, best - 0.1)]
    if wordings.REFERS.search(sentence) and len(about) <= 1 and earlier:
        return [earlier[-1]]
    return []


_MIN_LIKENESS = 0.5


def _likeness(about: set[str], rule: frozenset[str], least: int) -> float:
    shared = len(about & rule)
    fewer = min(len(about), len(rule))
    if shared < least or (shared == 1 and fewer > 2):
        return 0.0
    # Pairs of CJK characters overlap their neighbours, so half of them differ by one word.
    pairs = sum(len(word) == 2 for word in about & rule)
    return min(1.0, shared / fewer * (1.6 if pairs >= 3 else 1.0))


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
    label = _LABELLED.match(sentence)
    offset = label.end() if label else 0
    body = sentence[offset:]
    copula = _COPULA.search(body)
    if copula and stems(body[: copula.start()]):
        head, tail = body[: copula.end()], body[copula.end() :]
        # After the copula a name may be what changes, too.
        tail = _NAME.sub(_MASK, _VALUE.sub(_MASK, tail))
    elif _SETS.match(body) or (_LIMITS.search(body) and not copula):
        head, tail = "", _NUMERIC.sub(_MASK, body)
    else:
        return ""
    if _MASK not in tail:
        return ""
    squeezed = re.sub(r"\0(?:[\s,]*\0)*", _MASK, tail)
    return " ".join((sentence[:offset] + head + squeezed).lower().rstrip(".!;").split())


def may_restate(sentence: str) -> bool:
    """Tell whether a sentence that is no rule may replace an earlier one: a label, an update."""
    return bool(_STATED_LABEL.match(sentence) or _UPDATE.search(sentence.lower()))


def restates(new: Statement, old: Statement) -> bool:
    """Tell whether two differently worded statements seem to speak of the same thing.

    It needs half of the telling words in common and no qualifier that tells them apart; what it
    finds is a hint, never proof.
    """
    shared = len(new.words & old.words)
    least, share = (1, _UPDATED) if _UPDATE.search(new.text.lower()) else (_MIN_SHARED, _RESTATED)
    if shared < least or shared < share * min(len(new.words), len(old.words)):
        return False
    for others in _QUALIFIERS:
        ours, theirs = new.words & others, old.words & others
        if ours and theirs and ours != theirs:
            return False
    values = _values_of(new.text)
    return not values or values != _values_of(old.text)


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
