"""The sections ``[server]``, ``[store]``, ``[cluster]`` and ``[rate_limits]``, which are read only at startup."""

import re
from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

import attrs

from gateway.domain.account_spec import NETWORKS
from gateway.domain.origin import is_origin
from gateway.frozen import frozen
from gateway.parsing import NOT_NEGATIVE, about, between, must
from gateway.routing.channel_spec import URL
from gateway.storage.media_location import is_location


def _is_limits_url(value: str) -> bool:
    """Return whether the URL has a known scheme and, behind sentinels, the name of the service."""
    return value.startswith(_LIMIT_SERVERS["auto"]) and (
        not value.startswith(_SENTINEL) or bool(urlsplit(value).path.strip("/").partition("/")[0])
    )


def _is_store_url(url: str) -> bool:
    return any(url.startswith(scheme) and len(url) > len(scheme) for scheme in ("sqlite:///", "postgresql://"))


_ORIGINS = must(
    'origins without a path such as "https://app.example.com", or "*"', lambda value: all(map(is_origin, value))
)
_STORE_URL = must(
    "a URL such as sqlite:////var/lib/gateway.db or postgresql://user:password@host/database",
    lambda value: not value or _is_store_url(value),
)
_MEDIA_URL = must(
    "an absolute path, or a URL such as file:///mnt/gateway or s3://bucket/prefix?endpoint=https://host", is_location
)
_VALKEY = ("valkey://", "valkeys://", "redis://", "rediss://")
_SENTINEL = tuple(scheme.replace(":", "+sentinel:") for scheme in _VALKEY)
_LIMIT_SERVERS = {
    "auto": ("postgresql://", *_VALKEY, *_SENTINEL),
    "memory": (),
    "postgresql": ("postgresql://",),
    "valkey": (*_VALKEY, *_SENTINEL),
}
_LIMITS_URL = must(
    "a URL such as valkey://host:6379/0, valkey+sentinel://host1:26379,host2:26379/service/0 or "
    "postgresql://user:password@host/database (Valkey Cluster cannot be used)",
    lambda value: not value or _is_limits_url(value),
)
_PREFIX = must("1 to 40 letters, digits, - and _", lambda value: bool(re.fullmatch(r"[A-Za-z0-9_-]{1,40}", value)))
BEHIND_PROXY_S = 75.0
"""The idle timeout of connections behind proxies: longer than their usual 60 s. This also bounds slow request headers,
for which aiohttp has no other limit."""
EXPOSED_S = 20.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_MASTER = re.compile(r"[0-9a-fA-F]{64}\Z")
_MASTER_KEY = must("64 hexadecimal digits", lambda value: not value or bool(_MASTER.match(value)))


