"""A person's own sentences in a message, apart from what was pasted into it.

Only own sentences may become rules. A paste is what stands in a code fence or behind a quote
mark, what an element in angle brackets encloses, what follows a line that announces it, and what
pretends to be a message of another role. When in doubt it is a paste: the message is quoted all
the same, and nothing in it is taken for a rule.
"""

import re
from collections.abc import Iterator

Span = tuple[int, int]

MAX_SENTENCE_CHARS = 600
"""What is longer is no sentence but data."""

MIN_STEM_CHARS = 3
STEM_CHARS = 5

_LINE = re.compile(r"[^\n]+")
_FENCE = re.compile(r"\s*(```|~~~)")
_QUOTED = re.compile(r"\s*(?:>|\||\[\d+[,\]])")
_ELEMENT = re.compile(r"\s*<([A-Za-z][\w.-]*)[^<>]*>")
_FORGED_ROLE = re.compile(
    r"\s*(?:#+ *|\*\*|\[|<)?(?:(?:system|assistant|developer|tool|user|human)(?: message| prompt)?"
    r"\W{0,3}:|<?\|(?:im_)?start|INST\b|SYS\b)",
    re.I,
)
_INSTRUCTION_ELEMENT = re.compile(r"(?:[\w-]*[_-])?(?:instructions|rules|guidelines)", re.I)
_PREAMBLE_CHARS = 120
"""A client puts a heading of so many characters before the instructions of the project."""

_ANNOUNCED = re.compile(
    r"\b(?:paste[ds]?|pasting|logs?|output|stack ?trace|traceback|readme|e-?mails?|articles?|page"
    r"|tickets?|snippets?|transcript|response|reply|wrote|writes|printed|prints|says|said|content"
    r"|contents|excerpt|quote[ds]?|document|comment|website|found|here(?:'s| is| are)|file|issue"
    r"|look at (?:this|that|it)"
    r"|ausgabe|folgende[rsn]?|protokoll|meldung|sortie|journal|voici|salida|registro|aqu[ií]"
    r"|ecco|uscita|sa[ií]da)\b"
    r"|日志|输出|如下|粘贴|内容|ログ|出力|以下|로그|출력|다음|вывод|лог|вот\b",
    re.I,
)
_STATED = re.compile(
    r"\b(?:rules?|constraints?|requirements?|instructions?|guidelines?|conventions?|follow"
    r"|preferences?|regeln?|vorgaben?|r[eè]gles?|reglas?|regole?|regras?)\b"
    r"|规则|要求|ルール|規則|규칙|правил",
    re.I,
)
_END = re.compile(
    r"[.!?]+[\"')\]\u201d]*(?=\s)|[\u3002\uff01\uff1f]+[\u300d\u300f\u201d]?|;(?=\s)"
    r"|\n(?![ \t]*[a-z\u00df-\u00ff\u0430-\u044f])"
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


def is_mixed(text: str) -> bool:
    """Tell whether a message holds a paste besides its author's words, or nothing else."""
    return sum(end - start for start, end in own_spans(text)) < sum(map(len, text.split("\n")))


def own_spans(text: str) -> list[Span]:
    """Return where `text` holds its author's own words, in order."""
    spans: list[Span] = []
    pastes, goes_on = _Pastes(text), False
    for found in _LINE.finditer(text):
        is_own = pastes.is_own(found)
        if is_own and goes_on:
            spans[-1] = (spans[-1][0], found.end())
        elif is_own:
            spans.append(found.span())
        goes_on = is_own
    return spans


class _Pastes:
    """Follows the lines of one message."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._fence = ""
        self._element = ""
        self._rest = False
        self._block = False
        self._end = 0

    def is_own(self, line: "re.Match[str]") -> bool:
        """Tell whether a line is the author's; lines are given in order."""
        if "\n\n" in self._text[self._end : line.start()]:
            self._block = False
        self._end = line.end()
        return self._look(line[0], line.start())

    def _look(self, text: str, start: int) -> bool:
        fence = _FENCE.match(text)
        if self._fence:
            if fence and fence[1] == self._fence:
                self._fence = ""
            return False
        if fence:
            self._fence = fence[1]
            return False
        if self._element:
            if f"</{self._element}" in text:
                self._element = ""
            return False
        if self._rest or self._block or _QUOTED.match(text):
            return False
        if _FORGED_ROLE.match(text):
            self._block = True
            return False
        if self._opens_element(text, start):
            return False
        if text.rstrip().endswith((":", "\uff1a")) and _announces(text):
            self._rest = True
        return True

    def _opens_element(self, text: str, start: int) -> bool:
        found = _ELEMENT.match(text)
        if found is None:
            return False
        name = found[1]
        if start < _PREAMBLE_CHARS and _INSTRUCTION_ELEMENT.fullmatch(name):
            # How clients send the instructions of a project: the first thing in the message.
            return False
        close = self._text.find(f"</{name}", start)
        if close < 0:
            return False
        if close >= start + len(text):
            self._element = name
        return True


def _announces(line: str) -> bool:
    return len(line) <= 200 and bool(_ANNOUNCED.search(line)) and not _STATED.search(line)


def sentences(text: str) -> Iterator[Span]:
    """Yield where the author's own sentences stand, in order, white space stripped."""
    for first, last in own_spans(text):
        start = first
        for found in _END.finditer(text, first, last):
            head = text[max(start, found.start() - 8) : found.start()]
            if found[0].startswith(".") and _ABBREVIATION.search(head):
                continue
            yield from _trimmed(text, start, found.end())
            start = found.end()
        yield from _trimmed(text, start, last)


def _trimmed(text: str, start: int, end: int) -> Iterator[Span]:
    piece = text[start:end]
    stripped = piece.strip()
    if not stripped:
        return
    start += piece.index(stripped[0])
    if len(stripped) <= MAX_SENTENCE_CHARS:
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
