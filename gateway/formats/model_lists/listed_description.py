"""Parse the properties of models in a provider's list.

One reader serves all lists in the style of OpenAI, because a gateway or a server such as llama-swap passes on the
fields of others. ``max_tokens`` is read only in Anthropic's list: elsewhere it has other meanings. What is not
understood is left out. The fields:

- OpenRouter (``Model`` of OpenRouterTeam/python-sdk): ``context_length``, ``top_provider.max_completion_tokens``,
  ``architecture``, ``supported_parameters``, ``pricing.input_cache_read``, ``expiration_date``
- Mistral (``BaseModelCard`` of mistralai/client-python): ``max_context_length``, ``capabilities``, ``deprecation``
- Anthropic (``BetaModelInfo`` of anthropics/anthropic-sdk-python): ``max_input_tokens``, ``max_tokens``,
  ``capabilities``, ``deprecated_at``
- vLLM (``ModelCard``): ``max_model_len``
- llama.cpp (ggml-org/llama.cpp, pull request 22952) and llama-swap: ``meta.n_ctx``, ``architecture``
- LM Studio (lmstudio.ai/docs/developer/rest/endpoints): ``type``, ``max_context_length``, ``loaded_context_length``,
  ``capabilities``
- Groq (console.groq.com/docs/api-reference#models): ``context_window``, ``max_completion_tokens``
- this gateway: the fields of ``ModelDescription``
"""

import re
from collections.abc import Mapping
from typing import Any

from gateway.domain.model_description import (
    KINDS,
    UNDESCRIBED,
    Feature,
    Modality,
    ModelDescription,
    ModelKind,
    sort_features,
    sort_modalities,
)

_MAX_TOKENS = 100_000_000
_CONTEXT_WINDOW_FIELDS = (
    "context_window", "loaded_context_length", "max_model_len", "context_length", "max_context_length",
    "max_input_tokens",
)  # fmt: skip
_MAX_OUTPUT_FIELDS = ("max_output_tokens", "max_completion_tokens")
_KINDS_BY_TYPE: Mapping[object, ModelKind] = {
    "llm": "chat", "vlm": "chat", "embeddings": "embedding", "embedding": "embedding", "rerank": "rerank",
    "image": "image", "chat": "chat", "moderation": "moderation",
}  # fmt: skip
_FEATURES_BY_PARAMETER: Mapping[object, Feature] = {
    "tools": "tools",
    "structured_outputs": "structured_output",
    "reasoning": "reasoning",
    "include_reasoning": "reasoning",
}
_FEATURES_BY_CAPABILITY: Mapping[object, Feature] = {
    "function_calling": "tools",
    "tools": "tools",
    "tool_use": "tools",
    "structured_outputs": "structured_output",
    "reasoning": "reasoning",
    "thinking": "reasoning",
    "server_tools": "web_search",
}
_DAY_PATTERN = re.compile(r"20\d\d-[01]\d-[0-3]\d(T|$)")
_CHAT_CAPABILITIES = frozenset({"completion_chat", "completion"})
_ANTHROPIC_FEATURES: tuple[Feature, ...] = ("tools", "caching")
"""Features of all of Anthropic's models, which its list therefore does not name."""
_KINDS_BY_OUTPUT: Mapping[Modality, ModelKind] = {"image": "image", "video": "video"}


def parse_description(item: Mapping[str, Any]) -> ModelDescription | None:
    """Return the description of the model in an item of a list; None if nothing in the item describes the model."""
    architecture, meta, top = (_read_object(item.get(name)) for name in ("architecture", "meta", "top_provider"))
    input_modalities, output_modalities = (
        _read_modalities(item, architecture, "input"),
        _read_modalities(item, architecture, "output"),
    )
    capabilities = item.get("capabilities")
    if isinstance(capabilities, Mapping):
        capabilities = [name for name, value in capabilities.items() if _is_supported(value)]
    if isinstance(capabilities, list):
        input_modalities = input_modalities or _parse_input_modalities(capabilities)
    elif item.get("type") == "vlm":
        input_modalities = input_modalities or ("text", "image")
    description = ModelDescription(
        _find_kind(item, output_modalities, capabilities),
        _read_first(item, _CONTEXT_WINDOW_FIELDS) or parse_tokens(meta.get("n_ctx")),
        _read_first(item, _MAX_OUTPUT_FIELDS)
        or parse_tokens(top.get("max_completion_tokens"))
        or _read_anthropic_limit(item),
        input_modalities,
        output_modalities,
        _find_features(item, capabilities),
        _find_retirement_day(item),
    )
    return None if description == UNDESCRIBED else description


