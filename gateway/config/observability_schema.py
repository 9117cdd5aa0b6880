"""The observability sections: ``[metrics]`` and ``[tracing]``."""

import re

import attrs

from gateway.domain.account_spec import NETWORKS
from gateway.frozen import frozen
from gateway.parsing import about, between, must
from gateway.routing.channel_spec import URL

_TOKEN = must("at least 16 printable ASCII characters", lambda value: not value or _is_token(value))
_MIN_TOKEN_CHARS = 16
HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}=[\x20-\x7e]{0,4096}")
_HEADERS = must(
    'headers such as "Authorization=Bearer ..."', lambda value: all(HEADER.fullmatch(header) for header in value)
)
_TRACES = "/v1/traces"


def _is_token(value: str) -> bool:
    return len(value) >= _MIN_TOKEN_CHARS and value.isascii() and value.isprintable() and value == value.strip()


@frozen
class MetricsSection:
    """``[metrics]``: who may read ``GET /metrics``, besides this machine."""

    token: str = attrs.field(
        default="",
        metadata=about("bearer token with which Prometheus may read /metrics from any address", _TOKEN),
        repr=False,
    )
    allow: tuple[str, ...] = attrs.field(
        default=(), metadata=about('networks that may read /metrics without a token, such as ["10.0.0.0/8"]', NETWORKS)
    )


@frozen
class TracingSection:
    """``[tracing]``: traces for an OpenTelemetry receiver."""

    endpoint: str = attrs.field(
        default="",
        metadata=about(
            'URL of an OTLP/HTTP receiver, such as "http://127.0.0.1:4318"; /v1/traces is appended. If empty, '
            "nothing is traced. Tracing needs pip install '.[tracing]'",
            URL,
        ),
    )
    sample_ratio: float = attrs.field(
        default=1.0,
        metadata=about(
            "share of requests to trace, from 0 to 1; if a client sends a traceparent, that decides instead",
            between(0, 1),
        ),
    )
    headers: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about('headers to send to the receiver, such as ["Authorization=Bearer ..."]', _HEADERS),
        repr=False,
    )

    @property
    def traces_url(self) -> str:
        url = self.endpoint.rstrip("/")
        return url if url.endswith(_TRACES) else f"{url}{_TRACES}"

    def parse_headers(self) -> dict[str, str]:
        return {name: value for name, _, value in (header.partition("=") for header in self.headers)}
