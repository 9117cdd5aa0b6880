"""The header that names the actor of a request that one cluster node sends to another on the actor's behalf."""

import json

import attrs
import orjson

from gateway.domain.audit_log import KINDS, Actor
from gateway.errors import InvalidRequest

ACTOR_HEADER = "X-Gateway-Actor"
"""A JSON object with the fields of ``Actor``."""
_MOST_CHARACTERS = 1_000
_MOST_ID = 2**63


def format_actor(actor: Actor) -> str:
    """Format an actor as the value of the header: JSON in ASCII."""
    return json.dumps(attrs.asdict(actor))


def parse_actor(text: str) -> Actor:
    """Parse a header value from ``format_actor``. Raises ``InvalidRequest``."""
    try:
        actor = Actor(**orjson.loads(text))
    except (ValueError, TypeError):
        raise InvalidRequest(f"{ACTOR_HEADER} is not an actor") from None
    texts: tuple[object, ...] = (actor.name, actor.address)
    numbers: tuple[object, ...] = (actor.member_id, actor.account_id, actor.scope)
    if (
        actor.kind not in KINDS
        or not all(isinstance(each, str) and len(each) <= _MOST_CHARACTERS for each in texts)
        or not all(each is None or (type(each) is int and 0 < each < _MOST_ID) for each in numbers)
    ):
        raise InvalidRequest(f"{ACTOR_HEADER} is not an actor")
    return actor
