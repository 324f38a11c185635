"""The clients: what to install, how each is used, and what it is known to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.clients import installed, launches
from tests.clients.installed import NodePackages, Packages
from tests.clients.launches import Start
from tests.upstream import CHAT, RESPONSES

STEPS = 24
OUTPUT_CHARS = 6000
TEN_THOUSAND_LINES = 600_000
"""What so many lines of an output have, in characters."""

CHAIN = "previous_response_id"
REFERENCES = "item_reference"
REASONING = "reasoning"
SEALED = "encrypted_content"


@dataclass(frozen=True, slots=True)
class Client:
    """A client in one way of using it."""

    name: str
    package: str
    packages: Packages
    launch: Start
    api: str = CHAT
    """The only one that it uses."""
    window: int = 16_384
    steps: int = STEPS
    output_chars: int = OUTPUT_CHARS
    """Of each step."""
    side_requests: int = 0
    """Requests without tools that it is known to make."""
    alternates: bool = True
    """Whether all its own requests, side requests too, alternate user and assistant."""
    fits_templates: bool = True
    """Whether its session has one instruction message at most, as the first, and alternates."""
    carries: str = ""
    """What each request but the first must show, so that the run is of the kind that it says."""
    shortens: bool = False
    """Whether it leaves out the middle of long outputs by itself."""
    tries_websocket: bool = False
    """Whether it takes one refusal of a WebSocket and goes on over HTTP."""
    seconds: float = 180
    """Time limit, for a busy machine: some need half a minute to start there."""

    @property
    def whole_history(self) -> bool:
        """Whether a request holds a place for all that was said; else for what is new only."""
        return self.carries != CHAIN

    @property
    def version(self) -> str:
        return self.packages.version(self.package)


def _sdk(
    name: str,
    package: str,
    packages: Packages,
    program: str,
    *modes: str,
    api: str = CHAT,
    carries: str = "",
) -> list[Client]:
    found: list[Client] = []
    for mode, suffix in (("whole", ""), ("stream", ", streaming")):
        launch = (
            launches.node_program(program, mode, *modes)
            if isinstance(packages, NodePackages)
            else launches.python_program(packages, program, mode, *modes)
        )
        client = Client(name + suffix, package, packages, launch, api, carries=carries)
        found.append(client)
    return found


CLIENTS: Sequence[Client] = [
    *_sdk("openai for Python", "openai", installed.OPENAI_PYTHON, "openai_python.py"),
    *_sdk("openai for Node", "openai", installed.SDKS, "openai_node.mjs"),
    *_sdk("AI SDK", "ai", installed.SDKS, "ai_sdk.mjs", CHAT),
    *_sdk("LangGraph", "langgraph", installed.LANGGRAPH, "langgraph_agent.py", CHAT),
    Client("pi", "@mariozechner/pi-coding-agent", installed.PI, launches.pi(CHAT)),
    Client(
        "opencode",
        "opencode-ai",
        installed.OPENCODE,
        launches.opencode(CHAT),
        window=24_576,
        side_requests=1,  # for a title; the question and the user's text are two user messages
        alternates=False,
    ),
    Client("qwen-code", "@qwen-code/qwen-code", installed.QWEN, launches.qwen, window=40_960),
    *_sdk("Pydantic AI", "pydantic-ai-slim", installed.PYDANTIC_AI, "pydantic_ai_agent.py", CHAT),
    *_sdk("OpenAI Agents SDK", "openai-agents", installed.OPENAI_AGENTS, "openai_agents.py", CHAT),
    *_sdk("LiteLLM", "litellm", installed.LITELLM, "litellm_agent.py"),
]
"""Those that use Chat Completions."""


def _responses_sdk(
    name: str, package: str, packages: Packages, program: str, carries: str
) -> list[Client]:
    named = f"{name}, Responses"
    return _sdk(named, package, packages, program, RESPONSES, api=RESPONSES, carries=carries)


def _openai(name: str, packages: Packages, program: str) -> list[Client]:
    """Return an SDK that sends everything each time, and one that names the response before."""
    return [
        client
        for kind, mode, carries in (
            ("Responses", "items", REASONING),
            (CHAIN, "chain", CHAIN),
        )
        for client in _sdk(
            f"{name}, {kind}", "openai", packages, program, mode, api=RESPONSES, carries=carries
        )
    ]


def _codex(name: str, launch: Start, *, tries_websocket: bool) -> Client:
    return Client(
        name,
        "@openai/codex",
        installed.CODEX,
        launch,
        RESPONSES,
        window=32_768,
        steps=40,
        output_chars=TEN_THOUSAND_LINES,
        # Two developer messages come first, then its environment and the task as two users'.
        fits_templates=False,
        carries=SEALED,
        shortens=True,
        tries_websocket=tries_websocket,
    )


RESPONSES_CLIENTS: Sequence[Client] = [
    _codex("Codex", launches.codex, tries_websocket=False),
    _codex("Codex, built-in provider", launches.codex_built_in, tries_websocket=True),
    *_openai("openai for Python", installed.OPENAI_PYTHON, "openai_python_responses.py"),
    *_openai("openai for Node", installed.SDKS, "openai_node_responses.mjs"),
    *_responses_sdk("AI SDK", "ai", installed.SDKS, "ai_sdk.mjs", REFERENCES),
    *_responses_sdk("LangGraph", "langgraph", installed.LANGGRAPH, "langgraph_agent.py", REASONING),
    Client(
        "pi, Responses",
        "@mariozechner/pi-coding-agent",
        installed.PI,
        launches.pi(RESPONSES),
        RESPONSES,
        carries=SEALED,
    ),
    Client(
        "opencode, Responses",
        "opencode-ai",
        installed.OPENCODE,
        launches.opencode(RESPONSES),
        RESPONSES,
        window=24_576,
        side_requests=1,
        alternates=False,
        carries=SEALED,
    ),
    *_responses_sdk(
        "Pydantic AI",
        "pydantic-ai-slim",
        installed.PYDANTIC_AI,
        "pydantic_ai_agent.py",
        "",  # a name of no model that it knows to reason: the reasoning goes back as text
    ),
    *_responses_sdk(
        "OpenAI Agents SDK", "openai-agents", installed.OPENAI_AGENTS, "openai_agents.py", REASONING
    ),
]
"""Those that use the Responses API."""

ALL_CLIENTS: Sequence[Client] = [*CLIENTS, *RESPONSES_CLIENTS]
