"""Sizes of videos whose vendor takes a shape and a resolution: each size stands for both."""

from collections.abc import Mapping

Shapes = Mapping[str, tuple[int, int]]
VideoSizes = Mapping[str, tuple[str, str]]
"""The shape and the resolution of each size."""


def list_video_sizes(tiers: Mapping[str, int], ratios: Shapes) -> VideoSizes:
    """List every shape in every resolution; ``tiers`` has the pixels of the shorter side.

    Sides are even numbers, as video codecs require.
    """
    return {
        f"{_side(lines, width, height)}x{_side(lines, height, width)}": (ratio, tier)
        for tier, lines in tiers.items()
        for ratio, (width, height) in ratios.items()
    }


def _side(lines: int, this: int, other: int) -> int:
    return lines if this <= other else round(lines * this / other / 2) * 2
