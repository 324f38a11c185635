"""The files that an assistant read and wrote, from the arguments of its calls.

Paths come from members named for one, from patches, from lists of edits and from command lines.
The absolute and the relative form of one file are one entry. A name that reads like a request is
no entry at all: see `addressed`.
"""

import re
from collections.abc import Iterator, Mapping

from proxy import codec
from proxy.codec import Json
from proxy.compaction.ledger import shell
from proxy.compaction.ledger.addressed import hides_instruction
from proxy.compaction.ledger.findings import Findings
from proxy.compaction.ledger.shell import Named
from proxy.transcript import Call

_PATH_KEY = re.compile(
    r"(?:[A-Za-z]\w*[_-])?(?:[Pp]ath|[Ff]ile|[Ff]ile_?[Nn]ame)s?|\w*[a-z](?:Path|File|FileName)s?"
    r"|(?:[Aa]bs|[Rr]el|[Ff]ile|[Ii]n|[Oo]ut|[Ll]og)(?:path|file)s?|(?:Abs|Rel)\w*Path|uri"
    r"|(?:target|notebook|file|abs|rel)\w*(?:path|file|name)|(?:PATH|FILE|FILENAME)S?"
)
_NO_PATH_KEY = re.compile(r"(?:json|url|class|python|field|css|x|s3|key)_?[Pp]ath|.*[Pp]rofile")
_MOVE_KEY = re.compile(r"(?:source|destination|src|dst|dest|from|to|old|new)(?:_?name)?", re.I)
_MOVES = re.compile(r"move|rename|copy|(?:^|_)(?:mv|cp)(?:_|$)", re.I)
_NESTED_KEYS = frozenset(
    {"input", "args", "arguments", "params", "parameters", "edits", "files", "operations"}
)
_WRITES = re.compile(
    r"write|edit|patch|create|insert|replace|update|delete|move|rename|append|overwrite|modify"
    r"|remove|save|copy|(?:^|_)(?:mv|cp|rm|touch|put)(?:_|$)",
    re.I,
)
_LOOKS = re.compile(r"(?:view|read|open|cat|show|list|find|search|grep|get|goto|print)\w*", re.I)
_BROWSES = re.compile(
    r"^(?:\w+__)?(?:ls|list|glob|grep|find|search|tree|rg)(?:$|[_A-Z])|director|folder"
    r"|^(?:LS|Glob|Grep)$",
    re.I,
)
"""Tools that are given a place to look in, which is seldom a file."""

_CONTENT_KEYS = frozenset(
    {"content", "contents", "file_text", "fileText", "new_string", "newString", "new_str"}
    | {"newStr", "newText", "new_text", "edits", "code_edit", "codeEdit", "patch", "diff"}
    | {"old_string", "oldString", "old_str", "replacement", "insert_line"}
)
_TEXT_KEYS = _CONTENT_KEYS - {"patch", "diff", "edits"}
"""What becomes text of a file, and names none."""

_KEYED_BY_PATH = frozenset({"changes", "edits", "file_changes", "fileChanges"})
_OPERATION_KEYS = ("command", "operation", "action", "mode", "type")
_TOOL_KEYS = ("tool_name", "toolName", "recipient_name", "tool")
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.M)
_DIFFED = re.compile(r"^(?:\+\+\+|---) (?:[ab]/)?([^\t\n]+)", re.M)
_RENAMED = re.compile(r"^rename (?:to|from) (.+)$", re.M)
_PATCHES = re.compile(r"patch|apply|diff", re.I)
_HERE = re.compile(r"^(?:\.[/\\])+")
_LINES = re.compile(r"(?<=[\w)\]]):\d+(?:[-:,]\d+)*$|#L\d+(?:-L?\d+)?$")
_ABSOLUTE = re.compile(r"/|[A-Za-z]:[/\\]|\\\\")
_OPERATION = re.compile(r"[A-Za-z][\w-]{0,30}")

MAX_CHARS = 300
MAX_WORDS = 6
"""A part of a path of more words is a sentence, and a sentence in a list of files is a trap."""

MAX_DEPTH = 24


def is_path(path: str) -> bool:
    """Tell whether a text may stand in a list of files."""
    if not 0 < len(path) <= MAX_CHARS or not path.isprintable():
        return False
    if path in {".", "..", "/", "-", "~"} or "://" in path or path[0] == "$" or "*" in path:
        return False
    if " " in path and any(len(part.split()) > MAX_WORDS for part in re.split(r"[/\\]", path)):
        return False
    return not hides_instruction(path)


def of_call(call: Call, command: str = "") -> Named:
    """Return the files that a call reads and writes, each as often as it names them.

    Args:
        call: a call as the model made it.
        command: the command line that it runs, if any.
    """
    read, written = _NAMED.of(call.name, call.arguments, command)
    return Named([*read], [*written])


