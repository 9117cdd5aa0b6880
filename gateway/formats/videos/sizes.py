"""Video sizes for vendors that take an aspect ratio and a resolution: each size maps to a pair of these."""

from collections.abc import Mapping

Shapes = Mapping[str, tuple[int, int]]
VideoSizes = Mapping[str, tuple[str, str]]
"""The aspect ratio and the resolution of each size."""


def list_video_sizes(tiers: Mapping[str, int], ratios: Shapes) -> VideoSizes:
    """List the sizes of all aspect ratios in all resolutions. ``tiers`` has the pixels of the shorter side.

    The longer side is rounded to an even number, because video codecs require one.
    """
    return {
        f"{_compute_side(lines, width, height)}x{_compute_side(lines, height, width)}": (ratio, tier)
        for tier, lines in tiers.items()
        for ratio, (width, height) in ratios.items()
    }


def _compute_side(lines: int, numerator: int, denominator: int) -> int:
    return lines if numerator <= denominator else round(lines * numerator / denominator / 2) * 2
