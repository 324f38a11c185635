"""By what a paste is known: announcements, and the looks of logs, mails, patches and manuals.

Each may match too much rather than too little: what is taken for a paste is quoted all the same.
Most lines are none of it, so what is cheap to look at comes before the patterns. Cost is linear
in the text.
"""

import re
from collections.abc import Iterator

from proxy.compaction.guard import BREAKS

Span = tuple[int, int]

LOG = re.compile(
    r"\W*\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d|\W{0,2}\d\d:\d\d:\d\d\b"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\[?(?:INFO|DEBUG|WARN|WARNING|ERROR|TRACE|FATAL|CRITICAL|NOTICE)(?:\]|:|\s*[-|]|\s{2,})"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d|\[\d\d?:\d\d(?: ?[AP]M)?\] "
    r"|\s+at \S+\(|\s+File \"|\d+\.\d+\.\d+\.\d+ - |\s*\$ \w"
    r"|\S[^\s@]*+@\S[^\s:~]*+[:~]\S*+(?<=[#$]) "
    r"|[\w.-]+(?: [\w.-]+)?\s+\d\d?:\d\d(?: ?[AP]M)?\s*$|\s*\.\. [\w-]+::"
)
"""Also the lines above what a shell printed or somebody wrote in a chat."""

_LOG_SIGN = re.compile(r"[\d\[$@.]")
"""One of these stands in all that it finds, unless that begins with a letter."""

_LOG_STARTS = (
    *("INFO", "DEBUG", "WARN", "ERROR", "TRACE", "FATAL", "CRITICAL", "NOTICE", "at ", 'File "'),
)

BEGINS = (
    ("<!--", "-->"),
    ("<![CDATA[", "]]>"),
    ("[quote", "[/quote]"),
    ("[code", "[/code]"),
    ("\\begin{quot", "\\end{quot"),
    ("\\begin{verbatim}", "\\end{verbatim}"),
    ("-----BEGIN ", "-----END "),
)
"""How a line begins that opens a paste, and what ends it."""

_RULE = r"(?:[-=~+_]{2,}|[*\u2500-\u257f]{3,}|[<>]{3,})"
TRIPLE = re.compile("\"{3}|'{3}")
MARKED_BEGIN = re.compile(
    rf"{_RULE}\s*(?:begin|start|anfang|beginn|début|inicio|início|inizio|начало)\w*\b.{{0,60}}$"
    r"|(?P<triple>\"{3}|'{3})[^\"']*$",
    re.I,
)
MARKED_END = re.compile(
    rf"^[^\S\n]*{_RULE}\s*(?:end|ende|fin|fim|fine|конец)\b.{{0,60}}$", re.I | re.M
)
"""Lines that people draw around what they paste."""

