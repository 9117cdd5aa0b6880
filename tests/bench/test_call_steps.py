"""What one chat request costs in the pure floors, in Python-level calls: printed by stage, and bounded by number.

A call is a function's, a property's, a comprehension's frame: some microsecond each, whatever is in it. Their number
is the same on every machine and in every run. ``make test ARGS="tests/bench -n0 -s"`` shows it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.domain.balance import Balance, Owner, Quota, parse_day, reserve_all
from gateway.domain.circuit_breaker import DEFAULT_RULES, CircuitBreaker
from gateway.domain.price import Price, compute_cost_nanos, usd
from gateway.domain.rate_limit import Limits, RateLimitStatus, RateLimitSubject, RateLimitWindow
from gateway.domain.usage import Usage
from gateway.formats.chat.gemini.passthrough import GenerateContentPassthrough
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.openai.chat import ChatPassthrough, parse_chat_inference
from gateway.formats.registry import make_translator
from gateway.formats.stream import StreamTransform
from gateway.formats.translator import ResponseIdentity
from gateway.formats.wire.json_values import parse_json_object
from gateway.server.responses import build_limits
from tests.support import gemini_cassettes as gemini
from tests.support.called_functions import list_called

NOW_S = 1_750_000_000.0
DAY = parse_day(NOW_S)
BODY = {
    "model": "m",
    "messages": [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Say hello."}],
    "temperature": 0.7,
}
STREAMED = BODY | {"stream": True, "stream_options": {"include_usage": True}}
ANSWER = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_750_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello."},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 19,
            "completion_tokens": 10,
            "total_tokens": 29,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        },
    }
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1750000000,"model":"m",'
    b'"system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,'
    b'"finish_reason":null}]}\n\n'
)
GENERATE = parse_generate_inference({"contents": [{"parts": [{"text": "Say hello."}]}]}, model="m", stream=True)
GEMINI_EVENT = gemini.stream(gemini.chunk({"text": " word"}, used=gemini.usage(11, 3, totalTokenCount=14), index=0))
PRICE = Price("m", input_nanos_per_million=10**9, output_nanos_per_million=2 * 10**9)
USED = Usage(19, 10, 0, "upstream")
CALL = parse_chat_inference(BODY)
LIMITS = Limits(rpm=10**9, tpm=10**12)
STANDING = RateLimitStatus(RateLimitWindow(1_000, 100, 0.06), RateLimitWindow(1_000_000, 100_000, 0.006))
IDENTITY = ResponseIdentity("0123456789abcdef01234567", "m", 1_750_000_000)
OWNERS: tuple[Owner, ...] = ("key", "account")
SUBJECTS = (RateLimitSubject("key", 1, LIMITS), RateLimitSubject("account", 1, LIMITS))


def read_call(body: dict[str, Any]) -> Callable[[], Any]:
    """A body in bytes, read and checked."""
    raw = orjson.dumps(body)
    return lambda: parse_chat_inference(parse_json_object(raw))


def price() -> None:
    """What a call may cost, asked before it, and what it did cost."""
    compute_cost_nanos(PRICE, CALL.need)
    compute_cost_nanos(PRICE, USED)


def pay() -> Callable[[], Any]:
    """Out of two purses that have been used today, as they mostly are."""
    balances = tuple(Balance(owner) for owner in OWNERS)
    for balance in balances:
        balance.set_quota(Quota(10**15, "monthly"), DAY)
    reserve_all(balances, 1_000, DAY, NOW_S).settle(100, DAY)
    return lambda: reserve_all(balances, 1_000, DAY, NOW_S).settle(100, DAY)


def take_turn() -> Callable[[], Any]:
    """At the meters of a key and its account, each with both rates."""
    counters = InMemoryRateLimiter(lambda: NOW_S)

    def take() -> None:
        counters.release(counters.take_now(SUBJECTS, 100), 29)

    take()
    return take


def lean_on() -> Callable[[], Any]:
    """The breaker of a channel that is well."""
    breaker = CircuitBreaker()

    def lean() -> None:
        breaker.find_wait_s(NOW_S)
        breaker.record_success(breaker.start_attempt(NOW_S), NOW_S, DEFAULT_RULES)
        breaker.abandon(0)

    lean()
    return lean


def exchange() -> None:
    """The body written, the answer read."""
    made = make_translator(CALL, "openai_chat", IDENTITY)
    made.write_body()
    assert made.mode.media_type == "application/json"
    made.parse_answer(ANSWER, ())


def pass_events(transform: StreamTransform, event: bytes) -> Callable[[], Any]:
    """A hundred events of a stream."""

    def feed() -> None:
        for _ in range(100):
            transform.feed(event)
            assert not transform.closed

    feed()
    return feed


exchange()  # the first one imports the API format
STAGES = {
    "a body read": (read_call(BODY), 8),
    "a body read, of a stream": (read_call(STREAMED), 12),
    "two prices": (price, 4),
    "two purses": (pay(), 8),
    "two meters of two rates": (take_turn(), 9),
    "a breaker": (lean_on(), 4),
    "an exchange": (exchange, 15),
    "limits said": (lambda: build_limits(STANDING), 1),
    "100 events": (pass_events(ChatPassthrough(CALL), EVENT), 111),
    "100 events of Gemini": (pass_events(GenerateContentPassthrough(GENERATE), GEMINI_EVENT), 213),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_usual_request_takes_few_steps(stage: str) -> None:
    work, most = STAGES[stage]
    work()  # the first use imports what it needs
    called = list_called(work)
    print(f"\n{stage}: {len(called)} calls of at most {most}", end="")
    assert len(called) <= most, Counter(called)


def test_steps_are_counted() -> None:
    assert list_called(lambda: usd(1)) == ["usd"]
