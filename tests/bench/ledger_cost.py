"""What building and writing a ledger costs; nothing is asserted here.

Run with ``uv run python -m tests.bench.ledger_cost``. Figures are CPU milliseconds of this process
for about 1 MB of history, the best of three rounds: built for the first time, built again as the
next compaction of the same conversation does, and written. With ``--worst`` the texts are such as
would take more than linear time in a careless pattern, built once.
"""

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path

from msgspec.structs import replace

from proxy.codec import JsonObject
from proxy.compaction.ledger import ledger
from proxy.transcript import Content
from tests import builders as b
from tests.strategies import contents_of, to_transcript

ROUNDS = 3
TOKENS = 3000
CHARS = 1_000_000
SOURCES = Path(__file__).parents[2] / "proxy"


def sessions() -> Mapping[str, Sequence[JsonObject]]:
    """Histories of 1 MB of several kinds."""
    source = "".join(path.read_text() for path in sorted(SOURCES.rglob("*.py")))[:CHARS]
    chunks = [source[i : i + 8000] for i in range(0, len(source), 8000)]
    reads: list[JsonObject] = [b.user("Read it all.")]
    pastes: list[JsonObject] = []
    for number, chunk in enumerate(chunks):
        call = b.call(f"c{number}", "read_file", {"path": f"src/{number}.py"})
        reads += [b.assistant(None, [call]), b.result(f"c{number}", chunk)]
        pastes += [b.user(chunk), b.assistant("I see.")]
    talk = [
        m
        for n in range(500)
        for m in (b.user(f"Never touch part {n}. {b.prose(1900, n)}"), b.assistant("Noted."))
    ]
    return {
        "one long task": b.tool_session(480, result_chars=2000),
        "many turns": b.turn_session(160, 3, result_chars=2000),
        "files read": reads,
        "files pasted": pastes,
        "much said": talk,
    }


UNITS = {
    "no spaces": "abcdefghij",
    "one letter": "a",
    "short lines": "ab\n",
    "word after word": "word ",
    "blanks": " ",
    "empty lines": "\n",
    "lines of blanks": "    \n",
    "carriage returns": "word\r\n",
    "backticks": "`",
    "backticks apart": "``` ",
    "tildes": "~",
    "fences": "```\nx = 1\n~~~\n",
    "late fences": "see ```\n",
    "open brackets": "([{<",
    "brackets": "(a[b]{c}) ",
    "quotes": "\"'\u201c\u00ab",
    "quoted": '"three words here" ',
    "apostrophes": "it's 'so ",
    "full stops": ".",
    "question marks": "?! ",
    "urls": "https://a.example/b?c=d ",
    "urls without blanks": "https://a.example/b(c",
    "slashes": "/",
    "paths": "/usr/lib/a.py ",
    "digits": "0123456789",
    "digits apart": "12 34.5 ",
    "capitals": "ABC ",
    "labels": "ABC DEF: ",
    "keys": "key: 5\n",
    "keys of many kinds": "limit of {n}: {n} MB\n",
    "equal signs": "a=1 ",
    "mail addresses": "a@b:~",
    "headers": "From: a\n",
    "greetings": "hello\n",
    "headings": "# \n",
    "dashes": "-",
    "rulers": "-----\n",
    "badges": "[![a](b)\n",
    "CJK": "\u8bb0\u4f4f\u8fd9\u4e2a",
    "CJK sentences": "\u4e0d\u8981\u5220\u9664\u8fd9\u4e2a\u6587\u4ef6\u3002",
    "accents": "\u00e9t\u00e9 ",
    "unseen": "a\u200b",
    "nested JSON": '{"a":[',
    "pairs of JSON": '{"limit": 5, "name": "x"},\n',
    "elements": "<a>x</a>\n",
    "elements never closed": "text <a>\n",
    "elements closed at the end": "<abc>",
    "tasks": "<task>\n",
    "calls in angle brackets": "<function=a>",
    "members in angle brackets": "<abc><path>",
    "tags without end": "<",
    "one tag without end": "<a",
    "rules": "Never touch part {n}. ",
    "rules by line": "- Never touch part {n}.\n",
    "withdrawals": "Forget the rule about part {n}.\n",
    "log": "2024-01-01 10:00:{n} ERROR failed to open /tmp/{n}\n",
    "shell": "$ cat a.py\nERROR: no such file\n",
    "here documents": "cat <<A ",
    "here documents by line": "cat <<A\nB A\n",
    "patch": "+++ b/a.py\n--- a/a.py\n@@ -1 +1 @@\n",
    "search blocks": "a.py\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n",
    "search without end": "a  ",
    "announcements": "Here is the log:\n\n",
    "roles": "System: hello\n",
    "errors": "Error: {n}\n",
    "sentences": "Ann Lee decided that the port is {n}. ",
}
"""What a text is made of, again and again."""