def parse_tokens(value: object) -> int | None:
    """Return ``value`` if it is a plausible number of tokens, else None."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= _MAX_TOKENS else None


def _read_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _read_first(item: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((tokens for name in names if (tokens := parse_tokens(item.get(name)))), None)


def _read_anthropic_limit(item: Mapping[str, Any]) -> int | None:
    """Return ``max_tokens`` of a model in Anthropic's list; None in another list.

    In other lists, it may be a default or the context window.
    """
    return parse_tokens(item.get("max_tokens")) if "max_input_tokens" in item else None


def _read_modalities(
    item: Mapping[str, Any], architecture: Mapping[str, Any], side: str
) -> tuple[Modality, ...] | None:
    for source in (item, architecture):
        names = source.get(f"{side}_modalities")
        if isinstance(names, list):
            return sort_modalities(names) or None
    return None


def _is_supported(value: object) -> bool:
    return value is True or (isinstance(value, Mapping) and value.get("supported") is True)


def _parse_input_modalities(capabilities: list[Any]) -> tuple[Modality, ...] | None:
    """Return the modalities that a model reads. None if ``capabilities`` name only text: they may be incomplete."""
    names: list[Modality] = ["text"]
    if not {"vision", "image_input", "multimodal"}.isdisjoint(map(str, capabilities)):
        names.append("image")
    if "pdf_input" in capabilities:
        names.append("file")
    if "audio" in capabilities and "completion_chat" in capabilities:
        names.append("audio")
    return tuple(sort_modalities(names)) if len(names) > 1 else None


def _find_kind(
    item: Mapping[str, Any], output_modalities: tuple[Modality, ...] | None, capabilities: object
) -> ModelKind | None:
    if item.get("kind") in KINDS:
        kind: ModelKind = item["kind"]
        return kind
    type_name = item.get("type")
    if isinstance(type_name, str) and type_name in _KINDS_BY_TYPE:
        return _KINDS_BY_TYPE[type_name]
    if isinstance(capabilities, list) and not _CHAT_CAPABILITIES.isdisjoint(map(str, capabilities)):
        return "chat"
    return _find_kind_by_modality(_read_object(item.get("architecture")), output_modalities)


def _find_kind_by_modality(
    architecture: Mapping[str, Any], output_modalities: tuple[Modality, ...] | None
) -> ModelKind | None:
    """Return the kind of a model according to its modalities; None if they do not show it."""
    if architecture.get("output_modalities") == ["embeddings"]:
        return "embedding"
    if not architecture or not output_modalities:
        return None
    return "chat" if "text" in output_modalities else _KINDS_BY_OUTPUT.get(output_modalities[0])


def _find_features(item: Mapping[str, Any], capabilities: object) -> tuple[Feature, ...] | None:
    own_features, parameters = item.get("features"), item.get("supported_parameters")
    if isinstance(own_features, list):
        return sort_features(own_features)
    if isinstance(parameters, list):
        features = [
            _FEATURES_BY_PARAMETER[name]
            for name in parameters
            if isinstance(name, str) and name in _FEATURES_BY_PARAMETER
        ]
        if "input_cache_read" in _read_object(item.get("pricing")):
            features.append("caching")
        return sort_features(features)
    if isinstance(capabilities, list):
        features = [
            _FEATURES_BY_CAPABILITY[name]
            for name in capabilities
            if isinstance(name, str) and name in _FEATURES_BY_CAPABILITY
        ]
        if "max_input_tokens" in item:
            features += _ANTHROPIC_FEATURES
        return sort_features(features) or None
    return None


def _find_retirement_day(item: Mapping[str, Any]) -> str | None:
    """Return the day on which a model is retired, as a time: ``2027-01-31T00:00:00Z``; None if unknown."""
    for name in ("deprecated_at", "deprecation", "expiration_date"):
        value = item.get(name)
        if isinstance(value, str) and _DAY_PATTERN.match(value):
            return f"{value[:10]}T00:00:00Z"
    return None
