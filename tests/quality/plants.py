"""What is planted in a conversation, and how it is told whether it survived.

Two sources: the canaries of `compaction-conformance-kit`, with its own rule of survival (every
required token is there), and side constraints of our own, which must be there word for word.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from compaction_kit.canaries import Canary, seeded_canaries
from compaction_kit.corpus import build_random_session
from compaction_kit.generated import build_generated_session
from compaction_kit.session import SeededSession, build_seeded_session

STRICT = frozenset({"safety_rule", "hard_constraint", "user_preference"})
"""Kinds of the kit of which nothing may be lost."""

_MARKED = re.compile(r"superseded|withdrawn")


@dataclass(frozen=True, slots=True)
class Plant:
    """One statement and what must be left of it."""

    kind: str
    text: str
    tokens: tuple[str, ...]
    """In lower case; all of them must survive."""
    stale: tuple[str, ...] = ()
    """Values that it replaces; where they still stand they must be marked."""

    def survives(self, context: str) -> bool:
        low = context.lower()
        return all(token.lower() in low for token in self.tokens)

    def unmarked(self, context: str) -> list[str]:
        """Return the lines that still hold a replaced value and do not say so."""
        return [
            line
            for line in context.splitlines()
            for token in self.stale
            if token.lower() in line.lower() and not _MARKED.search(line)
        ]


@dataclass(frozen=True, slots=True)
class Corpus:
    """What the user says in one conversation, in order, and what of it must survive."""

    name: str
    said: tuple[str, ...]
    plants: tuple[Plant, ...]
    by_tools: frozenset[str] = frozenset()
    """Of `said`, what a tool prints instead of the user saying it."""
    by_assistant: frozenset[str] = frozenset()
    """Of `said`, what the assistant states."""


def seeded() -> Corpus:
    """The kit's scripted session: twenty canaries of five kinds."""
    return _of_kit("seeded", build_seeded_session(), seeded_canaries())


def spread() -> Corpus:
    """The same twenty, the facts printed by tools and the goals stated by the assistant."""
    return replace(spread_of(seeded()), name="spread")


def spread_of(corpus: Corpus) -> Corpus:
    """A session of the kit, its facts printed by tools and its goals stated by the assistant.

    What a fact or a goal replaces comes from where it comes from.
    """
    return replace(
        corpus,
        name=f"{corpus.name}, spread",
        by_tools=_stating(corpus, "fact"),
        by_assistant=_stating(corpus, "goal_state"),
    )


def _stating(corpus: Corpus, kind: str) -> frozenset[str]:
    own = [plant for plant in corpus.plants if plant.kind == kind]
    replaced = [text for plant in own for text in corpus.said if _is_older(text, plant)]
    return frozenset([plant.text for plant in own] + replaced)


def _is_older(text: str, plant: Plant) -> bool:
    return text != plant.text and any(token.lower() in text.lower() for token in plant.stale)


def random_values(seed: int) -> Corpus:
    """Random values at random places; two are stated anew with another value."""
    session, canaries = build_random_session(seed)
    return _of_kit("random", session, canaries)


def generated(seed: int) -> Corpus:
    """Random subjects and wordings; three are stated anew, often in other words."""
    session, canaries = build_generated_session(seed)
    # Whether a value that was stated anew in other words is marked is told, not demanded.
    return _of_kit("generated", session, canaries)


def _of_kit(name: str, session: SeededSession, canaries: Iterable[Canary]) -> Corpus:
    said = tuple(turn.text for turn in session.turns if turn.role == "user")
    plants = tuple(
        Plant(c.type.value, c.content, (*c.required_tokens,), (*c.superseded_tokens,))
        for c in canaries
    )
    return Corpus(name, said, plants)


SIDE_CONSTRAINTS: Sequence[tuple[str, str]] = (
    ("action", "Do not rename any exported function while you work on this."),
    ("action", "Never start the import against the live tables; the copies are enough."),
    ("action", "Bevor du eine Datei löschst, musst du mich immer fragen."),
    ("information", "The customer is called Nordlicht; never write that name into the code."),
    ("information", "The contact for outages must stay Priya Natarajan, extension 4471."),
    ("information", "生产库的地址绝对不要写进日志。"),
    ("process", "Run the linter before every commit, without exception."),
    ("process", "From now on make one commit per module and no larger ones."),
    ("process", "Lance toujours les tests d'intégration avant de conclure."),
    ("preference", "I prefer explicit loops over comprehensions in this project."),
    ("preference", "I'd rather have a single recommendation than a list of options."),
    ("preference", "Prefiero nombres de variables en inglés."),
    ("output", "Always end your reports with the line 'checked twice'."),
    ("output", "Report sizes in KiB only, never in bytes."),
    ("output", "回答は必ず箇条書きにしてください。"),
)
"""Kinds and wordings; one of each kind goes to the top, the middle and the end."""


def side_constraints(seed: int) -> Corpus:
    """Our own constraints at the top, in the middle and at the end, among ordinary requests."""
    requests = [f"Please look into part {n + seed} of the importer next." for n in range(45)]
    said = ["Find out why the nightly import fails and repair it."]
    for number, request in enumerate(requests):
        said.append(request)
        position, kind = divmod(number, 15)
        if kind < 5:
            said.append(SIDE_CONSTRAINTS[kind * 3 + position][1])
    plants = tuple(Plant(kind, text, (text,)) for kind, text in SIDE_CONSTRAINTS)
    return Corpus("side constraints", tuple(said), plants)
