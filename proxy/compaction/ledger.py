"""What code carries over from the originals, so that no model has to remember it.

The user's own messages verbatim and in order, system text from the middle of the conversation
that is too old to stay pinned, and the files that tool calls named. It is always built from
the original items that the client resent, never from an earlier ledger.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy import codec
from proxy.codec import Json
from proxy.compaction.measure import text_tokens
from proxy.transcript import Binary, Call, Content, Kind

_PATH_KEY = re.compile(
    r"(?:.*[_-])?(?:path|file|filename)s?|(?:file|target|notebook|abs|rel)\w*(?:path|file|name)",
    re.I,
)
_WRITES = re.compile(r"write|edit|patch|create|insert|replace|update|delete|move|rename", re.I)
_PATCH_HEADER = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.M)
_MAX_PATH_CHARS = 300

MESSAGE_CAPS = (8000, 4000, 2000, 1000, 500, 250, 120)
"""Long pastes in the middle of the list are cut to these lengths, largest first."""

FIRST_SHARE = 0.6
FILES_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Quote:
    """A user or system message, word for word."""

    text: str
    answered: bool
    role: str = "user"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Facts of the replaced items, taken by code."""

    quotes: tuple[Quote, ...] = ()
    files_read: tuple[str, ...] = ()
    files_written: tuple[str, ...] = ()


def build(contents: Sequence[Content], replaced: Sequence[int]) -> Ledger:
    """Collect the ledger of the items at `replaced` from the decoded originals.

    Args:
        contents: every item up to the cut.
        replaced: indexes of those that the checkpoint stands for, ascending.
    """
    quotes = []
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    for index in replaced:
        content = contents[index]
        if content.kind in {Kind.USER, Kind.INSTRUCTION}:
            text = _quoted(content)
            if text:
                quotes.append(Quote(text, _answered(contents, index), content.role))
        for call in content.calls:
            target = written if _WRITES.search(call.name) else read
            for path in files_of(call):
                # The newest mention stands last, so it survives a cut from the front.
                target.pop(path, None)
                target[path] = None
    return Ledger(tuple(quotes), tuple(p for p in read if p not in written), tuple(written))


def describe_binary(binary: Binary) -> str:
    """Return the line that stands for an image, sound or file that is no longer visible."""
    pixels = f", {binary.width}x{binary.height}" if binary.width else ""
    return f"[{binary.kind} no longer visible: {binary.media_type or 'unknown type'}{pixels}]"


def _quoted(content: Content) -> str:
    lines = [content.text, *map(describe_binary, content.binaries)]
    return "\n".join(line for line in lines if line.strip())


def _answered(contents: Sequence[Content], index: int) -> bool:
    for later in contents[index + 1 :]:
        if later.kind is Kind.USER:
            return False
        if later.kind is Kind.ASSISTANT and not later.calls and later.text.strip():
            return True
    return False


def files_of(call: Call) -> list[str]:
    """Return the file paths that the arguments of a call name."""
    try:
        value = codec.loads(call.arguments)
        paths = _paths(value, "")
    except RecursionError:
        return []
    except codec.MalformedJson:
        return [path.strip() for path in _PATCH_HEADER.findall(call.arguments)]
    return [path for path in paths if 0 < len(path) <= _MAX_PATH_CHARS]


def _paths(value: Json, key: str) -> list[str]:
    if isinstance(value, str):
        if _PATH_KEY.fullmatch(key):
            return [] if "\n" in value else [value.strip()]
        return [path.strip() for path in _PATCH_HEADER.findall(value)]
    if isinstance(value, list):
        return [path for member in value for path in _paths(member, key)]
    if isinstance(value, dict):
        return [path for name, member in value.items() for path in _paths(member, name)]
    return []


def cut_middle(text: str, cap: int) -> str:
    """Shorten `text` to about `cap` characters, keeping its beginning and its end."""
    if len(text) <= cap:
        return text
    head = cap * 2 // 3
    tail = text[len(text) - (cap - head) :]
    return f"{text[:head]}\n[… {len(text) - cap} characters left out …]\n{tail}"


def render(ledger: Ledger, tokens: int) -> tuple[str, int]:
    """Write the ledger within `tokens`; return the text and how many entries were left out."""
    files, files_out = _render_files(ledger, int(tokens * FILES_SHARE))
    files = files and "\n\n" + files
    quotes, quotes_out = _render_quotes(ledger.quotes, tokens - text_tokens(files))
    return (quotes + files).strip("\n"), files_out + quotes_out


def _render_files(ledger: Ledger, tokens: int) -> tuple[str, int]:
    lines, omitted = [_FILES_TITLE], 0
    tokens -= text_tokens(_FILES_TITLE)
    for title, paths in (("written", ledger.files_written), ("read", ledger.files_read)):
        kept = list(paths)
        while kept and text_tokens(_file_line(title, kept)) > tokens:
            del kept[: max(1, len(kept) // 8)]
        omitted += len(paths) - len(kept)
        if kept:
            line = _file_line(title, kept)
            tokens -= text_tokens(line)
            lines.append(line)
    return ("".join(lines) if len(lines) > 1 else ""), omitted


def _file_line(title: str, paths: Sequence[str]) -> str:
    return f"\n{title}: {', '.join(paths)}"


_FILES_TITLE = "## Files named in tool calls"
_QUOTES_TITLE = "## What was said to the assistant, verbatim, oldest first"


def _render_quotes(quotes: Sequence[Quote], tokens: int) -> tuple[str, int]:
    if not quotes:
        return "", 0
    texts: list[str] = []
    first = _first_cap(quotes[0].text, tokens)
    for cap in MESSAGE_CAPS:
        texts = [_shorten(quotes, i, cap, first) for i in range(len(quotes))]
        text = _join_quotes(quotes, texts, 0)
        if text_tokens(text) <= tokens:
            return text, 0
    # Even short forms are too many: the first stays, then the newest.
    texts[0] = cut_middle(quotes[0].text, first)
    # Dropping more never makes it longer, so the fewest that must go are found by halving.
    too_few, enough = 0, len(quotes) - 1
    if text_tokens(_join_quotes(quotes, texts, enough)) > tokens:
        return "", len(quotes)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if text_tokens(_join_quotes(quotes, texts, middle)) <= tokens:
            enough = middle
        else:
            too_few = middle
    return _join_quotes(quotes, texts, enough), enough


def _first_cap(text: str, tokens: int) -> int:
    # Dense script costs up to a token a character, so the length is found by measuring.
    share = tokens * FIRST_SHARE
    cap = len(text)
    while cap and text_tokens(cut_middle(text, cap)) > share:
        cap -= max(1, cap // 8)
    return cap


def _shorten(quotes: Sequence[Quote], index: int, cap: int, first: int) -> str:
    if index == 0:
        cap = max(cap, first)
    elif index == len(quotes) - 1:
        cap *= 2
    return cut_middle(quotes[index].text, cap)


def _join_quotes(quotes: Sequence[Quote], texts: Sequence[str], dropped: int) -> str:
    lines = [_QUOTES_TITLE]
    for index, (quote, text) in enumerate(zip(quotes, texts, strict=True)):
        if 1 <= index <= dropped:
            if index == dropped:
                lines.append(f"[{dropped} messages left out]")
            continue
        state = "answered" if quote.answered else "open or continued"
        mark = state if quote.role == "user" else f"{quote.role} message"
        lines.append(f"[{index + 1}, {mark}]\n{text}")
    return "\n".join(lines)
