"""What a line of shell names: the files that it looks at and those that it changes.

Only what is plain from the words: viewers and their files, redirections, moves, edits in place.
A here-document is content and no part of the command. Cost is linear in the command, of which
the first part is read.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

MAX_CHARS = 6_000
_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_]\w{0,60})\1")
_SHORT_DOCUMENT = 60

_TOKEN = re.compile(
    r"(?:[^\s'\"\\;|&<>()`]+|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")+|&?>{1,2}[&|]?|<+|[;|&()\n`]+", re.S
)
_QUOTED = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)", re.S)
_DRIVE = re.compile(r"['\"]?[A-Za-z]:\\")
_WRAPPED = re.compile(r"\s*(?:\S*/)?(?:ba|z|da)?sh(?: -\w+)* -\w*c (['\"])(.*)\1\s*$", re.S)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_NAME = re.compile(r"(?!-|/dev/|[a-z][\w+.-]*://)[^\0-\x1f*?$^{}|<>=,;`\"']{1,300}", re.I)
_FILE = re.compile(r"(?:.*[/\\])?(?:[^/\\]*\.[A-Za-z]\w{0,9}|\.[A-Za-z][\w-]+|[A-Z][a-z]+file)")
_NESTED = re.compile(r"[\w@.~+\[\] -]*[/\\][^/\\](?:.*[^/\\])?")
_KNOWN = frozenset({"README", "LICENSE", "CHANGELOG", "TODO", "NOTICE", "AUTHORS", "Makefile"})

_PREFIXES = frozenset(
    {"sudo", "env", "time", "nohup", "command", "builtin", "exec", "xargs", "nice", "timeout"}
    | {"stdbuf"}
)
_VIEWERS = frozenset(
    {"cat", "head", "tail", "less", "more", "nl", "bat", "tac", "wc", "xxd", "hexdump"}
    | {"od", "strings", "file", "stat", "type", "gc", "get-content", "md5sum", "sha1sum"}
    | {"sha256sum", "diff", "cmp", "source", ".", "vi", "vim", "nano", "emacs", "view"}
    | {"open"}
)
_SEARCHERS = frozenset(
    {"grep", "egrep", "fgrep", "rg", "ag", "ack", "sed", "gsed", "awk", "gawk", "jq"}
    | {"yq", "perl"}
)
"""Their first word is a pattern or a program."""

_WRITERS = frozenset(
    {"touch", "rm", "unlink", "truncate", "tee", "shred", "del", "remove-item", "set-content"}
)
_MOVERS = frozenset({"mv", "cp", "ln", "install", "rsync", "scp", "move", "copy", "ren", "rename"})
_FETCHERS = frozenset({"curl", "wget"})
_SILENT = frozenset({"cd", "pushd", "set", "export", "true", "sort", "uniq", "cut", "tr", "echo"})
"""Say nothing of their own beside a viewer."""

_IN_PLACE = re.compile(r"-[a-zA-Z]*i(?:\.\w+)?$|--in-place")


@dataclass(slots=True)
class Named:
    """Files that something names, in order."""

    read: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


def without_documents(command: str) -> str:
    r"""Return the command without the bodies of its here-documents.

    >>> without_documents("cat > a <<'E'\n" + "x" * 99 + "\nE\nmake")
    "cat > a <<'E' … E\nmake"
    """
    if "<<" not in command:
        return command
    parts, at = [], 0
    for found in _DOCUMENT.finditer(command):
        if found.start() < at:
            continue
        start = command.find("\n", found.end())
        if start < 0:
            break
        end = _end_of(command, found[2], start)
        if end - start > _SHORT_DOCUMENT:
            parts += [command[at:start], " … "]
            at = end
    return "".join([*parts, command[at:]])


def _end_of(command: str, word: str, start: int) -> int:
    found = re.compile(rf"\n[^\S\n]*+({word})(?=[\n\r)]|\Z)").search(command, start)
    return found.start(1) if found else len(command)


def files_of(command: str) -> Named:
    """Return the files that a command line names, as far as its words tell."""
    command = _inner(command)
    named = Named()
    for words, sources, targets in _simple_commands(without_documents(command)[:MAX_CHARS]):
        _take(words, named)
        named.read += [source for source in sources if is_file(source)]
        named.written += [target for target in targets if is_file(target)]
    return named


def directory_of(command: str) -> str:
    """Return the directory that a command line changes to first; empty when it changes none."""
    command = _inner(command)
    if not command.startswith(("cd ", "pushd ")):
        return ""
    words = next(iter(_simple_commands(command[:500])), ([], [], []))[0]
    return words[1] if len(words) == 2 else ""


def operands_of(command: str) -> str:
    """Return a command line without options, assignments and changes of directory."""
    kept = []
    for words, _, _ in _simple_commands(without_documents(_inner(command))[:MAX_CHARS]):
        if words and words[0] not in {"cd", "pushd", "echo", "tail", "head"}:
            kept.append(" ".join(w for w in words if not w.startswith("-")))
    return "; ".join(kept)


def is_view(command: str) -> bool:
    """Tell whether a command only shows what is in files, so its output is theirs."""
    command = _inner(command)
    if _HISTORY.match(command):
        return True
    lists = [_without_prefix(w) for w, _, _ in _simple_commands(command[:MAX_CHARS])]
    programs = {words[0].rpartition("/")[2] for words in lists if words} - _SILENT
    return bool(programs) and programs <= _VIEWERS | _SEARCHERS


_HISTORY = re.compile(r"(?:cd \S+ && )?git (?:--no-pager )?(?:log|show|diff|blame)\b")


def _inner(command: str) -> str:
    """Return what a shell is given to run, or the command itself."""
    found = _WRAPPED.match(command)
    return found[2] if found else command


def is_file(word: str) -> bool:
    """Tell whether a word of a command looks like the name of a file.

    >>> is_file("src/a"), is_file("a.py"), is_file("1,9p"), is_file("src/*.py")
    (True, True, False, False)
    """
    if not _NAME.fullmatch(word):
        return False
    return bool(_FILE.fullmatch(word) or _NESTED.fullmatch(word)) or word in _KNOWN


def _simple_commands(text: str) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Yield the words of each simple command, and where it is redirected from and to."""
    words: list[str] = []
    sources: list[str] = []
    targets: list[str] = []
    pending = ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token[0] in ";|()\n`" or (token[0] == "&" and ">" not in token):
            yield words, sources, targets
            words, sources, targets, pending = [], [], [], ""
        elif token[0] in "<>&":
            pending = token
        elif pending:
            if ">" in pending:
                targets.append(_plain(token))
            elif pending == "<":
                sources.append(_plain(token))
            pending = ""
        else:
            words.append(_plain(token))
    yield words, sources, targets


