"""A person's own sentences in a message, apart from what was pasted into it.

Only own sentences may become rules; a sentence that tells what somebody or something else said,
in quotation marks, is none of them.
"""

import re
from collections.abc import Iterator, Sequence

from proxy.compaction.ledger import pastes
from proxy.compaction.ledger.paste_marks import folded
from proxy.compaction.ledger.pastes import Span, own_spans

MAX_SENTENCE_CHARS = 600
"""What is longer is no sentence but data."""

MIN_STEM_CHARS = 3
STEM_CHARS = 5

_END = re.compile(
    # The first character alone, so that it is found fast; then what must stand behind it.
    r"[.!?\u3002\uff01\uff1f;\n](?:"
    r"(?<=[.!?])(?<![.!?]{2})[.!?]*+[\"')\]\u201c\u201d]*+(?=\s)"
    r"|(?<=[\u3002\uff01\uff1f])[\u3002\uff01\uff1f]*+[\u300d\u300f\u201d]?|(?<=;)(?=\s)"
    r"|(?<=\n)(?![ \t]*[a-z\u00df-\u00ff\u0430-\u044f]))"
)
_ABBREVIATION = re.compile(r"(?:\b[A-Za-z]|\b(?:e\.g|i\.e|etc|vs|no|nr|approx|z\.B|bzw|ca|p\.ej))$")
_CAPITAL = re.compile(r"(?<=[a-z0-9,\u00df-\u00ff] )(?=[A-Z\u00c0-\u00de\u0410-\u042f])")
_WORD = re.compile(r"[^\W_]+")
_PAIR = re.compile("(?=([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff]{2}))")
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff]")
_STOP = """
    the and for with that this from are was were will would can could should you your our they them
    has have had its not all any but into now use using please must always never only when then than
    rule rules about out own off more most just also does did done let may might shall been being
    der die das und mit ist sind den dem ein eine nicht auch von zur zum les des une est pas pour
    que los las una con por para del che non per gli dei uma com não как что это для
"""
_STOP_WORDS = frozenset(_STOP.split())


_REPORTS = re.compile(
    r"\b(?:explain|translate|summari[sz]e|means?|what is|says?|said|saying"
    r"|wrote|writes?|printed|prints?|tells?|told|reads?|reports?|returned"
    r"|returns|shows?|showed|contains?|claims?|asks?|asked|answered|replied|demands?|states?|called"
    r"|line|message|text|log|output|tool|page|file|mail|e-?mail|readme|comment|error|warning"
    r"|sagt\w*|schreibt|steht|meldet|dit|affiche|écrit|dice|muestra|mostra|diz)\b"
    r"|写着|说|显示|言|書|표시|пишет|говорит",
    re.I,
)
_IN_MARKS = re.compile(
    r"\"[^\"\n]+\"|“[^“”\n]+”|„[^„“”\n]+[“”]|«[^«»\n]+»"
    r"|「[^「」\n]+」|`[^`\n]+`"
    r"|(?<!\w)'(?:[^'\n]|(?<=\w)'(?=\w)){12,}'(?!\w)|\u2018[^\u2018\u2019\n]{12,}\u2019"
)
_TOLD = re.compile(
    r"\b(?:tool|log|output|page|readme|console|terminal|website|error|warning|e-?mail|mail|comment"
    r"|script|server|bot|transcript|ticket|article)s?\b.{0,30}\b(?:says|said|prints|printed|wrote"
    r"|writes|tells|told|returned|states|stated|demands|asks|asked|wants|wanted)\b"
    r"(?: (?:me|us|you|that|to)\b|\s*:)",
    re.I,
)
_TELLING = (
    *("says", "said", "print", "wrote", "writes", "tell", "told", "returned", "state", "demands"),
    *("ask", "want"),
)
"""One of these stands in all that `_TOLD` finds."""

_MIN_TOLD = 8

_MARK = re.compile("[\"“„«「`'\u2018]")
_LONG_SAYING = re.compile(
    # A quotation that may go over sentences and lines, though not over paragraphs.
    # The first mark alone, so that it is found fast; then what must stand behind it.
    r"[\"“„«「'](?:(?<=\")(?<![\w\"]\")(?=\S)(?:[^\"\n]|\n(?!\s*\n)){10,}(?<=\S)\"(?!\w)"
    r"|(?<=[“„])(?:[^“”„\n]|\n(?!\s*\n)){10,}[”“]|(?<=«)(?:[^«»\n]|\n(?!\s*\n)){10,}»"
    r"|(?<=「)[^「」]{10,}」|(?<=')(?<!\w')(?=\S)(?:[^'\n]|(?<=\w)'(?=\w)){12,}(?<=\S)'(?!\w))"
)
_MIN_QUOTED_WORDS = 3
_MIN_QUOTED_CJK = 6


