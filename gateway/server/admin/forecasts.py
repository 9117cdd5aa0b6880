"""Admin API: when spending limits are reached."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

from gateway.answer_fields import Count, FieldSchema, Moment
from gateway.billing.forecaster import MAX_FORECASTS, SpendingForecaster
from gateway.deferred import defer_function
from gateway.domain.account import Account, ApiKey
from gateway.domain.account_spec import build_time
from gateway.domain.balance import Owner
from gateway.domain.forecast import Basis, Forecast, LimitUse, measure_limit
from gateway.domain.price import NANOS_PER_USD
from gateway.frozen import frozen
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, parse_account
from gateway.server.openapi import schema as s
from gateway.server.query import parse_number
from gateway.storage.limit_counters import LimitCounters

_DEFAULT_COUNT = 50
_list_uses = defer_function("billing.limit_subjects:list_uses")


@frozen(kw_only=True)
class ForecastView:
    """A spending limit, and when it is reached.

    ``limit`` is null for the quota of a key or account. ``subject`` is the part of the account that the limit is for,
    such as `user 'u-17'`; null for the account or key itself. ``expected_usd`` is what would be spent at the end of the
    period if nothing was refused.
    """

    owner: Annotated[str, FieldSchema(s.one_of(*get_args(Owner)))]
    name: str
    key_id: Count | None
    limit: str | None
    subject: str | None
    limit_usd: float
    spent_usd: float
    starts_at: Moment
    ends_at: Moment | None
    reached_at: Moment | None
    expected_usd: float | None
    basis: Annotated[str, FieldSchema(s.one_of(*get_args(Basis)))]


@frozen(kw_only=True)
class ForecastReport:
    """The forecasts of the most used limits."""

    object: Literal["list"] = "list"
    data: Sequence[ForecastView]


@admin_operation(
    query=(
        ACCOUNT_QUERY,
        Query("key", "Only the limits of this key (an id) and of its account.", s.COUNT),
        Query("limit", f"How many, {_DEFAULT_COUNT} by default and at most {MAX_FORECASTS}.", s.COUNT),
    )
)
async def list_forecasts(request: AdminRequest) -> ForecastReport:
    """Forecast when quotas of keys and accounts and limits are reached, the first to be reached first.

    An hour of a day, or a day of a month, is expected to cost what the same hour or day of the week has cost on average
    in the last seven weeks: `basis` is `past_weeks`. With less than a week of spending, the period is expected to go on
    at its own pace: `this_window`. `reached_at` is null if the limit is not reached within the period; for a quota
    without periods, within a year. A quota that is used up is reached now. Of many quotas, the most used are listed,
    and of each limit the subjects that have spent most. Limits with rolling windows, or for a lifetime, are left out.
    """
    await request.services.billing.flusher.store_waiting()
    owners = await _list_owners(request)
    accounting = request.services.billing.accounting
    capped = {name: owner for name, owner in owners.items() if owner.quota.capped}
    await accounting.refresh(*capped.values())
    quotas = (measure_limit(name, owner, *accounting.find_balance(owner)) for name, owner in capped.items())
    forecaster = SpendingForecaster(request.services.admin.history.traffic, request.services.clock)
    count = parse_number(request.query, "limit") or _DEFAULT_COUNT
    uses = [use for use in quotas if use is not None]
    uses += await _list_limit_uses(request, owners, min(count, MAX_FORECASTS))
    forecasts = await forecaster.forecast_limits(uses, count)
    return ForecastReport(data=[_build_forecast(use, result) for use, result in forecasts])


async def _list_owners(request: AdminRequest) -> dict[str, Account | ApiKey]:
    """Return the accounts and keys that the query selects, named ``account NAME`` and ``key ACCOUNT/NAME``.

    Raises ``NotFound``, and ``InvalidRequest`` if the id of a key is not a number.
    """
    register = request.services.auth.accounts.register
    account_id, key_id = await parse_account(request), parse_number(request.query, "key")
    asked_key = None if key_id is None else await register.get_key(key_id, request.actor)
    accounts = [
        account
        for account in await register.list_accounts(request.actor)
        if account_id in {None, account.id} and (asked_key is None or asked_key.account_id == account.id)
    ]
    names = {account.id: account.name for account in accounts}
    keys = await register.keys.list_keys() if asked_key is None else [asked_key]
    owners: dict[str, Account | ApiKey] = {f"account {account.name}": account for account in accounts}
    owners |= {f"key {names[key.account_id]}/{key.name}": key for key in keys if key.account_id in names}
    return owners


async def _list_limit_uses(
    request: AdminRequest, owners: Mapping[str, Account | ApiKey], count: int
) -> Sequence[LimitUse]:
    """Return what subjects of ``owners`` have spent of limits; of each limit only the ``count`` highest."""
    services = request.services
    spending = services.billing.limits.spending
    if spending is None:
        return []
    names = {
        (owner.id, None) if isinstance(owner, Account) else (owner.account_id, owner.id): name
        for name, owner in owners.items()
    }
    is_of_account = request.actor.scope is not None or "account" in request.query
    uses: Sequence[LimitUse] = await _list_uses(
        spending,
        LimitCounters(services.storage.database),
        services.clock(),
        count,
        names,
        scope="key" if "key" in request.query else "account" if is_of_account else "all",
    )
    return uses


def _build_forecast(use: LimitUse, result: Forecast) -> ForecastView:
    owner, _, name = use.name.partition(" ")
    return ForecastView(
        owner=owner,
        name=name,
        key_id=use.key_id,
        limit=use.limit_name or None,
        subject=use.subject or None,
        limit_usd=use.limit_nanos / NANOS_PER_USD,
        spent_usd=use.spent_nanos / NANOS_PER_USD,
        starts_at=build_time(use.started_s),
        ends_at=None if use.ended_s is None else build_time(use.ended_s),
        reached_at=None if result.reached_s is None else build_time(result.reached_s),
        expected_usd=None if result.expected_nanos is None else result.expected_nanos / NANOS_PER_USD,
        basis=result.basis,
    )
