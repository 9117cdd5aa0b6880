"""The table of operations and the languages in which each can be said."""

import itertools
from typing import get_args

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import OUTPUT_LIMITS
from gateway.domain.operation import OPERATIONS, Operation
from gateway.formats.chat.translation import CLIENT_FORMATS
from gateway.providers.registry import PROVIDERS
from tests.support.table_rows import table_rows

PAIRS = [(operation, wire) for operation, facts in OPERATIONS.items() for wire in facts.formats]


def test_every_operation_can_be_said_and_every_language_says_something() -> None:
    assert set(OPERATIONS) == set(get_args(Operation))
    assert {wire for _, wire in PAIRS} | {"openai_compact"} == set(get_args(Wire)), "a second path of responses"


def test_no_language_is_named_twice_for_an_operation() -> None:
    assert len(PAIRS) == len(set(PAIRS))


def test_every_operation_has_a_language_of_its_own_which_goes_first() -> None:
    """Except for a remix, which is submitted to the provider of the video."""
    own = [facts.formats[0] for operation, facts in OPERATIONS.items() if operation != "video_remixes"]
    assert len(set(own)) == len(OPERATIONS) - 1


def test_what_can_be_said_in_two_ways_is_asked_for_in_the_same_ways() -> None:
    """A conversation in either of the callers' languages reaches the same providers."""
    assert set(OPERATIONS["chat"].formats) == set(OPERATIONS["messages"].formats)


@table_rows("operation", list(OPERATIONS))
def test_some_vendor_speaks_each_language_of_an_operation(operation: Operation) -> None:
    spoken = {endpoint.wire for provider in PROVIDERS.values() for endpoint in provider.endpoints}
    assert set(OPERATIONS[operation].formats) <= spoken


def test_a_vendor_that_speaks_the_callers_own_language_is_spoken_to_in_it() -> None:
    for provider, (operation, facts) in itertools.product(PROVIDERS.values(), OPERATIONS.items()):
        wires = facts.formats
        own = [endpoint for endpoint in provider.endpoints if endpoint.wire == wires[0]]
        model = own[0].models[0].replace("*", "x") if own and own[0].models else "m"
        found = provider.find_endpoint(wires, model)
        assert not own or found is own[0], (provider.slug, operation)


def test_facts_of_an_operation_agree() -> None:
    """A new operation with only half of its facts would be reserved or translated wrongly."""
    known: dict[str, set[str]] = {
        "output_limit": {name for name, facts in OPERATIONS.items() if facts.output_limit},
        "conversation": {name for name, facts in OPERATIONS.items() if facts.conversation},
        "prompt": {name for name, facts in OPERATIONS.items() if facts.prompt},
        "windowed": {name for name, facts in OPERATIONS.items() if facts.windowed},
        "requires_usage": {name for name, facts in OPERATIONS.items() if facts.requires_usage},
    }
    assert known["conversation"] == set(CLIENT_FORMATS)
    assert known["requires_usage"] < known["conversation"] < known["output_limit"] < known["windowed"]
    assert known["output_limit"] < known["prompt"]
    for name, facts in OPERATIONS.items():
        assert facts.output_limit in {"", *OUTPUT_LIMITS}, name
        assert not (facts.media and (facts.counts_only or facts.output_limit)), name
        assert (facts.known_unit == "image") is (facts.media == "image"), name
        assert facts.media == "image" or not facts.edits, name