@frozen
class ServerSection:
    """``[server]``: address, TLS, proxies, shutdown, limits of connections and bodies, log, and access of browsers."""

    host: str = attrs.field(
        default="127.0.0.1", metadata=about('address to listen on; "0.0.0.0" accepts connections from other machines')
    )
    port: int = attrs.field(default=8080, metadata=about("port to listen on; 0 picks a free one", between(0, 65_535)))
    base_url: str = attrs.field(
        default="",
        metadata=about(
            'public URL of the gateway, such as "https://ai.example.com" behind a proxy, or "https://example.com/ai" '
            "if the proxy strips that path",
            URL,
        ),
    )
    tls_certificate: str = attrs.field(
        default="",
        metadata=about(
            "PEM file with the certificate and its chain, for the gateway to serve HTTPS itself. A renewed file is "
            "picked up within a minute"
        ),
    )
    tls_key: str = attrs.field(default="", metadata=about("PEM file with the private key for tls_certificate"))
    drain_timeout_s: float = attrs.field(
        default=30.0, metadata=about("time allowed after SIGTERM for running requests to finish", NOT_NEGATIVE)
    )
    shutdown_delay_s: float = attrs.field(
        default=0.0,
        metadata=about(
            "how long requests are still accepted after SIGTERM, before drain_timeout_s begins; meanwhile, /readyz "
            "answers 503, so that a load balancer stops sending requests",
            NOT_NEGATIVE,
        ),
    )
    keepalive_timeout_s: float = attrs.field(
        default=0.0,
        metadata=about(
            "idle timeout for client connections; must be longer than that of any proxy in front of the gateway. 0: "
            "75 s, or 20 s if the gateway listens on more than loopback without trusted_proxies",
            NOT_NEGATIVE,
        ),
    )
    max_connections: int = attrs.field(
        default=0,
        metadata=about(
            "maximum number of open client connections. 0: half of the file descriptors (ulimit -n), but at most 10000",
            between(0, 1_000_000),
        ),
    )
    max_connections_per_address: int = attrs.field(
        default=0,
        metadata=about(
            "maximum number of open connections per IP address (IPv6: per /64), except from trusted proxies. 0: half "
            "of max_connections",
            between(0, 1_000_000),
        ),
    )
    max_body_mb: int = attrs.field(
        default=16,
        metadata=about(
            "maximum size of a JSON request body; a quarter of that for embeddings, completions, moderations, rerank "
            "and speech. Parsing 16 MB blocks other requests for up to 50 ms",
            between(1, 1024),
        ),
    )
    max_loaded_mb: int = attrs.field(
        default=0,
        metadata=about(
            "memory for content that the gateway loads for requests: stored responses, files in prompts, compressed "
            "bodies and batch lines. A single request may use half of it. 0: four times max_body_mb, but at least 64",
            between(0, 1_000_000),
        ),
    )
    max_upload_mb: int = attrs.field(
        default=128,
        metadata=about(
            "maximum size of a multipart form (images to edit, recordings); forms are stored in the data folder, not "
            "in memory",
            between(1, 4096),
        ),
    )
    max_file_mb: int = attrs.field(default=64, metadata=about("maximum size of a file in a form", between(1, 4096)))
    log_format: Literal["auto", "console", "json"] = attrs.field(
        default="auto",
        metadata=about('log format: "console", "json" or "auto" (console on a terminal, JSON elsewhere)'),
    )
    trusted_proxies: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            'proxies whose X-Forwarded-For header is trusted (for allow_ips), such as ["127.0.0.1", "10.0.0.0/8"]',
            NETWORKS,
        ),
    )
    local_sign_in: bool = attrs.field(
        default=True,
        metadata=about(
            "let members sign in with a passphrase; if false, at least one [[sign_in]] provider must be "
            "able to create administrators"
        ),
    )
    cors_origins: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            "origins of the web pages that may use a key to call the public API from the browser, such as "
            '["https://app.example.com"]; "*": any origin',
            _ORIGINS,
        ),
    )

    def find_problems(self) -> Iterator[tuple[str, str]]:
        if bool(self.tls_certificate) != bool(self.tls_key):
            missing_field, given_field = sorted(
                ("tls_certificate", "tls_key"), key=lambda name: bool(getattr(self, name))
            )
            yield missing_field, f"expected a file, together with {given_field}"

    @property
    def max_loaded_bytes(self) -> int:
        return (self.max_loaded_mb or max(4 * self.max_body_mb, 64)) * 1024**2

    @property
    def keepalive_s(self) -> float:
        if self.keepalive_timeout_s:
            return self.keepalive_timeout_s
        return BEHIND_PROXY_S if self.trusted_proxies or self.host in _LOOPBACK else EXPOSED_S


@frozen
class StoreSection:
    """``[store]``: the database, its encryption key, media and kept bodies. Empty: those in the data folder."""

    url: str = attrs.field(
        default="",
        metadata=about(
            'database URL: "postgresql://user:password@host/database" (requires the postgres extra), or '
            '"sqlite:////var/lib/gateway/gateway.db"; default: gateway.db in the data folder',
            _STORE_URL,
        ),
        repr=False,
    )
    master_key: str = attrs.field(
        default="",
        metadata=about(
            "encryption key for the provider keys in the database, as 64 hexadecimal digits; default: master.key in "
            "the data folder",
            _MASTER_KEY,
        ),
        repr=False,
    )

    media_url: str = attrs.field(
        default="",
        metadata=about(
            "where images, videos and clients' files are kept: a folder that all nodes of a cluster mount, such as "
            '"/mnt/gateway", or a bucket in an S3-compatible store, such as '
            '"s3://bucket/prefix?endpoint=https://host:9000&region=eu-1" (requires the s3 extra); default: the data '
            "folder",
            _MEDIA_URL,
        ),
        repr=False,
    )
    bodies_url: str = attrs.field(
        default="",
        metadata=about(
            "where kept prompts and answers are moved after a few seconds, together with their data keys: a folder "
            "or bucket that every node of a cluster can read, as for store.media_url; default: they stay in the data "
            "folder",
            _MEDIA_URL,
        ),
        repr=False,
    )

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql://")


