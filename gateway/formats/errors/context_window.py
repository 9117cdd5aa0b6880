"""Recognize a provider's "prompt too long" errors, and reword them in the form that clients act on.

Claude Code shortens a conversation only after "prompt is too long", and reads the two numbers after these words.
Clients of the OpenAI API read the code ``context_length_exceeded`` (openai/codex, codex-api/src/sse/responses.rs).
"""

import re

CONTEXT_EXCEEDED_CODE = "context_length_exceeded"
_CONTEXT_CODES = frozenset(
    {CONTEXT_EXCEEDED_CODE, "context_window_exceeded", "model_max_prompt_tokens_exceeded", "exceed_context_size_error"}
)
"""Error codes and types of OpenAI and compatible servers, GitHub Copilot and llama.cpp."""
_LONG_TEXT_CODE = "string_above_max_length"
"""OpenAI's code for any text that is too long. Only a text of the prompt concerns the context window."""
_PROMPT_FIELDS = ("messages", "input", "prompt", "instructions")
_TOO_LONG_PATTERN = re.compile(
    r"maximum context length"  # OpenAI, DeepSeek, vLLM, SGLang, OpenRouter, Mistral, Together, Ollama
    r"|(?:prompt|input) is too long|prompt too long"  # Anthropic, Fireworks; Bedrock; Ollama
    r"|exceeds? (?:the |this )?(?:available |model'?s? )?(?:maximum )?context"  # OpenAI, llama.cpp, Ollama, Anthropic
    r"|input tokens exceed the configured limit"  # OpenAI
    r"|input token count .{0,40}(?:exceeds the maximum|only supports up to)"  # Gemini, Vertex AI
    r"|context[ _](?:length|window|size) .{0,40}exceed"  # LM Studio, MiniMax
    r"|greater than the context length|loaded with context length of only"  # LM Studio
    r"|context length is only"  # vLLM
    r"|longer than the (?:maximum model|model'?s? (?:maximum )?context) length"  # vLLM, SGLang
    r"|maximum prompt length is [0-9]"  # xAI
    r"|reduce the length of the (?:messages|prompt|input)"  # Groq, Cerebras, Bedrock
    r"|prompt token count .{0,20}exceeds the limit"  # GitHub Copilot
    r"|too many (?:input )?tokens\b.{0,60}(?:prompt|limit|max)"  # Cohere, Amazon Titan
    r"|exceeded model token limit"  # Moonshot
    r"|prompt exceeds max length|tokens in request more than max tokens allowed"  # Zhipu
    r"|range of input length should be|input length .{0,20}exceeds the maximum length"  # DashScope, Volcengine
    r"|`inputs` (?:tokens \+|must have less than)"  # Together, Hugging Face
    r"|\(?[0-9]+ tokens\)? is too large to process",  # llama.cpp, for embeddings
    re.IGNORECASE,
)
_MAX_SEARCHED_CHARS = 1_000
_PROMPT_NUMBER = r"(?P<prompt>[0-9][0-9,]{0,11})"
_LIMIT_NUMBER = r"(?P<limit>[0-9][0-9,]{0,11})"
_REQUESTED_PATTERN = "(?:resulted in|requested|total of|passed)"
_LIMIT_PATTERN = r"(?:prompt length is|cannot exceed|token limit:|tokens:|must be <=|limit of|less than|should be \[1,)"
_EXCESS_PATTERN = "(?:exceed|too large|longer|supports up to|only|maximum)"
_LENGTH_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_PROMPT_NUMBER} tokens > {_LIMIT_NUMBER}",
        rf"{_PROMPT_NUMBER} \+ (?P<output>[0-9]+) > {_LIMIT_NUMBER}",
        rf"is too long: {_PROMPT_NUMBER},.{{0,40}}length: {_LIMIT_NUMBER}",
        rf"n_keep: {_PROMPT_NUMBER} ?>= ?n_ctx: {_LIMIT_NUMBER}",
        rf"current length is {_PROMPT_NUMBER} while limit is {_LIMIT_NUMBER}",
        rf"{_PROMPT_NUMBER} tokens\)? is too large to process.{{0,60}}size: {_LIMIT_NUMBER}",
        rf"context length (?:is|of)(?: only)? {_LIMIT_NUMBER}\b.{{0,120}}?{_REQUESTED_PATTERN}[a-z ]* {_PROMPT_NUMBER}",
        rf"{_LIMIT_PATTERN} ?{_LIMIT_NUMBER}[^0-9]{{1,60}}{_PROMPT_NUMBER}",
        rf"(?:prompt|request|input|first)[^0-9]{{0,40}}{_PROMPT_NUMBER}.{{0,120}}?{_EXCESS_PATTERN}[^0-9]{{1,60}}{_LIMIT_NUMBER}",
    )
)


def is_context_exceeded(message: str, codes: tuple[str | None, ...] = (), param: str | None = None) -> bool:
    """Return whether a provider's error says that the prompt exceeds the model's context window.

    ``codes`` are the error's code and type, ``param`` is the field that it names. They are tried before the message.
    """
    if not _CONTEXT_CODES.isdisjoint(codes):
        return True
    if _LONG_TEXT_CODE in codes:
        return (param or "").startswith(_PROMPT_FIELDS) or any(f"'{name}" in message for name in _PROMPT_FIELDS)
    return _TOO_LONG_PATTERN.search(message[:_MAX_SEARCHED_CHARS]) is not None


def find_lengths(message: str) -> tuple[int, int] | None:
    """Return the requested tokens and the context window's tokens, according to a provider's message.

    The requested tokens are those of the prompt, and of the output if the message counts it separately. Returns None
    unless the message has both numbers and the first one is higher.
    """
    for pattern in _LENGTH_PATTERNS:
        match = pattern.search(message[:_MAX_SEARCHED_CHARS])
        if match is None:
            continue
        numbers = {name: int(text.replace(",", "")) for name, text in match.groupdict().items() if text}
        prompt_tokens, max_tokens = numbers["prompt"] + numbers.get("output", 0), numbers["limit"]
        if prompt_tokens > max_tokens:
            return prompt_tokens, max_tokens
    return None


def write_for_anthropic(message: str) -> str:
    """Prefix a provider's message with Anthropic's wording for a prompt that is too long."""
    if message.lower().startswith("prompt is too long"):
        return message
    lengths = find_lengths(message)
    comparison = f": {lengths[0]} tokens > {lengths[1]} maximum" if lengths else ""
    return f"prompt is too long{comparison}. {message}"


def write_for_google(message: str) -> str:
    """Prefix a provider's message with Google's wording for a prompt that is too long, if both counts are known."""
    lengths = find_lengths(message)
    if lengths is None or message.lower().startswith("the input token count"):
        return message
    return (
        f"The input token count ({lengths[0]}) exceeds the maximum number of tokens allowed ({lengths[1]}). {message}"
    )
