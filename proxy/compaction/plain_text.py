"""What a summary in plain text holds of the sections, as far as code can tell.

A summariser that answers in plain text after one that wrote sections, or before one, must not
lose what was known: what it does not mention stands in front of its text, under titles that are
read again when the next summary goes on from it.
"""

import re
from collections.abc import Iterator, Sequence

from proxy.compaction.checkpoint import Sections

MAX_ENTRIES = 60
"""So many entries of one kind are read from a text."""

_TITLE_WORDS = {
    "instructions": r"(?:user )?(?:instructions|constraints|rules)(?: and constraints)?"
    r"|anweisungen|vorgaben|regeln|instrucciones|reglas|règles|指示|制約|规则|要求|правила",
    "next_steps": r"next steps?|remaining(?: steps| work)?|to ?dos?"
    r"|open (?:steps|requests|points|tasks)|nächste schritte|offen(?:e punkte)?|próximos pasos"
    r"|prochaines étapes|次のステップ|下一步|следующие шаги",
    "relevant_files": r"(?:relevant |key |changed )?files|(?:relevante )?dateien|archivos|fichiers"
    r"|関連ファイル|相关文件|файлы",
}
_TITLES = {
    name: re.compile(
        rf"[\W\d_]*(?:{words})(?: \([^)]*\))?[*_ ]*+(?:[:\uff1a][*_\s]*+(.*)|\W*+)$", re.I
    )
    for name, words in _TITLE_WORDS.items()
}
_ITEM = re.compile(r"\s*(?:[-*\u2022]|\d+[.)])\s+(.*\S)")
_PATH = re.compile(
    r"(?<![\w./:@+-])(?:~|\.{1,2})?/?[\w.@+-]+(?:/[\w.@+-]+)+\.\w{1,8}(?![\w/])"
    r"|(?<![\w./:@-])[\w-]+\.(?:py|js|ts|tsx|jsx|go|rs|c|h|cc|cpp|hpp|java|kt|rb|php|cs|swift|sql"
    r"|sh|md|toml|yaml|yml|json|ini|cfg|lock|html|css|txt|proto|tf)(?!\w|/|\.\w)"
)
_WRITTEN = {
    "instructions": "Instructions",
    "next_steps": "Next steps",
    "relevant_files": "Relevant files",
}


def sections_in(text: str) -> Sections:
    """Read instructions, open steps and files from a text; everything else stays unread."""
    found: dict[str, list[str]] = {name: [] for name in _TITLES}
    for name, entry in _entries(text):
        found[name].append(entry)
    listed = "\n".join(found["relevant_files"])
    paths = (path for path in _PATH.findall(text) if path not in listed)
    found["relevant_files"] += dict.fromkeys(paths)
    return Sections(
        instructions=tuple(found["instructions"][:MAX_ENTRIES]),
        next_steps=tuple(found["next_steps"][:MAX_ENTRIES]),
        relevant_files=tuple(found["relevant_files"][-MAX_ENTRIES:]),
    )


def _entries(text: str) -> Iterator[tuple[str, str]]:
    name = ""
    for line in text.splitlines():
        item = _ITEM.match(line)
        title = next(
            ((key, found) for key, like in _TITLES.items() if (found := like.match(line))), None
        )
        if title is not None:
            name = title[0]
            if title[1][1]:
                yield name, title[1][1].strip()
        elif item and name:
            yield name, item[1]
        elif line.strip():
            name = ""


def with_kept(text: str, kept: Sections) -> str:
    """Write what a text does not mention in front of it."""
    parts = []
    for name, title in _WRITTEN.items():
        entries: Sequence[str] = getattr(kept, name)
        if entries:
            lines = (" ".join(entry.split()) for entry in entries)
            parts.append("\n".join([f"{title}:", *(f"- {line}" for line in lines)]))
    return "\n".join([*parts, "", text]) if parts else text
