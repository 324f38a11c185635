"""Reading what a summariser answered, and refusing what is not a summary.

Only the content channel is read. Accepted are the seven-section JSON object, whole or cut
(its complete members count), and plain text that is long enough, is no refusal, tool syntax or
error message, and shares rare words with what was to be summarised.
"""

import re
from collections import Counter
from dataclasses import dataclass

from pydantic import ValidationError
from pydantic_core import from_json

from proxy.compaction.checkpoint import Sections
from proxy.errors import SummaryFailed

MIN_TEXT_CHARS = 200
MIN_SHARED_WORDS = 3

_THINKING = re.compile(r"<(think|thinking|analysis|scratchpad)>.*?(?:</\1>|\Z)", re.S | re.I)
_THOUGHT_END = re.compile(r"</(?:think|thinking)>", re.I)
_FENCE = re.compile(r"```(?:json)?\s*\n?(.*?)(?:```|\Z)", re.S)
_REFUSAL = re.compile(
    r"^\W*(?:i['\u2019]?m sorry|i am sorry|sorry[,.]"
    r"|i (?:cannot|can['\u2019]t|am unable|won['\u2019]t)"
    r"|i['\u2019]m (?:unable|not able)|as an ai\b|i do(?:n['\u2019]t| not) have (?:access|enough))",
    re.I,
)
_TOOL_SYNTAX = re.compile(
    r"<(?:tool_call|function[=_]|invoke\b|\|tool|\|python_tag)|\[TOOL_CALLS\]"
    r"|^\s*\{\s*\"(?:name|tool|function)\"\s*:[^}]*\"(?:arguments|parameters|input)\"\s*:",
    re.I,
)
_ERROR = re.compile(
    r"^\W*(?:error\b|exception\b|traceback \(most recent|\{\s*\"error\"|http(?:/\d| error)"
    r"|internal server error|bad gateway|service unavailable|rate limit)",
    re.I,
)
_WORD = re.compile(r"[^\W\d_][\w./-]{3,}")
_CJK_PAIR = re.compile("(?=([\u3040-\u9fff\uac00-\ud7ff]{2}))")
_COMMON_WORDS = """
against although always another anything around because before between called cannot certain
change changed changes children company country different during earlier either enough
entire example family finally following function further general happen having history
however important including indeed instead interest itself letter little matter meaning
message method minute moment morning mother nature nearly nothing number office output
people perhaps person picture please points possible present probably problem process
project provide public question quickly rather really reason recent report result running
school second section service several should simply something sometimes started states
strong student subject summary system taking things through together toward towards usually
various version whether within without working yesterday yourself
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_MIN_RARE_LENGTH = 6
_IDENTIFIER = re.compile(r"[./_\d]|.[A-Z]")


@dataclass(frozen=True, slots=True)
class Answer:
    """A usable summary: `sections`, or else `text`."""

    sections: Sections | None
    text: str
    partial: bool


def read_answer(output: str, *, cut: bool, span_text: str) -> Answer:
    """Turn a summariser's output into an answer.

    Args:
        output: the content channel, complete or as far as it came.
        cut: whether it was ended by its output limit, a deadline or a broken connection.
        span_text: what was to be summarised, to tell a summary from unrelated text.

    Raises:
        SummaryFailed: with the reason word; never with text of the output.
    """
    text = _without_thoughts(output.strip())
    sections, whole = _sections(text)
    if not whole:
        # Some chat templates open the thinking themselves, so that only its end is written.
        text = _THOUGHT_END.split(text)[-1].strip()
        sections, whole = _sections(text)
    if not text:
        raise SummaryFailed(*_nothing(cut, "empty"))
    if sections is not None and not sections.is_empty():
        return Answer(sections, "", partial=cut or not whole)
    reason = _objection(text, span_text)
    if reason is not None:
        raise SummaryFailed(*_nothing(cut, reason))
    return Answer(None, text, partial=cut)


def _without_thoughts(text: str) -> str:
    # Inside an answer the tags are what the conversation is about.
    return text if text.startswith(("{", "```")) else _THINKING.sub("", text).strip()


def _nothing(cut: bool, reason: str) -> tuple[str, str]:
    if cut:
        return "truncated", "nothing usable before the cut; raise compaction.max_output_tokens"
    return reason, f"the summariser's answer was not usable ({reason})"


def _sections(text: str) -> tuple[Sections | None, bool]:
    fenced = _FENCE.search(text)
    candidates = [text[text.find("{") :]] if "{" in text else []
    if fenced and "{" in fenced[1]:
        candidates.insert(0, fenced[1][fenced[1].find("{") :])
    # A fence inside a string ends the fenced part too early, so whole forms go first.
    for whole in (True, False):
        for body in candidates:
            data = body[: body.rfind("}") + 1] if whole else body
            try:
                parsed = from_json(data, allow_partial=False if whole else "on")
                sections = Sections.model_validate(parsed)
            except (ValueError, ValidationError):
                continue
            if not sections.is_empty():
                return sections, whole
    return None, False


def _objection(text: str, span_text: str) -> str | None:
    if _TOOL_SYNTAX.search(text):
        return "tool_call"
    if _ERROR.search(text):
        return "error_text"
    if _REFUSAL.search(text):
        return "refusal"
    if text.lstrip("` \n").startswith(("{", "[")):
        return "malformed_json"
    if len(text) < MIN_TEXT_CHARS:
        return "too_short"
    if len(rare_words(span_text) & _words(text)) < MIN_SHARED_WORDS:
        return "unrelated"
    return None


def _words(text: str) -> set[str]:
    return {w.strip("./-") for w in _WORD.findall(text)} | set(_CJK_PAIR.findall(text))


def rare_words(text: str) -> set[str]:
    """Return the words of `text` that say what it is about.

    Identifiers and paths always count; ordinary words only when they are long, not common in
    the language and not frequent in the text.
    """
    counts = Counter(w.strip("./-") for w in _WORD.findall(text))
    counts.update(_CJK_PAIR.findall(text))
    limit = max(3, sum(counts.values()) // 200)
    return {word for word, count in counts.items() if _is_rare(word, count, limit)}


def _is_rare(word: str, count: int, limit: int) -> bool:
    if _IDENTIFIER.search(word):
        return True
    if word.isascii() and (len(word) < _MIN_RARE_LENGTH or word.lower() in _COMMON):
        return False
    return count <= limit
