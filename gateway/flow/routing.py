"""Room 4: a call becomes a ranked list of attempts, each with the price it is made at."""

from collections.abc import Mapping

import attrs

from gateway.dialects.openai_chat import write_chat_body
from gateway.dialects.openai_embeddings import write_embeddings_body
from gateway.domain.call import Call
from gateway.domain.caller import Caller
from gateway.domain.catalog import Listed
from gateway.domain.channel import Channel
from gateway.domain.fault import GroupNotAllowed, ModelNotAllowed
from gateway.domain.plan import Plan
from gateway.domain.price import ONE_PPM, Price, PriceList, cost_nanos
from gateway.domain.selection import MAX_ATTEMPTS
from gateway.domain.usage import Usage
from gateway.flow.models import Catalog, model_not_found
from gateway.providers.registry import PROVIDERS


@attrs.frozen
class Attempt:
    """One channel to try, with the provider's own name of the model, and what usage of it costs the caller.

    The price is that of the moment of routing: whatever is changed later is for later calls.
    """

    channel: Channel
    model: str
    price: Price | None = None
    multiplier_ppm: int = ONE_PPM

    @property
    def key(self) -> str:
        """The provider key to sign with; empty where the channel has none."""
        return self.channel.api_keys[0] if self.channel.api_keys else ""

    def plan(self, call: Call) -> Plan:
        """The request to the provider."""
        provider = PROVIDERS[self.channel.provider]
        if call.operation == "chat":
            body = write_chat_body(call, self.model)
            return provider.plan_post(self.channel, "/chat/completions", self.key, body, stream=call.stream)
        body = write_embeddings_body(call, self.model)
        return provider.plan_post(self.channel, "/embeddings", self.key, body, stream=False)

    def cost(self, usage: Usage) -> int:
        """What ``usage`` costs, in nano-USD."""
        return cost_nanos(self.price, usage, self.multiplier_ppm)


class Router:
    """Finds who may serve a call, and at what price.

    Args:
        catalog: the channels and their models.
        prices: what models cost.
        groups: price multipliers of groups, in parts per million; a group that is not there has none.
        require_price: models without a price are not served.
    """

    def __init__(
        self,
        catalog: Catalog,
        prices: PriceList,
        *,
        groups: Mapping[str, int] | None = None,
        require_price: bool = False,
    ) -> None:
        self._catalog = catalog
        self._prices = prices
        self._groups = groups or {}
        self._require_price = require_price

    def route(self, caller: Caller, call: Call) -> list[Attempt]:
        """The channels to try for ``call``, best first.

        Raises ``ModelNotAllowed``, ``GroupNotAllowed``, or ``ModelNotFound`` where nobody serves the model.
        """
        caller.check_group()
        caller.check_model(call.model)
        channels = self._catalog.rank(call.model, caller)
        if not channels:
            raise self._find_reason(caller, call.model)
        if not self._require_price:
            return [self._attempt(channel, caller, call.model) for channel in channels[:MAX_ATTEMPTS]]
        attempts = [self._attempt(channel, caller, call.model) for channel in channels]
        priced = [attempt for attempt in attempts if attempt.price is not None]
        if not priced:
            raise ModelNotAllowed(
                f"The model {call.model!r} has no price, and this gateway serves none without",
                param="model",
                should_retry=False,
            )
        return priced[:MAX_ATTEMPTS]

    def list_models(self, caller: Caller) -> list[Listed]:
        """Every model and alias that ``route`` would find attempts for, sorted by id."""
        listed = self._catalog.list_models(caller) if caller.may_use_group else []
        if not self._require_price:
            return listed
        return [model for model in listed if self._has_price(model.id, caller)]

    def get_model(self, caller: Caller, model: str) -> Listed:
        """One of ``list_models``. Raises ``ModelNotFound``."""
        for listed in self.list_models(caller):
            if listed.id == model:
                return listed
        raise model_not_found(model)

    def _attempt(self, channel: Channel, caller: Caller, model: str) -> Attempt:
        theirs = channel.upstream_model(model)
        price = self._prices.find(model, channel.provider) or self._prices.find(theirs, channel.provider)
        group_ppm = self._groups.get(caller.key.group, ONE_PPM) if caller.key.group else ONE_PPM
        return Attempt(channel, theirs, price, -(-channel.multiplier_ppm * group_ppm // ONE_PPM))

    def _has_price(self, model: str, caller: Caller) -> bool:
        channels = self._catalog.rank(model, caller)
        return any(self._attempt(channel, caller, model).price is not None for channel in channels)

    def _find_reason(self, caller: Caller, model: str) -> Exception:
        if not self._catalog.rank(model):
            return model_not_found(model)
        group = caller.key.group
        whom = "API keys without a group" if group is None else f"the group {group!r} of this API key"
        return GroupNotAllowed(f"The model {model!r} is not available to {whom}", param="model", should_retry=False)
