"""Everything there is to know of a task is in its id, and nothing else is an id."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.demo.asks import VIDEO_MODELS
from gateway.demo.film import set_scene
from gateway.demo.film_asks import LENGTHS, SIZES, FilmAsk
from gateway.demo.slate import MAX_ID_CHARS, Slate, find_slate, open_slate

asks = st.builds(
    FilmAsk,
    prompt=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200),
    model=st.sampled_from(VIDEO_MODELS),
    size=st.sampled_from(SIZES),
    seconds=st.sampled_from(LENGTHS),
)
colours = st.none() | st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 255))


def slate(prompt: str, *, reference: bytes = b"", created_ms: int = 1) -> Slate:
    ask = FilmAsk(prompt=prompt, model="demo-video", size=SIZES[0], seconds=4)
    return open_slate(ask, created_ms, reference=reference)


@settings(max_examples=40)
@given(
    asks, st.integers(0, 2**48), st.binary(max_size=8), colours, st.lists(st.text(min_size=1, max_size=60), max_size=4)
)
def test_a_task_is_read_from_its_id_as_are_its_remixes(
    ask: FilmAsk, now_ms: int, reference: bytes, tint: tuple[int, int, int] | None, prompts: list[str]
) -> None:
    task = open_slate(ask, now_ms, reference=reference, tint=tint)
    for prompt in [None, *prompts]:
        task = task if prompt is None else task.remix(prompt, now_ms + 1)
        assert find_slate(task.id) == task
        assert re.fullmatch(rf"video_[A-Za-z0-9_-]{{1,{MAX_ID_CHARS - 6}}}", task.id)
        assert (task.model, task.size, task.seconds, task.tint) == (ask.model, ask.size, ask.seconds, tint)


@settings(max_examples=40)
@given(asks, st.data())
def test_an_id_that_is_changed_is_none(ask: FilmAsk, data: st.DataObject) -> None:
    told = open_slate(ask, 7).id
    at = data.draw(st.integers(0, len(told) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda char: char != told[at]))
    assert find_slate(told[:at] + other + told[at + 1 :]) is None
    assert find_slate(told[:at]) is None
    assert find_slate(told + "A") is None


@settings(max_examples=40)
@given(st.text(max_size=80))
def test_garbage_is_no_id(text: str) -> None:
    assert find_slate(text) is None
    assert find_slate(f"video_{text}") is None


def test_a_remix_knows_its_parent_even_of_the_longest_prompts() -> None:
    parent = slate("höchst " * 40)
    child = parent.remix("noch höher " * 40, 2)
    assert child.parent_id == parent.id
    assert parent.parent_id is None
    assert child.opening.startswith("noch höher")
    assert child.opening.endswith("…")


def test_two_tasks_of_the_same_moment_are_two_and_show_the_same() -> None:
    one, other = slate("a hill"), slate("a hill")
    assert one.id != other.id
    assert set_scene(one) == set_scene(other)
    assert one.remix("at night", 2).id != one.remix("at night", 2).id


def test_another_prompt_or_picture_is_another_scene() -> None:
    scenes = [slate("a hill"), slate("a hill!"), slate("a hill", reference=b"1"), slate("a hill", reference=b"2")]
    assert len({task.seed for task in scenes}) == 4


@pytest.mark.parametrize("prompt", [f"something {number}" for number in range(6)])
def test_a_remix_keeps_even_what_its_parents_prompt_left_open(prompt: str) -> None:
    parent, child = set_scene(slate(prompt)), set_scene(slate(prompt).remix("more of it", 2))
    assert (child.kind, child.hour) == (parent.kind, parent.hour)


def test_a_remix_keeps_what_its_prompt_does_not_change() -> None:
    parent = slate("mountains at dawn")
    night, snow = parent.remix("make it night", 2), parent.remix("more birds please", 2)
    first, dark, same = set_scene(parent), set_scene(night), set_scene(snow)
    assert (first.kind, first.hour) == ("mountains", "dawn")
    assert (dark.kind, dark.hour) == ("mountains", "night")
    assert (same.kind, same.hour) == ("mountains", "dawn")
    assert first.ground == dark.ground == same.ground
    assert first.words == dark.words
    assert same.light_x != first.light_x
    again = night.remix("and the sea", 3)
    assert (set_scene(again).kind, set_scene(again).hour) == ("sea", "night")