@frozen
class ClusterSection:
    """``[cluster]``: several gateways on one PostgreSQL database, each with a data folder of its own."""

    enabled: bool = attrs.field(
        default=False,
        metadata=about("run this gateway as a node of a cluster, whose nodes all use the same PostgreSQL database"),
    )
    url: str = attrs.field(
        default="",
        metadata=about(
            "address at which the other nodes reach this node directly, for data that only this node has. If empty, "
            "they use the listen address, which other machines cannot reach if it is on loopback, and no node can "
            "reach if the gateway itself serves HTTPS"
        ),
    )
    insecure: bool = attrs.field(
        default=False,
        metadata=about(
            "let nodes call nodes on other machines over plain HTTP, which others on the network can read; if false, "
            "nodes are called only at addresses that begin with https:// or are on loopback"
        ),
    )
    journal: Literal["disk", "store"] = attrs.field(
        default="disk",
        metadata=about(
            'where a request is recorded before it is sent. "disk": in the data folder, which must then not be lost; '
            '"store": in the database, which costs a commit but survives the loss of the data folder'
        ),
    )
    orphan_after_s: float = attrs.field(
        default=3_600,
        metadata=about(
            "seconds after which the credit that a lost node holds is settled according to ledger.on_crash; 0: only by "
            "`gateway nodes forget`",
            between(0, 31_536_000),
        ),
    )


@frozen
class RateLimitsSection:
    """``[rate_limits]``: where rate limits are counted, and what is admitted while that server is down."""

    store: Literal["auto", "memory", "postgresql", "valkey"] = attrs.field(
        default="auto",
        metadata=about(
            'where rate limits are counted. "memory": in this process; "postgresql" or "valkey" (or Redis; requires '
            'the valkey extra): on a server, which also keeps the counts across a restart; "auto": on the server at '
            "rate_limits.url; if there is none, in the database if this is a cluster, otherwise in memory"
        ),
    )
    url: str = attrs.field(
        default="",
        metadata=about(
            'URL of the server that counts rate limits: "postgresql://user:password@host/database" (default: '
            'store.url), or "valkey://host:6379/0", valkeys:// for TLS, redis:// or rediss://; '
            '"valkey+sentinel://host1:26379,host2:26379/service/0" asks sentinels for the server',
            _LIMITS_URL,
        ),
        repr=False,
    )
    prefix: str = attrs.field(
        default="gateway",
        metadata=about(
            "gateways with the same prefix on one server share rate limits; accounts and keys are counted by "
            "number, so gateways with different databases need different prefixes",
            _PREFIX,
        ),
    )
    when_down: Literal["share", "open", "closed"] = attrs.field(
        default="share",
        metadata=about(
            'what a gateway admits while the rate-limit server is down. "share": its share of each limit; "open": '
            'each limit in full; "closed": nothing that has a limit (503)'
        ),
    )

    def find_problems(self) -> Iterator[tuple[str, str]]:
        schemes = _LIMIT_SERVERS[self.store]
        if self.url and not self.url.startswith(schemes):
            yield "url", f"expected no URL for store = {self.store!r}" if not schemes else f"expected {schemes[0]}..."
        if self.store == "valkey" and not self.url:
            yield "url", 'expected a URL such as "valkey://host:6379/0"'

    def find_store(self, *, in_cluster: bool) -> Literal["memory", "postgresql", "valkey"]:
        if self.store != "auto":
            return self.store
        if self.url:
            return "postgresql" if self.url.startswith("postgresql://") else "valkey"
        return "postgresql" if in_cluster else "memory"