INDENTED = re.compile(r"(?: {4}|\t)\s*(?![-*+\u2022]|\d+[.)]|\s)")
GREETING = re.compile(
    r"^[^\S\n]*(?:dear|hi|hello|hey|good (?:morning|afternoon|evening)|hallo|liebe[rs]?"
    r"|sehr geehrte\w*|bonjour|chère?s?|hola|estimad\w+|buongiorno|caro|cara|olá|prezad\w+)\b"
    r"[^.!?\n]{0,40}[,!:]?\s*$",
    re.I | re.M,
)
_GREETING_WORDS = frozenset(
    {"dear", "hi", "hello", "hey", "good", "hallo", "liebe", "lieber", "liebes", "sehr", "bonjour"}
    | {"hola", "buongiorno", "caro", "cara", "olá"}
)
_GREETING_PARTS = ("chèr", "estimad", "prezad")
SIGN_OFF = re.compile(
    r"^[^\S\n]*(?:(?:best|kind|warm)(?: regards| wishes)?|regards|sincerely|yours\b.*|cheers"
    r"|many thanks|(?:viele|beste|liebe|mit freundlichen) grü(?:ße|ßen|sse)|cordialement"
    r"|bien à vous|saludos|un saludo|cordiali saluti|atenciosamente|abraços)\b.{0,20}$",
    re.I | re.M,
)
_SIGN_OFF_WORDS = frozenset(
    {"best", "kind", "warm", "regards", "sincerely", "yours", "cheers", "many", "viele", "beste"}
    | {"liebe", "mit", "cordialement", "bien", "saludos", "un", "cordiali", "atenciosamente"}
    | {"abraços"}
)
_HEADERS = (
    "from|to|cc|bcc|subject|date|sent|reply-to|message-id|return-path|received|content-type"
    "|von|an|betreff|datum|gesendet|de|para|asunto|fecha|objet|envoyé|da|oggetto|data|assunto"
    "|от|кому|тема|дата|件名|差出人|宛先|日時|发件人|收件人|主题|보낸 사람|받는 사람|제목"
)
MAIL = re.compile(
    rf"^\W{{0,6}}(?:{_HEADERS})\W{{0,3}}:[^\n]*\n\W{{0,6}}(?:{_HEADERS})\W{{0,3}}:",
    re.I | re.M,
)
_HEADER = re.compile(rf"\n[^\w\n]*+(?:{_HEADERS})\W{{0,3}}:")
_HEADER_WORDS = frozenset(re.split(r"\W", header)[0] for header in _HEADERS.split("|"))
FORWARDED = re.compile(
    r"^[^\w\n]*+(?:original message|forwarded message|ursprüngliche nachricht|begin forwarded)\b",
    re.I | re.M,
)
_FORWARDS = (
    *("original message", "forwarded message", "ursprüngliche nachricht", "begin forwarded"),
)
PATCH = re.compile(r"^(?:diff --git |@@ -\d|\+\+\+ \S|--- a/|Index: \S)", re.M)
_PATCHES = ("\ndiff --git ", "\n@@ -", "\n+++ ", "\n--- a/", "\nIndex: ")
MANUAL_PART = re.compile(
    r"^#{1,4}\s\W{0,20}+(?:install\w*|getting started|usage|licen[sc]e|contributing|quick ?start"
    r"|features|changelog|table of contents|credits|acknowledg\w+|authors?|documentation"
    r"|examples?|faq|support|prerequisites|installationsanleitung|verwendung|lizenz)\b"
    r"|^[^\S\n]*\[!\[",
    re.I | re.M,
)
FIRST_HEADING = re.compile(r"^#{1,2}\s", re.M)
_FOREIGN = re.compile(
    r"\b(?:paste[ds]?|pasting|logs?|output|stack ?trace|traceback|readme|e-?mails?|mail|articles?"
    r"|page|tickets?|transcript|response|reply|wrote|writes|printed|prints|says|said|website"
    r"|web ?site|found|comment|quote[ds]?|snippets?|(?:tool|test|search|command) results?|console"
    r"|terminal|bot|ausgabe|protokoll|meldung|sortie|journal|salida|registro|uscita|sa[ií]da)\b"
    r"|日志|输出|粘贴|ログ|出力|로그|출력|вывод|лог",
    re.I,
)
_SHOWN = re.compile(
    r"\b(?:content|contents|excerpt|document|here(?:'s| is| are)|file|issue|following|below"
    r"|summari[sz]e|translate|proofread|rephrase|paraphrase|what (?:does|do|is) (?:this|that|these)"
    r"|look at (?:this|that|it)|(?:explain|analy[sz]e|rewrite|classify|review|debug)\b.*\bthis"
    r"|folgende[rsn]?|übersetze\w*|erklär\w*|voici|tradui\w*|résume\w*|aqu[ií]|traduc\w*|resum\w*"
    r"|ecco)\b|如下|内容|总结|翻译|以下|要約|翻訳|다음|요약|번역|вот\b|перевед|объясни",
    re.I,
)
_STATED = re.compile(
    r"\b(?:rules?|constraints?|requirements?|instructions?|guidelines?|conventions?|follow"
    r"|preferences?|i (?:want|need|expect)|you (?:must|should|need)|to ?dos?|tasks?|plan|steps?"
    r"|goals?|regeln?|vorgaben?|r[eè]gles?|reglas?|regole?|regras?)\b"
    r"|规则|要求|ルール|規則|규칙|правил",
    re.I,
)
_FOLLOWED = re.compile(
    r"\b(?:follow|obey|observe|respect|stick to|apply|keep to|befolge\w*|halte|respecte\w*"
    r"|sigue|segui|siga)\b",
    re.I,
)
_PLAINLY_SHOWN = re.compile(
    r"\b(?:here(?:'s| is| are)|this is|these are|below (?:is|are)|see below|pasted?|pasting"
    r"|as follows|hier (?:ist|sind)|voici|aqu[ií] (?:est[aá]|tienes)|ecco)\b.*\b(?:logs?|output"
    r"|e-?mail|mail|readme|page|transcript|trace|traceback|message|response|reply|result|results"
    r"|text|ausgabe|meldung|sortie|salida|uscita)\b|^\W*(?:pasted?|log|logs|output|transcript)\W*$",
    re.I,
)
_SHOWS = (
    *("here", "this is", "these are", "below", "past", "as follows", "hier", "voici", "aqu"),
    *("ecco", "log", "output", "transcript"),
)