PREFIXES = {
    "one tag without end": "<",
    "greetings": "x\n",
    "search without end": "SEARCH\n",
}
SUFFIXES = {"elements closed at the end": "</abc>", "empty lines": "SEARCH [![ # Regards hello"}


def _text(name: str, chars: int = CHARS) -> str:
    unit, prefix, parts, size = UNITS[name], PREFIXES.get(name, ""), list[str](), 0
    while size < chars:
        parts.append(unit.replace("{n}", str(len(parts))))
        size += len(parts[-1])
    return prefix + "".join(parts) + SUFFIXES.get(name, "")


def _said(text: str) -> list[JsonObject]:
    return [b.user(text), b.assistant("I see.")]


def _answered(text: str) -> list[JsonObject]:
    return [b.user("Go on."), b.assistant(text)]


def _printed(text: str) -> list[JsonObject]:
    call = b.call("c", "bash", {"command": "make"})
    return [b.user("Go on."), b.assistant(None, [call]), b.result("c", text)]


def _run(text: str) -> list[JsonObject]:
    call = b.call("c", "bash", {"command": text, "path": text[:100]})
    return [b.user("Go on."), b.assistant(None, [call]), b.result("c", "Done.")]


def worst() -> Iterator[tuple[str, Sequence[JsonObject]]]:
    """Yield histories of 1 MB that are as bad as can be."""
    places = (("said", _said), ("answered", _answered), ("printed", _printed), ("run", _run))
    for name in UNITS:
        for place, made in places:
            yield f"{name}, {place}", made(_text(name))
    for name in UNITS:
        yield f"{name}, said in parts", _in_parts(_text(name), b.user)
    yield from _many()


def _in_parts(text: str, made: Callable[[str], JsonObject]) -> list[JsonObject]:
    return [made(text[at : at + 500]) for at in range(0, len(text), 500)]


def _many() -> Iterator[tuple[str, Sequence[JsonObject]]]:
    yield "long words", [b.user("x" * 500 + str(n)) for n in range(2000)]
    yield "rules withdrawn", _spoken(("Never touch part {n}.", "Forget the rule about part {n}."))
    yield "rules superseded", _spoken(("The limit of part {m} is {n} MB.",))
    yield "rules restated", _spoken(("Never push part {n} to main, ask Ann.", "Now push part {n}."))
    yield "rules of one wording", _spoken(("Never touch part {n}.",))
    yield "rules all withdrawn", _spoken(("Never touch part {n}.", "Forget all my rules."))
    calls = [
        message
        for n in range(10_000)
        for message in (
            b.assistant(None, [b.call(f"c{n}", "bash", {"command": f"cat src/{n}.py"})]),
            b.result(f"c{n}", f"limit: {n}\nexit code: {n % 2}"),
        )
    ]
    yield "calls", [b.user("Go on."), *calls]
    rng = random.Random(1)
    letters = "ab \n`~<>\"'().:/[]{}#-=\u4e2d\u00e9?!1A"
    yield "noise", _said("".join(rng.choices(letters, k=CHARS)))


def _spoken(forms: Iterable[str]) -> list[JsonObject]:
    each = zip(range(5000), cycle(forms), strict=False)
    return [b.user(form.format(n=n // 2, m=n % 50)) for n, form in each]


def cost(contents: Sequence[Content]) -> tuple[float, float, float]:
    """Return the milliseconds of building, of building again and of writing."""
    best = [float("inf")] * 3
    for number in range(ROUNDS):
        # No text of this round was seen before.
        fresh = [replace(c, texts=(*c.texts, f"\n{number}")) if c.texts else c for c in contents]
        start = time.process_time()
        ledger.build(fresh, range(len(fresh)))
        built = time.process_time()
        book = ledger.build(fresh, range(len(fresh)))
        again = time.process_time()
        ledger.render(book, TOKENS)
        written = time.process_time()
        best = list(map(min, best, (built - start, again - built, written - again)))
    return best[0] * 1000, best[1] * 1000, best[2] * 1000


def _print_worst() -> None:
    for name, messages in worst():
        contents = contents_of(to_transcript(messages).items)
        start = time.process_time()
        ledger.build(contents, range(len(contents)))
        built = (time.process_time() - start) * 1000
        sys.stdout.write(f"{name:44} build {built:7.1f} ms\n")
        sys.stdout.flush()


def main() -> None:
    """Print a line for each kind of history."""
    if "--worst" in sys.argv[1:]:
        _print_worst()
        return
    for name, messages in sessions().items():
        built, again, written = cost(contents_of(to_transcript(messages).items))
        sys.stdout.write(
            f"{name:16} build {built:6.1f} ms  again {again:6.1f} ms  write {written:6.1f} ms\n"
        )


if __name__ == "__main__":
    main()
