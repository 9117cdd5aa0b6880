"""A prompt that is too long: found by every provider's words, and reported in the words that each client acts on."""

import orjson

from gateway.errors import ContextExceeded, ProviderBadResponse
from gateway.formats.errors.body import build_error
from gateway.formats.errors.context_window import find_lengths
from gateway.formats.errors.vendor import parse_worded_error
from tests.support.table_rows import table_rows

MESSAGES = {
    "openai": (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130245 tokens.",
        (130_245, 128_000),
    ),
    "openai-old": (
        (
            "This model's maximum context length is 8191 tokens, however you requested 10346 tokens (10341 in your "
            "prompt; 5 for the completion)."
        ),
        (10_346, 8_191),
    ),
    "openai-responses": ("Your input exceeds the context window of this model.", None),
    "openai-configured": (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 290000 tokens.",
        (290_000, 272_000),
    ),
    "anthropic": ("prompt is too long: 213462 tokens > 200000 maximum", (213_462, 200_000)),
    "anthropic-output": (
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
        (210_000, 200_000),
    ),
    "gemini": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        (1_196_265, 1_048_575),
    ),
    "vertex": (
        "Unable to submit request because the input token count is 40000 but model only supports up to 32768.",
        (40_000, 32_768),
    ),
    "bedrock": ("Input is too long for requested model.", None),
    "titan": ("Too many input tokens. Max input tokens: 8192, request input token count: 9000", (9_000, 8_192)),
    "mistral": (
        "Prompt contains 140000 tokens and 0 draft tokens, too large for model with 131072 maximum context length",
        (140_000, 131_072),
    ),
    "deepseek": (
        (
            "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens (62000 in the "
            "messages, 8000 in the completion)."
        ),
        (70_000, 65_536),
    ),
    "llama.cpp": (
        "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        (9_000, 4_096),
    ),
    "llama.cpp-old": ("the request exceeds the available context size, try increasing it", None),
    "llama.cpp-embeddings": (
        "input (1234 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
        (1_234, 512),
    ),
    "vllm": ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", (5_000, 4_096)),
    "vllm-new": (
        (
            "You passed 4000 input tokens and requested 200 output tokens. However, the model's context length is only "
            "4096 tokens, resulting in a maximum input length of 3896 tokens."
        ),
        None,
    ),
    "sglang": ("The input (33000 tokens) is longer than the model's context length (32768 tokens).", (33_000, 32_768)),
    "sglang-total": (
        (
            "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total "
            "of 40000 tokens: 36000 tokens from the input messages and 4000 tokens for the completion."
        ),
        (40_000, 32_768),
    ),
    "ollama": ("prompt too long; exceeded max context length by 4 tokens", None),
    "ollama-embeddings": ("the input length exceeds the context length", None),
    "lm-studio": (
        (
            "The number of tokens to keep from the initial prompt is greater than the context length "
            "(n_keep: 5000>= n_ctx: 4096)."
        ),
        (5_000, 4_096),
    ),
    "lm-studio-new": (
        (
            "Trying to keep the first 12345 tokens when context the overflows. However, the model is loaded with "
            "context length of only 4096 tokens, which is not enough."
        ),
        (12_345, 4_096),
    ),
    "xai": ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", (537_812, 131_072)),
    "groq": ("Please reduce the length of the messages or completion.", None),
    "cerebras": (
        "Please reduce the length of the messages or completion. Current length is 8500 while limit is 8192",
        (8_500, 8_192),
    ),
    "openrouter": (
        (
            "This endpoint's maximum context length is 128000 tokens. However, you requested about 130245 "
            "tokens (130000 of text input, 245 in the output)."
        ),
        (130_245, 128_000),
    ),
    "together": (
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 10000 `inputs` tokens "
            "and 512 `max_new_tokens`"
        ),
        (10_000, 8_193),
    ),
    "cohere": (
        (
            "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000. Try using a "
            "shorter prompt"
        ),
        (5_000, 4_081),
    ),
    "moonshot": (
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
        (291_351, 262_144),
    ),
    "minimax": ("invalid params, context window exceeds limit (2013)", None),
    "zhipu": ("Prompt exceeds max length", None),
    "dashscope": ("Range of input length should be [1, 129024]", None),
    "fireworks": ("The prompt is too long: 140000, model maximum context length: 131071", (140_000, 131_071)),
    "copilot": ("prompt token count of 140000 exceeds the limit of 128000", (140_000, 128_000)),
}


