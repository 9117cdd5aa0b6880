"""Conversations stay on the channel, key and step that answered last, without a hint of the client."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.request_log import FailedAttempt
from gateway.domain.route import ModelShare, Route, RouteStep
from gateway.errors import ProviderRateLimited
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.routing.affinity import ConversationMemory, Home, find_conversation, has_earlier_turn, hash_conversation
from gateway.routing.channel_state import KeyState
from gateway.routing.load_balancer import RetrySettings
from gateway.routing.target import Attempt
from tests.support.routing_calls import CALLER, RULES, RouterScenario, call_of, channel
from tests.support.table_rows import table_rows

SYSTEM = {"role": "system", "content": "You are helpful."}


def turn(number: int, turns: int = 1, **more: Any) -> InferenceRequest:
    """The request of a conversation's turn: all earlier messages and a new one."""
    messages = [SYSTEM, {"role": "user", "content": f"Question {number}"}]
    for each in range(1, turns):
        messages += [{"role": "assistant", "content": f"a{each}"}, {"role": "user", "content": f"q{each}"}]
    return call_of(**{"messages": messages, **more})


def start(router: RouterScenario, inference: InferenceRequest, headers: dict[str, str] | None = None) -> Attempt:
    """Start the first attempt of a request, as the middleware does."""
    targets = router.route(CALLER, inference)
    router.keep_conversation(targets, inference, headers or {})
    targets.rank()
    return targets.start("1", 99)


def ask(router: RouterScenario, inference: InferenceRequest, headers: dict[str, str] | None = None) -> Attempt:
    """Ask, and get an answer."""
    targets = router.route(CALLER, inference)
    router.keep_conversation(targets, inference, headers or {})
    targets.rank()
    attempt = targets.start("1", 99)
    if targets.affinity is not None:
        targets.affinity.note_answered(attempt, router.time)
    router.board.record_success(attempt.slot)
    router.board.release(attempt.slot)
    return attempt


def test_two_hundred_conversations_stay_and_are_spread() -> None:
    ups = ("one", "two", "three")
    router = RouterScenario(*(channel(name, "m") for name in ups))
    homes: dict[int, set[str]] = {number: set() for number in range(200)}
    order = [number for number in homes for _ in range(20)]
    random.Random(3).shuffle(order)  # noqa: S311 - turns, not secrets
    turns = dict.fromkeys(homes, 0)
    for number in order:
        turns[number] += 1
        homes[number].add(ask(router, turn(number, turns[number])).channel.name)
    assert all(len(home) == 1 for home in homes.values())
    load = [sum(home == {name} for home in homes.values()) for name in ups]
    assert max(load) <= 1.2 * 200 / 3
    assert min(load) >= 0.8 * 200 / 3


def test_weights_hold_over_conversations() -> None:
    router = RouterScenario(channel("one", "m", weight=3), channel("two", "m"))
    homes = [ask(router, turn(number, each)).channel.name for number in range(200) for each in range(1, 4)]
    assert 0.65 < homes.count("one") / len(homes) < 0.85


def test_a_conversation_moves_once_and_stays_where_it_went() -> None:
    router = RouterScenario(channel("one", "m", priority=1), channel("two", "m"))
    assert [ask(router, turn(1, each)).channel.name for each in (1, 2)] == ["one", "one"]
    router.trip("one", 5)
    assert ask(router, turn(1, 3)).channel.name == "two"
    router.time += 60
    assert ask(router, turn(1, 4)).channel.name == "two"
    assert ask(router, turn(2)).channel.name == "one"


def test_a_first_message_goes_where_the_priority_says() -> None:
    router = RouterScenario(channel("one", "m", priority=1), channel("two", "m"))
    router.trip("one", 5)
    assert ask(router, turn(1)).channel.name == "two"
    router.time += 60
    assert ask(router, turn(1)).channel.name == "one"


def test_a_conversation_is_forgotten_some_time_after_its_last_answer() -> None:
    settings = RetrySettings(RULES, affinity_s=600)
    router = RouterScenario(channel("one", "m", priority=1), channel("two", "m"), settings=settings)
    router.trip("one", 5)
    assert ask(router, turn(1)).channel.name == "two"
    router.time += 599
    assert ask(router, turn(1, 2)).channel.name == "two"
    router.time += 599
    assert ask(router, turn(1, 3)).channel.name == "two"
    router.time += 601
    assert ask(router, turn(1, 4)).channel.name == "one"


