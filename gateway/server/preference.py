"""The header with which a caller chooses how one of several channels is chosen, if the operator allows that."""

from collections.abc import Mapping
from typing import get_args

from gateway.domain.route import Balance
from gateway.errors import InvalidRequest
from gateway.routing.target_list import TargetList

HEADER = "x-gateway-prefer"
_PREFERENCES: Mapping[str, Balance] = {balance: balance for balance in get_args(Balance) if balance != "weight"}
_MAX_SHOWN_CHARS = 40


def apply_preference(targets: TargetList, headers: Mapping[str, str]) -> None:
    """Let a request go where its caller prefers. Begins to measure, also for requests without the header.

    Raises ``InvalidRequest`` for an unknown value.
    """
    targets.load_balancer.measure()
    value = headers.get(HEADER)
    if value is None:
        return
    preferred = _PREFERENCES.get(value)
    if preferred is None:
        message = f"The header {HEADER!r} must be {', '.join(_PREFERENCES)}, not {value[:_MAX_SHOWN_CHARS]!r}"
        raise InvalidRequest(message, param=HEADER)
    targets.preferred = preferred
