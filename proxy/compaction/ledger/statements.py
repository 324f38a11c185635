"""Lines that state something exact, found in what a tool printed or an assistant wrote.

A line may be labelled, a key with its value, a pair of JSON, a total, a sentence, or begin with a
word that announces a decision. Lines of logs, code and tables of a tool runner are none.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from proxy.compaction.ledger import rules
from proxy.compaction.ledger.sentences import sentences

MAX_LINE_CHARS = 240
MAX_LINES_OF_ANSWER = 200
MAX_PARAGRAPH_CHARS = 4_000
"""A longer line of an answer is data."""

MAX_GOES_ON_CHARS = 140
MAX_PAIRS = 600
_SENTENCE_WORDS = 5

_NOISE = re.compile(
    # Log lines, places in files, code, and what a tool runner writes around an output.
    r"\W*\d{4}-\d\d-\d\d[T ]|\W*\d\d:\d\d|\S+:\d+:|E  |[{}\"'(<#/@+|&*`\[]|-\S"
    r"|(?:import|from|def|class|return|if|for|let|const|var)\b"
    r"|\W*(?:ok\s+)?(?:INFO|DEBUG|WARN|WARNING|ERROR|TRACE|FATAL|CRITICAL)\b"
    r"|(?:exit(?:[ _]?(?:code|status))?|wall time|duration|elapsed|stdout|stderr|output|command"
    r"|chunk id|pid|time\b(?=\s*[:=])|process|total output lines|original token count|return ?code"
    r"|directory|signal"
    r"|timestamp|error)\b",
    re.I,
)
_CODE = frozenset("{}[]()\"'<>#/@+|&`;")
"""What begins so is code, markup or data unless it has a label."""

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]|\d\d:\d\d")
_NUMBERED = re.compile(r"^\d{1,6}(?:\t|\u2192|\| ?)\s*")
"""What tools put in front of the lines of a file."""

_SOURCE = re.compile(
    r"[ \t]*(?:\d{1,6}(?:\t|\u2192|\| ?)|\S+?:\d+[:-])?[ \t]*[+-]?[ \t]*"
    r"(?:(?:async |export |pub |public |private |static )*"
    r"(?:def|class|fn|func|function|interface|struct|enum|const|let|var|impl|type) \w"
    r"|(?:import|from|package|use|using|namespace) [\w.\"'{*<]|#include\b|return\b"
    r"|(?:if|for|while|with|try|else|elif|except|switch|case)\b.*[:{]$|@\w[\w.]*(?:\(|$)"
    r"|(?:await |self\.)|(?:\w+ = )?[\w.]+\((?:.*\))?[,;]?$)"
)
"""A line of source code, however a tool prints it."""

_SOURCE_SHARE = 0.15
_FEWEST_LINES = 4
_LINES_JUDGED = 120
_COMMENT = frozenset({"TODO", "FIXME", "XXX", "HACK", "NOTE", "BUG", "SECURITY"})
"""Labels of comments in source code."""

_LEVEL = re.compile(r"(?:INFO|DEBUG|WARN(?:ING)?|ERROR|TRACE|FATAL|CRITICAL)\b")
_STOP = re.compile(r"(?<=[a-z0-9])[.!]\s")
_CLOSED = re.compile(r"(?<!\\)\"")
_PLACE = re.compile(r"\S:\d+:")
_UPPER_LABEL = re.compile(r"[A-Z](?<!\w[A-Z])[A-Z]{2,}(?: [A-Z]{2,}){0,3}: ")
"""Begins with a class of characters, as others here, so that most of a line is passed over fast."""

_LEVELS = frozenset(
    {"INFO", "DEBUG", "WARNING", "WARN", "ERROR", "TRACE", "FATAL", "CRITICAL", "HTTP", "SYSTEM"}
    | {"USER", "ASSISTANT", "TOOL", "DEVELOPER", "HUMAN", "RULE", "INSTRUCTION", "IGNORE"}
    | {"URL", "PGID", "PID", "EXIT", "FAIL", "FAILED", "PASS", "PASSED", "SKIP"}
    | {
        "IMPORTANT",
        "ATTENTION",
        "NOTICE",
        "URGENT",
        "PROMPT",
        "COMMAND",
        "TASK",
        "SAFETY",
        "HARD",
    }
)
"""Labels of log lines, of forged messages and of forged rules: no facts when a tool prints them."""

_KEY_VALUE = re.compile(
    r"([^\W\d_][\w .()/-]{1,48}?)\s*(?::(?=[\s\d\"'])|\uff1a|=(?![=>])|\b(?:is|are|was|were)\b)"
    r"\s*(?=\S)([^(){}\[\];]{1,120}(?:(?<= )\([^(){}]{1,60}\)[^(){}\[\];]{0,40})?)$"
)
_COPULAS = re.compile(r" (?:is|are|was|were) ")
_PAIR = re.compile(
    r"\"([A-Za-z][\w .-]{1,40})\"\s*:\s*(-?\d[\d.eE+-]*|\"[^\"\\\n]{1,60}\"|true|false)"
    r"(?=\s*[,}\n])"
)
_PROSE = re.compile(
    r"[A-Z][\w'\u2019/-]* (?:[\w'\u2019\"`()%$€/.,:;@#+-]+ ){2,40}[\w'\u2019\"`()%$€/.,:;@#+-]+$"
)
_PERSON = re.compile(r"[A-Z](?<=[a-z] [A-Z])[a-z]+(?: [A-Z][a-z]+)+")
_PROGRESS = re.compile(r"\b\d+(?: of |/)\d+\b")
_CODE_MARKS = re.compile(r"[{}<>|;]|\w\([^()]*\)\W*$|[=!]=|=>")
_TYPED = re.compile(r"^[A-Z]+: \w+\[.*\] = |^[A-Z]+: [\w.]+ = ")
"""A name in capitals with its type, in source code."""

_NO_LABEL = re.compile(
    r" [=:]=? |\w\[|[(\[{=,]$|\"{3}|'{3}|[A-Z ]+: (?:[\w.]+$|[\[({\"'])|[^\"]*\"[^\"]*$"
)
"""What stands behind a word in capitals in source code is no statement."""

_VERB = re.compile(
    r"\b(?:is|are|was|were|will|has|have|uses?|runs?|lives?|needs?|must|expires?|starts?|ends?"
    r"|moved|agreed|decided|chose|owns?|costs?|takes?)\b"
)
_TOTAL = re.compile(r"(?:TOTAL|Total|All files|Overall|Sum)\b[ |:\t].{0,140}\d")
_SUMMARY = re.compile(
    r"[\dRT](?<!\w[\dRT])(?:(?<=\d)\d* (?:passed|failed|failing|passing|skipped|errors?"
    r"|failures?)\b|(?<=R)an \d+ tests?\b|(?<=T)ests run: \d)"
)
_CUES = re.compile(
    r"\b(?:decid\w+|decision|root cause|next (?:step|up)|open question|conclu\w+|turn(?:s|ed) out"
    r"|blocked|remaining|to ?do|awaiting|agreed|chosen?)\b"
    r"|entschieden|ursache|nächster schritt|décid|cause|décision|decid|causa|próximo|prossimo"
    r"|решен|причин|决定|原因|下一步|決定|原因|次の|결정|원인|다음 단계",
    re.I,
)
_CUE_WORDS = (
    *("decid", "decis", "root cause", "next step", "next up", "open question", "conclu"),
    *("turn out", "turns out", "turned out", "blocked", "remaining", "to do", "todo", "awaiting"),
    *("agreed", "chose", "entschieden", "ursache", "nächster", "décid", "cause", "décision"),
    *("causa", "próximo", "prossimo", "решен", "причин", "决定", "原因", "下一步", "決定", "次の"),
    *("결정", "원인", "다음 단계"),
)
_STARTS_NUMERIC = re.compile(
    r"(?:now |only |at |about |up to |currently |around )*[\"'`v$€£~<>=+-]{0,3}\d"
)
_FILLERS = frozenset(
    {"the", "a", "an", "our", "its", "this", "that", "now", "current", "currently", "new"} | {"is"}
)


@dataclass(frozen=True, slots=True)
class Stated:
    """A line that states something exact, and what it is about."""

    line: str
    subject: str
    """What it is about; empty when nothing can replace it but the same line."""
    is_telling: bool = False
    is_kept: bool = False
    """Whether it is taken out of many."""
    is_numeric: bool = False
    is_sentence: bool = False
    """Whether it is a sentence under a label, which its subject tells but for the values."""


def of_output(text: str, *, is_code: bool = False) -> Iterator[Stated]:
    """Yield what a tool printed that states something, in order; pairs of JSON last.

    Args:
        text: what was printed.
        is_code: whether it is known to be source code; of that, only what stands under a label
            states something.
    """
    lines = text.splitlines()
    if is_code or is_source(lines):
        yield from _of_source(lines, has_notes=not is_code)
        return
    summary: Stated | None = None
    low = text.lower()
    has_cue = any(word in low for word in _CUE_WORDS)
    for raw in lines:
        line = _bare(raw)
        if len(line) < 4 or (line[0] in _CODE and ": " not in line):
            continue
        if len(line) > 2 * MAX_LINE_CHARS:
            yield from _labelled(line)
        elif _is_summary(line):
            # The last of an output tells of all of it.
            summary = Stated(raw.strip().strip("= "), "\0summary", is_kept=True)
        elif line[0] in "TAOS" and _TOTAL.match(line):
            yield Stated(line, "\0total", is_kept=True)
        else:
            yield from _of_line(line, has_cue=has_cue)
    if summary is not None:
        yield summary
    if '":' in text:
        yield from _pairs(text)


def is_source(lines: Sequence[str]) -> bool:
    """Tell whether an output is source code, or lines of it: a listing, a search, a patch."""
    judged = [line for line in lines[:_LINES_JUDGED] if line and not line.isspace()]
    if len(judged) < _FEWEST_LINES:
        return False
    wanted = _SOURCE_SHARE * len(judged)
    found = 0
    for line in judged:
        found += _SOURCE.match(line) is not None
        if found > wanted:
            return True
    return False


def _of_source(lines: Iterable[str], *, has_notes: bool) -> Iterator[Stated]:
    """Yield what stands under a label, and notes at the margin where there may be any."""
    for raw in lines:
        line = _bare(raw)
        if has_notes and raw[:1].isalnum() and raw[0] == line[:1] and _is_note(line):
            yield replace(_key_value(line) or Stated(line, ""), is_telling=True, is_kept=True)
            continue
        for stated in _labelled(line) if ": " in line else ():
            label, _, said = stated.line.partition(": ")
            if label not in _COMMENT and " " in said and not _NO_LABEL.search(stated.line):
                yield stated


def _is_note(line: str) -> bool:
    if not 4 <= len(line) <= MAX_LINE_CHARS or _SOURCE.match(line) or _NOISE.match(line):
        return False
    return _is_telling(line, has_cue=True)


def _is_summary(line: str) -> bool:
    if line[0] not in "=TRt0123456789" or len(line) > MAX_LINE_CHARS:
        return False
    return _SUMMARY.search(line) is not None and not _TIME.match(line)


def _bare(raw: str) -> str:
    """Return a line without a bullet, its number, or what the tool runner put in front."""
    line = raw.strip()
    if not line[:1].isalnum():
        return line.lstrip("-*\u2022 ")
    if line[0].isdigit():
        return _NUMBERED.sub("", line)
    return line.removeprefix("Output: ")


def _of_line(line: str, *, has_cue: bool) -> Iterator[Stated]:
    has_label = ": " in line and bool(_UPPER_LABEL.search(line))
    if not has_label and len(line) <= MAX_LINE_CHARS and "://" not in line:
        if _NOISE.match(line):
            return
        has_form = (
            ":" in line
            or "\uff1a" in line
            or "=" in line
            or " is " in line
            or bool(_COPULAS.search(line))
        )
        is_telling = _is_telling(line, has_cue=has_cue)
        stated = _key_value(line) if has_form else None
        if stated is not None:
            yield replace(stated, is_telling=is_telling, is_kept=is_telling)
        elif is_telling:
            yield Stated(line, "", is_telling=True, is_kept=True)
        return
    yield from _labelled(line)


def _is_telling(line: str, *, has_cue: bool) -> bool:
    """Tell whether a line is a sentence that states something, and no output of a program."""
    if has_cue and _CUES.match(line):
        # Such a word in front is as good as a label, in any language.
        return not _CODE_MARKS.search(line)
    if not line[0].isupper() or line[-1] in ",:;(":
        return False
    if not (rules.has_value(line) or _PERSON.search(line) or (has_cue and _has_cue(line))):
        return False
    return bool(_PROSE.match(line)) and (line[-1] == "." or bool(_VERB.search(line)))


def _has_cue(line: str) -> bool:
    low = line.lower()
    # Most lines hold none, and to look for words is cheaper than for patterns.
    return any(word in low for word in _CUE_WORDS) and bool(_CUES.search(low))


def _key_value(line: str) -> Stated | None:
    found = _KEY_VALUE.match(line) if rules.has_value(line) else None
    if found is None or _LEVEL.match(found[2]) or not rules.has_value(found[2]):
        return None
    if " object at 0x" in line:
        return None
    subject = " ".join(w for w in found[1].lower().split() if w not in _FILLERS)
    return Stated(line, subject, is_numeric=bool(_STARTS_NUMERIC.match(found[2])))


def _pairs(text: str) -> Iterator[Stated]:
    for found in islice(_PAIR.finditer(text), MAX_PAIRS):
        value = found[2].strip('"')
        if value[:1].isdigit() or value[:1] == "-":
            yield Stated(found[0], found[1].lower(), is_numeric=True)


def _labelled(line: str) -> Iterator[Stated]:
    for found in _UPPER_LABEL.finditer(line):
        if found[0].split(":")[0].split()[0] in _LEVELS:
            continue
        said = line[found.start() : found.start() + MAX_LINE_CHARS]
        if len(said) == MAX_LINE_CHARS:
            said = said[: max(said.rfind(". ") + 1, 80)]
        # What follows in a row of a table, or behind a text of JSON, is not said.
        said = said.partition(" | ")[0].rstrip(" |")
        closed = _CLOSED.search(said) if line.count('"', 0, found.start()) % 2 else None
        if closed:
            said = said[: closed.start()]
        if said.endswith((";", "{", "})", "))")) or _TYPED.search(said):
            return
        yield _under_label(said)
        return


def _under_label(said: str) -> Stated:
    # What goes on behind the first sentence is about the same.
    about = _STOP.split(said, maxsplit=1)[0]
    subject = rules.pattern(about)
    if not subject and _PROGRESS.search(about):
        subject = _PROGRESS.sub("\0", about).lower().rstrip(".")
    is_sentence = subject.count(" ") >= _SENTENCE_WORDS
    return Stated(said, subject, is_telling=True, is_kept=True, is_sentence=is_sentence)


def of_answer(text: str) -> Iterator[Stated]:
    """Yield what an assistant stated: labelled lines, decisions, exact values."""
    lines: Iterable[str] = text.splitlines()
    if text.count("\n") > 2 * MAX_LINES_OF_ANSWER:
        listed = list(lines)
        lines = listed[:MAX_LINES_OF_ANSWER] + listed[-MAX_LINES_OF_ANSWER:]
    for raw in lines:
        line = raw.strip()
        # Questions, and echoes of them, state nothing.
        if not 4 <= len(line) <= MAX_PARAGRAPH_CHARS or "?" in line or _NOISE.match(line):
            continue
        if len(line) <= MAX_LINE_CHARS and _UPPER_LABEL.match(line):
            yield _under_label(line)
            continue
        told = 0
        for start, end in (spans := list(sentences(line))):
            said = line[start:end]
            if start < told or len(said) > MAX_LINE_CHARS or _PLACE.search(said):
                continue
            label = _UPPER_LABEL.search(said)
            if label is None:
                yield from _statement(said)
                continue
            # Short sentences behind a label go on with it.
            start += label.start()
            told = max(last for _, last in spans if last <= max(end, start + MAX_GOES_ON_CHARS))
            yield _under_label(line[start:told])


def _statement(said: str) -> Iterator[Stated]:
    stated = _key_value(said)
    is_telling = _has_cue(said)
    if stated is not None and stated.is_numeric:
        yield replace(stated, is_telling=is_telling)
    elif stated is not None or is_telling:
        yield Stated(said, rules.pattern(said), is_telling=is_telling)
