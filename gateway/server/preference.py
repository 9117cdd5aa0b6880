"""The header with which a caller chooses how requests are balanced among channels, if the operator allows that."""

from collections.abc import Mapping
from typing import get_args

from gateway.domain.route import BalanceStrategy
from gateway.errors import InvalidRequest
from gateway.routing.target_list import TargetList

HEADER = "x-gateway-prefer"
PREFERENCES: Mapping[str, BalanceStrategy] = {
    balance: balance for balance in get_args(BalanceStrategy) if balance != "weight"
}
"""The strategies of load balancing that a caller may choose, by the header's value."""
_MAX_SHOWN_CHARS = 40


def apply_preference(targets: TargetList, headers: Mapping[str, str]) -> None:
    """Set the preferred strategy of ``targets`` if the request's header names one.

    Measuring channels begins at the first call, also for requests without the header. Raises ``InvalidRequest`` for an
    unknown value.
    """
    targets.load_balancer.measure()
    value = headers.get(HEADER)
    if value is None:
        return
    preferred_balance = PREFERENCES.get(value)
    if preferred_balance is None:
        message = f"The header {HEADER!r} must be {', '.join(PREFERENCES)}, not {value[:_MAX_SHOWN_CHARS]!r}"
        raise InvalidRequest(message, param=HEADER)
    targets.preferred = preferred_balance
