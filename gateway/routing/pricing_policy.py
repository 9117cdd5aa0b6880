"""What calls cost, and which are served at all."""

from collections.abc import Mapping

import attrs

from gateway.domain.price import ONE_PPM, Price, PriceList


@attrs.frozen
class PricingPolicy:
    """What calls cost, and which are served at all; replaced as a whole when the configuration is.

    Attributes:
        prices: what models cost.
        groups: price multipliers of groups, in parts per million; a group that is not there has none.
        require_price: models without a price are not served.
    """

    prices: PriceList = attrs.field(factory=PriceList)
    groups: Mapping[str, int] = attrs.field(factory=dict)
    require_price: bool = False

    def find_price(self, model: str, theirs: str, provider: str) -> Price | None:
        """The price of ``model`` at a provider that knows it as ``theirs``: that of the callers' name goes first."""
        return self.prices.find(model, provider) or self.prices.find(theirs, provider)

    def find_multiplier(self, group: str | None) -> int:
        """What a group (None: no group) pays of it, in parts per million."""
        return ONE_PPM if group is None else self.groups.get(group, ONE_PPM)
