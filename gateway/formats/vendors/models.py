"""Find a model in a vendor's table."""

from collections.abc import Mapping
from typing import TypeVar

from gateway.errors import InvalidRequest

T = TypeVar("T")


def find_model(models: Mapping[str, T], name: str) -> T:
    """Return the row of a model. Raises ``InvalidRequest``."""
    found = models.get(name)
    if found is None:
        raise InvalidRequest(f"The provider's models are {', '.join(models)}", param="model")
    return found
