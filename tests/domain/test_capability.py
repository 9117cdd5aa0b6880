"""What a model can be asked for: a picture that cannot be had is known before, with everything that can."""

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.capability import (
    UNKNOWN_CAPABILITY,
    Capability,
    Problem,
    build_union,
    find_capability,
    find_shared_problem,
)
from gateway.domain.image import ImageRequest
from tests.support.table_rows import table_rows

SIZES = ("1024x1024", "512x512")
FLAGS = st.none() | st.booleans()
MOST = st.none() | st.integers(1, 4)
NAMED = st.sampled_from(["64x64", "512x512", "1024x1024", "1536x1024"])


def some(kind: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(kind, max_size=3, unique=True).map(tuple)


CAPABILITIES = st.builds(
    Capability,
    name=st.sampled_from(["m", "m*", "*"]),
    sizes=some(NAMED),
    max_n=MOST,
    response_formats=some(st.sampled_from(["url", "b64_json"])),
    edits=FLAGS,
    masks=FLAGS,
    max_sources=MOST,
    streams=FLAGS,
    seconds=some(st.integers(1, 60)),
)
ASKS = st.builds(
    ImageRequest,
    prompt=st.just("a cat"),
    count=st.integers(1, 5),
    size=st.none() | NAMED,
    sources=st.integers(0, 5),
    masked=st.booleans(),
)


def find_problem(able: Capability, *, edit: bool = False, fan_out: bool = False, **asked: Any) -> Problem | None:
    return able.find_problem(ImageRequest("a cat", **asked), edit=edit, fan_out=fan_out)


# What cannot be done


@table_rows(
    ("able", "asked", "problem"),
    [
        ({"edits": False}, {"edit": True, "sources": 1}, ("model", "it does not edit images")),
        ({"masks": False}, {"edit": True, "masked": True}, ("mask", "it takes no mask")),
        ({"max_sources": 1}, {"edit": True, "sources": 2}, ("image", "it takes at most 1 image")),
        ({"max_sources": 3}, {"edit": True, "sources": 4}, ("image", "it takes at most 3 images")),
        ({"sizes": SIZES}, {"size": "64x64"}, ("size", "'size' must be one of 1024x1024, 512x512")),
        ({"sizes": ()}, {"size": "64x64"}, ("size", "'size' must be one of auto")),
        ({"max_n": 4}, {"count": 5}, ("n", "'n' must be 1 to 4")),
        ({"max_n": 1}, {"count": 2}, ("n", "'n' must be 1")),
    ],
)
def test_what_a_model_cannot_do_is_named_with_what_it_can(
    able: dict[str, Any], asked: dict[str, Any], problem: Problem
) -> None:
    assert find_problem(Capability("m", **able), **asked) == problem


@table_rows(
    ("able", "asked"),
    [
        ({"edits": False}, {}),
        ({"edits": True, "masks": True}, {"edit": True, "sources": 16, "masked": True}),
        ({"masks": False}, {"edit": True, "sources": 1}),
        ({"max_sources": 3}, {"edit": True, "sources": 3}),
        ({"sizes": SIZES}, {"size": "512x512"}),
        ({"sizes": SIZES}, {"size": None}),
        ({"sizes": ()}, {"size": None}),
        ({"max_n": 4}, {"count": 4}),
        ({"response_formats": ()}, {"form": "url"}),
        ({"response_formats": ("url",)}, {"form": "b64_json"}),
    ],
)
def test_what_it_can_do_is_no_problem(able: dict[str, Any], asked: dict[str, Any]) -> None:
    assert find_problem(Capability("m", **able), **asked) is None


def test_of_several_problems_the_first_is_told_in_the_order_of_what_is_asked() -> None:
    able = Capability("m", edits=False, masks=False, max_sources=1, sizes=SIZES, max_n=1)
    reported = []
    for more in ({}, {"edits": True}, {"masks": True}, {"max_sources": None}, {"sizes": None}, {"max_n": 2}):
        able = attrs.evolve(able, **more)
        reported.append(find_problem(able, edit=True, masked=True, sources=2, size="64x64", count=2))
    assert [problem and problem[0] for problem in reported] == ["model", "mask", "image", "size", "n", None]


@given(ASKS, st.booleans())
def test_of_whom_nobody_knows_anything_everything_can_be_asked(image_request: ImageRequest, edit: bool) -> None:
    assert UNKNOWN_CAPABILITY.find_problem(image_request, edit=edit, fan_out=False) is None


@given(CAPABILITIES, ASKS, st.booleans())
def test_where_a_channel_fans_out_n_is_no_limit_and_every_other_one_is(
    able: Capability, image_request: ImageRequest, edit: bool
) -> None:
    alone = able.find_problem(image_request, edit=edit, fan_out=False)
    assert able.find_problem(image_request, edit=edit, fan_out=True) == (None if alone and alone[0] == "n" else alone)


# One entry over another


def test_an_entry_is_laid_over_another_field_by_field() -> None:
    known = Capability("gpt-*", sizes=SIZES, max_n=1, edits=True, max_sources=16, streams=True)
    answer = Capability("*", max_n=4, edits=False, masks=False)
    assert answer.fill_from(known) == Capability(
        "*", sizes=SIZES, max_n=4, edits=False, masks=False, max_sources=16, streams=True
    )
    assert answer.fill_from(None) is answer


@given(CAPABILITIES, CAPABILITIES)
def test_over_another_an_entry_keeps_all_it_says_and_adds_what_only_the_other_does(
    upper: Capability, lower: Capability
) -> None:
    laid = upper.fill_from(lower)
    for field in attrs.fields(Capability):
        above, below = getattr(upper, field.name), getattr(lower, field.name)
        assert getattr(laid, field.name) == (below if above is None else above)
    assert laid.fill_from(lower) == laid
    assert hash(laid) == hash(laid.fill_from(None))


def test_an_empty_list_is_something_said() -> None:
    sized = Capability("m", sizes=(), response_formats=())
    laid = sized.fill_from(Capability("m", sizes=SIZES, response_formats=("url",)))
    assert (laid.sizes, laid.response_formats) == ((), ())


# Which entry


@table_rows(
    ("entries", "names", "found"),
    [
        (["*", "gpt-*", "gpt-image-1"], ["gpt-image-1"], "gpt-image-1"),
        (["gpt-image-1", "gpt-image-1*", "*"], ["gpt-image-1"], "gpt-image-1"),
        (["gpt-*", "gpt-image-*", "*"], ["gpt-image-1"], "gpt-image-*"),
        (["gpt-image-*", "gpt-*"], ["gpt-4"], "gpt-*"),
        (["gpt-*"], ["GPT-4"], None),
        (["gpt-*"], ["my-gpt-4"], None),
        (["owner/name:*"], ["owner/name:1f2e"], "owner/name:*"),
        (["a?", "a*"], ["ab"], "a?"),
        ([], ["m"], None),
        (["*"], ["ours", "theirs"], "*"),
        (["theirs", "*"], ["ours", "theirs"], "theirs"),
        (["*", "theirs", "ours"], ["ours", "theirs"], "ours"),
        (["t*", "o*"], ["ours", "theirs"], "o*"),
        (["the*", "o*"], ["ours", "theirs"], "the*"),
    ],
)
def test_a_model_has_the_entry_of_its_own_name_else_of_the_longest_glob(
    entries: list[str], names: list[str], found: str | None
) -> None:
    entry = find_capability([Capability(name) for name in entries], *names)
    assert (entry and entry.name) == found


def test_among_equals_the_first_entry_counts() -> None:
    first, second = Capability("m", max_n=1), Capability("m", max_n=2)
    assert find_capability([first, second], "m") is first
    assert find_capability([Capability("a*", max_n=1), Capability("?b", max_n=2)], "ab") == Capability("a*", max_n=1)


# Several who serve the same model


def share(*able: Capability, edit: bool = False, **asked: Any) -> Problem | None:
    image_request = ImageRequest("a cat", **asked)
    found = [(one, one.find_problem(image_request, edit=edit, fan_out=False)) for one in able]
    return find_shared_problem(
        [(one, problem) for one, problem in found if problem],
        lambda one: one.find_problem(image_request, edit=edit, fan_out=False),
    )


def test_of_several_all_that_any_of_them_allows_is_listed_once() -> None:
    sizes = Capability("a", sizes=SIZES), Capability("b", sizes=("512x512", "64x64")), Capability("c", sizes=())
    assert share(*sizes, size="1x1") == ("size", "'size' must be one of 1024x1024, 512x512, 64x64")
    assert share(Capability("a", max_n=1), Capability("b", max_n=4), count=5) == ("n", "'n' must be 1 to 4")
    most = Capability("a", max_sources=1), Capability("b", max_sources=3)
    assert share(*most, edit=True, sources=4) == ("image", "it takes at most 3 images")


def test_what_is_told_is_the_problem_of_those_who_come_nearest() -> None:
    mute, small = Capability("a", edits=False), Capability("b", edits=True, sizes=SIZES)
    asked: dict[str, Any] = {"edit": True, "sources": 1, "size": "64x64"}
    expected = ("size", "'size' must be one of 1024x1024, 512x512")
    assert share(mute, small, **asked) == share(small, mute, **asked) == expected
    assert share(mute, attrs.evolve(small, max_n=9), Capability("c", max_n=2), count=3, **asked) == (
        "n",
        "'n' must be 1 to 2",
    )


def test_where_nobody_has_a_problem_none_is_shared() -> None:
    assert (
        find_shared_problem([], lambda one: one.find_problem(ImageRequest("a cat"), edit=False, fan_out=False)) is None
    )


@given(st.lists(CAPABILITIES, min_size=1, max_size=4), ASKS, st.booleans())
def test_a_shared_problem_is_one_of_them_and_is_gone_for_one_of_them_where_it_is_heeded(
    able: list[Capability], image_request: ImageRequest, edit: bool
) -> None:
    found = [(one, one.find_problem(image_request, edit=edit, fan_out=False)) for one in able]
    unable = [(one, problem) for one, problem in found if problem]
    shared = find_shared_problem(unable, lambda one: one.find_problem(image_request, edit=edit, fan_out=False))
    assert (shared is None) == (not unable)
    if shared is None:
        return
    field, _ = shared
    assert field in {problem[0] for _, problem in unable}
    changes: dict[str, dict[str, Any]] = {
        "mask": {"masked": False},
        "image": {"sources": 0},
        "size": {"size": None},
        "n": {"count": 1},
    }
    heeded = [
        one.find_problem(
            attrs.evolve(image_request, **changes.get(field, {})), edit=edit and field != "model", fan_out=False
        )
        for one, _ in unable
    ]
    assert any(problem is None or problem[0] != field for problem in heeded)


@given(st.lists(CAPABILITIES, min_size=1, max_size=4), ASKS, st.booleans())
def test_all_together_can_do_what_any_of_them_can(
    able: list[Capability], image_request: ImageRequest, edit: bool
) -> None:
    together = build_union(able)
    if any(one.find_problem(image_request, edit=edit, fan_out=False) is None for one in able):
        assert together.find_problem(image_request, edit=edit, fan_out=False) is None


@given(CAPABILITIES)
def test_one_alone_is_what_it_was(able: Capability) -> None:
    assert build_union([able]) == build_union([able, able]) == able
