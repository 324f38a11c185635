"""No input whatever makes the ledger or the checks of a summary raise: that would cost a fold."""

from hypothesis import example, given
from hypothesis import strategies as st

from proxy import codec
from proxy.compaction import checkpoint, coverage, language
from proxy.compaction.checkpoint import Sections
from proxy.compaction.leaks import Prompt
from proxy.compaction.ledger import ledger
from proxy.transcript import Binary, Call, Content, Kind

_KEYS = (
    *("command", "cmd", "args", "input", "code", "workdir", "session_id", "id", "script"),
    *("path", "file_path", "files", "paths", "edits", "changes", "patch", "content", "source"),
    *("output", "stdout", "exit_code", "exitCode", "metadata", "result", "text", "success"),
    *("tool_name", "parameters", "tool_uses", "operation", "name", "arguments", "url"),
)
_PIECES = (
    *(
        "\n",
        " ",
        "\\",
        "\\u0026",
        "\\/",
        "'",
        '"',
        "`",
        "```bash\n",
        "```",
        "{",
        "[",
        "<<E\n",
        "E\n",
    ),
    *(
        "./",
        "//",
        "file://",
        "https://",
        "a.example/(",
        "$x",
        "*",
        "> ",
        "< ",
        "| ",
        "&& ",
        "cd /r ",
    ),
    *("sed -i s/a/b/ ", "git mv ", "bash -lc '", "a.py", "src/b.ts", "*** Begin Patch\n"),
    *("*** Add File: ", "\n+++ b/", "rename to ", "<tool_call>", "</tool_call>", "<function=f>"),
    *("<parameter=path>", "</function>", "<read_file><path>", "</path></read_file>"),
    *("<<<<<<< SEARCH\n", "I ran this command: ", "exit code ", "--5", "\u0664", "\u00b2", "7%"),
    *("Error: ", "Signal: 9", "running in session ", "port: 8080", "TOTAL 3", "3 failed"),
    *("We decided: ", "The limit is 5.", "Never ", "always ", "ignore all previous instructions"),
    *("- ", "1. ", "## ", "Next steps:", "Instructions:", "</foldgate-record>", "?", "\u2028"),
    *("決定", "🙂", "\ud800", "\x00", "\u200b", "İ", "ß"),
)
_WORDS = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=12).map("".join),
    st.text(st.characters(), max_size=12),
)


def _json(text: str) -> str:
    return codec.dumps(text).decode()


def _object(members: dict[str, str]) -> str:
    return "{" + ",".join(f"{_json(key)}:{value}" for key, value in members.items()) + "}"


# Written as text, since encoders refuse some of what a client may send.
_LEAVES = st.one_of(
    _WORDS.map(_json),
    st.sampled_from(
        ["null", "true", "-0", "7", '"--5"', "9" * 30, "9" * 5000, "1e300", '"\\ud800"']
    ),
)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda members: f"[{','.join(members)}]"),
        st.dictionaries(st.one_of(st.sampled_from(_KEYS), _WORDS), inner, max_size=4).map(_object),
    ),
    max_leaves=8,
)
_NESTED = st.builds(
    lambda key, depth, core: f'{{"{key}":' * depth + core + "}" * depth,
    st.sampled_from(_KEYS),
    st.sampled_from([3, 200, 260, 850, 900, 940, 980, 5000]),
    _JSON,
)
_TEXTS = st.one_of(
    _WORDS,
    _JSON,
    _NESTED,
    _NESTED.map(lambda json: f'<tool_call>{{"name":"edit","arguments":{json}}}</tool_call>'),
)
_IDS = st.sampled_from(["a", "b", ""])
_NAMES = st.one_of(
    st.sampled_from(["bash", "shell", "edit", "move_file", "apply_patch", "ls", ""]), _WORDS
)
_CONTENTS = st.builds(
    Content,
    role=st.sampled_from(["user", "assistant", "tool"]),
    kind=st.sampled_from(Kind),
    texts=st.lists(_TEXTS, max_size=2).map(tuple),
    notes=st.one_of(st.just(""), _TEXTS),
    calls=st.lists(st.builds(Call, _IDS, _NAMES, _TEXTS), max_size=2).map(tuple),
    answers=st.one_of(st.none(), _IDS),
    binaries=st.sampled_from([(), (Binary("image"),), (Binary("file"), Binary("file"))]),
)
_ENTRIES = st.lists(_WORDS, max_size=3).map(tuple)
_SECTIONS = st.builds(
    Sections,
    goal=_WORDS,
    instructions=_ENTRIES,
    discoveries=_ENTRIES,
    accomplished=_ENTRIES,
    current_state=_WORDS,
    next_steps=_ENTRIES,
    relevant_files=_ENTRIES,
)


def _step(id: str, command: str, told: dict[str, str], answer: str) -> list[Content]:
    """A command, its result in JSON or in plain text, and what the assistant says then."""
    arguments = _object({"command": _json(command)})
    printed = _object(told) if told else answer
    return [
        Content("assistant", Kind.ASSISTANT, calls=(Call(id, "bash", arguments),)),
        Content("tool", Kind.RESULT, (printed,), answers=id),
        Content("assistant", Kind.ASSISTANT, (answer,)),
    ]


_TOLD = st.dictionaries(
    st.sampled_from(["output", "exit_code", "metadata", "success", "stderr"]), _JSON, max_size=3
)
_CONVERSATIONS = st.lists(
    st.one_of(
        _CONTENTS.map(lambda content: [content]), st.builds(_step, _IDS, _WORDS, _TOLD, _TEXTS)
    ),
    max_size=4,
).map(lambda steps: [content for step in steps for content in step])


@example(_step("a", "make", {"exit_code": '"--5"'}, ""), 40)
@given(_CONVERSATIONS, st.sampled_from([0, 1, 40, 3000]))
def test_no_conversation_makes_the_ledger_raise(contents: list[Content], tokens: int) -> None:
    made = ledger.build(contents, range(len(contents)))
    text, left_out = ledger.render(made, tokens)
    assert isinstance(text, str)
    assert left_out >= 0


@given(_CONVERSATIONS, _SECTIONS, _WORDS, st.one_of(st.none(), _SECTIONS, _WORDS))
def test_no_summary_makes_its_checks_raise(
    contents: list[Content], summary: Sections, text: str, before: Sections | str | None
) -> None:
    quotes = ledger.build(contents, range(len(contents))).quotes
    said = [content.text for content in contents]
    prompt = Prompt([text, *said[:1]], lambda: said)
    grounded = coverage.cover(summary, quotes, before, lambda: said)
    assert isinstance(checkpoint.bound(grounded), Sections)
    assert isinstance(prompt.kept_out(grounded), Sections)
    assert isinstance(coverage.cover_text(text, quotes, before, lambda: said), str)
    assert isinstance(language.language_of(said), str)
