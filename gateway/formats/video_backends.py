"""The video backend of each video API format."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.formats.gemini.vertex_videos import VertexVideoBackend
from gateway.formats.gemini.videos import GeminiVideoBackend
from gateway.formats.openai.videos import OpenAiVideoBackend
from gateway.formats.vendors.dashscope_videos import DashScopeVideoBackend
from gateway.formats.vendors.fal_videos import FalVideoBackend
from gateway.formats.vendors.kling_videos import KlingVideoBackend
from gateway.formats.vendors.luma_videos import LumaVideoBackend
from gateway.formats.vendors.minimax_videos import MiniMaxVideoBackend
from gateway.formats.vendors.runway_videos import RunwayVideoBackend
from gateway.formats.vendors.volcengine_videos import VolcengineVideoBackend
from gateway.formats.video_backend import VideoBackend

VIDEO_BACKENDS: Mapping[str, VideoBackend] = MappingProxyType(
    {
        "openai_videos": OpenAiVideoBackend(),
        "gemini_videos": GeminiVideoBackend(),
        "vertex_videos": VertexVideoBackend(),
        "kling_videos": KlingVideoBackend(),
        "minimax_videos": MiniMaxVideoBackend(),
        "runway_videos": RunwayVideoBackend(),
        "dashscope_videos": DashScopeVideoBackend(),
        "volcengine_videos": VolcengineVideoBackend(),
        "luma_videos": LumaVideoBackend(),
        "fal_videos": FalVideoBackend(),
    },
)
"""By the name of the wire."""
