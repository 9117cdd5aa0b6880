"""The pricing policy: the cost of requests, and which unpriced models are served."""

from collections.abc import Mapping
from typing import Literal

import attrs

from gateway.domain.account import Caller
from gateway.domain.operation import Operation
from gateway.domain.price import ONE_PPM, Price, PriceList, Unit
from gateway.errors import ModelNotPriced
from gateway.frozen import frozen

Unpriced = Literal["refuse_limited", "free", "refuse"]
"""The treatment of models without a price: refused to callers with a spending limit, free, or refused."""

_TEXT_UNITS: frozenset[Unit] = frozenset({"token", "image", "call"})
_IMAGE_UNITS: frozenset[Unit] = frozenset({"image", "token", "call"})
_SOUND_UNITS: frozenset[Unit] = frozenset({"second", "token", "call"})
_SPEECH_UNITS: frozenset[Unit] = frozenset({"character", "token", "second", "call"})
_VIDEO_UNITS: frozenset[Unit] = frozenset({"second", "call"})
_RERANK_UNITS: frozenset[Unit] = frozenset({"token", "search", "call"})
_UNITS_BY_OPERATION: Mapping[Operation, frozenset[Unit]] = {
    "images": _IMAGE_UNITS,
    "image_edits": _IMAGE_UNITS,
    "transcriptions": _SOUND_UNITS,
    "translations": _SOUND_UNITS,
    "speech": _SPEECH_UNITS,
    "videos": _VIDEO_UNITS,
    "video_remixes": _VIDEO_UNITS,
    "rerank": _RERANK_UNITS,
}
"""The units by which an operation may be billed; operations that are missing here: ``_TEXT_UNITS``."""


@frozen
class PricingPolicy:
    """The pricing policy, replaced as a whole when the configuration changes.

    ``groups`` are the price multipliers of groups, in parts per million; a missing group pays the full price.
    ``unpriced`` is the treatment of models without a price. ``limited_keys`` are the names of the keys whose spending
    a ``[[limit]]`` counts; empty for all keys, None for none.
    """

    prices: PriceList = attrs.field(factory=PriceList)
    groups: Mapping[str, int] = attrs.field(factory=dict)
    unpriced: Unpriced = "refuse_limited"
    limited_keys: frozenset[str] | None = None

    def find_price(self, model: str, upstream_model: str, provider: str) -> Price | None:
        """Return the price of ``upstream_model``, the provider's name of ``model``, or else the price of ``model``.

        None if neither has one.
        """
        return self.prices.find(upstream_model, provider) or self.prices.find(model, provider)

    def find_multiplier(self, group: str | None) -> int:
        """Return the price multiplier of a group, or of keys without a group, in parts per million."""
        return ONE_PPM if group is None else self.groups.get(group, ONE_PPM)

    def refuses_unpriced(self, caller: Caller) -> bool:
        return self.unpriced == "refuse" or (
            self.unpriced == "refuse_limited" and (caller.capped or self.is_limited(caller.key.name))
        )

    def is_limited(self, key_name: str) -> bool:
        """Return whether a ``[[limit]]`` counts what the key spends."""
        return self.limited_keys is not None and (not self.limited_keys or key_name in self.limited_keys)

    def check_priced(self, caller: Caller, model: str, *, param: str = "model") -> None:
        """Raise ``ModelNotPriced`` if ``model``, which has no price, is refused to ``caller``."""
        if not self.refuses_unpriced(caller):
            return
        reason = "this gateway does not serve models without a price"
        if self.unpriced == "refuse_limited":
            limited_owner = "this API key" if caller.key.quota.capped else "the account of this API key"
            reason = f"{limited_owner} has a spending limit"
            if not caller.capped:
                reason = "spending with this API key counts toward a limit"
        raise ModelNotPriced(
            f"The model {model!r} has no price for this request, and {reason}. An administrator can set a price "
            "([[price]] in the configuration, or Prices in the console; 0 if the model costs nothing)",
            param=param,
        )

    def may_be_free(self, caller: Caller, providers: frozenset[str]) -> bool:
        if self.unpriced == "free" or not self.find_multiplier(caller.key.group):
            return True
        return self.prices.has_free_model(providers)


def pays_for(price: Price | None, operation: Operation) -> bool:
    """Return whether a price covers a unit by which the operation is billed. A deliberate price of 0 covers all."""
    return price is not None and (
        not (units := price.units) or not units.isdisjoint(_UNITS_BY_OPERATION.get(operation, _TEXT_UNITS))
    )
