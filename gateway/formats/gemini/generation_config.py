"""How Gemini is to answer: ``generationConfig``, with the thinking that a model's family allows.

Shapes: ai.google.dev/api/generate-content, ``GenerationConfig`` and ``ThinkingConfig``. Budgets and levels by model:
ai.google.dev/gemini-api/docs/thinking and docs.cloud.google.com/gemini-enterprise-agent-platform/models/thinking.
"""

import re
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.chat import EFFORT_TOKENS, ChatRequest, Effort, ResponseFormat
from gateway.formats.gemini.json_schema import build_schema

MAX_STOPS = 5
Version = tuple[int, int]

_NAME = re.compile(r"gemini-(\d{1,3})(?:\.(\d{1,3}))?(?=-|\Z)")
_LATEST = re.compile(r"gemini-(?:pro|flash|flash-lite)-latest")
_NEWEST: Version = (999, 0)
_LEVELS: Version = (3, 0)
"""The first version that thinks in levels, and wants its signatures back."""
_BUDGETS: Version = (2, 5)
"""The only version that counts its thinking in tokens; those before it do not think."""
_LAST_MINIMAL_FLASH: Version = (3, 6)
_NO_CHOICE = ("image", "tts", "audio", "live")
"""Models of a thinking family that take no ``thinkingConfig``."""
_MIN_PRO, _MAX_PRO = 128, 32_768
_MIN_LITE, _MAX_FLASH = 512, 24_576
_SEED_RANGE = 2**31


def parse_version(model: str) -> Version | None:
    """The version in a Gemini model's name; None where it is another's, or has none in it."""
    name = model.removeprefix("models/")
    if _LATEST.fullmatch(name):
        return _NEWEST
    found = _NAME.match(name)
    return (int(found[1]), int(found[2] or 0)) if found else None


def wants_signatures(model: str) -> bool:
    """Whether ``model`` refuses a function call in its history that has no thought signature (Gemini 3 and later)."""
    version = parse_version(model)
    return version is not None and version >= _LEVELS


def build_config(conversation: ChatRequest, model: str) -> dict[str, Any]:
    """The ``generationConfig``, empty where nothing was asked. Raises ``InvalidRequest``."""
    if len(conversation.stop) > MAX_STOPS:
        raise InvalidRequest(f"Gemini takes at most {MAX_STOPS} stop sequences", param="stop")
    said = {
        "maxOutputTokens": conversation.max_tokens,
        "temperature": conversation.temperature,
        "topP": conversation.top_p,
        "topK": conversation.top_k,
        "stopSequences": list(conversation.stop) or None,
        # Asking for one is refused by models that give no more.
        "candidateCount": conversation.choices if conversation.choices > 1 else None,
        "seed": _fold_seed(conversation.seed),
        "presencePenalty": conversation.presence_penalty,
        "frequencyPenalty": conversation.frequency_penalty,
        "thinkingConfig": build_thinking(conversation, model),
        **_build_format(conversation.format),
    }
    return {name: value for name, value in said.items() if value is not None}


def _fold_seed(seed: int | None) -> int | None:
    """A seed is 32 bits wide here. It only has to be the same for the same, so a longer one is folded."""
    return seed if seed is None or -_SEED_RANGE <= seed < _SEED_RANGE else seed % _SEED_RANGE


def _build_format(wanted: ResponseFormat | None) -> dict[str, Any]:
    if wanted is None:
        return {}
    written: dict[str, Any] = {"responseMimeType": "application/json"}
    if wanted.schema is not None:
        written["responseJsonSchema"] = build_schema(wanted.schema, param="response_format")
    return written


def build_thinking(conversation: ChatRequest, model: str) -> dict[str, Any] | None:
    """The ``thinkingConfig``; None where nothing was asked, or the model leaves no choice.

    Where thinking is forbidden and the model cannot do without (2.5 Pro, Gemini 3), it thinks as little as it can:
    callers forbid it by habit, and an answer serves them better than a refusal.
    """
    effort = _find_effort(conversation)
    version = parse_version(model)
    if effort is None or version is None or any(mark in model for mark in _NO_CHOICE):
        return None
    if version >= _LEVELS:
        thinking: dict[str, Any] = {"thinkingLevel": _find_level(effort, model, version)}
    elif version == _BUDGETS:
        tokens = conversation.thinking_tokens
        thinking = {"thinkingBudget": _fit_budget(EFFORT_TOKENS[effort] if tokens is None else tokens, model)}
    else:
        return None
    return thinking if effort == "none" else {**thinking, "includeThoughts": True}


def _find_effort(conversation: ChatRequest) -> Effort | None:
    """How hard to think, in a word: the caller's own, unless its number forbids it."""
    tokens = conversation.thinking_tokens
    if tokens is not None and tokens <= 0:
        return "none"
    if conversation.effort is not None or tokens is None:
        return conversation.effort
    words: list[Effort] = ["minimal", "low", "medium", "high", "xhigh"]
    return next((word for word in words if tokens <= EFFORT_TOKENS[word]), "max")


def _find_level(effort: Effort, model: str, version: Version) -> str:
    if effort in {"none", "minimal"}:
        small = "flash-lite" in model or ("flash" in model and version <= _LAST_MINIMAL_FLASH)
        return "MINIMAL" if small else "LOW"
    return {"low": "LOW", "medium": "MEDIUM"}.get(effort, "HIGH")


def _fit_budget(tokens: int, model: str) -> int:
    if "pro" in model:
        return min(max(tokens, _MIN_PRO), _MAX_PRO)
    if "flash-lite" in model and tokens > 0:
        return min(max(tokens, _MIN_LITE), _MAX_FLASH)
    return min(max(tokens, 0), _MAX_FLASH)
