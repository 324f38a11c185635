r"""How servers say that a request is too long, and what is only mistaken for that.

Each row is one wording; `overflow` reads them top down, so wordings that tell numbers stand above
those that tell none, and what may be cured by a lower output limit above what may not. The names
in the comments are the rows of ``facts/overflow.md`` and of ``facts/protocol.md`` section 2.2, or
the thread that shows the wording.

In a wording ``<N>``, ``<L>``, ``<M>``, ``<T>`` and ``<X>`` are numbers, with or without commas:
tokens of the prompt, the limit, tokens of output, both together, and the excess; ``~`` is a gap of
at most 80 characters. Texts come in lower case with single spaces. Nothing here may repeat without
a bound: anybody may have written them.
"""

import re

from proxy.transcript import Record

_NUMBER = r"\d[\d,]{0,12}+"
_GAP = r".{0,80}?"


class Row(Record, frozen=True):
    """One wording of an overflow."""

    pattern: re.Pattern[str]
    total: bool = False
    """Input and output together are too long."""
    input_only: bool = False
    """The limit that is told is one on the input alone."""
    specific: bool = False
    """Says it so plainly that it is believed of a 500 or 503, numbers or not."""


def _compiled(wording: str) -> re.Pattern[str]:
    for name in "NLMTX":
        wording = wording.replace(f"<{name}>", f"(?P<{name}>{_NUMBER})")
    return re.compile(wording.replace("~", _GAP), re.ASCII)


def _total(wording: str, *, specific: bool = False) -> Row:
    return Row(_compiled(wording), total=True, specific=specific)


def _input(wording: str, *, input_only: bool = False, specific: bool = False) -> Row:
    return Row(_compiled(wording), input_only=input_only, specific=specific)


CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure
        "exceed_context_size_error",  # llama.cpp: the wording moves between builds, this does not
        "model_context_window_exceeded",  # z.ai, Anthropic
        "model_max_prompt_tokens_exceeded",  # GitHub Copilot
        "contextwindowexceedederror",  # LiteLLM
        "context_window_exceeded",  # what openclaw#58839 and Codex have seen of gateways
        "context_overflow",
        "40303",  # FastChat, Langchain-Chatchat#2600
        "1261",  # z.ai, whose message may be Chinese
    }
)
"""Values of ``code`` or ``type`` that say it by themselves, in lower case."""

_MAXIMUM = "maximum context length is <L> tokens"

