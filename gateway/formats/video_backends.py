"""Which filmmaker speaks which of the providers' video languages."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.formats.gemini.videos import GeminiFilmmaker
from gateway.formats.openai.videos import OpenAiFilmmaker
from gateway.formats.vendors.dashscope_videos import DashScopeFilmmaker
from gateway.formats.vendors.kling_videos import KlingFilmmaker
from gateway.formats.vendors.minimax_videos import MiniMaxFilmmaker
from gateway.formats.vendors.runway_videos import RunwayFilmmaker
from gateway.formats.vendors.volcengine_videos import VolcengineFilmmaker
from gateway.formats.video_backend import Filmmaker

FILMMAKERS: Mapping[str, Filmmaker] = MappingProxyType(
    {
        "openai_videos": OpenAiFilmmaker(),
        "gemini_videos": GeminiFilmmaker(),
        "kling_videos": KlingFilmmaker(),
        "minimax_videos": MiniMaxFilmmaker(),
        "runway_videos": RunwayFilmmaker(),
        "dashscope_videos": DashScopeFilmmaker(),
        "volcengine_videos": VolcengineFilmmaker(),
    },
)
"""By the name of the wire."""