def _plain(token: str) -> str:
    if "'" not in token and '"' not in token and "\\" not in token:
        return token
    if _DRIVE.match(token):
        return token.strip("'\"")
    return _QUOTED.sub(lambda found: found[1] or found[2] or found[3] or "", token)


def _without_prefix(words: Sequence[str]) -> Sequence[str]:
    for position, word in enumerate(words):
        is_extra = word.startswith("-") or word[:1].isdigit()
        if word not in _PREFIXES and not _ASSIGNED.match(word) and not (position and is_extra):
            return words[position:]
    return []


def _take(words: Sequence[str], named: Named) -> None:
    words = _without_prefix(words)
    if words and words[0] == "git" and words[1:2] in (["mv"], ["rm"]):
        words = words[1:]
    if not words:
        return
    program = words[0].rpartition("/")[2].lower()
    options = [word for word in words[1:] if word.startswith("-")]
    plain = [word for word in words[1:] if not word.startswith("-")]
    names = [word for word in plain if is_file(word)]
    if program in _SEARCHERS:
        is_told = any(option in {"-e", "-f"} for option in options)
        names = [word for word in (plain if is_told else plain[1:]) if is_file(word)]
        is_edit = program in {"sed", "gsed", "perl"} and any(map(_IN_PLACE.match, options))
        (named.written if is_edit else named.read).extend(names)
    elif program in _VIEWERS:
        named.read += names
    elif program in _WRITERS:
        named.written += names
    elif program in _MOVERS:
        is_move = program in {"mv", "move", "ren", "rename"}
        (named.written if is_move else named.read).extend(names[:-1])
        named.written += names[-1:]
    elif program in _FETCHERS:
        after = [b for a, b in pairwise(words) if a in {"-o", "-O", "--output"}]
        named.written += [word for word in after if is_file(word)]
