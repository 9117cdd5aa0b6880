"""Videos of Veo on Vertex AI: long-running operations whose last answer contains the video.

Source: docs.cloud.google.com/vertex-ai/generative-ai/docs/model-reference/veo-video-generation. A task begins with
``:predictLongRunning`` and is polled with ``:fetchPredictOperation``, whose body has the operation's full name. The
video is base64 in ``response.videos``. ``storageUri`` is rejected: the video would go to a bucket of Cloud Storage,
which needs a token for another server. Everything else is as in ``formats/videos/gemini.py``.

Sound is always requested: Veo 3 requires ``generateAudio``, and the shipped prices include sound.
"""

import re
from base64 import b64decode
from collections.abc import Mapping
from urllib.parse import quote

from gateway.errors import ProviderBadResponse
from gateway.formats.errors.openai import Secrets
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.videos.backend import (
    ProviderTask,
    TaskStatus,
    Variant,
    VideoSpec,
    check_fixed_fields,
    parse_object,
)
from gateway.formats.videos.gemini import GeminiVideoBackend
from gateway.formats.wire.json_values import as_list, as_object
from gateway.formats.wire.request_body import Body

_PATH_PART = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"
_FIXED_FIELDS: Mapping[str, object] = {"storageUri": None, "generateAudio": True, "sampleCount": 1}


class VertexVideoBackend(GeminiVideoBackend):
    """Videos of Veo on Vertex AI. A task's id is the operation's full name with ``~`` for each ``/``."""

    __slots__ = ()

    inline_videos = True
    name_pattern = re.compile(
        rf"projects/{_PATH_PART}/locations/{_PATH_PART}/publishers/google/models/{_PATH_PART}/operations/{_PATH_PART}\Z",
        re.ASCII,
    )

    def submit(self, spec: VideoSpec) -> ProviderRequest:
        check_fixed_fields(spec.extra, _FIXED_FIELDS)
        return super().submit(spec)

    def build_parameters(self, spec: VideoSpec) -> Body:
        return {**super().build_parameters(spec), "generateAudio": True}

    def poll(self, task: ProviderTask) -> ProviderRequest:
        path = f"/publishers/google/models/{quote(task.model, safe='')}:fetchPredictOperation"
        return ProviderRequest({"operationName": task.id.replace("~", "/")}, path=path, repeatable=True)

    def find_content(self, task: ProviderTask, variant: Variant) -> ProviderRequest | None:
        """Return the request for the video: a poll, whose answer contains the video. None for another variant."""
        return self.poll(task) if variant == "video" else None

    def parse_response(self, response: Body, secrets: Secrets) -> TaskStatus:
        if _find_video(response):
            return TaskStatus("completed", progress=100)
        return self.parse_filtered(response, secrets)

    def read_video(self, raw: bytes) -> bytes:
        try:
            video = b64decode(_find_video(as_object(parse_object(raw).get("response"))), validate=True)
        except ValueError:
            raise ProviderBadResponse("The provider's video is not valid base64") from None
        if not video:
            raise ProviderBadResponse("The provider's answer has no video")
        return video


def _find_video(response: Body) -> str:
    videos = as_list(response.get("videos"))
    data = as_object(videos[0]).get("bytesBase64Encoded") if videos else None
    return data if isinstance(data, str) else ""
