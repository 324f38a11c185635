"""What servers say when a request is too long, and what they say that only looks like it.

One row for each wording of ``facts/overflow.md`` and ``facts/protocol.md`` section 2.2, in the body
that the server sends.
"""

import pytest

from proxy import codec
from proxy.codec import Json
from proxy.upstream import overflow
from proxy.upstream.overflow import Overflow
from proxy.upstream.overflow_table import ROWS
from tests.unit.test_overflow import (
    ANTHROPIC,
    ANTHROPIC_BOTH,
    LENGTH,
    LLAMA,
    MID_GENERATION,
    NO_NUMBERS,
    REDUCE,
    USER_TEXT,
    error,
    flat,
    found,
    into,
    text_of,
    told,
    total,
)

QUOTED = "'" + USER_TEXT.replace("'", "\\'") + "'"

FORMS: list[tuple[str, int, Json | bytes, Overflow]] = [
    (
        "OpenAI Chat",
        400,
        error(
            "This model's maximum context length is 128000 tokens. However, your messages resulted "
            f"in 130518 tokens. {REDUCE}",
            **LENGTH,
        ),
        into(130_518, 128_000),
    ),
    (
        "OpenAI Chat in+out",
        400,
        error(
            "This model's maximum context length is 8192 tokens. However, you requested 9224 "
            f"tokens (1224 in the messages, 8000 in the completion). {REDUCE}",
            **LENGTH,
        ),
        total(1224, 8192),
    ),
    (
        "OpenAI Chat in+out with tools",
        400,
        error(
            "This model's maximum context length is 8192 tokens. However, you requested 9224 "
            "tokens (1224 in the messages, 100 in the functions, 7900 in the completion).",
            **LENGTH,
        ),
        total(1324, 8192),
    ),
    (
        "OpenAI Chat in+out, and the input alone is too long",
        400,
        error(
            "This model's maximum context length is 8,192 tokens. However, you requested 12,224 "
            f"tokens (11,224 in the messages, 1,000 in the completion). {REDUCE}",
            **LENGTH,
        ),
        into(11_224, 8192),
    ),
    (
        "OpenAI completions",
        400,
        error(
            "This model's maximum context length is 8191 tokens, however you requested 10346 "
            "tokens (10 in your prompt; 10336 for the completion). Please reduce your prompt; or "
            "completion length.",
            code=None,
        ),
        total(10, 8191),
    ),
    (
        "OpenAI, nothing divided",
        400,
        error(
            "This model's maximum context length is 8192 tokens. However, you requested 9000 "
            "tokens."
        ),
        total(None, 8192),
    ),
    (
        "OpenAI embeddings",
        400,
        error(
            "This model's maximum context length is 512 tokens. However, you requested 548 tokens "
            "in the input for embedding generation."
        ),
        into(548, 512),
    ),
    ("OpenAI Responses", 400, error(NO_NUMBERS, param="input", code=LENGTH["code"]), into()),
    ("OpenAI Responses without the code", 400, error(NO_NUMBERS, param="input"), into()),
    (
        "OpenAI configured limit",
        400,
        error(
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in "
            "477469 tokens. Please reduce the length of the messages.",
            **LENGTH,
        ),
        into(477_469, 272_000, input_only=True),
    ),
    (
        "Azure configured limit, cut short",
        400,
        error("OpenAIException - Input tokens exceed the configured limit of 272000 tokens."),
        into(None, 272_000, input_only=True),
    ),
    (
        "Azure clamp case",
        400,
        error(
            "This model's maximum context length is 1047576 tokens. However, you requested 1200000 "
            f"tokens (200000 in the messages, 1000000 in the completion). {REDUCE}",
            **LENGTH,
        ),
        total(200_000, 1_047_576),
    ),
    ("Azure, code only", 400, {"error": {"code": "context_length_exceeded"}}, into()),
    (
        "FastChat",
        400,
        flat(
            "This model's maximum context length is 4096 tokens. However, your messages resulted "
            "in 5100 tokens.",
            code=40303,
        ),
        into(5100, 4096),
    ),
    ("FastChat, other wording", 400, flat("The prompt does not fit.", code=40303), into()),
    ("Anthropic", 400, ANTHROPIC, into(213_462, 200_000)),
    ("Anthropic in+out", 400, ANTHROPIC_BOTH, total(196_758, 200_000)),
    (
        "Anthropic in+out, and the input alone is too long",
        400,
        error("input length and `max_tokens` exceed context limit: 200100 + 8192 > 200000"),
        into(200_100, 200_000),
    ),
    (
        "in+out without numbers",
        400,
        error("input length and max_tokens exceed context limit"),
        total(),
    ),
    (
        "Anthropic bytes",
        413,
        {
            "type": "error",
            "error": {
                "type": "request_too_large",
                "message": "Request exceeds the maximum allowed number of bytes. The maximum "
                "request size is 32 MB.",
            },
        },
        into(),
    ),
    (
        "Anthropic bytes, earlier",
        413,
        error("Request exceeds the maximum size", type="request_too_large"),
        into(),
    ),
    (
        "Anthropic bytes, type only",
        413,
        {"type": "error", "error": {"type": "request_too_large"}},
        into(),
    ),
    (
        "Bedrock",
        400,
        {"__type": "ValidationException", "message": "Input is too long for requested model."},
        into(),
    ),
    (
        "Bedrock in a stream",
        400,
        error("Input exceeds the max input token limit", type="ModelStreamErrorException"),
        into(),
    ),
    (
        "Gemini native, which answers an array",
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count (1196265) exceeds the maximum number of "
                    "tokens allowed (1048575).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
        into(1_196_265, 1_048_575, input_only=True),
    ),
    (
        "Gemini 2.5",
        400,
        error(
            "The input token count exceeds the maximum number of tokens allowed (1048576).",
            code=400,
            status="INVALID_ARGUMENT",
        ),
        into(None, 1_048_576, input_only=True),
    ),
    ("llama.cpp", 400, LLAMA, into(731, 512)),
    (
        "llama.cpp, wording of another build",
        400,
        {"error": {**_members, "message": "The prompt did not fit."}}
        if isinstance(_members := LLAMA["error"], dict)
        else {},
        into(731, 512),
    ),
    (
        "llama.cpp, skipping",
        400,
        error("input (9000 tokens) is larger than the max context size (8192 tokens). skipping"),
        into(9000, 8192),
    ),
    (
        "llama.cpp older",
        400,
        error("the request exceeds the available context size, try increasing it", code=400),
        into(),
    ),
    (
        "llama.cpp old",
        400,
        error(
            "the request exceeds the available context size. try increasing the context size or "
            "enable context shift",
            code=400,
        ),
        into(),
    ),
    ("llama.cpp mid-generation", 500, {"error": MID_GENERATION}, into()),
    (
        "llama-cpp-python",
        400,
        error("Requested tokens (2100) exceed context window of 2048"),
        into(2100, 2048),
    ),
    (
        "LM Studio mid-generation",
        400,
        {
            "error": "Engine protocol predict stream returned an error: " + text_of(MID_GENERATION),
        },
        into(),
    ),
    (
        "LM Studio, request to the engine",
        400,
        {"error": "Engine protocol predict request returned 400: " + text_of(LLAMA)},
        into(731, 512),
    ),
    (
        "LM Studio n_keep",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the "
            "context length (n_keep: 9000 >= n_ctx: 4096)."
        },
        into(9000, 4096),
    ),
    (
        "LM Studio n_keep without numbers",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the "
            "context length. Try to load the model with a larger context length"
        },
        into(),
    ),
    (
        "LM Studio overflow policy",
        400,
        {
            "error": "Trying to keep the first 9000 tokens when context the overflows. However, "
            "the model is loaded with context length of only 4096 tokens, which is not enough."
        },
        into(9000, 4096),
    ),
    (
        "vLLM old, flat",
        400,
        flat(
            "This model's maximum context length is 4096 tokens. However, you requested 5000 "
            f"tokens (4000 in the messages, 1000 in the completion). {REDUCE}",
            param=None,
            code=400,
        ),
        total(4000, 4096),
    ),
    (
        "vLLM old, input only",
        400,
        flat(
            "This model's maximum context length is 4096 tokens. However, you requested 5000 "
            "tokens in the messages, Please reduce the length of the messages.",
            code=400,
        ),
        into(5000, 4096),
    ),
    (
        "vLLM",
        400,
        error(
            "This model's maximum context length is 4096 tokens. However, your request has 5000 "
            "input tokens. Please reduce the length of the input messages. "
            "(parameter=input_tokens, value=5000)",
            type="BadRequestError",
            param="input_tokens",
            code=400,
        ),
        into(5000, 4096),
    ),
    (
        "vLLM in+out",
        400,
        error(
            "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum "
            "context length is 4096 tokens and your request has 2778 input tokens (8000 > 4096 - "
            "2778). None",
            type="BadRequestError",
            code=400,
        ),
        total(2778, 4096),
    ),
    (
        "vLLM in+out, newer: it counts no further",
        400,
        error(
            "This model's maximum context length is 32768 tokens. However, you requested 32000 "
            "output tokens and your prompt contains at least 769 input tokens, for a total of at "
            "least 32769 tokens. Please reduce the length of the input prompt or the number of "
            "requested output tokens. (parameter=input_tokens, value=769)",
            type="BadRequestError",
            param="input_tokens",
            code=400,
        ),
        total(769, 32_768, at_least=True),
    ),
    (
        "vLLM newer, no output at all: the input is too long",
        400,
        error(
            "This model's maximum context length is 262144 tokens. However, you requested 0 output "
            "tokens and your prompt contains at least 262145 input tokens, for a total of at least "
            "262145 tokens."
        ),
        into(262_145, 262_144, at_least=True),
    ),
    (
        "DeepInfra, which counts characters",
        400,
        error(
            "This model's maximum context length is 40960 tokens. However, you requested 40960 "
            "output tokens and your prompt contains 12769 characters"
        ),
        total(None, 40_960),
    ),
    ("vLLM only", 400, flat("The context length is only 4096 tokens."), into(None, 4096)),
    (
        "vLLM input length",
        400,
        flat("Input length (5000) exceeds model's maximum context length (4096)."),
        into(5000, 4096),
    ),
    (
        "vLLM input length, no numbers",
        400,
        flat("The input length of the request exceeds the model's context length."),
        into(),
    ),
    (
        "vLLM decoder prompt",
        400,
        flat("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        into(5000, 4096),
    ),
    (
        "SGLang",
        400,
        {
            "detail": "The input (5000 tokens) is longer than the model's context length (4096 "
            "tokens)."
        },
        into(5000, 4096),
    ),
    (
        "SGLang in+out",
        400,
        flat(
            "Requested token count exceeds the model's maximum context length of 256000 tokens. "
            "You requested a total of 256800 tokens: 224800 tokens from the input messages and "
            "32000 tokens for the completion. Please reduce the number of tokens in the input "
            "messages or the completion to fit within the limit.",
            code=400,
        ),
        total(224_800, 256_000),
    ),
    (
        "Together",
        400,
        error("The input (40000 tokens) is longer than the model's context length (32768 tokens)."),
        into(40_000, 32_768),
    ),
    (
        "TGI in+out",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. "
            "Given: 3000 `inputs` tokens and 2000 `max_new_tokens`",
            "error_type": "validation",
        },
        total(3000, 4096),
    ),
    (
        "TGI in+out, and the input alone is too long",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. "
            "Given: 4096 `inputs` tokens and 1 `max_new_tokens`",
            "error_type": "validation",
        },
        into(4096, 4096),
    ),
    (
        "TGI",
        422,
        {
            "error": "Input validation error: `inputs` must have less than 4095 tokens. "
            "Given: 5000",
            "error_type": "validation",
        },
        into(5000, 4095, input_only=True),
    ),
    (
        "Ollama cloud",
        400,
        {"error": "prompt too long; exceeded max context length by 1,234 tokens"},
        into(excess=1234),
    ),
    ("Ollama cloud, no excess", 400, {"error": "prompt too long; exceeded context length"}, into()),
    (
        "oMLX",
        400,
        {"detail": "Prompt too long: 9000 tokens exceeds max context window of 8192 tokens"},
        into(9000, 8192),
    ),
    (
        "OpenRouter",
        400,
        error(
            "This endpoint's maximum context length is 131072 tokens. However, you requested about "
            "148000 tokens (130000 of text input, 18000 in the output). Please reduce the length "
            "of either one.",
            code=400,
        ),
        total(130_000, 131_072),
    ),
    (
        "OpenRouter, several inputs that are too long by themselves",
        400,
        error(
            "This endpoint's maximum context length is 131072 tokens. However, you requested about "
            "212745 tokens (122163 of text input, 58582 of tool input, 32000 in the output).",
            code=400,
        ),
        into(180_745, 131_072),
    ),
    (
        "OpenRouter, raw JSON of the provider",
        400,
        error(
            "Provider returned error",
            code=400,
            metadata={"raw": text_of(ANTHROPIC), "provider_name": "Anthropic"},
        ),
        into(213_462, 200_000),
    ),
    (
        "OpenRouter, raw object of the provider",
        400,
        error("Provider returned error", code=400, metadata={"raw": ANTHROPIC_BOTH}),
        total(196_758, 200_000),
    ),
    (
        "OpenRouter, raw text of the provider",
        400,
        error("Provider returned error", metadata={"raw": "Input is too long for requested model"}),
        into(),
    ),
    ("OpenRouter, JSON in the message", 400, error(text_of(LLAMA), code=400), into(731, 512)),
    ("Groq", 400, error(REDUCE), into()),
    (
        "Cerebras",
        400,
        {"message": "Please reduce the prompt. Current length is 9000 while limit is 8192"},
        into(9000, 8192),
    ),
    ("Cerebras, no body", 400, b"", into()),
    ("Cerebras, no body, 413", 413, b"\r\n", into()),
    ("Cerebras, no body, through an SDK", 400, error("413 status code (no body)"), into()),
    (
        "DeepSeek",
        400,
        error(
            "This model's maximum context length is 65536 tokens. However, you requested 70000 "
            f"tokens (66000 in the messages, 4000 in the completion). {REDUCE}",
            param=None,
            code="invalid_request_error",
        ),
        into(66_000, 65_536),
    ),
    (
        "Mistral",
        400,
        flat(
            "Prompt contains 140000 tokens and 0 draft tokens, too large for model with 131072 "
            "maximum context length"
        ),
        into(140_000, 131_072),
    ),
    (
        "Mistral, without the prompt",
        400,
        flat("too large for model with 131072 maximum context length"),
        into(None, 131_072),
    ),
    (
        "xAI",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 "
            "tokens.",
        },
        into(537_812, 131_072, input_only=True),
    ),
    (
        "xAI, without the prompt",
        400,
        {"code": "x", "error": "This model's maximum prompt length is 131072."},
        into(None, 131_072, input_only=True),
    ),
    (
        "Moonshot",
        400,
        error("Invalid request: Your request exceeded model token limit: 8192"),
        into(None, 8192),
    ),
    (
        "Kimi",
        400,
        error(
            "Invalid request: Your request exceeded model token limit: 262144 (requested: 262268)"
        ),
        into(262_268, 262_144),
    ),
    (
        "Moonshot size, which is bytes and tells nothing of tokens",
        400,
        error("total message size 2100954 exceeds limit 2097152"),
        into(),
    ),
    (
        "Moonshot earlier",
        400,
        error("model max length exceeded, max length:8192"),
        total(None, 8192),
    ),
    ("MiniMax", 400, error("invalid params, context window exceeds limit (2013)"), into()),
    (
        "z.ai",
        400,
        {"error": {"code": "1261", "message": "Prompt exceeds max length"}},
        into(),
    ),
    ("z.ai in Chinese", 400, {"error": {"code": "1261", "message": "Prompt 超长"}}, into()),
    ("z.ai, reason", 400, error("x", code="model_context_window_exceeded"), into()),
    (
        "DashScope",
        400,
        error(
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]"
        ),
        into(None, 129_024, input_only=True),
    ),
    (
        "iFlytek",
        400,
        error(
            "EngineInternalError:<400> InternalError.Algo.InvalidParameter: Range of input length "
            "should be [1, 30720]",
            code="10012",
        ),
        into(None, 30_720, input_only=True),
    ),
    (
        "GitHub Copilot",
        400,
        error(
            "prompt token count of 140000 exceeds the limit of 128000",
            code="model_max_prompt_tokens_exceeded",
        ),
        into(140_000, 128_000, input_only=True),
    ),
    (
        "Cohere",
        400,
        {
            "message": "too many tokens: total number of tokens in the prompt exceeds the limit of "
            "4081"
        },
        into(None, 4081, input_only=True),
    ),
    (
        "Cohere, received",
        400,
        {
            "message": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - "
            "received 5000. Try using a shorter prompt."
        },
        into(5000, 4081, input_only=True),
    ),
    (
        "Cohere, excess",
        400,
        {"message": "too many tokens: size limit exceeded by 12345 tokens"},
        into(excess=12_345),
    ),
    (
        "Poolside",
        400,
        error("Input length 150000 exceeds the maximum allowed input length of 131,072 tokens."),
        into(150_000, 131_072, input_only=True),
    ),
    (
        "DS4-style",
        404,
        {"error": "Prompt has 9,000 tokens, but the configured context size is 8,192 tokens"},
        into(9000, 8192),
    ),
    (
        "DS4-style, no room",
        400,
        {"error": "Context limit is 8192 tokens; prompt=8190 leaves 0 output tokens"},
        into(8190, 8192),
    ),
    (
        "LiteLLM",
        400,
        error(
            f"litellm.ContextWindowExceededError: AnthropicError - {text_of(ANTHROPIC)}\n"
            "Received Model Group=claude\nAvailable Model Group Fallbacks=None\nError doing the "
            f"fallback: litellm.BadRequestError: AnthropicError - {text_of(ANTHROPIC)}",
            type=None,
            code="400",
        ),
        into(213_462, 200_000),
    ),
    (
        "LiteLLM, a dictionary of Python's",
        400,
        error(
            "litellm.BadRequestError: AnthropicException - b'"
            + text_of(ANTHROPIC_BOTH).replace('"', '\\"')
            + "'. Received Model Group=anthropic/claude",
            type=None,
            code="400",
        ),
        total(196_758, 200_000),
    ),
    (
        "LiteLLM, 503 without the upstream's text",
        503,
        error(
            "litellm.ServiceUnavailableError: litellm.ContextWindowExceededError: upstream error",
            type=None,
            code="503",
        ),
        into(),
    ),
    (
        "Databricks",
        400,
        {
            "error_code": "BAD_REQUEST",
            "message": text_of(
                {
                    "external_model_provider": "anthropic",
                    "external_model_error": ANTHROPIC_BOTH,
                }
            ),
        },
        total(196_758, 200_000),
    ),
    (
        "Cloudflare, 413",
        413,
        {
            "success": False,
            "errors": [
                {
                    "code": 3010,
                    "message": "AiError: The estimated number of input and maximum output tokens "
                    "(35000) exceeded this model context window limit (24000)",
                }
            ],
        },
        total(None, 24_000),
    ),
    ("text", 400, b"prompt is too long: 300000 tokens > 200000 maximum", into(300_000, 200_000)),
    ("text without numbers", 500, b"InternalError: prompt is too long", into()),
    ("text with a document", 400, b"upstream said 400: " + codec.dumps(LLAMA), into(731, 512)),
    (
        "text that begins with <",
        400,
        b"<400> Range of input length should be [1, 6000]",
        into(None, 6000, input_only=True),
    ),
    ("a string", 400, "Your input exceeds the context window of this model.", into()),
    ("a byte order mark", 400, b"\xef\xbb\xbf" + codec.dumps(LLAMA), into(731, 512)),
    ("protocol: request entity too large", 413, error("request entity too large"), into()),
    (
        "protocol: more than max",
        400,
        error("tokens in request more than max tokens allowed"),
        into(),
    ),
    ("protocol: token limit", 400, error("token limit exceeded"), into()),
    ("protocol: too many tokens", 400, error("Too many tokens in this request"), into()),
    (
        "protocol: exceeds the maximum",
        400,
        error("The request exceeds the model's maximum context length (8,192)."),
        into(None, 8192),
    ),
    (
        "protocol: exceeds the limit",
        400,
        error("prompt length of this conversation exceeds the limit of 8192"),
        into(None, 8192),
    ),
    (
        "protocol: only a limit",
        400,
        error("The maximum context length is 8192 tokens."),
        into(None, 8192),
    ),
    (
        "protocol: allowed input length",
        400,
        error("It exceeds the maximum allowed input length of 8192 tokens."),
        into(None, 8192, input_only=True),
    ),
    ("protocol: maximum", 400, error("It exceeds the maximum number of tokens allowed."), into()),
    ("protocol: window", 400, error("This exceeds the context window."), into()),
    ("protocol: words of the code", 400, error("Context length exceeded"), into()),
    ("a gateway", 400, error("Request size exceeds model context window"), into()),
]


