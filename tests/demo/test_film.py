"""Films play, move, and follow from what their slate says."""

import struct

import attrs
import pytest

from gateway.demo.film import RATE, Reel, set_scene, shoot
from gateway.demo.film_asks import FilmAsk
from gateway.demo.flight import Flock
from gateway.demo.motion import Shift, shift_square
from gateway.demo.panorama import unroll
from gateway.demo.planes import to_planes
from gateway.demo.slate import Slate, open_slate
from tests.demo import pixels, reels

SMALL = (640, 360)


def slate(prompt: str, size: tuple[int, int] = SMALL, seconds: int = 4) -> Slate:
    return open_slate(FilmAsk(prompt=prompt, model="demo-video", size=size, seconds=seconds), 1)


def make(task: Slate) -> Reel:
    work = shoot(task)
    while True:
        try:
            next(work)
        except StopIteration as end:
            reel: Reel = end.value
            return reel


@pytest.fixture(scope="module")
def lake() -> tuple[Reel, reels.Film]:
    reel = make(slate("a lake at dawn"))
    return reel, reels.watch(reel.video)


def test_a_film_plays_as_long_and_as_large_as_asked(lake: tuple[Reel, reels.Film]) -> None:
    _, film = lake
    assert (film.width, film.height, film.seconds) == (*SMALL, 4.0)
    assert film.times == pytest.approx([at / RATE for at in range(4 * RATE)])
    assert (film.profile, film.full_range) == ("Constrained Baseline", False)
    assert {(len(picture[0]), len(picture[0][0])) for picture in film.pictures} == {(360, 640)}


def test_every_picture_differs_from_the_one_before_it_in_many_places(lake: tuple[Reel, reels.Film]) -> None:
    _, film = lake
    for earlier, later in zip(film.pictures, film.pictures[1:], strict=False):
        assert sum(one != other for one, other in zip(earlier[0], later[0], strict=True)) > 40


def test_it_streams_and_is_small(lake: tuple[Reel, reels.Film]) -> None:
    reel, _ = lake
    assert [kind for kind, _ in reels.boxes(reel.video)] == [b"ftyp", b"moov", b"mdat"]
    assert dict(reels.boxes(reel.video))[b"ftyp"][:4] == b"mp42"
    assert len(reel.video) < 600_000


@pytest.mark.parametrize("box", [b"mvhd", b"mdhd"])
def test_its_index_says_how_long_it_is(lake: tuple[Reel, reels.Film], box: bytes) -> None:
    index = dict(reels.boxes(lake[0].video))[b"moov"]
    ticks, length = struct.unpack_from(">2I", index, index.index(box) + 16)
    assert length == 4 * ticks


def test_its_thumbnail_is_its_first_picture_half_as_large(lake: tuple[Reel, reels.Film]) -> None:
    reel, film = lake
    picture = pixels.read(reel.thumbnail)
    assert (picture.width, picture.height) == (320, 180)
    assert picture.texts[b"Description"] == b"a lake at dawn"
    for row, shown in zip(picture.rows, film.pictures[0][0][::2], strict=True):
        luma = (16 + (0.2126 * red + 0.7152 * green + 0.0722 * blue) * 219 / 255 for red, green, blue in _thirds(row))
        assert all(abs(one - other) < 4 for one, other in zip(luma, shown[::2], strict=True))


def test_the_same_task_is_the_same_film_and_another_prompt_another(lake: tuple[Reel, reels.Film]) -> None:
    reel, _ = lake
    assert make(slate("a lake at dawn")) == reel
    one, other = (set_scene(slate(prompt)) for prompt in ("a lake at dawn", "a lake at dawn, please"))
    pairs = zip(unroll(one, 24, 16).rows, unroll(other, 24, 16).rows, strict=True)
    assert sum(row != another for row, another in pairs) > 128


@pytest.mark.parametrize(("columns", "squares"), [(16, 40), (20, 12)])
@pytest.mark.parametrize("kind", ["hills", "mountains", "forest", "sea", "lake", "desert", "city"])
def test_every_landscape_goes_round_and_has_no_seams_between_its_bands(kind: str, columns: int, squares: int) -> None:
    """A row in which one band ends is of one colour, whatever moves above and below it."""
    panorama = unroll(set_scene(slate(kind)), columns, squares)
    assert {len(channel) for row in panorama.rows for channel in row} == {16 * columns}
    assert (len(panorama.rows), panorama.ends[-1]) == (16 * squares, squares)
    for row in panorama.rows:
        assert all(channel[:16] == channel[-16:] for channel in row)
    for end in panorama.ends:
        assert [len(set(channel)) for channel in panorama.rows[16 * end - 1]] == [1, 1, 1]


def test_a_reference_pictures_colour_shows() -> None:
    def redness(task: Slate) -> int:
        rows = unroll(set_scene(task), 8, 8).rows
        return sum(sum(red) - sum(blue) for red, _, blue in rows)

    plain = slate("a sea by day")
    assert (
        redness(attrs.evolve(plain, tint=(240, 20, 20)))
        > redness(plain)
        > redness(attrs.evolve(plain, tint=(20, 20, 240)))
    )


@pytest.mark.parametrize(("hour", "sign"), [("day", -1), ("night", 1)])
def test_something_flies(hour: str, sign: int) -> None:
    """Birds are darker than the sky by day, falling stars are brighter than it by night."""
    scene = set_scene(slate(f"hills by {hour}"))
    panorama = unroll(scene, 24, 16)
    seen = to_planes(panorama.rows)
    flock = Flock(scene, seen, panorama.ends[0])
    painted = [flock.paint(at / 8, Shift(at)) for at in range(1, 17)]
    assert len({frozenset(squares.items()) for squares in painted if squares}) > 3
    for at, squares in enumerate(painted, 1):
        for (row, column), square in squares.items():
            clean = shift_square(seen, row, column, Shift(at))
            assert row < panorama.ends[0]
            assert len(square) == len(clean)
            assert all(sign * (new - old) >= 0 for new, old in zip(square[:256], clean[:256], strict=True))


def test_nothing_flies_where_there_are_no_birds() -> None:
    scene = attrs.evolve(set_scene(slate("hills by day")), birds=0)
    panorama = unroll(scene, 8, 8)
    flock = Flock(scene, to_planes(panorama.rows), panorama.ends[0])
    assert [flock.paint(at / 4, Shift(0)) for at in range(40)] == [{}] * 40


def _thirds(row: bytes) -> list[tuple[int, int, int]]:
    return list(zip(row[0::3], row[1::3], row[2::3], strict=True))
