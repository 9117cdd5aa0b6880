"""Makes a film: a panorama of what its slate says, the camera that pans over it, and what flies through the picture."""

import math
from collections.abc import Generator, Sequence

import attrs
from attrs import field, frozen

from gateway.demo.flight import Flock
from gateway.demo.h264 import SQUARE, write_picture_set, write_sequence_set
from gateway.demo.motion import Shift, encode_moving
from gateway.demo.mp4 import Track, write_mp4
from gateway.demo.panorama import Panorama, unroll
from gateway.demo.planes import to_planes
from gateway.demo.png import interleave, write_png
from gateway.demo.scenery import Scene, Seed, imagine
from gateway.demo.slate import Slate
from gateway.demo.still import encode_still

RATE = 24
"""Pictures a second."""

_SLOWEST = 0.013  # of its width the sky moves in a second
_FASTER = 1.9
_WAVES_FASTER = 1.6
_SWELL = 0.045  # of its rows a band of water rises and falls
_SWELL_S = 3.2
_WATERY = {"sea": 0, "lake": 1}
_LOW = 0.32
_NOTE = 200


@frozen
class Reel:
    """A film as an MP4, and its first picture as a PNG half as large."""

    video: bytes = field(repr=False)
    thumbnail: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """How many bytes both have."""
        return len(self.video) + len(self.thumbnail)


@frozen
class Camera:
    """How the bands of a panorama move.

    Attributes:
        width: of the panorama, in pixels.
        ends: before which row of squares each band ends.
        speeds: of each, in pixels a second.
        swells: how far each rises and falls, in pixels.
    """

    width: int
    ends: Sequence[int]
    speeds: Sequence[float]
    swells: Sequence[float]

    def find_shifts(self, time_s: float) -> list[Shift]:
        """Where every row of squares is by then."""
        shifts: list[Shift] = []
        for at, (end, speed, swell) in enumerate(zip(self.ends, self.speeds, self.swells, strict=True)):
            down = round(swell * math.sin(2 * math.pi * time_s / _SWELL_S + 2.2 * at))
            shifts += [Shift(round(speed * time_s) % self.width, down)] * (end - len(shifts))
        return shifts


def shoot(slate: Slate) -> Generator[None, None, Reel]:
    """Make a film. Yields after every piece of the work, which takes a few hundredths of a second at most."""
    scene = set_scene(slate)
    width, height = slate.size
    columns, squares = -(-width // SQUARE), -(-height // SQUARE)
    panorama = unroll(scene, columns, squares)
    yield
    thumbnail = _write_thumbnail(panorama, slate)
    yield
    first, seen = yield from encode_still(to_planes(panorama.rows))
    camera = set_camera(slate, scene, panorama)
    flock = Flock(scene, seen, panorama.ends[0])
    pictures = [first]
    for number in range(1, slate.seconds * RATE):
        shifts = camera.find_shifts(number / RATE)
        pictures.append(encode_moving(number, columns, shifts, flock.paint(number / RATE, shifts[0])))
        yield
    sets = (write_sequence_set(width, height, RATE), write_picture_set())
    return Reel(write_mp4(Track(width, height, RATE, *sets, pictures)), thumbnail)


def set_scene(slate: Slate) -> Scene:
    """What is filmed: the same ground in every take of a seed, under the light that its words ask for."""
    name = slate.seed.hex()
    scene = imagine(slate.words, int.from_bytes(slate.seed, "big"))
    take = Seed("take", name, slate.take.hex())
    ground = Seed("ground", name).between(0.5, 0.57)
    low = scene.light_y > _LOW
    width, height = slate.size
    return attrs.evolve(
        scene,
        palette=scene.palette.tinted(slate.tint) if slate.tint else scene.palette,
        ground=ground,
        light_x=take.between(0.4, 0.72),
        light_y=take.between(0.24, 0.34) if low else scene.light_y,
        light_r=scene.light_r * min(width / height, 1.0),
        clouds=scene.clouds if scene.palette.dark else min(scene.clouds, 4) + 1 + int(take.unit() * 2),
        birds=0 if scene.palette.dark else 2 + int(take.unit() * 3),
        words=(name, 0),
    )


def set_camera(slate: Slate, scene: Scene, panorama: Panorama) -> Camera:
    """How a scene is filmed: every take at a speed of its own."""
    width = len(panorama.rows[0][0]) - SQUARE
    take = Seed("camera", slate.seed.hex(), slate.take.hex())
    calm = _WATERY.get(scene.kind)
    pace = take.between(0.85, 1.2) * take.pick((1, -1)) * _SLOWEST * width
    faster = _FASTER if calm is None else _WAVES_FASTER
    deeps = [0, *(SQUARE * (last - first) for first, last in zip(panorama.ends, panorama.ends[1:], strict=False))]
    return Camera(
        width=width,
        ends=panorama.ends,
        speeds=[pace * faster**at for at in range(len(deeps))],
        swells=[0.0 if calm is None or at <= calm else _SWELL * deep for at, deep in enumerate(deeps)],
    )


def _write_thumbnail(panorama: Panorama, slate: Slate) -> bytes:
    width, height = (side // 2 for side in slate.size)
    rows = [interleave(*(channel[: 2 * width : 2] for channel in row)) for row in panorama.rows[: 2 * height : 2]]
    return write_png(width, height, rows, note=slate.opening[:_NOTE])
