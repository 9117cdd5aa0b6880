"""Reasoning effort by vendor and model: the accepted values of ``reasoning_effort``, and how to turn reasoning off.

Unaccepted efforts are common: Claude Code sends an effort with every request, and turns reasoning off for titles.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from gateway.providers.base import Body, Quirk

FIELD = "reasoning_effort"
_EFFORT_ORDER = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_MEDIUM_INDEX = _EFFORT_ORDER.index("medium")
_DEFAULT = "default"

ORDINARY_EFFORTS = ("low", "medium", "high")
EFFORTS_WITH_NONE = ("none", *ORDINARY_EFFORTS)
EffortsByModel = tuple[tuple[str, tuple[str, ...]], ...]
"""Pairs of a model name pattern and the efforts that its models accept; the first match counts. No efforts: the model
cannot reason."""

OPENAI_EFFORTS: EffortsByModel = (
    (r"(ft:)?(gpt-[34]|chatgpt-|o1-mini|o1-preview).*", ()),
    (r"gpt-[\d.]+-(chat|search|audio|realtime|image).*", ()),
    (r"o\d.*", ORDINARY_EFFORTS),
    (r"gpt-5-pro.*", ("high",)),
    (r"gpt-[\d.]+-pro.*", ("medium", "high", "xhigh")),
    (r"gpt-5(\.1)?-codex(-mini)?(-\d.*)?", ORDINARY_EFFORTS),
    (r"gpt-5\.[1-5]-codex.*", (*ORDINARY_EFFORTS, "xhigh")),
    (r"gpt-5(-mini|-nano)?(-\d.*)?", ("minimal", *ORDINARY_EFFORTS)),
    (r"gpt-5\.1(-.*)?", EFFORTS_WITH_NONE),
    (r"gpt-5\.[2-5](-.*)?", (*EFFORTS_WITH_NONE, "xhigh")),
    (r"gpt-(5\.\d+|[6-9]|\d\d)(\.\d+)?(-.*)?", (*EFFORTS_WITH_NONE, "xhigh", "max")),
)
"""OpenAI's OpenAPI document, ``ReasoningEffort``: models before GPT-5.1 reject "none", later ones reject "minimal", and
GPT-5 Pro accepts only "high"; "xhigh" came with GPT-5.1 Codex Max, "max" with GPT-5.6. All other values are from the
model pages (developers.openai.com/api/docs/models)."""


def fit_effort(*efforts_by_model: tuple[str, tuple[str, ...]]) -> Quirk:
    """Return a quirk that replaces an unsupported effort by the nearest supported one, or drops it if there is none.

    Each pair has a pattern of model names and the efforts that those models support; the first match counts. An effort
    that no vendor has stays if the model supports any: the vendor rejects it.
    """
    find_word = _compile_efforts(efforts_by_model)

    def quirk(body: Body, model: str) -> str | None:
        if FIELD not in body:
            return None
        effort = body[FIELD]
        word = find_word(effort, model)
        if word == effort:
            return None
        if word is None:
            del body[FIELD]
            return None if effort in (None, "none") else FIELD
        body[FIELD] = word
        return FIELD

    return quirk


def fit_reasoning(*efforts_by_model: tuple[str, tuple[str, ...]]) -> Quirk:
    """Return a quirk that adapts ``reasoning.effort`` of the Responses API like ``fit_effort``."""
    find_word = _compile_efforts(efforts_by_model)

    def quirk(body: Body, model: str) -> str | None:
        reasoning = body.get("reasoning")
        if not isinstance(reasoning, dict) or "effort" not in reasoning:
            return None
        effort = reasoning["effort"]
        word = find_word(effort, model)
        if word == effort:
            return None
        other_fields = {name: value for name, value in reasoning.items() if name != "effort"}
        body["reasoning"] = other_fields if word is None else other_fields | {"effort": word}
        return None if word is None and effort in (None, "none") else "reasoning.effort"

    return quirk


def _compile_efforts(efforts_by_model: EffortsByModel) -> Callable[[Any, str], Any]:
    table = tuple((re.compile(pattern, re.DOTALL), efforts) for pattern, efforts in efforts_by_model)

    def find(effort: Any, model: str) -> Any:
        name = model.rpartition("/")[2].lower()
        efforts = next((efforts for pattern, efforts in table if pattern.fullmatch(name)), None)
        if efforts is None or effort in efforts or (efforts and effort not in _EFFORT_ORDER):
            return effort  # the vendor itself rejects an unknown value
        return _find_nearest(effort, efforts) if efforts else None

    return find


def _find_nearest(effort: str, efforts: Sequence[str]) -> str:
    """Return the effort in ``efforts`` nearest to ``effort``; on a tie, the one nearer to "medium"."""
    position = _EFFORT_ORDER.index(effort)
    return min(
        efforts, key=lambda word: (abs(_find_position(word) - position), abs(_find_position(word) - _MEDIUM_INDEX))
    )


def _find_position(word: str) -> int:
    """Return the place of a vendor's effort in the order of efforts; "default", Groq's word, is taken for "medium"."""
    return _MEDIUM_INDEX if word == _DEFAULT else _EFFORT_ORDER.index(word)


def disable_thinking_by(field: str, value: Any) -> Quirk:
    """Return a quirk that replaces the effort "none" by ``field`` = ``value``. A client's own ``field`` stays."""

    def quirk(body: Body, _model: str) -> None:
        if body.get(FIELD) == "none":
            del body[FIELD]
            body.setdefault(field, value)

    return quirk