ROWS = (
    # --- input and output together: a lower output limit cures it, unless the prompt fills L ---
    # Anthropic in+out; Databricks wraps it (goose#3635)
    _total(
        r"input length and .{0,3}max_tokens.{0,3} exceeds? (?:the )?context limit: "
        r"<N> \+ <M> > <L>"
    ),
    # vLLM in+out
    _total(f"{_MAXIMUM} and your request has <N> input tokens"),
    # vLLM in+out, newer: it stops counting the prompt where the two together reach L + 1
    _total(
        f"{_MAXIMUM}~you requested <M> output tokens and your prompt contains "
        "(?P<least>at least )?<N> input tokens"
    ),
    _total(f"{_MAXIMUM}~you requested <M> output tokens and your prompt", specific=True),
    # OpenAI Chat, Azure, vLLM, OpenRouter (which has several kinds of input)
    _total(
        rf"{_MAXIMUM}~requested (?:about )?<T> tokens \([^()]{{0,80}}?"
        "<M> (?:in|for) the (?:completion|output)"
    ),
    # SGLang in+out
    _total(
        "maximum context length of <L> tokens~total of <T> tokens: <N> tokens? from the input "
        "messages and <M> tokens?"
    ),
    # TGI in+out
    _total(r"inputs.{0,2} tokens \+ .{0,2}max_new_tokens.{0,2} must be <= <L>\. given: <N> "),
    # Cloudflare Workers AI
    _total(
        r"input and maximum output tokens \(<T>\) exceeded this model context window limit "
        r"\(<L>\)"
    ),
    # vLLM old, OpenAI embeddings: what was requested is all input
    _input(f"{_MAXIMUM}~requested (?:about )?<N> tokens in (?:the|your) (?:messages|prompt|input)"),
    # OpenAI wordings that do not divide what was requested
    _total(f"{_MAXIMUM}~requested (?:about )?<T> tokens"),
    # Moonshot, earlier: it counts max_tokens (MoonshotAI-Cookbook#18)
    _total("model max length exceeded, max length: ?<L>"),
    # --- the input alone, with numbers ---
    # OpenAI Chat, Azure, DeepSeek, vLLM
    _input(
        f"{_MAXIMUM}~your (?:messages|prompt|input|request) (?:resulted in|has|contains) "
        "(?:about |at least )?<N>"
    ),
    # OpenAI configured limit, Azure
    _input(
        "input tokens exceed the configured limit of <L> tokens(?:~resulted in <N> tokens)?",
        input_only=True,
        specific=True,
    ),
    # Anthropic; Vertex and Bedrock pass it on
    _input("prompt is too long: <N> tokens > <L> maximum"),
    # oMLX
    _input("prompt too long: <N> tokens exceeds max context window of <L>"),
    # Gemini; 2.5 leaves N out (litellm#18282)
    _input(
        r"input token count(?: \(<N>\))? exceeds the maximum number of tokens allowed \(<L>\)",
        input_only=True,
        specific=True,
    ),
    # llama.cpp
    _input(r"request \(<N> tokens\) exceeds the available context size \(<L> tokens\)"),
    _input(r"input \(<N> tokens\) is larger than the max context size \(<L> tokens\)"),
    # llama-cpp-python
    _input(r"requested tokens \(<N>\) exceed context window of <L>"),
    # LM Studio
    _input(r"greater than the context length \(n_keep: <N> >= n_ctx: <L>\)"),
    _input("trying to keep the first <N> tokens~context length of only <L> tokens"),
    # vLLM variants
    _input(r"input length \(?<N>\)? exceeds (?:the )?(?:model's )?maximum context length \(?<L>"),
    _input(r"prompt \(length <N>\) is longer than (?:the )?maximum model length of <L>"),
    _input("context length is only <L> tokens"),
    # SGLang, Together
    _input(r"input \(<N> tokens\) is longer than the model'?s context length \(<L> tokens\)"),
    # TGI
    _input("inputs.{0,2} must have less than <L> tokens. given: <N>", input_only=True),
    # Ollama (newer, cloud)
    _input("prompt too long; exceeded (?:max )?context length by <X> tokens", specific=True),
    # Cerebras
    _input("current length is <N> while limit is <L>"),
    # Mistral
    _input("prompt contains <N> tokens~too large for model with <L> maximum context length"),
    _input("too large for model with <L> maximum context length"),
    # xAI
    _input("maximum prompt length is <L> but the request contains <N> tokens", input_only=True),
    _input("maximum prompt length is <L>", input_only=True),
    # Moonshot, Kimi
    _input(r"exceeded model token limit:? ?<L>(?: \(requested: <N>\))?"),
    # DashScope, Qwen, iFlytek 10012
    _input(r"range of input length should be \[\d{1,6}, ?<L>\]", input_only=True),
    # GitHub Copilot
    _input("prompt token count of <N> exceeds the limit of <L>", input_only=True),
    # Cohere
    _input(
        "number of tokens in the prompt (?:exceeds the limit of|cannot exceed) <L>"
        "(?: - received <N>)?",
        input_only=True,
    ),
    _input("too many tokens: size limit exceeded by <X> tokens"),
    # Poolside
    _input("input length <N> exceeds the maximum allowed input length of <L>", input_only=True),
    _input("exceeds (?:the )?maximum allowed input length of <L>", input_only=True),
    # DS4-style servers
    _input("prompt has <N> tokens?, but the configured context size is <L>"),
    _input("context limit is <L> tokens; prompt=<N> leaves 0 output"),
    # protocol.md 2.2, the set of pi and opencode
    _input(r"exceeds (?:the )?(?:model'?s )?maximum context length (?:of |\()<L>"),
    _input(_MAXIMUM),
    _input(
        r"\b(?:prompt|input|messages|context)\b.{0,40}?\b(?:tokens?|length)~"
        "exceeds the limit of <L>"
    ),
    # --- no numbers ---
    # Anthropic in+out and the like, as gateways shorten it
    _total(
        "max_(?:completion_|output_|new_)?tokens.{0,40}?exceed(?:s|ed)? .{0,20}?"
        "context (?:window|length|size|limit)"
    ),
    # LiteLLM, also wrapped in a 503
    _input("contextwindowexceedederror|context_?window_?exceeded", specific=True),
    _input("context[_ ]length[_ ]exceeded|exceed_context_size_error", specific=True),
    # OpenAI Chat and Responses, new
    _input("your input exceeds the context window", specific=True),
    # llama.cpp, when the window fills while it generates; LM Studio wraps it
    _input("context size has been exceeded", specific=True),
    # llama.cpp, older
    _input("exceeds the available context size", specific=True),
    _input("prompt is too long", specific=True),
    # Bedrock
    _input("input is too long for (?:requested|this) model", specific=True),
    _input("input exceeds the max input token limit", specific=True),
    # Ollama, where the excess is not told
    _input("prompt too long; exceeded (?:max )?context length", specific=True),
    # LM Studio, other wordings
    _input("greater than the context length"),
    # MiniMax
    _input("context window exceeds limit"),
    # z.ai
    _input("prompt exceeds max length"),
    # Anthropic bytes, and Moonshot: its sizes are bytes (kimi-code#1862), so they are not read
    _input("request exceeds the maximum (?:size|allowed number of bytes)|request_too_large"),
    _input(r"total message size \d{1,12} exceeds limit \d"),
    _input("(?:request entity|payload|content) too large"),
    # Cerebras and Mistral, as SDKs tell an empty body
    _input(r"4(?:00|13) (?:status code )?\(no body\)"),
    # vLLM variants
    _input("input length~exceeds~context length"),
    # Gemini and others through LiteLLM
    _input("exceeds the maximum number of tokens allowed"),
    _input("tokens in request more than max tokens allowed"),
    _input("token limit exceeded|exceeded model token limit"),
    _input("too many tokens(?!, please)"),
    # Several gateways (openclaw#58839)
    _input(
        r"\b(?:prompt|input|request|messages|conversation|tokens?)\b~exceed(?:s|ed)? (?:the )?"
        "(?:model'?s? )?(?:max(?:imum)? )?context (?:window|length|size|limit)"
    ),
    _input("exceeds the context window"),
    # Groq. Last: OpenAI ends other wordings with it
    _input("reduce the length of the messages"),
)