def _named(name: str, arguments: str, command: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    named = shell.files_of(command) if command else Named()
    try:
        _collect(codec.loads(arguments), name, named)
    except codec.MalformedJson:
        named.written += _of_patch(arguments, name)
    except RecursionError:
        # What was found above so deep a nesting stands.
        pass
    return (
        tuple(path for path in map(_cleaned, named.read) if is_path(path)),
        tuple(path for path in map(_cleaned, named.written) if is_path(path)),
    )


_PATH_BYTES = 60
_NAMED = Findings(
    lambda texts: _named(*texts),
    lambda named: sum(_PATH_BYTES + len(path) for paths in named for path in paths),
    2**19,
)


def _cleaned(path: str) -> str:
    path = _HERE.sub("", path.strip().removeprefix("file://"))
    if path[-1:].isdigit():
        path = _LINES.sub("", path)
    return path


def _collect(value: Json, name: str, named: Named) -> None:
    if isinstance(value, str):
        named.written += _of_patch(value, name)
    elif isinstance(value, list):
        for member in value:
            _collect(member, name, named)
    elif isinstance(value, dict):
        _collect_members(value, name, named)


def _collect_members(value: Mapping[str, Json], name: str, named: Named) -> None:
    name = " ".join([name, *(t for key in _TOOL_KEYS if isinstance(t := value.get(key), str))])
    is_written = _is_written(value, name)
    target = named.written if is_written else named.read
    for key, member in value.items():
        nested = _parsed(member) if key in _NESTED_KEYS and isinstance(member, str) else member
        if _PATH_KEY.fullmatch(key) and not _NO_PATH_KEY.fullmatch(key):
            _take_paths(nested, name, named, target)
        elif _MOVE_KEY.fullmatch(key) and _MOVES.search(name):
            if isinstance(member, str) and "\n" not in member:
                named.written.append(member)
        elif key in _KEYED_BY_PATH and isinstance(nested, dict):
            named.written += filter(shell.is_file, nested)
            _collect(nested, name, named)
        elif key not in _TEXT_KEYS:
            # What is done to a file is told around a list of its edits, so the name goes along.
            _collect(nested, name, named)


def _take_paths(value: Json, name: str, named: Named, target: list[str]) -> None:
    if isinstance(value, str):
        parsed = _parsed(value) if value.startswith("[") else value
        if isinstance(parsed, list):
            _take_paths(parsed, name, named, target)
        elif "\n" in value:
            named.written += _of_patch(value, name)
        elif not _is_place(value, name):
            target.append(value)
    elif isinstance(value, list):
        for member in value:
            _take_paths(member, name, named, target)
    elif isinstance(value, dict):
        target += filter(shell.is_file, value)
        _collect(value, name, named)


def _is_place(path: str, name: str) -> bool:
    if not _BROWSES.search(name):
        return False
    return "." not in re.split(r"[/\\]", path)[-1].lstrip(".")


def _is_written(value: Mapping[str, Json], name: str) -> bool:
    for key in _OPERATION_KEYS:
        operation = value.get(key)
        if isinstance(operation, str) and _OPERATION.fullmatch(operation):
            if _LOOKS.fullmatch(operation):
                return False
            if _WRITES.search(operation):
                return True
    if _WRITES.search(name):
        return True
    given = (value.get(key) for key in _CONTENT_KEYS & value.keys())
    return any(isinstance(member, str | list) for member in given)


def _parsed(text: str) -> Json:
    if text[:1] not in {"{", "["}:
        return text
    try:
        return codec.loads(text)
    except codec.MalformedJson:
        return text


def _of_patch(text: str, name: str) -> Iterator[str]:
    # Text about patches is none: a tool or a program for them must be named.
    if "*** " in text and ("*** Begin Patch" in text or "patch" in f"{name} {text[:100]}".lower()):
        yield from _PATCHED.findall(text)
    if "\n+++ " in text and _PATCHES.search(f"{name} {text[:200]}"):
        yield from (path for path in _DIFFED.findall(text) if path != "/dev/null")
        if "\nrename " in text:
            yield from _RENAMED.findall(text)


class Files:
    """Gathers files in the order of their newest mention."""

    def __init__(self) -> None:
        """Begin with none."""
        self._read: dict[str, None] = {}
        self._written: dict[str, None] = {}
        self._roots: dict[str, None] = {}

    def take(self, named: Named, root: str = "") -> None:
        """Note files; `root` is the directory that relative ones are in, if it is known."""
        if root and _ABSOLUTE.match(root):
            self._roots[_form(root).rstrip("/")] = None
        for path in named.read:
            renew(self._read, path)
        for path in named.written:
            renew(self._written, path)

    def all(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what was only read and what was written, absolute where a form of it is."""
        whole = self._whole_forms()
        written = list(_renewed(whole.get(path, path) for path in self._written))
        done = set(written)
        read = _renewed(whole.get(path, path) for path in self._read)
        return tuple(path for path in read if path not in done), tuple(written)

    def _whole_forms(self) -> dict[str, str]:
        known = [*self._read, *self._written]
        absolute = dict.fromkeys(path for path in known if _ABSOLUTE.match(path))
        ends: dict[str, list[str]] = {}
        for path in absolute:
            parts = _form(path).strip("/").split("/")[-MAX_DEPTH:]
            for start in range(1, len(parts)):
                ends.setdefault("/".join(parts[start:]), []).append(path)
        whole: dict[str, str] = {}
        for path in known:
            form = _form(path)
            fits = ends.get(form, []) if path not in absolute else []
            rooted = [fit for fit in fits if _form(fit)[: -len(form) - 1] in self._roots]
            if len(rooted) == 1 or (len(fits) == 1 and "/" in form):
                whole[path] = (rooted or fits)[0]
        return whole


def _form(path: str) -> str:
    return path.replace("\\", "/")


def _renewed(paths: Iterator[str]) -> dict[str, None]:
    kept: dict[str, None] = {}
    for path in paths:
        renew(kept, path)
    return kept


def renew(known: dict[str, None], entry: str) -> None:
    """Put an entry last: the newest mention survives a cut from the front."""
    known.pop(entry, None)
    known[entry] = None
