"""The header with which one node of a cluster asks another on behalf of an actor."""

import json

import attrs
import orjson

from gateway.domain.audit_log import Actor
from gateway.errors import InvalidRequest

ACTOR_HEADER = "X-Gateway-Actor"
"""A JSON object with the fields of ``Actor``."""
_FIELDS = frozenset(field.name for field in attrs.fields(Actor))


def format_actor(actor: Actor) -> str:
    """Format an actor as the header's value: JSON in ASCII."""
    return json.dumps(attrs.asdict(actor))


def parse_actor(text: str) -> Actor:
    """Parse what ``format_actor`` made. Raises ``InvalidRequest``."""
    try:
        fields = orjson.loads(text)
        return Actor(**{name: value for name, value in fields.items() if name in _FIELDS})
    except (ValueError, TypeError, AttributeError):
        raise InvalidRequest(f"{ACTOR_HEADER} is not an actor") from None
