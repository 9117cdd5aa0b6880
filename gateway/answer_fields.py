"""Types and marks of fields for attrs classes that are answers of the admin API (see ``server/admin/answer.py``)."""

from collections.abc import Mapping
from typing import Annotated, Any

from gateway.frozen import frozen


@frozen(eq=False)
class FieldSchema:
    """Annotation that sets the JSON schema of a type in ``Annotated``."""

    schema: Mapping[str, Any]


Count = Annotated[int, FieldSchema({"type": "integer", "minimum": 0})]
"""A non-negative integer."""
Moment = Annotated[str, FieldSchema({"type": "string", "format": "date-time"})]
"""A time such as ``2027-01-31T12:00:00Z``."""
FIRST: Mapping[str, bool] = {"first": True}
"""Metadata of a field that precedes the fields of the base classes in the JSON."""
OMITTED: Mapping[str, bool] = {"omitted": True}
"""Metadata of a field that is left out of the JSON while it is None."""
