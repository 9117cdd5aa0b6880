"""Requests, callers and channels for the router."""

import random
from collections.abc import Sequence
from typing import Any

import attrs

from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import BreakerSettings
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.price import ONE_PPM, Price, PriceList
from gateway.errors import ProviderError
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer, RetrySettings
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy
from gateway.routing.router import Router
from gateway.routing.target import Attempt, Target
from gateway.routing.target_list import TargetList

CALLER = Caller(Account(1, "acme"), ApiKey(1, 1, "k", b"", ""))


RULES = BreakerSettings(failures=3, cooldown_s=10, max_cooldown_s=300, ramp_s=10)


ENDLESS = RetrySettings(RULES, max_attempts=99, least_retries=99)


MESSAGES = [{"role": "user", "content": "hi"}]


def call_of(model: str = "m", **more: Any) -> InferenceRequest:
    return parse_chat_inference({"model": model, "messages": MESSAGES, **more})


def channel(name: str, *models: str, **more: Any) -> Channel:
    keys = more.pop("keys", (f"key-of-{name}",))
    return Channel(name, more.pop("provider", "custom"), f"http://{name}/v1", keys, models, **more)


class RouterScenario(Router):
    """Rooms 3 and below, as far as routing sees them; the clock is turned by hand, the dice are the same again."""

    def __init__(self, *channels: Channel, prices: Sequence[Price] = (), **more: Any) -> None:
        self.time = 1_000.0
        self.throws = iter(random.Random(17).random, None)  # noqa: S311 - turns, not secrets
        self.catalog = ModelCatalog(clock=lambda: 0.0)
        self.board = LoadBalancer(lambda: self.time, self.throw, settings=DEFAULT_SETTINGS, shared=None)
        self.board.settings = more.pop("settings", ENDLESS)
        self.use(*channels)
        routes = {route.name: route for route in more.pop("routes", ())}
        super().__init__(self.catalog, self.board, PricingPolicy(PriceList(prices), **more), models=(), routes=routes)

    def throw(self) -> float:
        return next(self.throws)

    def use(self, *channels: Channel) -> None:
        self.catalog.set_channels(channels)
        self.board.set_channels(channels)

    def options(self, inference: InferenceRequest | None = None, caller: Caller = CALLER) -> Sequence[Target]:
        return self.route(caller, inference or call_of()).targets

    def names(self, model: str = "m", caller: Caller = CALLER) -> list[str]:
        return [target.channel.name for target in self.options(call_of(model), caller)]

    def begin(self, inference: InferenceRequest | None = None) -> tuple[TargetList, Attempt]:
        route = self.route(CALLER, inference or call_of())
        return route, route.start("1", 99)

    def fail(self, attempt: Attempt, error: ProviderError) -> None:
        """What the relay does when an attempt fails."""
        self.board.record_failure(attempt.slot, error)
        self.board.release(attempt.slot)

    def trip(self, name: str, provider_retry_after_s: float) -> None:
        """Take a channel down for so long."""
        self.board.channels[name].breaker.trip(
            self.time, RULES, reason="ill", rng=0.5, provider_retry_after_s=provider_retry_after_s
        )

    def walk(self, error: ProviderError, inference: InferenceRequest | None = None) -> list[str]:
        """The channels that are tried where every one of them meets ``error``."""
        route, attempt = self.begin(inference)
        tried = [attempt.channel.name]
        while True:
            self.fail(attempt, error)
            following = route.next(attempt) if route.prepare_retry(attempt, error) else None
            if following is None:
                return tried
            attempt = following
            tried.append(attempt.channel.name)


def caller_of(group: str | None = None, *groups: str, models: tuple[str, ...] = ()) -> Caller:
    """A caller whose key is of ``group``, and whose account may use ``groups``."""
    key = attrs.evolve(CALLER.key, group=group, models=models)
    return Caller(attrs.evolve(CALLER.account, groups=groups), key)


def priced(model: str, nanos_a_token: int, provider: str | None = None) -> Price:
    return Price(model, nanos_a_token * ONE_PPM, provider=provider)
