"""Reads the built-in price list, one price per line. A line is parsed only when a model needs its price.

Parsing all two thousand prices would take a tenth of the CPU time of startup.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal

import attrs

from gateway.billing.price_spec import PriceSpec
from gateway.domain.price import Price, PriceKey
from gateway.parsing import parse_table

_LINE = re.compile(r'^  (\{ model = "([^"]+)", (?:provider = "([^"]+)", )?.*\}),$', re.MULTILINE)
"""The line format that ``scripts/update_prices.py`` writes."""


class BuiltInPrices(Mapping[PriceKey, Price]):
    """The prices of ``text``, the content of ``config/prices.toml``."""

    def __init__(self, text: str) -> None:
        self._lines = {(model, provider or None): line for line, model, provider in _LINE.findall(text)}
        self._parsed_prices: dict[PriceKey, Price] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[PriceKey]:
        return iter(self._lines)

    def __getitem__(self, key: PriceKey) -> Price:
        price = self._parsed_prices.get(key)
        if price is None:
            fields = tomllib.loads(f"price = {self._lines[key]}", parse_float=Decimal)["price"]
            price = self._parsed_prices[key] = attrs.evolve(parse_table(fields, PriceSpec).price(), built_in=True)
        return price

    def list_free_providers(self) -> Iterator[str | None]:
        """Yield the provider of each free model, and None for a model that is free at every provider."""
        return (provider for (_, provider), line in self._lines.items() if line.endswith("free = true }"))
