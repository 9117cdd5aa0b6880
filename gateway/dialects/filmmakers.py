"""Which filmmaker speaks which of the providers' video languages."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.dialects.dashscope_videos import DashScopeFilmmaker
from gateway.dialects.filming import Filmmaker
from gateway.dialects.gemini_videos import GeminiFilmmaker
from gateway.dialects.kling_videos import KlingFilmmaker
from gateway.dialects.minimax_videos import MiniMaxFilmmaker
from gateway.dialects.openai_videos import OpenAiFilmmaker
from gateway.dialects.runway_videos import RunwayFilmmaker
from gateway.dialects.volcengine_videos import VolcengineFilmmaker

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
