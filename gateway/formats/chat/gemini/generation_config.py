"""Build Gemini's ``generationConfig``, and tell from a model's name which options and requests the model supports.

Shapes: ai.google.dev/api/generate-content, ``GenerationConfig`` and ``ThinkingConfig``. Budgets and levels by model:
ai.google.dev/gemini-api/docs/thinking and docs.cloud.google.com/gemini-enterprise-agent-platform/models/thinking.
"""

import re
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.chat.gemini.json_schema import build_schema
from gateway.formats.chat.model import EFFORT_TOKENS, ChatRequest, Effort, ResponseFormat

MAX_STOP_SEQUENCES = 5
Version = tuple[int, int]

_MODEL_NAME_PATTERN = re.compile(r"gemini-(\d{1,3})(?:\.(\d{1,3}))?(?=-|\Z)")
_LATEST_ALIAS_PATTERN = re.compile(r"gemini-(?:pro|flash|flash-lite)-latest")
_NEWEST_VERSION: Version = (999, 0)
_LAST_PREFILL_VERSION: Version = (3, 1)
_FIRST_LEVEL_VERSION: Version = (3, 0)
"""The first version with thinking levels. It is also the first that requires thought signatures to be sent back."""
_BUDGET_VERSION: Version = (2, 5)
"""The only version with a thinking budget in tokens. Earlier versions do not think."""
_LAST_MINIMAL_FLASH_VERSION: Version = (3, 6)
_NON_THINKING_MARKERS = ("image", "tts", "audio", "live")
"""Parts of the names of models that reject ``thinkingConfig`` although their family thinks."""
_MIN_PRO_TOKENS, _MAX_PRO_TOKENS = 128, 32_768
_MIN_LITE_TOKENS, _MAX_FLASH_TOKENS = 512, 24_576
_SEED_RANGE = 2**31


def parse_version(model: str) -> Version | None:
    """Return the version in a Gemini model's name; None if the name has none.

    The aliases of the latest models, such as "gemini-pro-latest", have the version ``_NEWEST_VERSION``.
    """
    name = model.removeprefix("models/")
    if _LATEST_ALIAS_PATTERN.fullmatch(name):
        return _NEWEST_VERSION
    match = _MODEL_NAME_PATTERN.match(name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def requires_signatures(model: str) -> bool:
    """Return whether ``model`` rejects function calls without a thought signature in the history (since Gemini 3)."""
    version = parse_version(model)
    return version is not None and version >= _FIRST_LEVEL_VERSION


def takes_schema_with_tools(model: str) -> bool:
    """Return whether ``model`` accepts a response schema together with tools: since Gemini 3, or without a version.

    Earlier models answer "Function calling with a response mime type: 'application/json' is unsupported".
    """
    version = parse_version(model)
    return version is None or version >= _FIRST_LEVEL_VERSION


def takes_prefill(model: str) -> bool:
    """Return whether ``model`` can continue a final message of the model (prefill): up to Gemini 3.1.

    Later models answer "Requests ending with a model turn are not supported" (pipecat-ai/pipecat, pull request 5821).
    Names without a version, and aliases of the latest models, are assumed to be able to.
    """
    version = parse_version(model)
    return version is None or version <= _LAST_PREFILL_VERSION or version == _NEWEST_VERSION


def build_config(request: ChatRequest, model: str) -> dict[str, Any]:
    """Build the ``generationConfig``, empty if nothing is set.

    Raises ``InvalidRequest`` for too many stop sequences, and for a schema that is nested too deeply.
    """
    if len(request.stop) > MAX_STOP_SEQUENCES:
        raise InvalidRequest(f"Gemini takes at most {MAX_STOP_SEQUENCES} stop sequences", param="stop")
    fields = {
        "maxOutputTokens": request.max_tokens,
        "temperature": request.temperature,
        "topP": request.top_p,
        "topK": request.top_k,
        "stopSequences": list(request.stop) or None,
        # Models with only one answer reject ``candidateCount`` even with the value 1.
        "candidateCount": request.n if request.n > 1 else None,
        "seed": _fold_seed(request.seed),
        "presencePenalty": request.presence_penalty,
        "frequencyPenalty": request.frequency_penalty,
        "responseLogprobs": True if request.top_logprobs is not None else None,
        "logprobs": request.top_logprobs or None,
        "thinkingConfig": build_thinking(request, model),
        **_build_format(request.format),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _fold_seed(seed: int | None) -> int | None:
    """Reduce a seed to the 32 bits that Gemini accepts. Equal seeds stay equal, and None stays None."""
    return seed if seed is None or -_SEED_RANGE <= seed < _SEED_RANGE else seed % _SEED_RANGE


def _build_format(response_format: ResponseFormat | None) -> dict[str, Any]:
    if response_format is None:
        return {}
    config: dict[str, Any] = {"responseMimeType": "application/json"}
    if response_format.schema is not None:
        config["responseJsonSchema"] = build_schema(response_format.schema, param="response_format")
    return config


def build_thinking(request: ChatRequest, model: str) -> dict[str, Any] | None:
    """Build the ``thinkingConfig``; None if nothing is set or the model has no such setting.

    If the model cannot disable reasoning (2.5 Pro, Gemini 3), the lowest setting is used: many clients disable
    reasoning by default, and an answer serves them better than a rejection.
    """
    effort = _find_effort(request)
    version = parse_version(model)
    if effort is None or version is None or any(marker in model for marker in _NON_THINKING_MARKERS):
        return None
    if version >= _FIRST_LEVEL_VERSION:
        thinking: dict[str, Any] = {"thinkingLevel": _find_level(effort, model, version)}
    elif version == _BUDGET_VERSION:
        tokens = request.thinking_tokens
        thinking = {"thinkingBudget": _fit_budget(EFFORT_TOKENS[effort] if tokens is None else tokens, model)}
    else:
        return None
    return thinking if effort == "none" else {**thinking, "includeThoughts": True}


def _find_effort(request: ChatRequest) -> Effort | None:
    tokens = request.thinking_tokens
    if tokens is not None and tokens <= 0:
        return "none"
    if request.effort is not None or tokens is None:
        return request.effort
    efforts: list[Effort] = ["minimal", "low", "medium", "high", "xhigh"]
    return next((effort for effort in efforts if tokens <= EFFORT_TOKENS[effort]), "max")


def _find_level(effort: Effort, model: str, version: Version) -> str:
    if effort in {"none", "minimal"}:
        takes_minimal = "flash-lite" in model or ("flash" in model and version <= _LAST_MINIMAL_FLASH_VERSION)
        return "MINIMAL" if takes_minimal else "LOW"
    return {"low": "LOW", "medium": "MEDIUM"}.get(effort, "HIGH")


def _fit_budget(tokens: int, model: str) -> int:
    if "pro" in model:
        return min(max(tokens, _MIN_PRO_TOKENS), _MAX_PRO_TOKENS)
    if "flash-lite" in model and tokens > 0:
        return min(max(tokens, _MIN_LITE_TOKENS), _MAX_FLASH_TOKENS)
    return min(max(tokens, 0), _MAX_FLASH_TOKENS)
