"""`foldgate doctor` at a real llama.cpp server: slots, a key, strict templates."""

from pathlib import Path

import pytest

from proxy.commands.model_server import model_server
from tests.e2e.test_doctor import KEYED, SECRET, doctor, nothing_nearby

pytestmark = pytest.mark.slow
__all__ = ["nothing_nearby"]

_LINE = "{{ '[' + message['role'] + '] ' + message['content'] + '\\n' }}{% endfor %}"
ALTERNATE = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
) + _LINE
NO_SYSTEM = (
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
) + _LINE
SYSTEM_FIRST = (
    "{% for message in messages %}{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
) + _LINE
SYSTEM_LOST = "{% for message in messages %}{% if message['role'] != 'system' %}" + _LINE.replace(
    "{% endfor %}", "{% endif %}{% endfor %}"
)
TOOLS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] %}{{ message['content'] }}{% endif %}"
    "{% for call in message.get('tool_calls') or [] %}<tool_call>{{ call['function'] | tojson }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template_file(folder: Path, template: str) -> tuple[str, str]:
    """The options of the server for a chat template."""
    path = folder / "template.jinja"
    path.write_text(template)
    return "--template", str(path)


async def test_two_slots(tmp_path: Path) -> None:
    async with model_server(2048, 2) as server:
        found = await doctor(f"{server}/v1", tmp_path, "--timeout", "120")
        assert found.failures == []
        assert found.of("window")["window"] == 2048
        assert "8,192" in found.text_of("window")
        assert found.status_of("slots") == "warn"
        assert "2 slots, so each conversation gets 2,048 tokens: 4,096" in found.text_of("slots")
        assert "--parallel 1" in found.fix_of("slots")
        assert "-c 8192" in found.fix_of("slots")
        for name in ("completion", "template", "streaming", "structured", "cache"):
            assert found.status_of(name) == "ok", found.of(name)
        cached = found.of("cache")["cached_tokens"]
        assert isinstance(cached, int)
        assert cached > 100
        assert "ignored silently" in found.text_of("tools")
        assert "--jinja --chat-template-file" in found.fix_of("tools")

        env = {"FOLDGATE_UPSTREAM__CONTEXT_WINDOW": "4096"}
        found = await doctor(server, tmp_path, "--free", env=env)
        assert found.failures == ["window"]
        assert "CONTEXT_WINDOW=2048" in found.fix_of("window")

        found = await doctor(f"{server}/api/v2", tmp_path, "--free")
        assert found.fix_of("path") == f"--upstream {server}/v1"
        found = await doctor(f"{server.replace('http:', 'https:')}/v1", tmp_path, "--free")
        assert found.fix_of("upstream") == f"--upstream {server}/v1"


async def test_an_api_key(tmp_path: Path) -> None:
    async with model_server(4096, 1, "--key", SECRET) as server:
        found = await doctor(server, tmp_path, "--free", env=KEYED)
        assert found.failures == []
        assert found.status_of("slots") == ""
        found = await doctor(server, tmp_path, "--free")
        assert found.failures == ["key"]
        assert "llama-server --api-key" in found.fix_of("key")
        found = await doctor(server, tmp_path, "--free", env={"OPENAI_API_KEY": "wrong"})
        assert found.failures == ["key"]
        assert "OPENAI_API_KEY was refused (401" in found.text_of("key")


@pytest.mark.parametrize(
    ("template", "strict", "said"),
    [
        (ALTERNATE, ["system_merged", "alternate", "user_first"], "must alternate"),
        (NO_SYSTEM, ["system_merged"], "no role system"),
        (SYSTEM_FIRST, ["system_first"], "must be the first message"),
        # llama.cpp saves the first one; what comes later is lost.
        (SYSTEM_LOST, ["system_lost_later"], "left out silently"),
    ],
    ids=["alternate", "no system", "system first", "system lost"],
)
async def test_strict_templates(
    tmp_path: Path, template: str, strict: list[str], said: str
) -> None:
    async with model_server(4096, 1, *template_file(tmp_path, template)) as server:
        found = await doctor(server, tmp_path, "--free")
    assert found.failures == []
    assert found.status_of("template") == "warn"
    assert found.of("template")["strict"] == strict
    assert said in found.text_of("template")
    assert "`--chat-template chatml`" in found.fix_of("template")


async def test_a_template_with_tools(tmp_path: Path) -> None:
    async with model_server(4096, 1, *template_file(tmp_path, TOOLS)) as server:
        found = await doctor(server, tmp_path, "--free")
    assert found.status_of("tools") == "ok"
    assert found.status_of("template") == "ok"
