"""What a model is and can do, as far as the configuration, its provider's list or the gateway's own tables say."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import attrs

from gateway.frozen import frozen

ModelKind = Literal[
    "chat", "completion", "embedding", "rerank", "moderation", "image", "video", "speech", "transcription", "audio",
    "realtime",
]  # fmt: skip
"""What requests to a model ask for. ``audio``: a chat in audio, or music."""
Modality = Literal["text", "image", "audio", "video", "file"]
Feature = Literal["tools", "structured_output", "reasoning", "caching", "web_search"]
"""``caching``: cached tokens of a prompt cost less. ``structured_output``: answers follow a JSON schema."""
KINDS: tuple[ModelKind, ...] = get_args(ModelKind)
MODALITIES: tuple[Modality, ...] = get_args(Modality)
FEATURES: tuple[Feature, ...] = get_args(Feature)


@frozen
class ModelDescription:
    """The properties of a model. None: unknown. Lists are in the order of ``MODALITIES`` and ``FEATURES``.

    Attributes:
        context_window: the most tokens of a prompt together with its answer.
        max_output_tokens: the most tokens of an answer.
        deprecated_at: when the provider gave the model up, or will: ``2027-01-31T00:00:00Z``.
    """

    kind: ModelKind | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
    input_modalities: tuple[Modality, ...] | None = None
    output_modalities: tuple[Modality, ...] | None = None
    features: tuple[Feature, ...] | None = None
    deprecated_at: str | None = None

    def fill_from(self, fallback: "ModelDescription") -> "ModelDescription":
        """Return this description, with unknown properties taken from ``fallback``."""
        if fallback == UNDESCRIBED:
            return self
        return ModelDescription(*map(_choose_known, _list_values(self), _list_values(fallback)))


UNDESCRIBED = ModelDescription()
_FIELD_NAMES = tuple(field.name for field in attrs.fields(ModelDescription))


def _list_values(description: ModelDescription) -> tuple[Any, ...]:
    return tuple(getattr(description, name) for name in _FIELD_NAMES)


def _choose_known(value: Any, fallback: Any) -> Any:
    return fallback if value is None else value


def list_known_properties(description: ModelDescription) -> dict[str, Any]:
    """Return the known properties by name."""
    return {name: value for name in _FIELD_NAMES if (value := getattr(description, name)) is not None}


def find_common(descriptions: Sequence[ModelDescription], *, complete: bool) -> ModelDescription:
    """Return what holds for each of ``descriptions``: the lowest limits, and the modalities and features that all have.

    With ``complete``, a property that one of them does not know is unknown, except ``deprecated_at``. Without, only
    those that know the property count, as for one model on several channels.
    """
    if len(descriptions) == 1:
        return descriptions[0]
    properties: dict[str, Any] = {}
    for name in _FIELD_NAMES if descriptions else ():
        values = [getattr(description, name) for description in descriptions]
        known_values = [value for value in values if value is not None]
        if known_values and (not complete or len(known_values) == len(values)):
            properties[name] = _COMBINERS.get(name, _keep_equal)(known_values)
    if complete and "deprecated_at" not in properties:  # the first end of any of them is news for all
        ends = [description.deprecated_at for description in descriptions if description.deprecated_at is not None]
        properties["deprecated_at"] = min(ends, default=None)
    return ModelDescription(**properties)


def _intersect(lists: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(item for item in lists[0] if all(item in items for items in lists[1:]))


def _keep_equal(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


_COMBINERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "context_window": min,
    "max_output_tokens": min,
    "input_modalities": _intersect,
    "output_modalities": _intersect,
    "features": _intersect,
    "deprecated_at": min,
}


def sort_modalities(names: Iterable[object]) -> tuple[Modality, ...]:
    """Return the known modalities among ``names``, in order."""
    kept_names = set(map(str, names))
    return tuple(modality for modality in MODALITIES if modality in kept_names)


def sort_features(names: Iterable[object]) -> tuple[Feature, ...]:
    """Return the known features among ``names``, in order."""
    kept_names = set(map(str, names))
    return tuple(feature for feature in FEATURES if feature in kept_names)


NamedDescription = tuple[str, ModelDescription]
"""A model's name or a glob of names, and what is configured for it."""


def find_configured_description(entries: Sequence[NamedDescription], *names: str) -> ModelDescription:
    """Return the entry of a model by any of its names: an exact match, else the longest glob, else ``UNDESCRIBED``."""
    if not entries:
        return UNDESCRIBED
    for name in names:
        for entry_name, description in entries:
            if entry_name == name:
                return description
    globs = [entry for entry in entries if any(fnmatchcase(name, entry[0]) for name in names)]
    return max(globs, key=lambda entry: len(entry[0]))[1] if globs else UNDESCRIBED
