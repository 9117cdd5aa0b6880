"""The header that names the actor of a request that one cluster node sends to another on the actor's behalf."""

import json

import attrs
import orjson

from gateway.domain.audit_log import KINDS, Actor
from gateway.errors import InvalidRequest

ACTOR_HEADER = "X-Gateway-Actor"
"""A JSON object with the fields of ``Actor``."""
_MAX_TEXT_CHARS = 1_000
_MAX_ID = 2**63


def format_actor(actor: Actor) -> str:
    """Format an actor as the value of the header: JSON in ASCII.

    A right that is not given is left out: nodes of version 0.9 refuse a field that they do not know.
    """
    fields = attrs.asdict(actor)
    return json.dumps({name: value for name, value in fields.items() if name != "may_read_bodies" or value})


def parse_actor(text: str) -> Actor:
    """Parse a header value from ``format_actor``. Raises ``InvalidRequest``."""
    try:
        actor = Actor(**orjson.loads(text))
    except (ValueError, TypeError):
        raise InvalidRequest(f"{ACTOR_HEADER} is not an actor") from None
    texts: tuple[object, ...] = (actor.name, actor.address)
    numbers: tuple[object, ...] = (actor.member_id, actor.account_id, actor.scope)
    right: object = actor.may_read_bodies
    if (
        actor.kind not in KINDS
        or not isinstance(right, bool)
        or not all(isinstance(item, str) and len(item) <= _MAX_TEXT_CHARS for item in texts)
        or not all(number is None or (type(number) is int and 0 < number < _MAX_ID) for number in numbers)
    ):
        raise InvalidRequest(f"{ACTOR_HEADER} is not an actor")
    return actor
