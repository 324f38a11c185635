"""Whether an error says in words of its own that a request is too long.

For the wordings that no table knows. One sentence must name what is long, that it is too much, and
what that is measured by, and nothing that has a limit of its own: replies, single members,
pictures, what one may use in a time. Numbers in such a sentence are not read.
"""

import re
from collections.abc import Sequence

_WHAT = re.compile(
    r"\b(?:prompts?|inputs?|contexts?|sequences?|conversations?|messages|requests?|chats?|dialogs?"
    r"|histor(?:y|ies)|texts?|tokens)\b|输入|上下文|提示|消息|对话|会话|请求|文本|长度|token",
    re.ASCII,
)
_TOO_MUCH = re.compile(
    r"\btoo (?:long|large|big|many)\b|\bexceed(?:s|ed|ing)?\b|\boverflow(?:s|ed)?\b"
    r"|\b(?:greater|larger|longer|more|bigger) than\b|\bover the\b|\babove the\b|\bbeyond\b"
    r"|\bsurpass(?:es|ed)?\b|\breached\b|\bat most\b|\blimited to\b|\bover \d|\bis full\b"
    r"|\b(?:cannot|can ?not|can't|not|doesn't|won't) fit\b|\b(?:run|ran|running) out of\b"
    r"|\bmust (?:be|have|contain) (?:at most|less|fewer|shorter|under|below|no more)\b"
    r"|\bonly (?:support|accept|allow|handle)s?\b"
    r"|\b(?:max(?:imum)?|limit|allowed)\b.{0,24}?\b(?:got|received|given|sent|provided|requested|"
    r"counted|has|contains|actual)\b.{0,12}?\d"
    r"|超过|超出|超限|超长|过长|太长|溢出",
    re.ASCII,
)
_MEASURE = re.compile(
    r"\btokens?\b|\bcontext\b|\blength\b|\blong\b|\b(?:prompt|input|request) (?:is )?too\b"
    r"|\bwindow\b|\bcapacity\b|\b(?:max_)?(?:seq|sequence|prompt|input|context|model)_len(?:gth)?\b"
    r"|token|长|上下文",
    re.ASCII,
)
_OTHER = re.compile(
    r"\bmax_(?:completion_|output_|new_)?tokens|\bto generate\b|\bnew tokens\b|\bcompletion\b"
    r"|\bmax(?:imum)?[ _]tokens (?:must|should|can|may|is|are)"
    r"|\b(?:output|thinking|reasoning|response|reply)\b|\bbudget\b|\bstop\b|\btop_|\bmetadata\b"
    r"|\bimages?\b|\baudio\b|\bvideos?\b|\bfiles?\b|\battachments?\b|\bembeddings?\b|\bbatch\b"
    r"|\bnames?\b|\bdescriptions?\b|\bschema\b|\bidentifiers?\b|\bids?\b|\bkeys?\b|\bcache\b"
    r"|\btools\b|\bfunctions?\b|\bstring\b|\barray\b|\btimed? ?out\b|\bdeadline\b|\[\d"
    r"|\bdaily\b|\bmonthly\b|\bper (?:day|hour|second|month|week)\b|\btoday\b|\bplan\b|\bcredits?\b"
    r"|\bmemory\b|\bconcurren|\bbilling\b|\busage\b|\bretr(?:y|ies)\b"
    r"|输出|频率|次数|并发|额度|余额|配额|每分钟|每日|图片|图像|文件",
    re.ASCII,
)
_SENTENCES = re.compile(r"[.!?] |\u3002")


def says_too_long(texts: Sequence[str]) -> bool:
    """Tell whether a sentence of an error's texts, in lower case, says that the input is too long.

    Never raises.
    """
    return any(_is_too_long(part) for text in texts for part in _SENTENCES.split(text))


def _is_too_long(sentence: str) -> bool:
    needed = (_TOO_MUCH, _WHAT, _MEASURE)
    return all(words.search(sentence) for words in needed) and not _OTHER.search(sentence)
