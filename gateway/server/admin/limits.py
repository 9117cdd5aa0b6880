"""Admin API: limits, which say what each key, account, end user, session, tag or model may spend in a window."""

from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

from gateway.answer_fields import OMITTED, Count, Moment
from gateway.billing.limit_spec import LimitSpec
from gateway.billing.limit_subjects import SubjectSpending, list_highest
from gateway.config.live_limits import LimitView
from gateway.domain.account_spec import build_time
from gateway.domain.limit import Limit
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.setting import Source
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.admin.answer import DeletedInForce, InForceField
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import read_change
from gateway.server.openapi import schema as s
from gateway.server.query import parse_number
from gateway.storage.limit_counters import LimitCounters

_DEFAULT_COUNT, _MAX_COUNT = 50, 1_000
_MAX_REASON_CHARS = 256


@frozen(kw_only=True)
class LimitAnswer:
    """A limit. ``ended``: its ``until`` has passed. With ``raises`` it has that limit's subjects and window."""

    name: str
    of: str | None
    keys: Sequence[str]
    usd: float | None
    window: str | None
    timezone: str
    rpm: Count | None
    tpm: Count | None
    soft: float | None
    status: Literal[403, 429] | None
    until: Moment | None
    raises: str | None
    max_subjects: Count
    source: Source
    ended: bool
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


@frozen(kw_only=True)
class LimitSubject:
    """What a subject has spent and reserved in the present window.

    ``subject`` is the end user, session, tag's value or key; null for an account and for models of an account.
    ``resets_at`` is when something spent no longer counts; null: never.
    """

    account: str
    subject: str | None
    spent_usd: float
    held_usd: float
    left_usd: float
    resets_at: Moment | None


@admin_operation()
async def list_limits(request: AdminRequest) -> list[LimitAnswer]:
    """List all limits: those of the configuration file, and those that were added here."""
    return [_build_answer(request, view) for view in request.services.admin.limits.list_limits()]


@admin_operation()
async def get_limit(request: AdminRequest) -> LimitAnswer:
    """Get a limit."""
    return _build_answer(request, request.services.admin.limits.get_limit(request.match_info["name"]))


@admin_operation(
    takes=LimitSpec, partly=True, change=True, query=(Query("reason", "The reason, for the audit log.", s.TEXT),)
)
async def put_limit(request: AdminRequest) -> LimitAnswer:
    """Add a limit, or replace all of it; 409 if the configuration file declares it. It is in force at once.

    Running requests keep what they have reserved. A limit with ``raises`` and ``until`` raises another for a time.
    """
    reason = request.query.get("reason", "")
    if len(reason) > _MAX_REASON_CHARS or not reason.isprintable():
        raise InvalidRequest(f"'reason' must be at most {_MAX_REASON_CHARS} printable characters", param="reason")
    fields = await read_change(request)
    name, limits = request.match_info["name"], request.services.admin.limits
    return _build_answer(request, await limits.put_limit(name, fields, request.actor, reason=reason))


@admin_operation(change=True)
async def delete_limit(request: AdminRequest) -> DeletedInForce:
    """Remove a limit that was added here; 409 if another limit raises it."""
    name = request.match_info["name"]
    await request.services.admin.limits.delete_limit(name, request.actor)
    return DeletedInForce(name)


@admin_operation(query=(Query("limit", f"How many, by default {_DEFAULT_COUNT}.", s.COUNT),))
async def list_subjects(request: AdminRequest) -> list[LimitSubject]:
    """List the subjects of a limit that have spent most in the present window, the highest first.

    A limit that raises another has the subjects of the other.
    """
    services, count = request.services, parse_number(request.query, "limit") or _DEFAULT_COUNT
    if count > _MAX_COUNT:
        raise InvalidRequest(f"'limit' must be at most {_MAX_COUNT}", param="limit")
    spec = services.admin.limits.get_limit(request.match_info["name"]).spec
    limit = services.admin.limits.get_limit(spec.raises or spec.name).spec.limit()
    spending = services.billing.limits.spending
    if spending is None:
        return []
    await services.billing.flusher.store_waiting()
    counters = LimitCounters(services.storage.database)
    highest = await list_highest(spending, limit, counters, services.clock(), count)
    accounts = services.auth.accounts
    names = await accounts.name_accounts()
    keys = {str(key["id"]): key for key in await accounts.list_keys(request.actor)} if limit.kind == "key" else {}
    return [_build_subject(limit, subject, names, keys) for subject in highest]


def _build_answer(request: AdminRequest, view: LimitView) -> LimitAnswer:
    spec = view.spec
    is_raise, until_s = spec.raises is not None, None if spec.until is None else int(spec.until.timestamp())
    return LimitAnswer(
        name=spec.name,
        of=None if is_raise else spec.of,
        keys=spec.keys,
        usd=None if spec.usd is None else float(spec.usd),
        window=None if is_raise else spec.window,
        timezone=spec.timezone,
        rpm=spec.rpm,
        tpm=spec.tpm,
        soft=spec.soft,
        status=spec.status,
        until=None if until_s is None else build_time(until_s),
        raises=spec.raises,
        max_subjects=spec.max_subjects,
        source=view.source,
        ended=until_s is not None and request.services.clock() >= until_s,
    )


def _build_subject(
    limit: Limit, spending: SubjectSpending, names: Mapping[int, str], keys: Mapping[str, Mapping[str, str]]
) -> LimitSubject:
    owner, _, value = spending.subject.partition(":")
    gone = f"{owner} (deleted)"
    is_key, key = limit.kind == "key", keys.get(owner, {})
    return LimitSubject(
        account=key.get("account", "") if is_key else names.get(int(owner), gone),
        subject=key.get("name", gone) if is_key else value or None,
        spent_usd=spending.spent_nanos / NANOS_PER_USD,
        held_usd=spending.held_nanos / NANOS_PER_USD,
        left_usd=spending.left_nanos / NANOS_PER_USD,
        resets_at=None if spending.resets_s is None else build_time(spending.resets_s),
    )
