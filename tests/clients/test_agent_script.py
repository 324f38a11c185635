"""The scripted agent: which tool it takes, how it fills it, and how it goes on."""

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.codec import Json, JsonObject, dumps
from tests import builders as b
from tests import items as i
from tests.clients.agent_script import SIDE_TEXT, THOUGHT, Script, ScriptedAgent, shell_call
from tests.clients.real_clients import TEN_THOUSAND_LINES
from tests.upstream import CHAT_PATH, Recorded, Reply
from tests.upstream_responses import RESPONSES_PATH

STRING: JsonObject = {"type": "string"}


def tool(name: str, required: list[str] | None = None, **properties: Json) -> JsonObject:
    wanted: list[Json] = [*(properties if required is None else required)]
    schema: JsonObject = {"type": "object", "properties": dict(properties), "required": wanted}
    return {"name": name, "parameters": schema}


SHELL = tool("bash", command=STRING)


def ask(
    agent: ScriptedAgent, messages: list[JsonObject], tools: tuple[JsonObject, ...] = (SHELL,)
) -> Reply:
    listed: list[Json] = [*messages]
    offered: list[Json] = [{"type": "function", "function": one} for one in tools]
    body: JsonObject = {"model": "m", "messages": listed, "tools": offered}
    return agent(Recorded("POST", CHAT_PATH, CIMultiDictProxy(CIMultiDict()), dumps(body)))


def ask_in_items(agent: ScriptedAgent, items: list[JsonObject], *tools: JsonObject) -> Reply:
    offered: list[Json] = [*tools]
    body = i.body(items, tools=offered)
    return agent(Recorded("POST", RESPONSES_PATH, CIMultiDictProxy(CIMultiDict()), body))


def test_a_known_shell_comes_before_other_tools() -> None:
    tools = [tool("read_file", path=STRING), tool("script_runner", script=STRING), SHELL]
    assert shell_call(tools, "ls") == ("bash", {"command": "ls"})


def test_any_tool_with_a_parameter_for_a_command_will_do() -> None:
    odd = tool("do", text={"type": "string", "description": "The shell command to run."})
    assert shell_call([tool("read", path=STRING), odd], "ls") == ("do", {"text": "ls"})


def test_no_shell_is_an_error_that_names_the_tools() -> None:
    with pytest.raises(LookupError, match="read_file"):
        shell_call([tool("read_file", path=STRING)], "ls")


def test_a_command_in_words() -> None:
    tools = [tool("shell", command={"type": "array", "items": STRING})]
    assert shell_call(tools, "ls") == ("shell", {"command": ["bash", "-c", "ls"]})


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "Print the next file"),
        ({"type": "boolean"}, False),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number", "default": 2.5}, 2.5),
        ({"enum": ["low", "high"]}, "low"),
        ({"const": 3}, 3),
        ({"type": ["null", "integer"]}, 1),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, False),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 1}, [False]),
        (
            {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"a": False},
        ),
    ],
)
def test_required_parameters_are_filled_by_their_schema(schema: JsonObject, expected: Json) -> None:
    tools = [tool("bash", ["command", "other"], command=STRING, other=schema, left_out=STRING)]
    assert shell_call(tools, "ls") == ("bash", {"command": "ls", "other": expected})


def test_it_goes_on_although_earlier_results_are_gone() -> None:
    script = Script.draw(3, 100)
    agent = ScriptedAgent(script)
    first = ask(agent, [b.user(script.task)])
    assert first.tool_calls[0][2] == '{"command":"cat step-01.txt"}'
    second = ask(agent, [b.user(script.task), b.result("call_001", script.steps[0].output)])
    assert second.tool_calls[0][2] == '{"command":"cat step-02.txt"}'
    third = ask(agent, [b.user("summary"), b.result("call_002", script.steps[1].output)])
    assert third.tool_calls[0][2] == '{"command":"cat step-03.txt"}'
    last = ask(agent, [b.user("summary"), b.result("call_003", script.steps[2].output)])
    assert (last.tool_calls, last.text) == ((), script.answer)


def test_a_mark_counts_only_in_a_result() -> None:
    script = Script.draw(2, 100)
    said = [b.user(script.steps[0].output), b.assistant(script.steps[1].output)]
    assert script.seen_in(said) == set()


def test_a_cut_output_is_seen_but_not_read() -> None:
    script = Script.draw(2, 100)
    whole, cut = script.steps[0].output, script.steps[1].output[:-1]
    results = [b.result("a", f"Output: {whole}\n"), b.result("b", [b.text_part(cut)])]
    assert script.seen_in(results) == {1, 2}
    assert script.read_in(results) == {1}


def test_a_request_without_tools_is_not_the_task() -> None:
    agent = ScriptedAgent(Script.draw(2, 100))
    assert ask(agent, [b.user("Find a title.")], tools=()) == Reply(text=SIDE_TEXT)
    assert agent.asked == 0


def test_it_speaks_the_responses_api_too() -> None:
    script = Script.draw(2, 100)
    agent = ScriptedAgent(script)
    others: list[JsonObject] = [{"type": "web_search"}, {"type": "custom", "name": "shell"}]
    offered = [*others, {"type": "function", **SHELL}]
    first = ask_in_items(agent, [i.user(script.task)], *offered)
    assert first.reasoning == THOUGHT
    assert first.tool_calls == [("call_001", "bash", '{"command":"cat step-01.txt"}')]
    whole = i.output("call_001", [{"type": "input_text", "text": script.steps[0].output}])
    cut = i.custom_output("call_002", script.steps[1].output[:-1])
    assert script.read_in([whole, cut, i.user(script.steps[1].output)]) == {1}
    last = ask_in_items(agent, [whole, cut], *offered)
    assert (last.tool_calls, last.text, last.reasoning) == ((), script.answer, THOUGHT)
    assert ask_in_items(agent, [whole]) == Reply(text=SIDE_TEXT, reasoning=THOUGHT)


def test_ten_thousand_lines() -> None:
    (step,) = Script.draw(1, TEN_THOUSAND_LINES).steps
    lines = step.output.splitlines()
    assert len(lines) >= 10_000
    assert lines[0] == lines[-1] == step.mark


def test_it_gives_up_when_nothing_is_ever_printed() -> None:
    agent = ScriptedAgent(Script.draw(2, 100))
    replies = [ask(agent, [b.user("task"), b.result("c", "no such file")]) for _ in range(5)]
    assert [bool(reply.tool_calls) for reply in replies] == [True] * 4 + [False]
    assert replies[-1].text != agent.script.answer


def test_no_two_runs_have_the_same_marks() -> None:
    assert Script.draw(3, 100).answer != Script.draw(3, 100).answer