def disable_when_forced(field: str, value: Any, models: str) -> Quirk:
    """Return a quirk that sets ``field`` to turn reasoning off if a tool call is forced; a client's own value stays.

    In that case the effort is dropped. ``models`` is a pattern of the models that reason by default, and reject
    a forced tool call while they reason.
    """
    model_pattern = re.compile(models)

    def quirk(body: Body, model: str) -> str | None:
        if body.get("tool_choice") in (None, "auto", "none") or field in body or not model_pattern.fullmatch(model):
            return None
        body[field] = value
        body.pop(FIELD, None)
        return field

    return quirk


thinking_disabled = disable_thinking_by("thinking", {"type": "disabled"})
"""DeepSeek (api-docs.deepseek.com/guides/thinking_mode), Kimi (platform.kimi.ai/docs/api/models-overview), Zhipu
(docs.z.ai/guides/capabilities/thinking-mode), Volcengine (volcengine.com/docs/82379/1449737), TokenHub
(www.tencentcloud.com/document/product/1300/80637)."""
enable_thinking_false = disable_thinking_by("enable_thinking", value=False)
"""DashScope (alibabacloud.com/help/en/model-studio/deep-thinking), SiliconFlow (docs.siliconflow.cn, chat completions),
Qianfan (cloud.baidu.com/doc/qianfan-docs, "deep thinking")."""
reasoning_none = disable_thinking_by("reasoning", {"effort": "none"})
"""OpenRouter (openrouter.ai/docs/use-cases/reasoning-tokens)."""
reasoning_disabled = disable_thinking_by("reasoning", {"enabled": False})
"""Together (docs.together.ai/docs/reasoning-overview)."""


def disable_template_thinking(body: Body, _model: str) -> None:
    """Replace the effort "none" by template arguments: ``enable_thinking`` for Qwen and GLM, ``thinking`` for DeepSeek.

    docs.vllm.ai/en/stable/features/reasoning_outputs; llama.cpp, tools/server/README.md, ``chat_template_kwargs``.
    """
    if body.get(FIELD) == "none":
        del body[FIELD]
        template_fields = body.get("chat_template_kwargs")
        fields = template_fields if isinstance(template_fields, dict) else {}
        body["chat_template_kwargs"] = {"enable_thinking": False, "thinking": False, **fields}
