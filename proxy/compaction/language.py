"""Which language the user writes, where it is plain.

A summariser that reads an English instruction is apt to answer in English. The name of the
language costs a few tokens and is told only when script or small words leave no doubt.
"""

import re
from collections.abc import Sequence

from proxy.compaction.ledger.pastes import own_spans

_MAX_CHARS = 4000
"""So much of what was said last is looked at."""

_MIN_SHARE = 0.3
"""Of the letters; names and commands are Latin in every language."""

_MIN_LETTERS = 8
_MIN_WORDS = 3
_LEAD = 1.5
_LETTER = re.compile(r"[^\W\d_]")
_SCRIPTS = (
    ("Japanese", "[\u3040-\u30ff]", "[\u3040-\u30ff\u3400-\u9fff]"),
    ("Korean", "[\uac00-\ud7ff]", "[\uac00-\ud7ff]"),
    ("Chinese", "[\u3400-\u9fff]", "[\u3400-\u9fff]"),
    ("Ukrainian", "[\u0456\u0457\u0454\u0491]", "[\u0400-\u04ff]"),
    ("Russian", "[\u044b\u044d\u0451]", "[\u0400-\u04ff]"),
    ("Persian", "[\u067e\u0686\u0698\u06af]", "[\u0600-\u06ff]"),
    ("Arabic", "[\u0600-\u06ff]", "[\u0600-\u06ff]"),
    ("Hebrew", "[\u05d0-\u05ea]", "[\u05d0-\u05ea]"),
    ("Greek", "[\u0370-\u03ff]", "[\u0370-\u03ff]"),
    ("Thai", "[\u0e00-\u0e7f]", "[\u0e00-\u0e7f]"),
    ("Hindi", "[\u0900-\u097f]", "[\u0900-\u097f]"),
)
"""Name, a letter that only it has among those of its script below it, all of its letters."""

_SMALL_WORDS = {
    "English": "the and is are to of in that this with for not you it please be on from have what",
    "German": "der die das und ist nicht ich bitte mit ein eine auch den dem für auf wir noch "
    "dass wie aber kein keine sind wird",
    "French": "le les des est pas une dans pour que qui sur avec je vous nous il du au cette ne "
    "et sont plus",
    "Spanish": "el los las una que por para con del está no es se lo como más pero este al y favor",
    "Italian": "il lo gli che per con non una del della sono è di nel questo anche ma al e come",
    "Portuguese": "o os as um uma que não para com do da em por está é se mais como ao e você",
    "Dutch": "de het een en van niet is dat met voor op zijn ik je ook maar te aan deze",
    "Polish": "i w nie na się z do to jest że jak ale czy proszę dla jeszcze",
    "Turkish": "bir ve bu için ile de da çok ama ne var değil lütfen gibi daha",
}
_WORDS = {name: frozenset(words.split()) for name, words in _SMALL_WORDS.items()}
_WORD = re.compile(r"[^\W\d_]+")


def language_of(texts: Sequence[str]) -> str:
    """Return the English name of the language that a user's messages are in.

    Empty when it is English, or not plain. Only what the user wrote counts, the newest first.
    """
    said: list[str] = []
    left = _MAX_CHARS
    for text in reversed(texts):
        for start, end in own_spans(text[:_MAX_CHARS]):
            said.append(text[start : min(end, start + left)])
            left -= len(said[-1])
        if left <= 0:
            break
    return _of(" ".join(said).lower())


def _of(text: str) -> str:
    letters = len(_LETTER.findall(text))
    if letters < _MIN_LETTERS:
        return ""
    if not text.isascii():
        for name, own, all_ in _SCRIPTS:
            if re.search(own, text) and len(re.findall(all_, text)) >= _MIN_SHARE * letters:
                return name
    words = _WORD.findall(text)
    counts = sorted(((sum(w in known for w in words), name) for name, known in _WORDS.items()))
    (second, _), (first, name) = counts[-2:]
    plain = first >= _MIN_WORDS and first >= _LEAD * second and name != "English"
    return name if plain else ""
