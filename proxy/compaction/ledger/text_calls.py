"""Calls that an assistant wrote into its text, for agents that use no tools of the API.

Shell blocks, elements in angle brackets, JSON in a call element, search-and-replace blocks and
patches become calls like any other. What a person ran and pasted is read as well.
"""

import re
from collections.abc import Iterator
from itertools import islice

from proxy import codec
from proxy.codec import Json
from proxy.transcript import Call

_SHELL_BLOCK = re.compile(
    r"^```(?:bash|sh|shell|zsh|console|powershell|mswea_bash_command)[ \t]*\n(.*?)\n?```",
    re.S | re.M,
)
_DIFF_BLOCK = re.compile(r"^```(?:diff|patch)[ \t]*\n(.*?)\n```", re.S | re.M)
_ELEMENT = re.compile(r"<([a-z][a-z_]{2,40})>\s*(?=<[a-z])")
_MEMBER = re.compile(r"<([a-z_]{2,30})>([^<]{1,4000})</\1>")
_FUNCTION = re.compile(r"<function=([\w.-]{1,60})>")
_PARAMETER = re.compile(r"<parameter=([\w.-]{1,60})>\s*([^<]{0,4000})")
_SEARCH = re.compile(
    r"^[#*` \t]*([^\s`<>*#=+][^\n<>`*]{0,200}?)[`*:]*[ \t]*\n+(?:```[^\n]*\n)?<{5,9} ?SEARCH", re.M
)
_RAN = re.compile(r"\bI ran (?:this|the) command:\s+(\S[^\n]{0,1000})")
EDIT = "edit_file"
"""Name of the call that stands for a search-and-replace block."""

_MEMBERS_CHARS = 6_000
MAX_ELEMENTS = 500
"""So many elements of one text are looked into: each costs up to `_MEMBERS_CHARS`."""

_MEMBERS = frozenset({"path", "file_path", "command", "target_file", "filename", "files", "args"})


def calls_of(text: str) -> list[Call]:
    """Return the calls that stand in an assistant's text, in order of their kinds."""
    calls: list[Call] = []
    if "```" in text:
        calls += (_call("bash", {"command": block}) for block in _SHELL_BLOCK.findall(text))
        if "\n+++ " in text:
            calls += (Call("", "apply_patch", block) for block in _DIFF_BLOCK.findall(text))
    if "SEARCH" in text:
        calls += (_call(EDIT, {"path": path}) for path in _SEARCH.findall(text))
    if "</" in text:
        calls += _elements(text)
    return calls


def command_of(text: str) -> str:
    """Return the command that a person ran and whose output the message holds, if any."""
    found = _RAN.search(text, 0, 400) if "I ran " in text[:400] else None
    return found[1].strip() if found else ""


def _elements(text: str) -> Iterator[Call]:
    for part in text.split("<tool_call>", MAX_ELEMENTS)[1:]:
        yield from _json_call(part.partition("</tool_call>")[0].strip())
    if "<function=" in text:
        for found in islice(_FUNCTION.finditer(text), MAX_ELEMENTS):
            given = _PARAMETER.findall(_inside(text, found.end(), "</function>"))
            yield _call(found[1], {key: value.strip() for key, value in given})
    for found in islice(_ELEMENT.finditer(text), MAX_ELEMENTS):
        given = _MEMBER.findall(_inside(text, found.end(), f"</{found[1]}>"))
        members = {key: value.strip() for key, value in given if key in _MEMBERS}
        if members:
            yield _call(found[1], members)


def _inside(text: str, start: int, closing: str) -> str:
    return text[start : start + _MEMBERS_CHARS].partition(closing)[0]


def _json_call(body: str) -> Iterator[Call]:
    try:
        value = codec.loads(body)
        if isinstance(value, dict):
            given = value.get("arguments", value.get("parameters"))
            if isinstance(given, dict):
                given = codec.dumps(given).decode()
            if isinstance(given, str):
                yield Call("", codec.as_text(value.get("name")), given)
    except codec.MalformedJson:
        # No JSON, or nested too deeply to be written again.
        return


def _call(name: str, members: dict[str, str]) -> Call:
    given: Json = dict(members)
    return Call("", name, codec.dumps(given).decode())