def test_an_edited_channel_gets_its_conversations_by_the_rules_again() -> None:
    two = channel("two", "m", priority=1)
    router = RouterScenario(channel("one", "m"), two)
    assert ask(router, turn(1)).channel.name == "two"
    router.use(channel("one", "m"), channel("two", "m", priority=-1))
    assert ask(router, turn(1, 2)).channel.name == "one"


def test_a_conversation_keeps_its_provider_key() -> None:
    router = RouterScenario(channel("up", "m", keys=("first", "second", "third")))
    for number in range(30):
        keys = {ask(router, turn(number, each)).slot.key.key for each in range(1, 6)}
        assert len(keys) == 1
    used = {ask(router, turn(number)).slot.key.key for number in range(100, 130)}
    assert used == {"first", "second", "third"}


def test_a_limited_key_is_left_for_another() -> None:
    router = RouterScenario(channel("up", "m", keys=("first", "second")))
    attempt = start(router, turn(1))
    before = attempt.slot.key.key
    router.fail(attempt, ProviderRateLimited("slow down", status=429))
    assert ask(router, turn(1, 2)).slot.key.key != before


def test_requests_that_begin_alike_are_spread() -> None:
    ups = ("one", "two", "three")
    router = RouterScenario(*(channel(name, "m") for name in ups))
    attempts = [start(router, turn(1)) for _ in range(90)]
    load = [sum(attempt.channel.name == name for attempt in attempts) for name in ups]
    assert min(load) >= 25
    assert [attempt.affinity for attempt in attempts[:3]] == ["new", "", ""]


def test_requests_that_their_client_names_alike_share_a_home_at_once() -> None:
    router = RouterScenario(*(channel(name, "m") for name in "abcdef"))
    for number in range(20):
        session = {"x-gateway-session": str(number)}
        assert len({start(router, turn(number), session).channel.name for _ in range(4)}) == 1


def test_a_conversation_begins_with_the_step_that_answered_last_and_falls_back_to_the_first() -> None:
    steps = (RouteStep((ModelShare("a"),)), RouteStep((ModelShare("b"),), causes=("rate_limited",)))
    router = RouterScenario(channel("up-a", "a"), channel("up-b", "b"), routes=[Route("fast", steps)])
    limited = ProviderRateLimited("slow down", status=429)
    inference = turn(1, model="fast")
    targets = router.route(CALLER, inference)
    router.keep_conversation(targets, inference, {})
    targets.rank()
    first = targets.start("1", 99)
    router.fail(first, limited)
    assert targets.prepare_retry(first, limited)
    second = targets.next(first)
    assert second is not None
    assert targets.affinity is not None
    targets.affinity.note_answered(second, router.time)
    router.board.release(second.slot)
    router.time += 300
    inference = turn(1, 2, model="fast")
    targets = router.route(CALLER, inference)
    router.keep_conversation(targets, inference, {})
    trail = [FailedAttempt("up-b", "x", 1, step=2), FailedAttempt("up-a", "ok", 1, step=1)]
    assert targets.sort_trail(reversed(trail)) == trail
    assert ask(router, inference).target.model == "b"
    assert ask(router, turn(2, model="fast")).target.model == "a"
    router.trip("up-b", 100)
    assert ask(router, turn(1, 3, model="fast")).target.model == "a"


def test_a_conversation_keeps_the_model_of_a_step_that_was_drawn_for_it() -> None:
    canary = RouteStep((ModelShare("a"), ModelShare("b")))
    router = RouterScenario(channel("up-a", "a"), channel("up-b", "b"), routes=[Route("fast", (canary,))])
    models = [
        {ask(router, turn(number, each, model="fast")).target.model for each in range(1, 6)} for number in range(40)
    ]
    assert all(len(used) == 1 for used in models)
    assert {model for used in models for model in used} == {"a", "b"}