@pytest.mark.parametrize(
    ("status", "body", "wanted"), [form[1:] for form in FORMS], ids=[form[0] for form in FORMS]
)
def test_every_known_form(status: int, body: Json | bytes, wanted: Overflow) -> None:
    assert told(found(status, body)) == told(wanted)


def test_every_row_is_some_form() -> None:
    """A row that no form needs is dead, or hidden by one above it."""
    used = set()
    for _, _, body, _ in FORMS:
        raw = body if isinstance(body, bytes) else codec.dumps(body)
        said = overflow._read_body(raw)
        assert said is not None
        texts = [*said.texts, *said.codes]
        used.add(next((row.pattern for row in ROWS if overflow._first(row.pattern, texts)), None))
    assert [row.pattern.pattern for row in ROWS if row.pattern not in used] == []


NO_OVERFLOW: list[tuple[str, int, Json | bytes]] = [
    ("429", 429, error("prompt is too long: 9000 tokens > 8192 maximum")),
    ("429 with the code", 429, error("x", **LENGTH)),
    ("401", 401, error("maximum context length is 8192 tokens")),
    ("403", 403, error("Your input exceeds the context window of this model.")),
    ("529", 529, error("prompt is too long", type="overloaded_error")),
    ("200", 200, error("x", **LENGTH)),
    ("502", 502, error("prompt is too long")),
    (
        "Groq TPM",
        413,
        error(
            "Request too large for model `m` in organization `o` on tokens per minute (TPM): Limit "
            "6000, Requested 9000, please reduce your message size and try again.",
            type="tokens",
            code="rate_limit_exceeded",
        ),
    ),
    ("rate limit", 400, error("Rate limit reached: too many tokens, limit of 8192")),
    ("too many requests", 400, error("Too many requests; reduce the length of the messages")),
    ("Bedrock throttling", 400, error("Too many tokens, please wait before trying again.")),
    ("Bedrock throttling, pi", 400, error("Throttling error: Too many tokens")),
    ("Bedrock unavailable, pi", 503, error("Service unavailable: prompt is too long")),
    ("quota", 400, error("You exceeded your quota: token limit exceeded")),
    ("quota as code", 400, error("token limit exceeded", code="insufficient_quota")),
    ("429 inside", 400, {"error": {"code": 429, "message": "token limit exceeded"}}),
    ("401 inside", 400, {"error": {"code": "401", "message": "token limit exceeded"}}),
    (
        "string too long",
        400,
        error(
            "Invalid 'messages[0].content': string too long. Expected a string with maximum length "
            "1048576, but got a string with length 2000000 instead; input length exceeds context "
            "length",
            code="string_above_max_length",
        ),
    ),
    ("array too long", 400, error("input length exceeds", code="array_above_max_length")),
    ("user", 400, error("Invalid 'user': prompt is too long")),
    (
        "OpenAI output cap",
        400,
        error(
            "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, "
            "whereas you provided 100000.",
            param="max_tokens",
        ),
    ),
    (
        "OpenAI output cap that mentions the window",
        400,
        error(
            "max_tokens is too large: 100000. This model supports at most 16384 completion tokens "
            "and its maximum context length is 128000 tokens."
        ),
    ),
    (
        "Anthropic output cap",
        400,
        error(
            "max_tokens: 64000 > 32000, which is the maximum allowed number of output tokens for m"
        ),
    ),
    ("DashScope output cap", 400, error("Range of max_tokens should be [1, 8192]")),
    (
        "image size",
        400,
        error(
            "messages.1.content.0.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > "
            "5242880 bytes; input length exceeds the context length"
        ),
    ),
    ("images", 400, error("Too many images: the messages exceeds the limit of 20")),
    (
        "pairing, Anthropic",
        400,
        error("messages.2: `tool_use` ids were found without `tool_result` blocks: toolu_1"),
    ),
    (
        "pairing, OpenAI",
        400,
        error(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding "
            "message with 'tool_calls'."
        ),
    ),
    (
        "pairing, other way",
        400,
        error(
            "An assistant message with 'tool_calls' must be followed by tool messages; context "
            "length exceeded? The following tool_call_ids did not have response messages: call_1"
        ),
    ),
    (
        "nginx",
        413,
        b"<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body>\r\n<center>"
        b"<h1>413 Request Entity Too Large</h1></center>\r\n<hr><center>nginx</center>\r\n</body>",
    ),
    ("HTML in JSON", 413, error("<!DOCTYPE html><h1>Request Entity Too Large</h1>")),
    (
        "model not loaded",
        500,
        error("failed to load model: context size has been exceeded by the context window of 8192"),
    ),
    ("5xx that mentions a window", 500, error("Cannot serve a context window of 8192 tokens")),
    ("5xx that mentions a limit", 503, error("The maximum context length is 8192 tokens")),
    ("5xx, unspecific", 500, error("Please reduce the length of the messages")),
    ("5xx, unspecific", 503, error("too many tokens")),
    ("5xx, no body", 500, b""),
    ("404, no body", 404, b""),
    ("no such model", 404, error("The model `gpt-9` does not exist", code="model_not_found")),
    ("safety", 400, error("Your request was rejected as a result of our safety system.")),
    ("schema", 400, error("Invalid schema for function 'read': 'object' schema missing")),
    ("long context beta", 400, error("The long context beta is not yet available.")),
    ("a parameter", 400, error("Unsupported parameter: 'context'. Remove it and try again.")),
    ("cut off", 400, b'{"error":{"message":"bad","echo":"prompt is too long","co'),
    ("Python's own numbers", 400, b'{"error":"bad","echo":["prompt is too long",Infinity]}'),
    ("no JSON", 400, b"\xff\xfe\x00"),
    ("a number", 400, b"413"),
    ("nothing", 400, b"{}"),
    ("spaces without end", 400, b" " * overflow.MAX_BYTES + b'{"error":"bad"}'),
    ("null", 400, b"null"),
    ("other members only", 400, {"usage": "prompt is too long"}),
    ("a large document", 400, error("prompt is too long", padding="x" * overflow.MAX_BYTES)),
]

