"""The sections for operators who observe the gateway: ``[metrics]``."""

import attrs

from gateway.domain.account_spec import NETWORKS
from gateway.parsing import about, must

_TOKEN = must("at least 16 printable ASCII characters", lambda value: not value or _is_token(value))
_SHORTEST = 16


def _is_token(value: str) -> bool:
    return len(value) >= _SHORTEST and value.isascii() and value.isprintable() and value == value.strip()


@attrs.frozen
class MetricsSection:
    """``[metrics]``: who may read ``GET /metrics``, besides this machine."""

    token: str = attrs.field(
        default="", metadata=about("bearer token that Prometheus sends, from any address", _TOKEN), repr=False
    )
    allow: tuple[str, ...] = attrs.field(
        default=(), metadata=about('networks that may read /metrics without a token: ["10.0.0.0/8"]', NETWORKS)
    )
