"""``/v1/dashboard/billing``: OpenAI's legacy billing endpoints, which some chat apps still show.

Apps compute the balance as the limit in ``subscription`` minus the total in ``usage``. Both endpoints therefore report
the same cap, the stricter of the key's and the account's, and the amount spent in its period. Without a cap the limit
is ``NO_LIMIT_USD``, and the total covers the requested days.
"""

from datetime import timedelta
from typing import Any

import orjson
from aiohttp import web

from gateway.domain.balance import DAY_S
from gateway.domain.ledger import UsageFilter
from gateway.domain.price import NANOS_PER_USD
from gateway.errors import InvalidRequest
from gateway.server.context import CALLER, SERVICES
from gateway.server.query import day_of_time, number_of_day, parse_date

NO_LIMIT_USD = 100_000_000
"""``hard_limit_usd`` without a cap; the number that other gateways report, too."""
_DAYS_SHOWN = 30
_MAX_DAYS = 366
_CENTS_PER_USD = 100


async def get_subscription(request: web.Request) -> web.Response:
    """``GET /v1/dashboard/billing/subscription``: the cap in USD, top-ups included."""
    caller = request[CALLER]
    accounting = request.app[SERVICES].billing.accounting
    await accounting.refresh(caller.key, caller.account)
    balance, day = accounting.find_stricter(caller.key, caller.account)
    limit_usd: float = NO_LIMIT_USD
    if balance.quota.limit_nanos is not None and balance.quota.capped:
        limit_usd = (balance.quota.limit_nanos + balance.find_counter(day).credit_nanos) / NANOS_PER_USD
    return _respond(
        {
            "object": "billing_subscription",
            "has_payment_method": True,
            "soft_limit_usd": limit_usd,
            "hard_limit_usd": limit_usd,
            "system_hard_limit_usd": limit_usd,
            "access_until": caller.key.expires_s or 0,
        }
    )


async def get_usage(request: web.Request) -> web.Response:
    """``GET /v1/dashboard/billing/usage``: the total and the cost of each requested day, in cents.

    ``start_date`` and ``end_date`` (YYYY-MM-DD, UTC) select the days; the end is exclusive, as in OpenAI's API. Raises
    ``InvalidRequest`` for an invalid date or too long a period.
    """
    caller, services = request[CALLER], request.app[SERVICES]
    end_date, start_date = parse_date(request.query, "end_date"), parse_date(request.query, "start_date")
    end_day_number = number_of_day(end_date or day_of_time(services.clock()) + timedelta(days=1))
    start_day_number = number_of_day(start_date) if start_date else max(end_day_number - _DAYS_SHOWN, 0)
    if not start_day_number < end_day_number <= start_day_number + _MAX_DAYS:
        raise InvalidRequest(f"'end_date' must be 1 to {_MAX_DAYS} days after 'start_date'", param="end_date")
    await services.billing.accounting.refresh(caller.key, caller.account)
    balance, day = services.billing.accounting.find_stricter(caller.key, caller.account)
    is_key_balance = balance.owner == "key"
    usage_filter = UsageFilter(
        since=start_day_number,
        until=end_day_number - 1,
        account_id=None if is_key_balance else caller.account.id,
        key_id=caller.key.id if is_key_balance else None,
    )
    await services.billing.flusher.store_waiting()
    lines = await services.billing.accounting.list_usage("day", usage_filter)
    costs = {int(line.label): line.cost_nanos for line in lines}
    total_nanos = balance.find_counter(day).spent_nanos if balance.quota.capped else sum(costs.values())
    return _respond(
        {
            "object": "list",
            "total_usage": _to_cents(total_nanos),
            "daily_costs": [
                {
                    "timestamp": day_number * DAY_S,
                    "line_items": [{"name": "Total", "cost": _to_cents(costs.get(day_number, 0))}],
                }
                for day_number in range(usage_filter.since, usage_filter.until + 1)
            ],
        }
    )


def _to_cents(amount_nanos: int) -> float:
    return amount_nanos * _CENTS_PER_USD / NANOS_PER_USD


def _respond(fields: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(fields), content_type="application/json")
