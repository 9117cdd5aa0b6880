"""The configuration as one frozen tree; ``config_file.py`` reads it.

Rooms are handed their own section, or the nouns it declares; nothing below the roof reads a file or the environment.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal

import attrs

from gateway.domain.channel import DEFAULT_TIMEOUTS, Channel, Timeouts
from gateway.domain.declaration import NAME, NETWORKS, AccountSpec, KeySpec
from gateway.domain.ledger import OnCrash
from gateway.domain.price import ONE_PPM, Price, Tier, nanos
from gateway.domain.reading import NOT_NEGATIVE, POSITIVE, Problem, between, must
from gateway.providers.base import find_url_problem
from gateway.providers.registry import PROVIDERS

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z", re.ASCII)  # RFC 9110, 5.6.2: token
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")


def _is_store_url(url: str) -> bool:
    return url.startswith("sqlite:///") and len(url) > len("sqlite:///")


_NOTHING: Mapping[str, str] = MappingProxyType({})
_URL = must(
    "an http:// or https:// URL without query or credentials",
    lambda value: not value or find_url_problem(value) is None,
)
_PROXY = must("an http:// or https:// URL", lambda value: value.startswith(("http://", "https://")))
_STORE_URL = must("a URL such as sqlite:////var/lib/gateway.db", lambda value: not value or _is_store_url(value))
# With the most of everything in a request (domain/usage.py) and the highest multipliers of a channel and of a group
# a cost is still a 64-bit integer.
_TOKEN_PRICE = between(0, 1_000)
_IMAGE_PRICE = between(0, 100)
_SECOND_PRICE = between(0, 10)
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
    trusted_proxies: tuple[str, ...] = attrs.field(default=(), metadata=NETWORKS)


@attrs.frozen
class StoreSection:
    """``[store]``: the database; empty is ``gateway.db`` in the data folder."""

    url: str = attrs.field(
        default="",
        metadata=_STORE_URL,
    )


@attrs.frozen
class LedgerSection:
    """``[ledger]``: what becomes of money that was held when the process was killed."""

    on_crash: OnCrash = "release"


@attrs.frozen
class BillingSection:
    """``[billing]``: what is served at all."""

    require_price: bool = False


@attrs.frozen
class GroupSection:
    """``[[group]]``: what the keys of a group pay. A group need not be declared to be used."""

    name: str = attrs.field(metadata=NAME)
    price_multiplier: Decimal = attrs.field(default=Decimal(1), metadata=between(0, 100))


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
class TierSection:
    """``tiers`` of a price: what a whole request costs whose prompt is longer. What it leaves out is as without it."""

    above_tokens: int = attrs.field(metadata=between(1))
    input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    cached_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    output_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)

    def tier(self, price: Price) -> Tier:
        """The tier in integers, of a price without tiers."""
        fresh, cached, output = map(
            _find_nanos,
            (self.input_usd_per_million, self.cached_input_usd_per_million, self.output_usd_per_million),
        )
        return Tier(
            above_tokens=self.above_tokens,
            input_nanos_per_million=price.input_nanos_per_million if fresh is None else fresh,
            cached_input_nanos_per_million=price.cached_input_nanos_per_million if cached is None else cached,
            output_nanos_per_million=price.output_nanos_per_million if output is None else output,
        )


@attrs.frozen
class PriceSection:
    """``[[price]]``: what a model, or every model a glob matches, costs; at one provider or at any."""

    model: str
    provider: str | None = attrs.field(default=None, metadata=NAME)
    input_usd_per_million: Decimal = attrs.field(default=Decimal(0), metadata=_TOKEN_PRICE)
    cached_input_usd_per_million: Decimal | None = attrs.field(default=None, metadata=_TOKEN_PRICE)
    output_usd_per_million: Decimal = attrs.field(default=Decimal(0), metadata=_TOKEN_PRICE)
    usd_per_image: Decimal = attrs.field(default=Decimal(0), metadata=_IMAGE_PRICE)
    usd_per_second: Decimal = attrs.field(default=Decimal(0), metadata=_SECOND_PRICE)
    tiers: tuple[TierSection, ...] = ()

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Key and problem for what concerns more than one key."""
        if len({tier.above_tokens for tier in self.tiers}) < len(self.tiers):
            yield "tiers", "expected tiers with an above_tokens of their own"

    def price(self) -> Price:
        """The price in integers."""
        price = Price(
            model=self.model,
            provider=self.provider,
            input_nanos_per_million=nanos(self.input_usd_per_million),
            cached_input_nanos_per_million=_find_nanos(self.cached_input_usd_per_million),
            output_nanos_per_million=nanos(self.output_usd_per_million),
            image_nanos=nanos(self.usd_per_image),
            second_nanos=nanos(self.usd_per_second),
        )
        return attrs.evolve(price, tiers=tuple(tier.tier(price) for tier in self.tiers)) if self.tiers else price


def _find_nanos(usd: Decimal | None) -> int | None:
    return None if usd is None else nanos(usd)


@attrs.frozen
class Config:
    """The whole tree."""

    server: ServerSection = attrs.Factory(ServerSection)
    store: StoreSection = attrs.Factory(StoreSection)
    ledger: LedgerSection = attrs.Factory(LedgerSection)
    billing: BillingSection = attrs.Factory(BillingSection)
    channel: tuple[ChannelSection, ...] = ()
    group: tuple[GroupSection, ...] = ()
    account: tuple[AccountSpec, ...] = ()
    key: tuple[KeySpec, ...] = ()
    price: tuple[PriceSection, ...] = ()

    @staticmethod
    def find_table_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
        """What concerns more than one table, told also of tables that have problems of their own."""
        for what in ("channel", "group", "account"):
            yield from _find_repeated(tables, what, ("name",), "expected a name of its own")
        whoever = {"provider": ""}
        yield from _find_repeated(tables, "price", ("provider", "model"), "expected a model of its own", whoever)
        yield from _find_repeated(tables, "key", ("account", "name"), "expected a name of its own within the account")
        yield from _find_repeated(tables, "key", ("secret",), "expected a secret of its own")
        accounts = {str(account.get("name")) for _, account in _list_tables(tables, "account")}
        for where, table in _list_tables(tables, "key"):
            owner = table.get("account")
            if isinstance(owner, str) and owner not in accounts:
                yield f"{where}.account", f"expected the name of an [[account]], not {owner!r}"
            if "secret" not in table:
                yield f"{where}.secret", "expected a value; this key is required"


def _list_tables(tables: Mapping[str, Any], what: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Path and content of every ``[[what]]`` that is a table."""
    items = tables.get(what)
    for index, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, Mapping):
            yield f"{what}[{index}]", item


def _find_repeated(
    tables: Mapping[str, Any],
    what: str,
    keys: tuple[str, ...],
    expected: str,
    absent: Mapping[str, str] = _NOTHING,
) -> Iterator[Problem]:
    """Tables that agree in all ``keys``; ``absent``: what a key that is left out stands for."""
    seen: dict[tuple[str, ...], str] = {}
    for where, table in _list_tables(tables, what):
        told = {**absent, **table}
        value = tuple(str(told[key]) for key in keys if isinstance(told.get(key), str))
        if len(value) == len(keys) and seen.setdefault(value, where) != where:
            yield f"{where}.{keys[-1]}", f"{expected}; {seen[value]} has it"
