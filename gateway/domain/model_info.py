"""The models that a channel offers, and how a new listing changes them."""

from collections.abc import Iterable, Mapping

import attrs

from gateway.domain.model_description import ModelDescription
from gateway.frozen import frozen

ABSENCES_TO_DROP = 2
"""A model disappears after it was absent from this many successful listings in a row."""


@frozen
class ModelInfo:
    """A model as a channel lists it. ``created_s`` is the provider's time, or of the first listing (Unix seconds).

    ``description`` is what the provider's list says of it; None if that says nothing. ``absences`` is the number of
    successful listings in a row that lacked it.
    """

    id: str
    created_s: int
    owned_by: str
    absences: int = 0
    description: ModelDescription | None = None


@frozen
class ModelList:
    """A channel's model list as fetched by a cluster node.

    ``models`` is None if the provider has never listed any. ``fetched_ms`` is the time of the last attempt, in Unix
    milliseconds. ``error`` is why that attempt failed; None if it succeeded.
    """

    channel: str
    provider: str
    base_url: str
    models: tuple[ModelInfo, ...] | None
    fetched_ms: int
    error: str | None = None


def merge(known_models: Mapping[str, ModelInfo], listing: Iterable[ModelInfo]) -> dict[str, ModelInfo]:
    """Return the known models after a successful ``listing``. Models absent twice in a row are removed."""
    merged_models: dict[str, ModelInfo] = {}
    for model in listing:
        earlier_info = known_models.get(model.id)
        merged_models[model.id] = attrs.evolve(model, created_s=earlier_info.created_s) if earlier_info else model
    for model in known_models.values():
        if model.id not in merged_models and model.absences + 1 < ABSENCES_TO_DROP:
            merged_models[model.id] = attrs.evolve(model, absences=model.absences + 1)
    return merged_models