@table_rows("name", MESSAGES)
def test_a_prompt_that_is_too_long_is_recognized_in_every_providers_words(name: str) -> None:
    message, lengths = MESSAGES[name]
    for code in (400, None, "invalid_request"):
        error = parse_worded_error(400, orjson.dumps({"error": {"message": message, "code": code}}), ())
        assert type(error) is ContextExceeded
        assert (error.status, error.public_code, error.message) == (400, "context_length_exceeded", message)
        assert (error.retryable, error.failure_scope, error.answered) == (True, "nobody", True)
    assert find_lengths(message) == lengths


@table_rows(
    ("status", "body"),
    [
        (500, {"error": {"code": 500, "message": MESSAGES["llama.cpp-embeddings"][0], "type": "server_error"}}),
        (500, {"error": MESSAGES["ollama-embeddings"][0]}),
        (413, {"error": {"code": "context_length_exceeded", "message": "no"}}),
        (400, {"error": {"code": "string_above_max_length", "param": "messages[1].content", "message": "too long"}}),
        (400, {"error": {"code": 400, "message": "no", "type": "exceed_context_size_error"}}),
        (400, {"message": MESSAGES["bedrock"][0]}),
        (422, {"detail": MESSAGES["vllm"][0]}),
    ],
)
def test_a_prompt_that_is_too_long_is_the_callers_whatever_the_status(status: int, body: object) -> None:
    error = parse_worded_error(status, orjson.dumps(body), ())
    assert (type(error), error.status, error.public_code) == (ContextExceeded, 400, "context_length_exceeded")


@table_rows(
    ("status", "error"),
    [
        (400, {"code": "string_above_max_length", "param": "tools[0].function.name", "message": "too long"}),
        (400, {"message": "max_tokens is too large"}),
        (400, {"message": "The text of the story is about a context window that broke"}),
        (503, {"message": MESSAGES["openai"][0]}),
        (413, {"message": "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 20000"}),
    ],
)
def test_another_fault_is_no_prompt_that_is_too_long(status: int, error: object) -> None:
    assert not isinstance(parse_worded_error(status, orjson.dumps({"error": error}), ()), ContextExceeded)


@table_rows(
    ("name", "anthropic", "google"),
    [
        (
            "openai",
            "prompt is too long: 130245 tokens > 128000 maximum. This model's",
            "The input token count (130245)",
        ),
        (
            "gemini",
            "prompt is too long: 1196265 tokens > 1048575 maximum. The input",
            "The input token count (1196265)",
        ),
        ("anthropic", "prompt is too long: 213462 tokens > 200000 maximum (req", "The input token count (213462) exc"),
        ("bedrock", "prompt is too long. Input is too long", "Input is too long"),
    ],
)
def test_each_client_reads_the_words_that_it_acts_on(name: str, anthropic: str, google: str) -> None:
    fault = ContextExceeded(MESSAGES[name][0], status=400, code="context_length_exceeded")
    error = orjson.loads(build_error(fault, "req_1", "anthropic"))["error"]
    assert error["message"].startswith(anthropic)
    assert error["type"] == "invalid_request_error"
    assert orjson.loads(build_error(fault, "req_1", "google"))["error"]["message"].startswith(google)
    same = orjson.loads(build_error(fault, "req_1", "openai"))["error"]
    assert same["message"] == f"{MESSAGES[name][0]} (request id: req_1)"
    assert same["code"] == "context_length_exceeded"


def test_another_fault_keeps_its_words() -> None:
    error = ProviderBadResponse("no")
    assert orjson.loads(build_error(error, "r", "anthropic"))["error"]["message"] == "no (request id: r)"
