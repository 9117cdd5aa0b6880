"""What is known of well-known models without asking a provider: their kind by name, modalities, features and limits.

Modalities and features are from the vendors' model pages, as in ``output_limits.py``. A model that no table has stays
unknown.
"""

import re
from fnmatch import fnmatchcase
from functools import lru_cache

from gateway.domain.context_windows import find_context_window
from gateway.domain.model_description import (
    UNDESCRIBED,
    Feature,
    Modality,
    ModelDescription,
    ModelKind,
    sort_features,
    sort_modalities,
)
from gateway.domain.model_name import normalize_name
from gateway.domain.output_limits import find_longest_answer

_KIND_PATTERNS: tuple[tuple[re.Pattern[str], ModelKind], ...] = (
    (re.compile(r"rerank"), "rerank"),
    (re.compile(r"moderation"), "moderation"),
    (re.compile(r"embed|\bbge-|\be5-"), "embedding"),
    (re.compile(r"babbage|davinci|turbo-instruct"), "completion"),
    (re.compile(r"t2i|text-to-image|wanx"), "image"),
    (re.compile(r"video|\bsora|\bveo|kling|seedance|hailuo|\bwan\d|t2v|i2v|\bgen[34]|\bgen-[34]|\bray-"), "video"),
    (re.compile(r"whisper|transcri|\basr|-asr"), "transcription"),
    (re.compile(r"\btts|-tts|speech|cosyvoice|eleven_"), "speech"),
    (re.compile(r"realtime"), "realtime"),
    (re.compile(r"audio|voice|lyria"), "audio"),
    (re.compile(r"imagen?\b|imagine|dall-e|\bflux|diffusion|sdxl|\bsd3|kolors|seedream|cogview|recraft"), "image"),
    (re.compile(r"ideogram|hidream|midjourney|\bphoton"), "image"),
)
"""Name patterns of every kind of model except chat: most providers' lists do not name a model's kind."""

_TEXT, _IMAGES, _FILES, _ALL = "text", "text image", "text image file", "text image audio video file"
_CHAT_MODELS = (
    ("gpt-5-chat*", _IMAGES, ""),
    ("gpt-5*", _IMAGES, "tools structured_output reasoning caching"),
    ("gpt-4o*-search*", _TEXT, "web_search"),
    ("gpt-4o*", _IMAGES, "tools structured_output caching"),
    ("gpt-4-1*", _IMAGES, "tools structured_output caching"),
    ("gpt-3-5*", _TEXT, "tools"),
    ("o1-mini*", _TEXT, "reasoning caching"),
    ("o1-preview*", _TEXT, "reasoning caching"),
    ("o3-mini*", _TEXT, "tools structured_output reasoning caching"),
    ("o1*", _IMAGES, "tools structured_output reasoning caching"),
    ("o3*", _IMAGES, "tools structured_output reasoning caching"),
    ("o4-mini*", _IMAGES, "tools structured_output reasoning caching"),
    ("claude-haiku-4-5*", _FILES, "tools structured_output reasoning caching"),
    ("claude-sonnet-4-[5-9]*", _FILES, "tools structured_output reasoning caching"),
    ("claude-opus-4-[1-9]*", _FILES, "tools structured_output reasoning caching"),
    ("claude-sonnet-4*", _FILES, "tools reasoning caching"),
    ("claude-opus-4*", _FILES, "tools reasoning caching"),
    ("claude-sonnet-3-7*", _FILES, "tools reasoning caching"),
    ("claude-sonnet-3-5*", _FILES, "tools caching"),
    ("claude-haiku-3*", _IMAGES, "tools caching"),
    ("gemini-2-0-flash*", _ALL, "tools structured_output caching"),
    ("gemini-2-5-pro*", _ALL, "tools structured_output reasoning caching"),
    ("gemini-2-5-flash*", _ALL, "tools structured_output reasoning caching"),
    ("gemini-3*", _ALL, "tools structured_output reasoning caching"),
    ("demo-chat", _IMAGES, "tools"),
    ("deepseek-chat*", _TEXT, "tools caching"),
    ("deepseek-reasoner*", _TEXT, "reasoning caching"),
)
"""Chat models by normalized name (``model_name.py``), what they read, and their features; the first match counts."""
_EXCEPTION_PATTERN = re.compile(r"-live|computer-use|deep-research|native")
"""Names of related models with other abilities, which the table does not describe."""
_IMPLIED_MODALITIES: dict[ModelKind, tuple[tuple[Modality, ...] | None, tuple[Modality, ...] | None]] = {
    "transcription": (("audio",), ("text",)),
    "speech": (("text",), ("audio",)),
    "image": (None, ("image",)),
    "video": (None, ("video",)),
}
"""The modalities of input and output that a kind implies; None: unknown."""


def find_kind_by_name(name: str) -> ModelKind | None:
    """Return the kind of a model by its name; None if the name does not show it, as with most chat models."""
    lower_name = name.lower()
    return next((kind for pattern, kind in _KIND_PATTERNS if pattern.search(lower_name)), None)


@lru_cache(4_096)
def describe_known_model(model: str) -> ModelDescription:
    """Return what the gateway itself knows of ``model``, the name of a model at a provider."""
    kind = find_kind_by_name(model)
    read: tuple[Modality, ...] | None = None
    features: tuple[Feature, ...] | None = None
    name = normalize_name(model)
    longest_answer = find_longest_answer(model) if kind is None else 0
    entry = next((entry for entry in _CHAT_MODELS if fnmatchcase(name, entry[0])), None) if kind is None else None
    if entry is not None and not _EXCEPTION_PATTERN.search(name):
        read, features = sort_modalities(entry[1].split()), sort_features(entry[2].split()) or None
    if kind is None and (entry is not None or longest_answer):
        kind = "chat"
    return describe_kind(
        ModelDescription(
            kind,
            find_context_window(model) or None,
            longest_answer or None,
            read,
            ("text",) if read else None,
            features,
        )
    )


def describe_kind(description: ModelDescription) -> ModelDescription:
    """Return ``description`` with the modalities that its kind implies where none are set.

    A transcription model, for example, takes audio and returns text.
    """
    if description.kind not in _IMPLIED_MODALITIES:
        return description
    read, written = _IMPLIED_MODALITIES[description.kind]
    return description.fill_from(ModelDescription(input_modalities=read, output_modalities=written))


def describe_without_limits(model: str) -> ModelDescription:
    """Return what ``describe_known_model`` returns, without limits: the memory of the model's server sets them."""
    known_description = describe_known_model(model)
    if known_description == UNDESCRIBED:
        return known_description
    return ModelDescription(
        known_description.kind,
        None,
        None,
        known_description.input_modalities,
        known_description.output_modalities,
        known_description.features,
        known_description.deprecated_at,
    )
