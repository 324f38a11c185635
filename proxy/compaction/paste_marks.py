"""By what a paste is known: announcements, and the looks of logs, mails, patches and manuals.

Patterns only. Each may match too much rather than too little: what is taken for a paste is quoted
all the same.
"""

import re

LOG = re.compile(
    r"\W*\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d|\W{0,2}\d\d:\d\d:\d\d\b"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\[?(?:INFO|DEBUG|WARN|WARNING|ERROR|TRACE|FATAL|CRITICAL|NOTICE)(?:\]|:|\s*[-|]|\s{2,})"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d|\[\d\d?:\d\d(?: ?[AP]M)?\] "
    r"|\s+at \S+\(|\s+File \"|\d+\.\d+\.\d+\.\d+ - |\s*\$ \w|\S+@\S+[:~]\S*[#$] "
    r"|[\w.-]+(?: [\w.-]+)?\s+\d\d?:\d\d(?: ?[AP]M)?\s*$|\s*\.\. [\w-]+::"
)
"""Also the lines above what a shell printed or somebody wrote in a chat."""

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

INDENTED = re.compile(r"(?: {4}|\t)\s*(?![-*+\u2022]|\d+[.)]|\s)")
GREETING = re.compile(
    r"^\s*(?:dear|hi|hello|hey|good (?:morning|afternoon|evening)|hallo|liebe[rs]?|sehr geehrte\w*"
    r"|bonjour|chère?s?|hola|estimad\w+|buongiorno|caro|cara|olá|prezad\w+)\b[^.!?\n]{0,40}[,!:]?\s*$",
    re.I | re.M,
)
SIGN_OFF = re.compile(
    r"^\s*(?:(?:best|kind|warm)(?: regards| wishes)?|regards|sincerely|yours\b.*|cheers|many thanks"
    r"|(?:viele|beste|liebe|mit freundlichen) grü(?:ße|ßen|sse)|cordialement|bien à vous|saludos"
    r"|un saludo|cordiali saluti|atenciosamente|abraços)\b.{0,20}$",
    re.I | re.M,
)
_HEADERS = (
    "from|to|cc|bcc|subject|date|sent|reply-to|message-id|return-path|received|content-type"
    "|von|an|betreff|datum|gesendet|de|para|asunto|fecha|objet|envoyé|da|oggetto|data|assunto"
    "|от|кому|тема|дата|件名|差出人|宛先|日時|发件人|收件人|主题|보낸 사람|받는 사람|제목"
)
MAIL = re.compile(
    rf"^\W{{0,6}}(?:{_HEADERS})\W{{0,3}}:[^\n]*\n\W{{0,6}}(?:{_HEADERS})\W{{0,3}}:"
    r"|^\W*(?:original message|forwarded message|ursprüngliche nachricht|begin forwarded)\b",
    re.I | re.M,
)
PATCH = re.compile(r"^(?:diff --git |@@ -\d|\+\+\+ \S|--- a/|Index: \S)", re.M)
MANUAL_PART = re.compile(
    r"^#{1,4}\s+\W*(?:install\w*|getting started|usage|licen[sc]e|contributing|quick ?start"
    r"|features|changelog|table of contents|credits|acknowledg\w+|authors?|documentation"
    r"|examples?|faq|support|prerequisites|installationsanleitung|verwendung|lizenz)\b"
    r"|^\s*\[!\[",
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

_MAX_ANNOUNCEMENT = 200
_MAX_SHOWN = 90


def announces(line: str) -> bool:
    """Tell whether a line says that what follows is somebody else's."""
    if len(line) > _MAX_ANNOUNCEMENT:
        return False
    if not line.rstrip().rstrip("*_").endswith(":"):
        plain = line.rstrip().rstrip("*_.\u2026-\u2193\u2014 ")
        return len(plain) <= _MAX_SHOWN and bool(_PLAINLY_SHOWN.search(plain))
    if _FOREIGN.search(line):
        # Rules that others state are theirs, unless the author says to follow them.
        return not (_STATED.search(line) and _FOLLOWED.search(line))
    return bool(_SHOWN.search(line)) and not _STATED.search(line)
