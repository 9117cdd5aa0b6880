"""A channel as people write it: in the configuration file, on the command line, in the admin API."""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import attrs

from gateway.domain.account import Status
from gateway.domain.account_spec import NAME, build_time
from gateway.domain.channel import DEFAULT_QUEUE, DEFAULT_TIMEOUTS, Channel, QueueSettings, Timeouts
from gateway.domain.price import ONE_PPM
from gateway.frozen import frozen
from gateway.parsing import NOT_NEGATIVE, POSITIVE, between, must
from gateway.providers.base import find_url_problem
from gateway.providers.registry import PROVIDERS
from gateway.upstream.environment_proxy import EXPECTED_PROXY, NO_PROXY, PROXY_URLS

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z", re.ASCII)  # RFC 9110, 5.6.2: token
_FRAMING_HEADERS = frozenset(
    {
        "connection", "content-encoding", "content-length", "expect", "host", "keep-alive", "proxy-connection", "te",
        "trailer", "transfer-encoding", "upgrade",
    },
)  # fmt: skip
"""Header fields that control how a request is transmitted: RFC 9110, 7.6.1 and 10.1.1."""
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")
_KEY = re.compile(r"[\x21-\x7e]{1,4096}\Z")

URL = must(
    "an http:// or https:// URL without query or credentials",
    lambda value: not value or find_url_problem(value) is None,
)


def _is_proxy(url: str) -> bool:
    """Return whether ``url`` has one of the schemes of ``PROXY_URLS``, a host and maybe credentials."""
    try:
        host = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return False
    rest = url.partition("://")[2]
    is_known = url.lower().startswith(PROXY_URLS)
    return is_known and find_url_problem(f"http://{host}") is None and rest.isprintable() and " " not in rest


def _is_word(value: str) -> bool:
    return 0 < len(value) <= _MAX_NAME_CHARS and value.isprintable()


_MAX_NAME_CHARS = 256  # the maximum length of a model name in a request
_WORD = must("a printable word of 1 to 256 characters", _is_word)
_WORDS = must("printable words of 1 to 256 characters", lambda value: all(map(_is_word, value)))
_NAMES = must(
    "a table of printable words of 1 to 256 characters", lambda value: all(map(_is_word, (*value, *value.values())))
)
_PROXY = must(f"none, or {EXPECTED_PROXY}", lambda value: value == NO_PROXY or _is_proxy(value), trims=True)
_HEADERS = must(
    "header names and values that can be sent in HTTP",
    lambda value: all(
        _HEADER_NAME.match(name) and name.lower() not in _FRAMING_HEADERS and _HEADER_VALUE.match(text)
        for name, text in value.items()
    ),
)
_OFFERED_SLUGS = ", ".join(slug for slug in PROVIDERS if slug != "demo")
_PROVIDER = must(f"one of {_OFFERED_SLUGS}", lambda value: value in PROVIDERS, PROVIDERS)
API_KEY = must("a key without spaces", lambda value: not value or _KEY.match(value) is not None, trims=True)
_API_KEYS = must("keys without spaces", lambda value: all(map(_KEY.match, value)), trims=True)
_PRIORITY = between(-1_000_000, 1_000_000)
_WEIGHT = between(1, 10_000)
_AT_LEAST_ONE = between(1)
_MULTIPLIER = between(0, 100)
_MAX_QUEUE_LENGTH = 1_000


@frozen
class QueueSpec:
    """``queue`` of a channel: how requests wait for one of the places of ``max_concurrency``."""

    length: int = attrs.field(default=DEFAULT_QUEUE.length, metadata=between(1, _MAX_QUEUE_LENGTH))
    wait_s: float = attrs.field(default=DEFAULT_QUEUE.wait_s, metadata=POSITIVE)
    one_model: bool = DEFAULT_QUEUE.one_model
    switch_after_s: float = attrs.field(default=DEFAULT_QUEUE.switch_after_s, metadata=NOT_NEGATIVE)

    def queue(self) -> QueueSettings:
        """Return the settings as the load balancer uses them."""
        return QueueSettings(**attrs.asdict(self))


