"""A real llama.cpp server whose chat template is strict, and sessions that outgrow its window."""

from pathlib import Path

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from proxy.codec import JsonObject, dumps
from proxy.commands.model_server import model_server
from proxy.upstream.templates import is_template_error
from tests import builders as b
from tests.e2e.running import Running

pytestmark = pytest.mark.slow

WINDOW = 1024
TURNS = 30
_SAY = "{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
_END = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

MISTRAL = (
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set m = messages[0] %}" + _SAY + "{%- set rest = messages[1:] %}"
    "{%- else %}{%- set rest = messages %}{%- endif %}"
    "{%- for m in rest %}"
    "{%- if m['role'] not in ['user', 'assistant'] %}"
    "{{- raise_exception('Only user and assistant roles are supported, with the exception of an"
    " initial optional system message!') }}"
    "{%- endif %}"
    "{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('After the optional system message, conversation roles must alternate"
    " user/assistant/user/assistant/...') }}"
    "{%- endif %}" + _SAY + "{%- endfor %}" + _END
)
GEMMA = (
    "{%- if messages[0]['role'] == 'system' %}"
    "{{- raise_exception('System role not supported') }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{%- endif %}" + _SAY + "{%- endfor %}" + _END
)
ONE_LEAD = (
    "{%- set ns = namespace(before='') %}"
    "{%- for m in messages %}"
    "{%- if m['role'] == 'system' and ns.before == 'system' %}"
    "{{- raise_exception('Conversation roles must alternate, and system messages never follow"
    " each other') }}"
    "{%- endif %}{%- set ns.before = m['role'] %}" + _SAY + "{%- endfor %}" + _END
)
"""Takes system messages in the midst of a conversation, but no two in a row."""


def refused(name: str) -> list[JsonObject]:
    """What the template refuses; a system message that it has no place for, the server moves."""
    if name == "one_lead":
        return [b.system("s"), b.system("t"), b.user("a")]
    return [b.user("a"), b.user("b")]


TEMPLATES = {"mistral": MISTRAL, "gemma": GEMMA, "one_lead": ONE_LEAD}


def said(turn: int) -> str:
    return f"On day {turn} " + b.prose(140, turn)


@pytest.mark.parametrize("name", TEMPLATES)
async def test_thirty_turns(tmp_path: Path, name: str) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATES[name])
    messages: list[ChatCompletionMessageParam] = []
    if name != "gemma":
        messages.append({"role": "system", "content": "You keep notes of a long walk."})
    async with (
        model_server(WINDOW, 1, "--template", str(template)) as server,
        Running(f"{server}/v1", tmp_path, **{"compaction.deadline_seconds": 5}) as fold,
        aiohttp.ClientSession() as http,
        openai.AsyncOpenAI(
            base_url=f"{fold.url}/v1", api_key="none", max_retries=0, timeout=300
        ) as client,
    ):
        body = dumps({"model": "smollm2", "messages": [*refused(name)], "max_tokens": 1})
        for url in (server, fold.url):
            # What the client itself does wrong is told as the server tells it.
            async with http.post(f"{url}/v1/chat/completions", data=body) as reply:
                assert is_template_error(reply.status, await reply.read())
        for turn in range(TURNS):
            if name == "one_lead" and turn in {4, 9}:
                messages.append({"role": "system", "content": f"Rule {turn}: be brief."})
            messages.append({"role": "user", "content": said(turn)})
            answer = await client.chat.completions.create(
                model="smollm2", messages=messages, max_tokens=4, temperature=0
            )
            text = answer.choices[0].message.content or "Yes."
            messages.append({"role": "assistant", "content": text})
    completed = fold.events.of_type("compaction_completed")
    assert len(completed) >= 2
    skipped = {e["reason"] for e in fold.events.of_type("compaction_skipped")}
    assert skipped <= {"no_gain"}, "a small model writes long records"
