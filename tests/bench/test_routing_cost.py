"""What choosing a channel costs in CPU, with few and with many: printed, never asserted as time.

``make bench-parts`` shows it.
"""

import collections
import statistics
import time

import pytest

from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.channel import Channel
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import Price, PriceList
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.routing.affinity import find_conversation
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy
from gateway.routing.router import Router
from gateway.routing.target import Attempt

pytestmark = pytest.mark.cost

CALLS = 2_000
ROUNDS = 7
CALLER = Caller(Account(1, "acme"), ApiKey(1, 1, "test", b"", "last"))
CALL = parse_chat_inference({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
PRICES = [Price(f"other-{number}", input_nanos_per_million=10**9) for number in range(500)]
ANSWER_ID = "0123456789abcdef01234567"


class RoutingScenario:
    """A router over so many channels, alike in all but their keys' number."""

    def __init__(self, channels: int) -> None:
        configured = [
            Channel(f"up{number}", "custom", f"http://up{number}/v1", ("one", "two"), ("m", "n"), max_concurrency=100)
            for number in range(channels)
        ]
        catalog, self.load_balancer = (
            ModelCatalog(clock=time.time),
            LoadBalancer(time.monotonic, settings=DEFAULT_SETTINGS, shared=None),
        )
        catalog.set_channels(configured)
        self.load_balancer.set_channels(configured)
        prices = PriceList([*PRICES, Price("m", input_nanos_per_million=10**9)])
        self.router = Router(catalog, self.load_balancer, PricingPolicy(prices), models=(), routes={})

    def call(self) -> Attempt:
        """A call that is answered: routed, ranked for its hold, begun, ended."""
        route = self.router.route(CALLER, CALL)
        route.rank()
        attempt = route.start(ANSWER_ID, 1_750_000_000)
        attempt.build_request(CALL)
        self.load_balancer.record_success(attempt.slot)
        self.load_balancer.release(attempt.slot)
        return attempt


@pytest.mark.parametrize("channels", [1, 3, 20])
def test_a_call_is_routed(channels: int) -> None:
    """Every channel gets its share, and none keeps a call that has ended."""
    scenario = RoutingScenario(channels)
    costs, served = [], collections.Counter[str]()
    for _ in range(ROUNDS):
        began = time.process_time()
        attempts = [scenario.call() for _ in range(CALLS)]
        costs.append((time.process_time() - began) / CALLS * 1e6)
        served.update(attempt.channel.name for attempt in attempts)
    median = statistics.median(costs)
    print(f"\nrouting over {channels} channels: {median:.1f} us a request ({min(costs):.1f}-{max(costs):.1f})")
    assert OPERATIONS[CALL.operation].formats[0] == attempts[0].target.endpoint.wire
    assert len(served) == channels
    assert min(served.values()) > CALLS * ROUNDS / channels / 2
    assert {line.running for line in scenario.load_balancer.channels.values()} == {0}


@pytest.mark.parametrize("chars", [10, 16_000])
def test_a_conversation_is_recognized(chars: int) -> None:
    """By the hash of a system text and a first message, each of so many characters."""
    text = "word " * (chars // 5)
    messages = [{"role": "system", "content": text}, {"role": "user", "content": text}]
    inference = parse_chat_inference({"model": "m", "messages": messages})
    costs, keys = [], set()
    for _ in range(ROUNDS):
        began = time.process_time()
        keys |= {find_conversation(1, inference, {}, "auto") for _ in range(CALLS)}
        costs.append((time.process_time() - began) / CALLS * 1e6)
    print(f"\na conversation of {2 * chars} characters: {statistics.median(costs):.1f} us ({min(costs):.1f}-)", end="")
    assert len(keys) == 1
    assert None not in keys