_FIRST_WORD = re.compile(r"\n[^\w\n]*+(\w+)")
_ANY_BREAK = re.compile(rf"[{BREAKS[1:]}]")
_ONE_BREAK = dict.fromkeys(map(ord, BREAKS), "\n")
_WORD = re.compile(r"\w")

_MAX_ANNOUNCEMENT = 200
_MIN_SHOWN = 3
_MAX_SHOWN = 90


def announces(line: str) -> bool:
    """Tell whether a line says that what follows is somebody else's."""
    if len(line) > _MAX_ANNOUNCEMENT:
        return False
    if not line.rstrip().rstrip("*_").endswith(":"):
        plain = line.rstrip().rstrip("*_.\u2026-\u2193\u2014 ")
        if not _MIN_SHOWN <= len(plain) <= _MAX_SHOWN:
            return False
        low = folded(plain)
        return any(word in low for word in _SHOWS) and bool(_PLAINLY_SHOWN.search(plain))
    if _FOREIGN.search(line):
        # Rules that others state are theirs, unless the author says to follow them.
        return not (_STATED.search(line) and _FOLLOWED.search(line))
    return bool(_SHOWN.search(line)) and not _STATED.search(line)


def folded(text: str) -> str:
    """Return a text in small letters, in which to look for a word before a pattern is tried.

    What a pattern finds that ignores case stands in it in small letters. Places may differ.
    """
    if text.isascii():
        return text.lower()
    return text.casefold().replace("\u0307", "").replace("\u0131", "i")


def may_be_log(line: str, head: str) -> bool:
    """Tell whether to try `LOG` on a line; `head` is the line without blanks in front."""
    if not head[:1].isascii() or not head[:1].isalpha():
        return _LOG_SIGN.search(head) is not None
    return ":" in line or "@" in line or head.startswith(_LOG_STARTS)


def documents(text: str) -> tuple[int, Span]:
    """Return where a document begins that goes on to the end, and where a letter stands.

    A document is a mail, a patch or a manual; without one it begins at the end of the text. A
    letter has both ends and is not all of the text; without one the span is empty.
    """
    if _ANY_BREAK.search(text):
        text = text.translate(_ONE_BREAK)
    low = folded("\n" + text)
    words = frozenset(_FIRST_WORD.findall(low))
    starts = [len(text), *_mails(text, low, words), *_parts(text)]
    return min(starts), _letter(text, low, words)


def _mails(text: str, low: str, words: frozenset[str]) -> Iterator[int]:
    if not _HEADER_WORDS.isdisjoint(words) and _HEADER.search(low):
        found = MAIL.search(text)
        if found:
            yield found.start()
    if any(mark in low for mark in _FORWARDS):
        found = FORWARDED.search(text)
        if found:
            yield _without_words(text, found.start())


def _without_words(text: str, start: int) -> int:
    """Return where lines begin that hold no word and stand right before a line."""
    while start:
        before = text.rfind("\n", 0, start - 1) + 1
        if _WORD.search(text, before, start):
            break
        start = before
    return start


def _parts(text: str) -> Iterator[int]:
    """Yield where a patch and a manual begin."""
    lines = "\n" + text
    if any(mark in lines for mark in _PATCHES):
        found = PATCH.search(text)
        if found:
            yield found.start()
    if "\n#" in lines or "[![" in text:
        parts = [found.start() for found in MANUAL_PART.finditer(text)]
        if len(parts) > 1:
            first = FIRST_HEADING.search(text)
            yield min(parts[0], first.start() if first else parts[0])


def _letter(text: str, low: str, words: frozenset[str]) -> Span:
    is_greeted = not _GREETING_WORDS.isdisjoint(words) or any(p in low for p in _GREETING_PARTS)
    if not is_greeted or _SIGN_OFF_WORDS.isdisjoint(words):
        return 0, 0
    greeting = next((g for g in GREETING.finditer(text) if text[: g.start()].strip()), None)
    closing = SIGN_OFF.search(text, greeting.end()) if greeting else None
    return (greeting.start(), len(text)) if greeting and closing else (0, 0)
