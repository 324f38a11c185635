"""What counts as a summary, and what is refused with which word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import JsonObject
from proxy.compaction.answer import MIN_TEXT_CHARS, Answer, rare_words, read_answer
from proxy.compaction.checkpoint import SECTION_NAMES, Sections
from proxy.errors import SummaryFailed
from tests.strategies import texts

SPAN = (
    "The importer in src/parser/reads.py drops the trailing checksum when the registry is empty. "
    "Run pytest -q tests/importer and watch the scheduler backlog; 変更は禁止です。"
)
PROSE = (
    "The user wants the importer repaired. The cause was found in src/parser/reads.py, where the "
    "trailing checksum is dropped as soon as the registry is empty. A fix is written but not yet "
    "tested; the scheduler backlog has to be watched while the tests run."
)
JSON = (
    '{"goal": "repair it", "instructions": ["no renames"], "discoveries": ["a } in text"],'
    ' "currentState": "half done"}'
)
READ = Sections(
    goal="repair it",
    instructions=("no renames",),
    discoveries=("a } in text",),
    current_state="half done",
)


def _read(output: str, *, cut: bool = False) -> Answer:
    return read_answer(output, cut=cut, span_text=SPAN)


def _reason(output: str, *, cut: bool = False) -> str:
    with pytest.raises(SummaryFailed) as caught:
        _read(output, cut=cut)
    return caught.value.reason


@pytest.mark.parametrize(
    "output",
    [
        JSON,
        f"  \n{JSON}\n",
        f"```json\n{JSON}\n```",
        f"```\n{JSON}\n```",
        f"Here is the checkpoint:\n\n{JSON}",
        f"{JSON}\nThat is all.",
        f"Sure!\n```json\n{JSON}\n```\nThat is all.",
        f"<think>the user {{wants}} JSON</think>{JSON}",
        f"<THINKING>\n{{}}\n</THINKING>\n```json\n{JSON}\n```",
        f"Okay, {{so}} the user wants JSON.\n</think>\n\n{JSON}",
    ],
)
def test_json_is_read_whatever_stands_around_it(output: str) -> None:
    assert _read(output) == Answer(READ, "", partial=False)


def test_json_with_a_fence_inside_a_string_is_whole() -> None:
    body = '{"goal": "repair", "discoveries": ["run ```make``` first"], "nextSteps": ["x"]}'
    expected = Sections(goal="repair", discoveries=("run ```make``` first",), next_steps=("x",))
    assert _read(f"```json\n{body}\n```") == Answer(expected, "", partial=False)
    assert _read(body) == Answer(expected, "", partial=False)


@pytest.mark.parametrize("tag", ["<think>", "</think>"])
def test_json_that_speaks_of_thinking_is_whole(tag: str) -> None:
    body = f'{{"goal": "strip {tag} from replies", "nextSteps": ["test it"]}}'
    expected = Sections(goal=f"strip {tag} from replies", next_steps=("test it",))
    assert _read(body) == Answer(expected, "", partial=False)


def test_whole_json_at_the_output_limit_is_still_marked_partial() -> None:
    assert _read(JSON, cut=True) == Answer(READ, "", partial=True)


@pytest.mark.parametrize("fence", ["", "```json\n"])
@pytest.mark.parametrize("cut", [True, False])
def test_complete_members_of_cut_json_are_salvaged(fence: str, cut: bool) -> None:
    at = JSON.index("half")
    expected = READ.model_copy(update={"current_state": ""})
    assert _read(fence + JSON[: at + 2], cut=cut) == Answer(expected, "", partial=True)


@given(st.integers(1, len(JSON) - 1))
def test_json_cut_anywhere_gives_complete_members_or_a_failure(length: int) -> None:
    try:
        answer = _read(JSON[:length], cut=True)
    except SummaryFailed as failure:
        assert failure.reason == "truncated"  # noqa: PT017  -- both outcomes are legal
        assert length < JSON.index(",")
        return
    assert answer.partial
    assert answer.sections is not None
    for name, value in answer.sections:
        assert value in (getattr(READ, name), "", ())


@given(
    st.fixed_dictionaries(
        {"goal": texts(300), "instructions": st.lists(texts(200), max_size=3)},
        optional={name: texts(200) for name in SECTION_NAMES[2:]},
    )
)
def test_what_a_model_writes_as_json_is_what_is_read(data: JsonObject) -> None:
    expected = Sections.model_validate(data)
    if expected.is_empty():
        return
    written = codec.dumps(data).decode()
    for output in (written, f"```json\n{written}\n```"):
        assert _read(output).sections == expected


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("<think>only thoughts</think>", "empty"),
        ("<think>thoughts that never end, with {json}", "empty"),
        ("I'm sorry, but I can't help with that. " + PROSE, "refusal"),
        ("I\u2019m sorry, but this is not possible. " + PROSE, "refusal"),
        ("Sorry, no. " + PROSE, "refusal"),
        ("**I cannot** summarise this. " + PROSE, "refusal"),
        ("I am unable to do so. " + PROSE, "refusal"),
        ("As an AI language model I have no view. " + PROSE, "refusal"),
        ("I don't have access to the conversation. " + PROSE, "refusal"),
        ('<tool_call>{"name": "read_file"}</tool_call>' + PROSE, "tool_call"),
        ("<function=read_file>" + PROSE, "tool_call"),
        (PROSE + ' [TOOL_CALLS][{"name":"x"}]', "tool_call"),
        ("<|python_tag|>" + PROSE, "tool_call"),
        ('{"name": "read_file", "arguments": {"path": "a.py"}}', "tool_call"),
        ("Error: upstream said no. " + PROSE, "error_text"),
        ("Traceback (most recent call last): " + PROSE, "error_text"),
        ('{"error": {"message": "overloaded"}}', "error_text"),
        ("HTTP 502 Bad Gateway", "too_short"),
        ("HTTP/1.1 502 Bad Gateway " + PROSE, "error_text"),
        ("Internal Server Error " + PROSE, "error_text"),
        ("{}", "malformed_json"),
        ('{"goal": ""}', "malformed_json"),
        ('{"other": "' + PROSE + '"}', "malformed_json"),
        ('["' + PROSE + '"]', "malformed_json"),
        ("All good.", "too_short"),
        ("The weather is lovely and the birds sing in the trees all day long. " * 5, "unrelated"),
        (PROSE[: MIN_TEXT_CHARS - 1], "too_short"),
    ],
)
def test_what_is_no_summary_is_refused_with_a_word(output: str, reason: str) -> None:
    assert _reason(output) == reason


@pytest.mark.parametrize(
    "output", ["", "<think>on and on", '{"goal": "rep', "All good.", '{"goal"']
)
def test_nothing_usable_before_the_cut_names_the_setting(output: str) -> None:
    with pytest.raises(SummaryFailed, match=r"raise compaction\.max_output_tokens") as caught:
        _read(output, cut=True)
    assert caught.value.reason == "truncated"


def test_good_prose_becomes_a_text_only_answer() -> None:
    assert _read(PROSE) == Answer(None, PROSE, partial=False)
    assert _read(f"so it is\n</think>\n{PROSE}") == Answer(None, PROSE, partial=False)
    assert _read(f"<think>hm</think>\n{PROSE}\n", cut=True) == Answer(None, PROSE, partial=True)


def test_prose_of_exactly_the_least_length_is_enough() -> None:
    assert _read(PROSE[:MIN_TEXT_CHARS].ljust(MIN_TEXT_CHARS, ".")).sections is None


def test_prose_needs_three_rare_words_of_the_span() -> None:
    filler = "It was all seen and done in due time. " * 6
    assert _read(f"importer, checksum, scheduler. {filler}").text
    assert _reason(f"importer, checksum. {filler}") == "unrelated"
    assert _reason(f"importer, importer, checksum, tests, trailing_. {filler}") == "unrelated"


def test_prose_in_cjk_shares_pairs_of_characters() -> None:
    filler = "あ" * 200
    assert _read(f"変更は禁止です。{filler}").text
    assert _reason(f"別の話をする。{filler}") == "unrelated"


def test_a_failure_never_quotes_the_output() -> None:
    with pytest.raises(SummaryFailed) as caught:
        _read("SECRET words of the user")
    assert "SECRET" not in f"{caught.value} {caught.value.reason} {caught.value.detail}"


def test_rare_words_are_identifiers_and_uncommon_words() -> None:
    text = "another checksum was read from src/a.py by loadAll and also another_one at v2.1 often"
    assert rare_words(text) == {"checksum", "src/a.py", "loadAll", "another_one", "v2.1"}


def test_a_frequent_word_says_nothing_but_a_frequent_path_does() -> None:
    text = "checksum " * 10 + "src/parser.py " * 10 + "registry"
    assert rare_words(text) == {"src/parser.py", "registry"}
