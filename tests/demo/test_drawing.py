"""Pictures follow from their prompt, number and size alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.demo.drawing import Raster, average, draw, pixelate
from gateway.demo.scenery import Seed, imagine, mix, ridge

KINDS = ("hills", "mountains", "forest", "sea", "lake", "desert", "city")
HOURS = ("dawn", "day", "sunset", "dusk", "night", "storm")


def light(raster: Raster) -> float:
    return sum(map(sum, raster.rows)) / (3 * raster.width * raster.height)


def test_the_same_prompt_is_the_same_picture() -> None:
    assert draw("a cat on a hill", 0, 64, 48) == draw("a cat on a hill", 0, 64, 48)


def test_another_prompt_or_number_is_another_picture() -> None:
    asked = [("a cat", 0), ("a dog", 0), ("a cat", 1), ("a cat", 2), ("a Cat", 0)]
    assert len({draw(prompt, index, 32, 32).rows for prompt, index in asked}) == len(asked)


@pytest.mark.parametrize("hour", HOURS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_landscape_at_every_hour_has_the_size_asked(kind: str, hour: str) -> None:
    prompt = f"{kind} at {hour}"
    scene = imagine(prompt)
    assert (scene.kind, scene.hour) == (kind, hour)
    for width, height in ((48, 32), (32, 48)):
        raster = draw(prompt, 0, width, height)
        assert (raster.width, raster.height) == (width, height)
        assert [len(row) for row in raster.rows] == [3 * width] * height
    assert len({row[:3] for row in draw(prompt, 0, 128, 128).rows}) > 16


@settings(max_examples=40)
@given(st.text(max_size=30), st.integers(0, 9), st.integers(1, 40), st.integers(1, 40))
def test_any_words_can_be_drawn_at_any_size(prompt: str, index: int, width: int, height: int) -> None:
    raster = draw(prompt, index, width, height)
    assert [len(row) for row in raster.rows] == [3 * width] * height


def test_night_is_darker_than_day() -> None:
    for kind in KINDS:
        assert light(draw(f"{kind} by night", 0, 64, 64)) < 0.6 * light(draw(f"{kind} by day", 0, 64, 64))


def test_a_colours_word_shows() -> None:
    def redness(prompt: str) -> float:
        rows = draw(prompt, 0, 32, 32).rows
        return sum(sum(row[0::3]) - sum(row[2::3]) for row in rows)

    assert redness("a red sea by day") > redness("a blue sea by day")


def test_words_hold_for_every_picture_of_a_prompt() -> None:
    assert {(scene.kind, scene.hour) for scene in (imagine("the sea at dawn", index) for index in range(10))} == {
        ("sea", "dawn")
    }
    assert len({imagine("something", index).kind for index in range(30)}) > 3


def test_a_picture_in_squares_has_one_colour_in_each() -> None:
    raster = draw("forest", 0, 50, 30)
    coarse = pixelate(raster, 16)
    assert (coarse.width, coarse.height, len(coarse.rows)) == (50, 30, 30)
    for top in (0, 16):
        for left in (0, 16, 32, 48):
            square = {
                coarse.rows[y][3 * x : 3 * x + 3]
                for y in range(top, min(top + 16, 30))
                for x in range(left, min(left + 16, 50))
            }
            assert square == {raster.rows[top][3 * left : 3 * left + 3]}


def test_more_squares_are_nearer_to_the_picture() -> None:
    raster = draw("mountains at dawn", 0, 128, 128)

    def distance(block: int) -> int:
        coarse = pixelate(raster, block)
        pairs = zip(raster.rows, coarse.rows, strict=True)
        return sum(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))

    assert distance(32) > distance(8) > distance(2) > distance(1) == 0


@given(st.binary(max_size=40), st.data())
def test_half_of_each_is_the_average_of_every_byte(one: bytes, data: st.DataObject) -> None:
    other = data.draw(st.binary(min_size=len(one), max_size=len(one)))
    assert average(one, other) == bytes((a + b) // 2 for a, b in zip(one, other, strict=True))


def test_seeds_are_spread_and_repeat() -> None:
    seed, again, other = Seed("a", 1), Seed("a", 1), Seed("a1")
    numbers = [seed.unit() for _ in range(1_000)]
    assert numbers == [again.unit() for _ in range(1_000)]
    assert numbers[0] != other.unit()
    assert all(0 <= number < 1 for number in numbers)
    assert 0.45 < sum(numbers) / 1_000 < 0.55
    assert {seed.pick("abc") for _ in range(50)} == set("abc")


@pytest.mark.parametrize("sharp", [False, True])
def test_a_ridge_stays_in_its_bounds_and_is_no_line(sharp: bool) -> None:
    line = ridge(Seed("ridge"), 400, 1.0, rough=0.5, sharp=sharp)
    assert len(line) == 400
    assert -1.5 < min(line) < 0 < max(line) < 1.5


def test_colours_mix() -> None:
    assert mix((0, 100, 200), (100, 0, 200), 0.25) == (25, 75, 200)
