"""Image sizes of Gemini models, at any provider: these take an aspect ratio and a resolution tier instead of a size.

Source: ai.google.dev/gemini-api/docs/image-generation, "Aspect ratios and image size", one table per model. Sides in
tiers 2K and 4K are two and four times those in 1K, in tier 512 half of them. 21:9 in tier 512 is omitted: the table is
wrong there.
"""

from collections.abc import Iterable, Mapping

from gateway.errors import InvalidRequest
from gateway.frozen import frozen

Ratios = Mapping[str, tuple[int, int]]

DEFAULT_TIER = "1K"
"""The tier that a model uses if the request names none."""


@frozen
class AspectRatio:
    """An aspect ratio and a resolution tier."""

    ratio: str
    tier: str = DEFAULT_TIER


_FIRST_RATIOS: Ratios = {
    "1:1": (1024, 1024),
    "2:3": (832, 1248),
    "3:2": (1248, 832),
    "3:4": (864, 1184),
    "4:3": (1184, 864),
    "4:5": (896, 1152),
    "5:4": (1152, 896),
    "9:16": (768, 1344),
    "16:9": (1344, 768),
    "21:9": (1536, 672),
}
_USUAL_RATIOS: Ratios = {
    "1:1": (1024, 1024),
    "2:3": (848, 1264),
    "3:2": (1264, 848),
    "3:4": (896, 1200),
    "4:3": (1200, 896),
    "4:5": (928, 1152),
    "5:4": (1152, 928),
    "9:16": (768, 1376),
    "16:9": (1376, 768),
    "21:9": (1584, 672),
}
_EXTREME_RATIOS: Ratios = {"1:4": (512, 2048), "4:1": (2048, 512), "1:8": (384, 3072), "8:1": (3072, 384)}
_TIER_FACTORS = {"1K": 2, "2K": 4, "4K": 8, "512": 1}
"""Side lengths as multiples of half of tier 1K, in the order used by error messages."""


def _list_sizes(ratios: Ratios, tiers: Iterable[str]) -> dict[str, AspectRatio]:
    return {
        f"{base_width * _TIER_FACTORS[tier] // 2}x{base_height * _TIER_FACTORS[tier] // 2}": AspectRatio(ratio, tier)
        for tier in tiers
        for ratio, (base_width, base_height) in ratios.items()
        if (ratio, tier) != ("21:9", "512")
    }


_ALL_TIERS = tuple(_TIER_FACTORS)
_RATIOS_BY_SIZE: Mapping[str, AspectRatio] = (
    _list_sizes(_FIRST_RATIOS, ("1K",))
    | _list_sizes(_USUAL_RATIOS, _ALL_TIERS)
    | _list_sizes(_EXTREME_RATIOS, _ALL_TIERS)
)
"""Sizes of all models in one table: each size stands for the same ratio and tier in all models."""

FIRST_GENERATION_SIZES = tuple(_list_sizes(_FIRST_RATIOS, ("1K",)))
"""Sizes of gemini-2.5-flash-image."""
SMALL_SIZES = tuple(_list_sizes(_USUAL_RATIOS, ("1K",)))
"""Sizes of gemini-3.1-flash-lite-image."""
USUAL_SIZES = tuple(_list_sizes(_USUAL_RATIOS, ("1K", "2K", "4K")))
"""Sizes of gemini-3-pro-image."""
WIDE_SIZES = (*USUAL_SIZES, *_list_sizes(_EXTREME_RATIOS, ("1K", "2K", "4K")))
"""Sizes of gemini-nano-banana-2.1."""
WIDEST_SIZES = (*WIDE_SIZES, *_list_sizes(_USUAL_RATIOS, ("512",)), *_list_sizes(_EXTREME_RATIOS, ("512",)))
"""Sizes of gemini-3.1-flash-image."""


def parse_shape(size: str, suggested_sizes: tuple[str, ...] | None) -> AspectRatio:
    """Return the aspect ratio and tier of ``size``.

    Raises ``InvalidRequest`` for a size in no table. The message names ``suggested_sizes``, or the usual sizes if None.
    """
    shape = _RATIOS_BY_SIZE.get(size)
    if shape is None:
        known_sizes = [size_name for size_name in suggested_sizes or USUAL_SIZES if size_name in _RATIOS_BY_SIZE]
        raise InvalidRequest(f"'size' must be one of {', '.join(known_sizes) or 'auto'}", param="size")
    return shape
