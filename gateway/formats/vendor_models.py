"""Lookup of a model in a vendor's table."""

from collections.abc import Mapping
from typing import TypeVar

from gateway.errors import InvalidRequest

T = TypeVar("T")


def find_model(models: Mapping[str, T], name: str) -> T:
    """Return the table entry of a model. Raises ``InvalidRequest`` if there is none."""
    model = models.get(name)
    if model is None:
        raise InvalidRequest(f"The provider's models are {', '.join(models)}", param="model")
    return model
