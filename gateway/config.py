"""The configuration as one frozen tree; ``config_file.py`` reads it.

Rooms are handed their own section, or the nouns it declares; nothing below the roof reads a file or the environment.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Literal

import attrs

from gateway.domain.channel import DEFAULT_TIMEOUTS, Channel, Timeouts
from gateway.domain.declaration import NAME, AccountSpec, KeySpec
from gateway.domain.price import ONE_PPM, Price, nanos
from gateway.domain.reading import NOT_NEGATIVE, POSITIVE, between, must
from gateway.providers.base import find_url_problem
from gateway.providers.registry import PROVIDERS

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z", re.ASCII)  # RFC 9110, 5.6.2: token
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")


def _is_store_url(url: str) -> bool:
    return url.startswith("sqlite:///") and len(url) > len("sqlite:///")


_URL = must(
    "an http:// or https:// URL without query or credentials",
    lambda value: not value or find_url_problem(value) is None,
)
_PROXY = must("an http:// or https:// URL", lambda value: value.startswith(("http://", "https://")))
_STORE_URL = must("a URL such as sqlite:////var/lib/gateway.db", lambda value: not value or _is_store_url(value))
_PRICE = between(0, 100_000)  # with the most tokens and the highest multiplier a cost is still a 64-bit integer
_HEADERS = must(
    "header names and values that can be sent in HTTP",
    lambda value: all(_HEADER_NAME.match(name) and _HEADER_VALUE.match(text) for name, text in value.items()),
)


@attrs.frozen
class ServerSection:
    """``[server]``: where the gateway listens and how it ends."""

    host: str = "127.0.0.1"
    port: int = attrs.field(default=8080, metadata=between(0, 65_535))
    base_url: str = attrs.field(default="", metadata=_URL)
    drain_timeout_s: float = attrs.field(default=30.0, metadata=NOT_NEGATIVE)
    max_body_mb: int = attrs.field(default=32, metadata=between(1, 1024))
    log_format: Literal["console", "json"] = "console"


@attrs.frozen
class StoreSection:
    """``[store]``: the database; empty is ``gateway.db`` in the data folder."""

    url: str = attrs.field(
        default="",
        metadata=_STORE_URL,
    )


@attrs.frozen
class ChannelSection:
    """``[[channel]]``: one way to one provider."""

    name: str = attrs.field(metadata=NAME)
    provider: str = attrs.field(metadata=must(f"one of {', '.join(PROVIDERS)}", lambda value: value in PROVIDERS))
    base_url: str | None = attrs.field(default=None, metadata=_URL)
    api_key: str | None = attrs.field(default=None, repr=False)
    api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    models: tuple[str, ...] = ()
    sync: bool = False
    model_map: dict[str, str] = attrs.field(factory=dict)
    groups: tuple[str, ...] = ()
    priority: int = 0
    weight: int = attrs.field(default=1, metadata=between(1, 10_000))
    max_concurrency: int | None = attrs.field(default=None, metadata=between(1))
    rpm: int | None = attrs.field(default=None, metadata=between(1))
    connect_timeout_s: float = attrs.field(default=DEFAULT_TIMEOUTS.connect_s, metadata=POSITIVE)
    first_byte_timeout_s: float = attrs.field(default=DEFAULT_TIMEOUTS.first_byte_s, metadata=POSITIVE)
    idle_timeout_s: float = attrs.field(default=DEFAULT_TIMEOUTS.idle_s, metadata=POSITIVE)
    total_timeout_s: float = attrs.field(default=DEFAULT_TIMEOUTS.total_s, metadata=POSITIVE)
    proxy: str | None = attrs.field(default=None, metadata=_PROXY, repr=False)
    headers: dict[str, str] = attrs.field(factory=dict, repr=False, metadata=_HEADERS)
    price_multiplier: Decimal = attrs.field(default=Decimal(1), metadata=between(0, 100))

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Key and problem for what concerns more than one key."""
        if self.provider == "demo":
            yield "provider", "expected a provider other than 'demo', which is built in"
        if not self.base_url and PROVIDERS[self.provider].base_url is None:
            yield "base_url", f"expected a URL: provider {self.provider!r} has no address of its own"
        if self.api_key and self.api_keys:
            yield "api_keys", "expected either api_key or api_keys"
        if not self.models and not self.sync:
            yield "models", "expected a list of models, or sync = true"

    def channel(self) -> Channel:
        """The channel it declares."""
        base_url = self.base_url or PROVIDERS[self.provider].base_url or ""
        return Channel(
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
            rpm=self.rpm,
            timeouts=Timeouts(
                self.connect_timeout_s,
                self.first_byte_timeout_s,
                self.idle_timeout_s,
                self.total_timeout_s,
            ),
            proxy=self.proxy,
            headers=tuple(self.headers.items()),
            multiplier_ppm=int(self.price_multiplier * ONE_PPM),
        )


@attrs.frozen
class PriceSection:
    """``[[price]]``: what a model, or every model a glob matches, costs."""

    model: str
    input_usd_per_million: Decimal = attrs.field(default=Decimal(0), metadata=_PRICE)
    cached_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_PRICE)
    output_usd_per_million: Decimal = attrs.field(default=Decimal(0), metadata=_PRICE)
    usd_per_image: Decimal = attrs.field(default=Decimal(0), metadata=_PRICE)
    usd_per_second: Decimal = attrs.field(default=Decimal(0), metadata=_PRICE)

    def price(self) -> Price:
        """The price in integers."""
        cached = self.cached_input_usd_per_million
        return Price(
            model=self.model,
            input_nanos_per_million=nanos(self.input_usd_per_million),
            cached_input_nanos_per_million=None if cached is None else nanos(cached),
            output_nanos_per_million=nanos(self.output_usd_per_million),
            image_nanos=nanos(self.usd_per_image),
            second_nanos=nanos(self.usd_per_second),
        )


@attrs.frozen
class Config:
    """The whole tree."""

    server: ServerSection = attrs.Factory(ServerSection)
    store: StoreSection = attrs.Factory(StoreSection)
    channel: tuple[ChannelSection, ...] = ()
    account: tuple[AccountSpec, ...] = ()
    key: tuple[KeySpec, ...] = ()
    price: tuple[PriceSection, ...] = ()

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Path and problem for what concerns more than one table."""
        for what, names in (
            ("channel", [section.name for section in self.channel]),
            ("account", [section.name for section in self.account]),
            ("price", [section.model for section in self.price]),
        ):
            for index, name in enumerate(names):
                if name in names[:index]:
                    yield f"{what}[{index}]", f"expected a name of its own: {name!r} is taken"
        yield from self._find_key_problems()

    def _find_key_problems(self) -> Iterator[tuple[str, str]]:
        accounts = {account.name for account in self.account}
        for index, key in enumerate(self.key):
            if key.account not in accounts:
                yield f"key[{index}].account", f"expected the name of an [[account]], not {key.account!r}"
            earlier = self.key[:index]
            if any((other.account, other.name) == (key.account, key.name) for other in earlier):
                yield f"key[{index}].name", f"expected a name of its own: {key.name!r} is taken"
            if key.secret is None:
                yield f"key[{index}].secret", "expected a value; this key is required"
            elif any(other.secret == key.secret for other in earlier):
                yield f"key[{index}].secret", "expected a secret of its own: another key has it"
