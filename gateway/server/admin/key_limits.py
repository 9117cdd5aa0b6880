"""Admin API: what is left of the limits of one key, and whether its bodies are kept."""

from collections.abc import Sequence
from typing import Literal

from gateway.answer_fields import Count, Moment
from gateway.errors import NotFound
from gateway.frozen import frozen
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.io import parse_key_id
from gateway.server.handlers.own_key import find_keep_rule, find_limits


@frozen(kw_only=True)
class SpendingLimitUse:
    """A spending limit of a key or its account. ``name`` is ``quota`` for the limit of the key or account itself.

    ``window`` is ``lifetime``, ``day``, ``month`` or another window of a limit. ``resets_at`` is null if the window
    never starts anew.
    """

    name: str
    of: str
    window: str
    limit_usd: float
    credit_usd: float
    spent_usd: float
    reserved_usd: float
    left_usd: float
    resets_at: Moment | None


@frozen(kw_only=True)
class RateLimitUse:
    """A rate limit of a key or its account. ``reset_s`` is null for concurrent requests."""

    of: str
    kind: Literal["rpm", "tpm", "max_concurrency"]
    limit: Count
    remaining: Count
    reset_s: float | None = None


@frozen(kw_only=True)
class KeyLimitsView:
    """The limits of a key with what is left of them.

    ``keep_bodies`` is the rule that holds for the key: its own, else that of the gateway. ``keep_days`` is how long
    bodies are kept.
    """

    limits: Sequence[SpendingLimitUse]
    rate_limits: Sequence[RateLimitUse]
    keep_bodies: str
    keep_days: Count


@admin_operation()
async def get_key_limits(request: AdminRequest) -> KeyLimitsView:
    """Get the limits of a key and of its account, with what is left, and whether its bodies are kept."""
    services = request.services
    key = await services.auth.accounts.get_stored_key(parse_key_id(request), request.actor)
    caller = services.auth.api_keys.find_caller(key.id)
    if caller is None:
        raise NotFound(f"No key has the id {key.id}")
    fields = await find_limits(services, caller, shows_account=True)
    return KeyLimitsView(
        limits=[SpendingLimitUse(**limit) for limit in fields["limits"]],
        rate_limits=[RateLimitUse(**rate) for rate in fields["rate_limits"]],
        keep_bodies=find_keep_rule(services, caller.key),
        keep_days=services.live_config.config.bodies.keep_days,
    )