@frozen
class ChannelSpec:
    """``[[channel]]``: one way to one provider."""

    name: str = attrs.field(metadata=NAME)
    provider: str = attrs.field(metadata=_PROVIDER)
    base_url: str | None = attrs.field(default=None, metadata=URL)
    api_key: str | None = attrs.field(default=None, repr=False, metadata=API_KEY)
    api_keys: tuple[str, ...] = attrs.field(default=(), repr=False, metadata=_API_KEYS)
    models: tuple[str, ...] = attrs.field(default=(), metadata=_WORDS)
    sync: bool = False
    model_map: dict[str, str] = attrs.field(factory=dict, metadata=_NAMES)
    groups: tuple[str, ...] = attrs.field(default=(), metadata=_WORDS)
    priority: int = attrs.field(default=0, metadata=_PRIORITY)
    weight: int = attrs.field(default=1, metadata=_WEIGHT)
    max_concurrency: int | None = attrs.field(default=None, metadata=_AT_LEAST_ONE)
    queue: QueueSpec | None = None
    rpm: int | None = attrs.field(default=None, metadata=_AT_LEAST_ONE)
    connect_timeout_s: float = attrs.field(default=DEFAULT_TIMEOUTS.connect_s, metadata=POSITIVE)
    first_byte_timeout_s: float = attrs.field(default=DEFAULT_TIMEOUTS.first_byte_s, metadata=POSITIVE)
    idle_timeout_s: float = attrs.field(default=DEFAULT_TIMEOUTS.idle_s, metadata=POSITIVE)
    total_timeout_s: float = attrs.field(default=DEFAULT_TIMEOUTS.total_s, metadata=POSITIVE)
    proxy: str | None = attrs.field(default=None, metadata=_PROXY, repr=False)
    headers: dict[str, str] = attrs.field(factory=dict, repr=False, metadata=_HEADERS)
    price_multiplier: Decimal = attrs.field(default=Decimal(1), metadata=_MULTIPLIER)
    fan_out: bool = False
    pass_urls: bool = False
    owned_by: str | None = attrs.field(default=None, metadata=_WORD)
    allow_fields: tuple[str, ...] = attrs.field(default=(), metadata=_WORDS)
    status: Status = "active"

    def find_problems(self) -> Iterator[tuple[str, str]]:
        provider = PROVIDERS[self.provider]
        if self.provider == "demo":
            yield (
                "provider",
                "expected a provider other than 'demo', which is built in: set routing.demo to \"on\" to have it",
            )
        if not self.base_url and provider.base_url is None:
            yield "base_url", f"expected a URL: provider {self.provider!r} has no address of its own"
        if self.provider == "gemini" and (self.base_url or "").rstrip("/").endswith("/openai"):
            yield (
                "base_url",
                "expected Gemini's own address; for its OpenAI-compatible address, use provider 'custom'",
            )
        if self.api_key and self.api_keys:
            yield "api_keys", "expected either api_key or api_keys"
        if len(set(self.api_keys)) < len(self.api_keys):
            yield "api_keys", "expected every key once"
        if not self.models and not self.sync:
            yield "models", "expected a list of models, or sync = true"
        if self.sync and provider.models_path is None:
            yield "sync", f"expected false: provider {self.provider!r} has no list of models to ask for"
        if self.queue is not None and self.max_concurrency is None:
            yield "queue", "expected max_concurrency, too: without it no request waits"

    def apply(self, channel: Channel) -> Channel:
        base_url = self.base_url or PROVIDERS[self.provider].base_url or ""
        return attrs.evolve(
            channel,
            name=self.name,
            provider=self.provider,
            base_url=base_url.rstrip("/"),
            api_keys=self.api_keys or ((self.api_key,) if self.api_key else ()),
            models=self.models,
            sync=self.sync,
            model_map=tuple(self.model_map.items()),
            groups=self.groups,
            priority=self.priority,
            weight=self.weight,
            max_concurrency=self.max_concurrency,
            queue=None if self.queue is None else self.queue.queue(),
            rpm=self.rpm,
            timeouts=Timeouts(
                self.connect_timeout_s, self.first_byte_timeout_s, self.idle_timeout_s, self.total_timeout_s
            ),
            proxy=self.proxy,
            headers=tuple(self.headers.items()),
            multiplier_ppm=int(self.price_multiplier * ONE_PPM),
            fan_out=self.fan_out,
            pass_urls=self.pass_urls,
            owned_by=self.owned_by,
            allow_fields=self.allow_fields,
            status=self.status,
        )

    def channel(self) -> Channel:
        return self.apply(Channel(self.name, self.provider, ""))


def build_channel_fields(channel: Channel) -> dict[str, Any]:
    """Return a channel as fields for JSON, without its secrets. ``ChannelSpec`` parses those that it has as well."""
    timeouts = {f"{name.removesuffix('_s')}_timeout_s": value for name, value in attrs.asdict(channel.timeouts).items()}
    return {
        "name": channel.name,
        "provider": channel.provider,
        "status": channel.status,
        "origin": channel.origin,
        "declared": channel.origin == "file",
        "base_url": channel.base_url,
        "key_count": len(channel.api_keys),
        "models": list(channel.models),
        "sync": channel.sync,
        "model_map": dict(channel.model_map),
        "groups": list(channel.groups),
        "priority": channel.priority,
        "weight": channel.weight,
        "max_concurrency": channel.max_concurrency,
        "queue": None if channel.queue is None else attrs.asdict(channel.queue),
        "rpm": channel.rpm,
        **timeouts,
        "has_proxy": channel.proxy not in {None, NO_PROXY},
        "header_names": [name for name, _ in channel.headers],
        "price_multiplier": channel.multiplier_ppm / ONE_PPM,
        "fan_out": channel.fan_out,
        "pass_urls": channel.pass_urls,
        "owned_by": channel.owned_by,
        "allow_fields": list(channel.allow_fields),
        "created_at": build_time(channel.created_ms // 1000) if channel.created_ms else None,
    }


def build_secrets(channel: Channel) -> dict[str, Any]:
    """Return the secret settings that ``build_channel_fields`` leaves out, to merge a change that keeps them."""
    return {"api_keys": list(channel.api_keys), "headers": dict(channel.headers), "proxy": channel.proxy}
