"""The table of video backends, by video API format."""

from collections.abc import Mapping
from functools import partial

from gateway.deferred import Deferred, defer
from gateway.formats.videos.backend import VideoBackend


def _make_backend(wire: str) -> VideoBackend:
    backend: VideoBackend = _BACKENDS[wire]()
    return backend


_BACKENDS = defer(
    {
        "openai_videos": "formats.videos.openai:OpenAiVideoBackend",
        "gemini_videos": "formats.videos.gemini:GeminiVideoBackend",
        "vertex_videos": "formats.videos.vertex:VertexVideoBackend",
        "kling_videos": "formats.videos.kling:KlingVideoBackend",
        "minimax_videos": "formats.videos.minimax:MiniMaxVideoBackend",
        "runway_videos": "formats.videos.runway:RunwayVideoBackend",
        "dashscope_videos": "formats.videos.dashscope:DashScopeVideoBackend",
        "volcengine_videos": "formats.videos.volcengine:VolcengineVideoBackend",
        "luma_videos": "formats.videos.luma:LumaVideoBackend",
        "fal_videos": "formats.videos.fal:FalVideoBackend",
    }
)
VIDEO_BACKENDS: Mapping[str, VideoBackend] = Deferred({wire: partial(_make_backend, wire) for wire in _BACKENDS})
"""Video backends by wire format; each backend is loaded on first use."""
