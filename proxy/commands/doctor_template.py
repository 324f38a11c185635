"""The doctor's check of what orders of messages the upstream's chat template takes.

llama.cpp renders a prompt without generating anything, which also shows what a template leaves
out silently; every other server is asked for completions of one token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.codec import Json, JsonObject, as_text
from proxy.commands.doctor_answers import complete, user
from proxy.commands.doctor_case import Answer, Case, Findings, NoAnswer
from proxy.commands.doctor_trouble import broken_off
from proxy.sessions.store_check import Finding

_REJECTED = frozenset({400, 422, 500})
_FIRST, _SECOND = "Say alpha.", "Say omega."
_RULES = "You are brief."
_TOOL = "look_up_tide"
_TOOLS: JsonObject = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": _TOOL,
                "description": "Tells the tide of a place.",
                "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
            },
        }
    ]
}
_CALLED: list[JsonObject] = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call00001",
                "type": "function",
                "function": {"name": _TOOL, "arguments": '{"place": "Brest"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call00001", "content": "High tide at noon."},
]
"""A tool call and its result; some servers want an id of nine letters and digits."""
_KEEPS_TO_IT = "Foldgate's own rewriting keeps to it"


def _system(text: str) -> JsonObject:
    return {"role": "system", "content": text}


def _assistant(text: str) -> JsonObject:
    return {"role": "assistant", "content": text}


@dataclass(frozen=True, slots=True)
class _Rule:
    """Something that a strict template demands."""

    name: str
    """For programs."""
    text: str
    avoid: str
    """What a client must not send."""
    cure: str


_NO_SYSTEM = _Rule(
    "no_system",
    "no system message is taken",
    "system messages",
    "put the instructions into the first user message",
)
_LOST_SYSTEM = _Rule(
    "system_lost",
    "system messages are left out silently",
    "system messages",
    "put the instructions into the first user message",
)
_MERGED_SYSTEM = _Rule(
    "system_merged",
    "the template has no role system: the server puts a first one into the user message",
    "system messages after the first message",
    "put later instructions into user messages",
)
_SYSTEM_FIRST = _Rule(
    "system_first",
    "a system message must be the first message",
    "system messages later on",
    "put later instructions into user messages",
)
_LOST_LATER = _Rule(
    "system_lost_later",
    "system messages after the first message are left out silently",
    "system messages later on",
    "put later instructions into user messages",
)
_ALTERNATE = _Rule(
    "alternate",
    "user and assistant must alternate",
    "two user messages in a row",
    "join adjacent messages of one role",
)
_USER_FIRST = _Rule(
    "user_first",
    "the first message after the system message must be the user's",
    "a conversation that begins with the assistant",
    "begin with a user message",
)


@dataclass(slots=True)
class _Judge:
    """Shows messages to the upstream and says what came of it."""

    case: Case
    renders: bool
    """Whether llama.cpp renders them, so that nothing is generated."""
    last: Answer | None = field(default=None, repr=False)
    unsure: str = ""
    """What came instead of an answer to a question, if anything did."""

    async def takes(self, messages: Sequence[JsonObject], more: JsonObject | None = None) -> bool:
        """Tell whether the messages are taken; False also when it could not be told.

        Raises:
            NoAnswer: when no HTTP reply came.
        """
        listed: list[Json] = [*messages]
        if self.renders:
            body: JsonObject = {"messages": listed, **(more or {})}
            self.last = await self.case.wire.post(f"{self.case.root}/apply-template", body)
        else:
            self.last = await complete(self.case, listed, more)
        if self.last.status != 200 and not self.was_rejected:
            self.unsure = self.last.reason
        return self.last.status == 200

    async def rejects(self, messages: Sequence[JsonObject], more: JsonObject | None = None) -> bool:
        """Tell whether the messages are refused for what they are."""
        return not await self.takes(messages, more) and self.was_rejected

    @property
    def was_rejected(self) -> bool:
        return self.last is not None and self.last.status in _REJECTED

    def lost(self, word: str) -> bool:
        """Tell whether a word of the last messages is not in the prompt made of them."""
        if not self.renders or self.last is None or self.last.status != 200:
            return False
        return word not in as_text(self.last.members.get("prompt"))


async def check_template(case: Case) -> Findings:
    """Say which orders of messages and whether tools are taken."""
    try:
        judge = await _judge(case)
        if judge is None:
            return
        if await judge.rejects([user(_FIRST)]):
            text = "the template cannot render a single user message"
            fix = "start llama-server with another one: `--chat-template chatml`, or --jinja"
            yield Finding("template", "FAIL", text, fix)
            return
        yield _strictness(case, await _rules(judge), judge)
        tools = await _tools(judge)
        if tools is not None:
            yield tools
    except NoAnswer as error:
        yield await broken_off(case, "template", error.cause)


async def _judge(case: Case) -> _Judge | None:
    if case.props:
        judge = _Judge(case, renders=True)
        # An older llama.cpp has no such endpoint.
        if await judge.takes([user(_FIRST)]) or judge.was_rejected:
            return judge
    return _Judge(case, renders=False) if case.completes and not case.free else None


async def _rules(judge: _Judge) -> list[_Rule]:
    """Return what the template is strict about."""
    found = list[_Rule]()
    opening = [user(_FIRST), _assistant("alpha")]
    if await judge.rejects([_system(_RULES), user(_FIRST)]):
        found.append(_NO_SYSTEM)
    elif judge.lost(_RULES):
        found.append(_LOST_SYSTEM)
    elif await judge.rejects([*opening, _system(_RULES), user(_SECOND)]):
        found.append(_SYSTEM_FIRST if _has_system(judge) else _MERGED_SYSTEM)
    elif judge.lost(_RULES):
        found.append(_LOST_LATER)
    if await judge.rejects([user(_FIRST), user(_SECOND)]):
        found.append(_ALTERNATE)
    if await judge.rejects([_assistant("alpha"), user(_SECOND)]):
        found.append(_USER_FIRST)
    return found


def _has_system(judge: _Judge) -> bool:
    caps = judge.case.props.get("chat_template_caps")
    return not isinstance(caps, dict) or caps.get("supports_system_role") is not False


def _strictness(case: Case, rules: Sequence[_Rule], judge: _Judge) -> Finding:
    facts: JsonObject = {"strict": [rule.name for rule in rules], "rendered": judge.renders}
    if judge.unsure and not rules:
        text = f"whether it is strict could not be told ({judge.unsure})"
        return Finding("template", "warn", text, "look again later", facts)
    if not rules:
        text = "not strict: system messages anywhere, roles in any order"
        return Finding("template", "ok", text, facts=facts)
    text = (
        f"strict: {'; '.join(rule.text for rule in rules)}. {_KEEPS_TO_IT}; "
        f"clients must not send {_joined([rule.avoid for rule in rules])}"
    )
    cures = list(dict.fromkeys(rule.cure for rule in rules))
    fix = f"for a client that does: have it {_joined(cures, 'and')}"
    if case.server == "llama.cpp":
        fix += (
            "; or start llama-server with a template that is not strict: `--chat-template chatml`, "
            "or `--jinja --chat-template-file FILE`"
        )
    elif case.server == "vLLM":
        fix += "; or start vLLM with another template: `--chat-template FILE`"
    return Finding("template", "warn", text, fix, facts)


def _joined(texts: Sequence[str], word: str = "or") -> str:
    """Join texts as in a sentence.

    >>> _joined(["a", "b", "c"])
    'a, b or c'
    """
    unique = list(dict.fromkeys(texts))
    if len(unique) < 2:
        return "".join(unique)
    return f"{', '.join(unique[:-1])} {word} {unique[-1]}"


async def _tools(judge: _Judge) -> Finding | None:
    """Say whether tools reach the model; None when that cannot be told."""
    taken = await judge.takes([user(_FIRST)], _TOOLS)
    if not taken and not judge.was_rejected:
        return None
    if not taken:
        return _refused_tools(judge)
    caps = judge.case.props.get("chat_template_caps")
    caps = caps if isinstance(caps, dict) else {}
    lost = judge.lost(_TOOL) or caps.get("supports_tools") is False
    results_fail = await judge.rejects([user(_FIRST), *_CALLED], _TOOLS)
    if not lost and not results_fail:
        return Finding("tools", "ok", "tools are taken", facts={"tools": True})
    what = "they are ignored silently, and so are tool calls"
    if results_fail:
        reason = judge.last.reason if judge.last is not None else ""
        what = "they are ignored silently, and " if lost else ""
        what += f"conversations with tool calls and their results are refused ({reason})"
    text = f"the template knows no tools: {what}" if lost else what
    fix = "for clients with tools: another model or chat template, one that takes tool results"
    if judge.case.server == "llama.cpp":
        fix = (
            "for clients with tools: `llama-server --jinja --chat-template-file FILE` with a "
            "template of the model that takes tools"
        )
    return Finding("tools", "warn", text, fix, {"tools": False})


def _refused_tools(judge: _Judge) -> Finding:
    facts: JsonObject = {"tools": False}
    reason = judge.last.reason if judge.last is not None else ""
    if judge.last is not None and judge.last.says("enable-auto-tool-choice"):
        text = f"requests with tools are refused ({reason})"
        fix = "start vLLM with `--enable-auto-tool-choice --tool-call-parser NAME`"
        return Finding("tools", "warn", text, fix, facts)
    fix = "for clients with tools: another model or chat template, one that takes tools"
    if judge.case.server == "llama.cpp":
        fix += " (`--jinja --chat-template-file FILE`)"
    return Finding("tools", "warn", f"requests with tools are refused ({reason})", fix, facts)