def is_reported(sentence: str) -> bool:
    """Tell whether a sentence repeats what something or, in quotation marks, somebody else said.

    >>> is_reported('The log says "always push to main".'), is_reported('Call it "Blue".')
    (True, False)
    """
    if len(sentence) >= _MIN_TOLD:
        low = folded(sentence)
        if any(word in low for word in _TELLING) and _TOLD.search(sentence):
            return True
    if not _MARK.search(sentence):
        return False
    sentence = sentence.replace("\n", " ")
    quoted = [found[0] for found in _IN_MARKS.finditer(sentence) if _is_saying(found[0])]
    if not quoted:
        return False
    rest = _IN_MARKS.sub(" ", sentence)
    # Between backquotes stands code, seldom a saying.
    words = sum(len(part) for part in quoted if not part.startswith("`"))
    return words > len(rest) or bool(_REPORTS.search(rest))


def read(text: str) -> tuple[list[Span], bool]:
    """Return where the author's own sentences stand, and whether there is anything else.

    It is what `sentences` yields and `is_mixed` tells, found at once.
    """
    spans, is_mixed = pastes.read(text)
    each = list(_all(text, spans))
    own = [(start, end) for start, end in each if not is_reported(text[start:end])]
    return own, is_mixed or len(own) < len(each)


def is_mixed(text: str) -> bool:
    """Tell whether a message holds what its author did not say, or nothing else."""
    return read(text)[1]


def _is_saying(quoted: str) -> bool:
    return len(quoted.split()) >= _MIN_QUOTED_WORDS or (
        len(_CJK.findall(quoted)) >= _MIN_QUOTED_CJK
    )


def sentences(text: str) -> Iterator[Span]:
    """Yield where the author's own sentences stand, in order, white space stripped."""
    for start, end in _all(text, own_spans(text)):
        if not is_reported(text[start:end]):
            yield start, end


def _all(text: str, own: Sequence[Span]) -> Iterator[Span]:
    for first, last in own:
        start = first
        sayings = list(_sayings(text, first, last))[::-1]
        for found in _END.finditer(text, first, last):
            while sayings and sayings[-1][1] <= found.start():
                sayings.pop()
            if sayings and sayings[-1][0] < found.start() and found.end() < sayings[-1][1]:
                # What is quoted stays with the words that tell who says it.
                continue
            head = text[max(start, found.start() - 8) : found.start()]
            if found[0].startswith(".") and _ABBREVIATION.search(head):
                continue
            yield from _trimmed(text, start, found.end())
            start = found.end()
        yield from _trimmed(text, start, last)


def _sayings(text: str, first: int, last: int) -> Iterator[Span]:
    if _MARK.search(text, first, last):
        for found in _LONG_SAYING.finditer(text, first, last):
            yield found.span()


def _trimmed(text: str, start: int, end: int) -> Iterator[Span]:
    piece = text[start:end]
    stripped = piece.strip()
    if not stripped:
        return
    start += piece.index(stripped[0])
    if len(stripped) <= MAX_SENTENCE_CHARS or (
        _LONG_SAYING.search(stripped) and is_reported(stripped)
    ):
        yield start, start + len(stripped)
    else:
        yield from _split(text, start, start + len(stripped))


def _split(text: str, start: int, end: int) -> Iterator[Span]:
    """Yield parts of text without full stops, broken before a capital or at a space."""
    while start < end:
        stop = min(end, start + MAX_SENTENCE_CHARS)
        if stop < end:
            capitals = [m.start() for m in _CAPITAL.finditer(text, start + 1, stop)]
            stop = capitals[-1] if capitals else text.rfind(" ", start + 1, stop)
            if stop <= start:
                # A run without a space is data.
                stop = text.find(" ", start + MAX_SENTENCE_CHARS, end)
                start = end if stop < 0 else stop + 1
                continue
        if text[start:stop].strip():
            yield start, stop
        start = stop


def stems(text: str) -> set[str]:
    """Return what a sentence is about: the beginnings of its telling words, CJK in pairs."""
    words = {
        word[:STEM_CHARS]
        for word in _WORD.findall(text.lower())
        if len(word) >= MIN_STEM_CHARS and word not in _STOP_WORDS
    }
    if not text.isascii():
        words = {word for word in words if not _CJK.search(word)}
        words.update(_PAIR.findall(text))
    return words