ECHOES: list[tuple[str, int, Json | bytes]] = [
    (
        "FastAPI",
        422,
        {
            "detail": [
                {
                    "type": "string_type",
                    "loc": ["body", "messages", 0, "content"],
                    "msg": "Input should be a valid string",
                    "input": {"message": USER_TEXT, "code": "context_length_exceeded"},
                }
            ]
        },
    ),
    (
        "vLLM",
        400,
        flat(
            "[{'type': 'missing', 'loc': ('body', 'model'), 'msg': 'Field required', 'input': "
            f"{{'messages': [{{'role': 'user', 'content': {QUOTED}}}]}}}}]",
            code=400,
        ),
    ),
    (
        "pydantic",
        400,
        error(
            "1 validation error for ChatRequest\nmessages.0.content\n  Input should be a valid "
            f"list [type=list_type, input_value={QUOTED}, input_type=str]"
        ),
    ),
    (
        "pydantic, another validator",
        400,
        error(f"Assertion failed, no such role [type=assertion_error, input_value={QUOTED}]"),
    ),
    (
        "llama.cpp",
        500,
        error(
            "Failed to parse messages: Missing 'role'; messages = "
            + text_of([{"content": USER_TEXT, "code": "context_length_exceeded"}]),
            code=500,
        ),
    ),
    ("OpenAI", 400, error(f"Invalid value: {QUOTED}. Supported values are: 'user'.")),
    ("axum", 422, f"Failed to deserialize the JSON body into the target type: {QUOTED}".encode()),
    ("nlohmann", 400, error(f"[json.exception.parse_error.101] last read: {QUOTED}")),
    ("body", 400, {"error": "bad request", "body": {"message": USER_TEXT}}),
    ("request", 400, error("bad request", request={"error": {"message": USER_TEXT}})),
    ("large", 422, {"detail": [{"msg": "bad", "input": [USER_TEXT] * 1000}]}),
]


@pytest.mark.parametrize(
    ("status", "body"),
    [case[1:] for case in [*NO_OVERFLOW, *ECHOES]],
    ids=[case[0] for case in [*NO_OVERFLOW, *ECHOES]],
)
def test_an_error_about_something_else(status: int, body: Json | bytes) -> None:
    assert told(found(status, body)) is None
