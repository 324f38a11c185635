"""URLs as they stand in texts: where each ends, and which are none.

A URL ends before what belongs to the sentence around it: closing brackets that it did not open,
punctuation, marks of other scripts. Templates and names of XML dialects are left out.
"""

import re
from collections.abc import Iterator

MAX_CHARS = 500
"""A longer one is data: signed or with a payload inside."""

_SCHEME = re.compile(
    r"(?:(?<![A-Za-z0-9+.-])|(?<=\\[nrt]))(?:https?|wss?|ftps?|ssh|git|s3|gs|postgres(?:ql)?|mysql|redis|amqps?"
    r"|mongodb(?:\+srv)?)$",
    re.I,
)
_LONGEST_SCHEME = 12
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_OWN = r"[^\s\"'<>`\\{}|^()\[\]\u00ab\u00bb\u2000-\u206f\u3000-\u303f\uff00-\uffef" + _CJK + "]"
_REST = re.compile(
    # Brackets belong to it in pairs.
    rf"(?=[\w\[])(?:{_OWN}|\({_OWN}{{0,200}}\)|\[{_OWN}{{0,200}}\]"
    # Such letters belong to it when a part begins with them, else to the sentence.
    rf"|(?<=[/=#?&_{_CJK}-])[{_CJK}]){{2,{MAX_CHARS}}}"
)
_ENTITY = re.compile(r"&(?:quot|gt|lt|#\d+|nbsp);")
_TRAILING = ".,;:!?*_~"
_DIALECT = re.compile(r"(?:xmlns[\w:]*|\$schema\\?\"?\s*)[=:]\s*\\?[\"']$")
_DIALECT_CHARS = 40


def find(text: str) -> list[str]:
    """Return the URLs in `text`, each once, in order.

    >>> find("See [it](https://a.example/x_(y)), or https://b.example/?a=1,2.")
    ['https://a.example/x_(y)', 'https://b.example/?a=1,2']
    """
    if "\\/" in text:
        # Some encoders of JSON escape every slash.
        text = text.replace("\\/", "/")
    if "://" not in text:
        return []
    if "\\u0026" in text:
        text = text.replace("\\u0026", "&")
    return list(dict.fromkeys(_each(text)))


def _each(text: str) -> Iterator[str]:
    at = text.find("://")
    while at >= 0:
        found = _SCHEME.search(text, max(0, at - _LONGEST_SCHEME), at)
        rest = _REST.match(text, at + 3) if found else None
        at += 3
        if found is not None and rest is not None:
            at = rest.end()
            url = found[0] + "://" + _ended(rest[0])
            is_cut = text.startswith("{", at) or len(url) > MAX_CHARS
            before = text[max(0, found.start() - _DIALECT_CHARS) : found.start()]
            if not is_cut and not _DIALECT.search(before):
                yield url
        at = text.find("://", at)


def _ended(rest: str) -> str:
    entity = _ENTITY.search(rest) if "&" in rest else None
    return (rest[: entity.start()] if entity else rest).rstrip(_TRAILING)
