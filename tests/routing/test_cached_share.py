"""How much of their prompts conversations read from the caches of three channels, with affinity and without."""

import random
from typing import Any

import attrs

from gateway.routing.load_balancer import AffinityMode, RetrySettings
from tests.support.prefix_cache import PrefixCache
from tests.support.routing_calls import CALLER, RULES, RouterScenario, call_of, channel

CONVERSATIONS, TURNS = 200, 20
UPS = ("one", "two", "three")
FIRST_CHARS, TURN_CHARS = 24_000, 400
"""A coding agent's first prompt, and what each turn adds: an answer and the next message."""


@attrs.frozen
class Outcome:
    """The result of all conversations.

    Attributes:
        cached_share: of the prompt tokens after the first turns.
        load: the requests of each channel.
        homes: the number of conversations that each channel has answered.
    """

    cached_share: float
    load: tuple[int, ...]
    homes: tuple[int, ...]


def write_texts(number: int, turns: int) -> list[str]:
    """The messages of a conversation's turn."""
    rest = [f"{number} {each}".ljust(TURN_CHARS // 2, ".") for each in range(2 * (turns - 1))]
    return [f"Project {number}".ljust(FIRST_CHARS, "."), *rest]


def converse(mode: AffinityMode) -> Outcome:
    """Let all conversations go on in turns that are mixed, over channels that count what they have cached."""
    settings = RetrySettings(RULES, affinity=mode)
    router = RouterScenario(*(channel(name, "m") for name in UPS), settings=settings)
    caches = {name: PrefixCache() for name in UPS}
    homes: dict[int, set[str]] = {number: set() for number in range(CONVERSATIONS)}
    load = dict.fromkeys(UPS, 0)
    order = [number for number in homes for _ in range(TURNS)]
    random.Random(5).shuffle(order)  # noqa: S311 - turns, not secrets
    turns, prompt, cached = dict.fromkeys(homes, 0), 0, 0
    for number in order:
        turns[number] += 1
        texts = write_texts(number, turns[number])
        name = ask(router, texts)
        homes[number].add(name)
        load[name] += 1
        tokens, known = caches[name].read(texts)
        if turns[number] > 1:
            prompt, cached = prompt + tokens, cached + known
    begun = tuple(sum(name in home for home in homes.values()) for name in UPS)
    return Outcome(cached / prompt, tuple(load.values()), begun)


def ask(router: RouterScenario, texts: list[str]) -> str:
    """Send a request without any hint of a conversation, and return the channel that answers."""
    roles = ["user", "assistant"]
    messages: list[Any] = [{"role": roles[each % 2], "content": text} for each, text in enumerate(texts)]
    inference = call_of(messages=messages)
    targets = router.route(CALLER, inference)
    router.keep_conversation(targets, inference, {})
    targets.rank()
    attempt = targets.start("1", 99)
    if targets.affinity is not None:
        targets.affinity.note_answered(attempt, router.time)
    router.board.record_success(attempt.slot)
    router.board.release(attempt.slot)
    return attempt.channel.name


def test_two_hundred_conversations_are_cached_to_98_percent_and_spread(record_property: Any) -> None:
    kept, spread = converse("auto"), converse("off")
    record_property("cached_share", kept.cached_share)
    record_property("cached_share_without_affinity", spread.cached_share)
    even = CONVERSATIONS * TURNS / len(UPS)
    assert kept.cached_share >= 0.98
    assert 0.8 * even <= min(kept.load)
    assert max(kept.load) <= 1.2 * even
    assert sum(kept.homes) == CONVERSATIONS
    # Without affinity each channel reads most conversations anew at its first turn of them.
    assert 1 - spread.cached_share > 5 * (1 - kept.cached_share)
