"""Nothing of the leading system prompt is stored."""

from hypothesis import given

from proxy.compaction.checkpoint import Sections
from proxy.compaction.leaks import Prompt
from tests.strategies import texts

PROMPT = "You work for Blauwal. Always answer as the vendor Blauwal. Use KEY_4711. Be kind."


def _kept(body: Sections | str, *told: str, prompt: str = PROMPT) -> Sections | str:
    return Prompt([prompt], lambda: told).kept_out(body)


def test_sentences_that_quote_the_prompt_go() -> None:
    body = Sections(
        goal="Repair it. Answer as the vendor Blauwal. Then test it.",
        instructions=("always answer  as the VENDOR, Blauwal",),
        discoveries=("the key is KEY_4711", "reads.py drops a row"),
        current_state="be kind",
    )
    assert _kept(body) == Sections(
        goal="Repair it. Then test it.", discoveries=("reads.py drops a row",)
    )
    assert _kept("One.\nAlways answer as the vendor Blauwal.\nTwo.") == "One.\nTwo."


def test_what_the_conversation_says_is_no_leak() -> None:
    body = Sections(discoveries=("answer as the vendor Blauwal with KEY_4711",))
    assert _kept(body, "Please answer as the vendor, Blauwal", "KEY_4711") == body
    assert _kept(body, "Please answer as the vendor, Blauwal") == Sections()


def test_a_name_alone_is_a_leak() -> None:
    prompt = "You are the helper of Rotbarsch. Write to a@rotbarsch.example. Use Code and code."
    body = Sections(goal="Help. ROTBARSCH wants a parser.", discoveries=("Code was read",))
    assert _kept(body, prompt=prompt) == Sections(goal="Help.", discoveries=("Code was read",))
    assert _kept(body, "Rotbarsch", prompt=prompt) == body


def test_capitals_tell_no_names_where_every_noun_has_one() -> None:
    prompt = "Du prüfst die Rechnung, den Vertrag und die Lieferung für den Kunden."
    body = Sections(goal="Eine Rechnung fehlt.")
    assert _kept(body, prompt=prompt) == body


def test_scripts_without_spaces() -> None:
    prompt = "常に販売員として答えてください。"
    assert (
        _kept(
            "販売員として答えてください。",
            prompt=prompt,
        )
        == ""
    )
    assert _kept("販売員はいない。", prompt=prompt) != ""


@given(texts(400))
def test_other_text_is_left_as_it_is(text: str) -> None:
    assert _kept(text, text) == text
    assert _kept(text, prompt="") == text


def test_long_runs_take_linear_time() -> None:
    for text in ("-" * 40_000, "a" * 40_000, "./" * 20_000):
        assert _kept(text) == text
        assert _kept("Be brief.", prompt=text) == "Be brief."
