"""What a summary must not lose, and must not claim.

A summariser's sections are checked against the originals. Instructions are whole sentences of
what was said, word for word; what quotes nobody becomes a discovery, a part of a sentence becomes
the sentence, and a rule that was withdrawn or replaced goes. What the previous checkpoint held
and the new summary dropped is put back: instructions that are still in force, files, open steps.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from proxy.compaction.checkpoint import Sections
from proxy.compaction.quotes import HINT, Quote
from proxy.compaction.sentences import sentences

MAX_FILES = 60
MAX_STEPS = 12
"""So many entries of an earlier checkpoint are put back at most, the newest."""

_WORD = re.compile(r"\w+")
_SHARED_WORDS = 0.6


def cover(summary: Sections, quotes: Sequence[Quote], previous: Sections | None) -> Sections:
    """Return the summary with its instructions grounded and what it dropped put back.

    Args:
        summary: what the summariser wrote.
        quotes: what was said, with what became of it; only user and mid-transcript system text.
            What a tool printed is never among them, so it can never become an instruction.
        previous: the sections of the checkpoint before, if it had any.
    """
    said = _Said(quotes)
    instructions, discoveries = list[str](), list(summary.discoveries)
    for entry in summary.instructions:
        sentence = said.sentence_of(entry)
        if sentence is None:
            discoveries.append(entry)
        elif sentence:
            instructions.append(sentence)
    files, steps = summary.relevant_files, summary.next_steps
    if previous is not None:
        instructions += filter(None, map(said.sentence_of, previous.instructions))
        files = _with_dropped(files, previous.relevant_files, MAX_FILES)
        open_steps = _unsettled(previous.next_steps, summary)
        steps = _with_dropped(steps, open_steps, MAX_STEPS)
    return summary.model_copy(
        update={
            "instructions": tuple(dict.fromkeys(instructions)),
            "discoveries": tuple(discoveries),
            "relevant_files": files,
            "next_steps": steps,
        }
    )


class _Said:
    """Everything that was said, as one line of words that quotes are looked up in."""

    def __init__(self, quotes: Sequence[Quote]) -> None:
        self._quotes = quotes
        self._squashed = [f" {squash(quote.text)} " for quote in quotes]

    def sentence_of(self, entry: str) -> str | None:
        """Return the sentence that `entry` quotes; empty when it no longer holds, None if none.

        The newest message that says it counts.
        """
        wanted = squash(entry)
        if not wanted:
            return None
        for quote, text in zip(reversed(self._quotes), reversed(self._squashed), strict=True):
            at = text.find(wanted)
            if at >= 0:
                return self._whole(quote, wanted)
        return None

    def _whole(self, quote: Quote, wanted: str) -> str:
        if quote.is_over:
            return ""
        spans = list(sentences(quote.text))
        pieces = [quote.text[start:end] for start, end in spans]
        squashed = list(map(squash, pieces))
        # Where each sentence begins in the line of all of them.
        starts = [0, *accumulate(len(piece) + 1 for piece in squashed)]
        at = " ".join(squashed).find(wanted)
        if at < 0:
            # It is in a paste, which the author did not say.
            return ""
        touched = [
            index
            for index, start in enumerate(starts[:-1])
            if start < at + len(wanted) and at < start + len(squashed[index])
        ]
        whole = " ".join(pieces[index] for index in touched)
        return "" if _is_over(quote, pieces[touched[0]]) else whole


def _is_over(quote: Quote, sentence: str) -> bool:
    noted = " ".join(sentence.split())[:100]
    return any(noted in mark for mark in quote.marks if HINT not in mark)


def squash(text: str) -> str:
    """Return the words of a text alone, so that spelling and marks do not count."""
    return " ".join(_WORD.findall(text.lower()))


def _with_dropped(new: Sequence[str], old: Iterable[str], most: int) -> tuple[str, ...]:
    text = squash("\n".join(new))
    dropped = [entry for entry in old if squash(entry) and squash(entry) not in text]
    return (*dropped[-most:], *new)


def _unsettled(steps: Sequence[str], summary: Sections) -> Iterator[str]:
    """Yield earlier steps that the new summary says nothing of, neither done nor planned."""
    told = [
        set(_WORD.findall(line.lower()))
        for line in (*summary.accomplished, *summary.next_steps, summary.current_state)
    ]
    for step in steps:
        words = set(_WORD.findall(step.lower()))
        if not any(len(words & line) >= _SHARED_WORDS * len(words) for line in told):
            yield step
