"""The models a channel offers, and how a fresh listing changes what is known."""

from collections.abc import Iterable, Mapping

import attrs

ABSENCES_TO_DROP = 2
"""A model disappears after it was absent from this many successful listings in a row."""


@attrs.frozen
class ModelInfo:
    """A model as a channel lists it. ``created_s`` is the provider's, or when we first saw it (Unix seconds)."""

    id: str
    created_s: int
    owned_by: str
    absences: int = 0


def merge(known: Mapping[str, ModelInfo], listing: Iterable[ModelInfo]) -> dict[str, ModelInfo]:
    """What is known after a successful ``listing``: new models in, a model absent twice in a row out.

    A model that is still listed keeps the ``created_s`` under which it was first shown.
    """
    after: dict[str, ModelInfo] = {}
    for model in listing:
        before = known.get(model.id)
        after[model.id] = attrs.evolve(model, created_s=before.created_s) if before else model
    for model in known.values():
        if model.id not in after and model.absences + 1 < ABSENCES_TO_DROP:
            after[model.id] = attrs.evolve(model, absences=model.absences + 1)
    return after
