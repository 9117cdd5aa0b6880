"""Video sizes for vendors that take an aspect ratio and a resolution: each size maps to a pair of these."""

from collections.abc import Mapping

RatioSides = Mapping[str, tuple[int, int]]
VideoSizes = Mapping[str, tuple[str, str]]
"""The aspect ratio and the resolution of each size."""


def list_video_sizes(tiers: Mapping[str, int], ratios: RatioSides) -> VideoSizes:
    """List the sizes of all aspect ratios in all resolutions. ``tiers`` has the pixels of the shorter side.

    The longer side is rounded to an even number, because video codecs require one.
    """
    return {
        f"{_compute_side(short_side, width, height)}x{_compute_side(short_side, height, width)}": (ratio, tier)
        for tier, short_side in tiers.items()
        for ratio, (width, height) in ratios.items()
    }


def _compute_side(short_side: int, ratio_side: int, other_ratio_side: int) -> int:
    return short_side if ratio_side <= other_ratio_side else round(short_side * ratio_side / other_ratio_side / 2) * 2
