"""The sections of the configuration that are read at start: where the gateway listens, and where it keeps things."""

import re
from typing import Literal

import attrs

from gateway.domain.account_spec import NETWORKS
from gateway.domain.origin import is_origin
from gateway.parsing import NOT_NEGATIVE, about, between, must
from gateway.routing.channel_spec import URL


def _is_store_url(url: str) -> bool:
    return url.startswith("sqlite:///") and len(url) > len("sqlite:///")


_ORIGINS = must(
    'origins without a path such as "https://app.example.com", or "*"', lambda value: all(map(is_origin, value))
)
_STORE_URL = must("a URL such as sqlite:////var/lib/gateway.db", lambda value: not value or _is_store_url(value))
BEHIND_PROXY_S = 75.0
"""Longer than the 60 s that proxies keep connections; aiohttp has no other deadline for headers that drip."""
EXPOSED_S = 20.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_MASTER = re.compile(r"[0-9a-fA-F]{64}\Z")
_MASTER_KEY = must("64 hexadecimal digits", lambda value: not value or bool(_MASTER.match(value)))


@attrs.frozen
class ServerSection:
    """``[server]``: where the gateway listens and how it ends."""

    host: str = attrs.field(
        default="127.0.0.1", metadata=about('the address to listen at; "0.0.0.0" to be reached from other machines')
    )
    port: int = attrs.field(
        default=8080, metadata=about("the port to listen at; 0 takes any that is free", between(0, 65_535))
    )
    base_url: str = attrs.field(
        default="",
        metadata=about('how callers reach the gateway, for instance "https://ai.example.com" behind a proxy', URL),
    )
    drain_timeout_s: float = attrs.field(
        default=30.0, metadata=about("how long running answers may take to finish after SIGTERM", NOT_NEGATIVE)
    )
    keepalive_timeout_s: float = attrs.field(
        default=0.0,
        metadata=about(
            "how long a connection may wait for a request; longer than a proxy in front keeps its own. 0: 75 s, or 20 "
            "s where strangers connect: beyond this machine, without trusted_proxies",
            NOT_NEGATIVE,
        ),
    )
    max_connections: int = attrs.field(
        default=0,
        metadata=about(
            "connections of clients at once. 0: what descriptors allow (ulimit -n), half of them, up to 10000",
            between(0, 1_000_000),
        ),
    )
    max_connections_per_address: int = attrs.field(
        default=0,
        metadata=about(
            "of them from one address, or one /64 of IPv6, that is no trusted proxy. 0: half", between(0, 1_000_000)
        ),
    )
    max_body_mb: int = attrs.field(
        default=16,
        metadata=about(
            "largest request body in JSON; a quarter of it for embeddings, completions, moderations, rerank and "
            "speech. While 16 MB are parsed, everybody else waits for up to 50 ms",
            between(1, 1024),
        ),
    )
    max_upload_mb: int = attrs.field(
        default=128,
        metadata=about(
            "largest form: pictures to edit, recordings. It waits in the data folder, not in memory", between(1, 4096)
        ),
    )
    max_file_mb: int = attrs.field(default=64, metadata=about("largest file in a form", between(1, 4096)))
    log_format: Literal["auto", "console", "json"] = attrs.field(
        default="auto",
        metadata=about(
            'how the log is written: "console", "json", or "auto", console on a terminal and JSON elsewhere'
        ),
    )
    client: Literal["wire", "ordinary"] = attrs.field(
        default="wire",
        metadata=about('how providers are called: "wire", the relay\'s own connections, or "ordinary", all by aiohttp'),
    )
    trusted_proxies: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            'proxies whose X-Forwarded-For is believed (for allow_ips): ["127.0.0.1", "10.0.0.0/8"]', NETWORKS
        ),
    )
    cors_origins: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            "origins of web pages that may call the public API from a browser, with a key: "
            '["https://app.example.com"]; "*": any page',
            _ORIGINS,
        ),
    )

    @property
    def keepalive_s(self) -> float:
        """How long a connection may wait for a request, in seconds."""
        if self.keepalive_timeout_s:
            return self.keepalive_timeout_s
        return BEHIND_PROXY_S if self.trusted_proxies or self.host in _LOOPBACK else EXPOSED_S


@attrs.frozen
class StoreSection:
    """``[store]``: the database, and what provider keys are sealed with in it; empty is what the data folder has."""

    url: str = attrs.field(
        default="",
        metadata=about(
            'the database; default: gateway.db in the data folder; or "sqlite:////var/lib/gateway/gateway.db"',
            _STORE_URL,
        ),
    )
    master_key: str = attrs.field(
        default="",
        metadata=about(
            "64 hexadecimal digits that seal provider keys in the database; default: master.key in the data folder",
            _MASTER_KEY,
        ),
        repr=False,
    )