VETOED_STATUSES = frozenset({401, 403, 429, 529})
"""Never an overflow, whatever is said: keys, rights, rate limits, overload."""

VETO = re.compile(
    "|".join(
        (
            # Rate limits: Bedrock throttles with "Too many tokens, please wait", Groq says 413 and
            # "Request too large … tokens per minute (TPM)"
            r"rate[ _-]?limit|too many requests|throttl|quota(?!t)|per[ -]minute|\b[tr]pm\b",
            r"please wait before|^service unavailable:|overloaded_error",
            # One member is too long; litellm excludes these
            r"(?:string|array)_above_max_length|invalid 'user'",
            # Output caps: OpenAI, Anthropic, DashScope
            r"too large.{0,80}?supports at most|maximum allowed number of output tokens",
            r"max_(?:completion_|output_)?tokens.{0,2}: [\d,]{1,14}+ > ",
            r"range of .{0,2}max_(?:completion_|output_)?tokens",
            # Images
            r"image.{0,60}?(?:exceeds|too large|too many|larger than|dimension|pixels|bytes)",
            r"too many images",
            # Pairing of calls and results
            r"found without .{0,3}tool_|without .{0,20}tool_result|messages with role .{0,2}tool",
            r"tool_call_ids? did not have|must be followed by tool|no tool (?:call|output) found",
            # The model did not load, whatever window it was to have
            r"(?:failed|unable) to (?:load|initiali[sz]e|allocate)|error loading|loading model",
            r"out of memory|more (?:system )?memory",
            # A body that was not understood; the message may quote from it
            r"input should be|field required|extra inputs|validation errors? for \w",
            r"failed to (?:parse|deserialize)|json\.exception|could not parse|invalid json",
            r"invalid value:|invalid type for|(?:unsupported|unknown|unrecognized) "
            r"(?:value|parameter|request argument)",
            # nginx and other proxies: a limit on bytes
            r"<html|<!doctype",
        )
    ),
    re.ASCII | re.MULTILINE,
)
"""What is no overflow although a row would match; the section Vetoes of ``facts/overflow.md``."""

VETOED_CODES = frozenset(
    {"401", "403", "429", "529", "authentication_error", "permission_error", "insufficient_quota"}
)
"""Values of ``code``, ``type`` or ``status`` inside a body that veto, too."""

ECHO = re.compile(
    r"\binput_value=|['\"](?:input|messages|content|prompt)\\?['\"] ?:|; (?:messages|tools) = ",
    re.ASCII,
)
"""Where a message begins to quote the request: pydantic, FastAPI, vLLM, llama.cpp."""

SERVER_CODES = frozenset({"server_error", "api_error", "internal_error", "internal_server_error"})
"""Values of ``code`` or ``type`` by which an event that tells no status is a server's fault."""