@table_rows(
    ("headers", "more", "named"),
    [
        ({"x-gateway-session": "s1", "session_id": "s2"}, {"prompt_cache_key": "p"}, "s1"),
        ({"session_id": "s2"}, {"prompt_cache_key": "p"}, "s2"),
        ({"x-openwebui-chat-id": "c"}, {}, "c"),
        ({}, {"prompt_cache_key": "p"}, "p"),
        ({"x-gateway-session": "x" * 257}, {"prompt_cache_key": "p"}, "p"),
    ],
)
def test_the_first_name_that_is_there_counts(headers: dict[str, str], more: dict[str, Any], named: str) -> None:
    assert find_conversation(7, turn(1, **more), headers, "auto") == (7, named)


def test_modes() -> None:
    plain = turn(1)
    assert find_conversation(7, plain, {"session_id": "s"}, "off") is None
    assert find_conversation(7, plain, {}, "header") is None
    assert find_conversation(7, plain, {}, "auto") == (7, hash_conversation(plain))
    assert find_conversation(7, plain, {"session_id": "s"}, "header") == (7, "s")


def test_what_clients_change_in_every_request_does_not_count() -> None:
    bodies = [
        {
            "model": "m",
            "max_tokens": 9,
            "system": [
                {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
                {"type": "text", "text": "You are an agent."},
            ],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Repair the test."}]},
                *([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}] * number),
            ],
        }
        for number in range(3)
    ]
    assert len({hash_conversation(parse_messages_inference(body)) for body in bodies}) == 1


def hash_messages(*messages: tuple[str, str], **fields: Any) -> int:
    listed = [{"role": role, "content": content} for role, content in messages]
    return hash_conversation(InferenceRequest("chat", "m", {"messages": listed, **fields}))


@table_rows(
    ("first", "second"),
    [
        ("a" * 30_000, "a" * 30_001),
        ("a" * 30_000 + "b", "a" * 30_000 + "c"),
        ("b" + "a" * 30_000, "c" + "a" * 30_000),
        ("short", "shorter"),
    ],
)
def test_long_first_messages_are_told_apart_by_their_ends_and_their_length(first: str, second: str) -> None:
    assert hash_messages(("user", first)) != hash_messages(("user", second))
    later = hash_messages(("user", first), ("assistant", "yes"), ("user", second))
    assert hash_messages(("user", first)) == later


def test_the_end_of_a_long_system_text_does_not_count() -> None:
    rules = "Answer in French. " * 100
    at_nine = ("system", f"{rules}It is nine."), ("user", "Hi")
    at_ten = ("system", f"{rules}It is ten."), ("user", "Hi")
    assert hash_messages(*at_nine) == hash_messages(*at_ten)
    assert hash_messages(*at_nine) != hash_messages(("system", f"In verse. {rules}"), ("user", "Hi"))
    assert hash_messages(*at_nine, system=rules) != hash_messages(*at_nine, system="In verse.")


NAMES = st.sampled_from(["text", "content", "parts", "role", "name"])
ANYTHING = st.recursive(
    st.none() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
)


@given(ANYTHING)
def test_whatever_a_body_has_its_hash_can_be_computed(value: Any) -> None:
    body = {"model": "m", "messages": [value, {"role": "user", "content": value}], "system": value, "tools": [value]}
    inference = InferenceRequest("chat", "m", body)
    assert hash_conversation(inference) >= 0
    assert has_earlier_turn(inference) in {True, False}


def test_the_memory_is_bounded_and_counts_what_it_has() -> None:
    memory, key = ConversationMemory(10), KeyState("k")
    ups = [channel("one", "m"), channel("two", "m")]
    for number in range(1_000):
        memory.store((1, number % 25), Home(ups[number % 2], key, "m", number / 1_000), 600)
        assert len(memory) <= 10
        assert memory.count("one") + memory.count("two") == len(memory)
    for number in range(20):
        memory.store((2, number), Home(ups[0], key, "m", 10_000.0), 600)
    assert memory.count("two") == 0


def test_one_process_shares_no_home_between_accounts() -> None:
    assert find_conversation(1, turn(1), {}, "auto") != find_conversation(2, turn(1), {}, "auto")
