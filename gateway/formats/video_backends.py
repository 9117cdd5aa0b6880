"""The table of video backends, by video API format."""

from collections.abc import Mapping
from functools import partial

from gateway.deferred import Deferred, defer
from gateway.formats.video_backend import VideoBackend


def _make(wire: str) -> VideoBackend:
    backend: VideoBackend = _BACKENDS[wire]()
    return backend


_BACKENDS = defer(
    {
        "openai_videos": "formats.openai.videos:OpenAiVideoBackend",
        "gemini_videos": "formats.gemini.videos:GeminiVideoBackend",
        "vertex_videos": "formats.gemini.vertex_videos:VertexVideoBackend",
        "kling_videos": "formats.vendors.kling_videos:KlingVideoBackend",
        "minimax_videos": "formats.vendors.minimax_videos:MiniMaxVideoBackend",
        "runway_videos": "formats.vendors.runway_videos:RunwayVideoBackend",
        "dashscope_videos": "formats.vendors.dashscope_videos:DashScopeVideoBackend",
        "volcengine_videos": "formats.vendors.volcengine_videos:VolcengineVideoBackend",
        "luma_videos": "formats.vendors.luma_videos:LumaVideoBackend",
        "fal_videos": "formats.vendors.fal_videos:FalVideoBackend",
    }
)
VIDEO_BACKENDS: Mapping[str, VideoBackend] = Deferred({wire: partial(_make, wire) for wire in _BACKENDS})
"""Video backends by wire format; each backend is loaded on first use."""
