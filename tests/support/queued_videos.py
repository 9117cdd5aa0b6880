"""Vendors whose videos wait in a queue: Luma and fal. As ``video_vendors.py``, by the pages that their modules name."""

import uuid
from typing import Any

from aiohttp import web

from tests.support.providers import Json, decode, expect, expect_list, expect_object, expect_text
from tests.support.video_vendors import BROKEN, VendorTask, VideoVendor, choose, measure, read_body, read_image


class LumaVideos(VideoVendor):
    """Ray 3.2. Every answer of a generation that is done has a new address."""

    slug = "luma"
    root = "/v1"
    ratios = ("9:16", "3:4", "1:1", "4:3", "16:9", "21:9")

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/generations", self._begin)
        router.add_get("/v1/generations/{id}", self._tell)

    def deny(self) -> web.Response:
        return web.json_response({"detail": "Invalid API key"}, status=401)

    def refuse(self, message: str, status: int) -> web.Response:
        return web.json_response({"detail": message}, status=status)

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, "model", "type", "prompt", "aspect_ratio", "video")
        model = choose(body.get("model"), "model", "ray-3.2")
        choose(body.get("type"), "type", "video")
        known = {"duration", "resolution", "loop", "keyframes", "keyframe_indexes"}
        options = expect_object(body.get("video"), "video", known)
        length = choose(options.get("duration"), "duration", "5s", "10s")
        tier = choose(options.get("resolution"), "resolution", "360p", "540p", "720p", "1080p")
        image = self._read_image(options) if "keyframes" in options else None
        expect(image is None or "aspect_ratio" not in body, "aspect_ratio beside a first frame")
        ratio = "" if image is not None else choose(body.get("aspect_ratio"), "aspect_ratio", *self.ratios)
        size = measure_lines(tier, ratio) if ratio else None
        prompt = expect_text(body.get("prompt"), "prompt")
        task_id = str(uuid.UUID(int=len(self.tasks), version=4))
        return self._answer(self.begin(VendorTask(task_id, prompt, model, int(length[:-1]), size, image)), "queued")

    def _read_image(self, options: Json) -> bytes | str:
        (frame,) = expect_list(options["keyframes"], "keyframes")
        expect(options.get("keyframe_indexes") == [0], "keyframe_indexes")
        fields = expect_object(frame, "keyframes[0]", {"url", "data", "media_type"})
        if "url" in fields:
            return expect_text(fields["url"], "url")
        choose(fields.get("media_type"), "media_type", "image/png", "image/jpeg")
        return decode(expect_text(fields.get("data"), "data"), "data")

    def _answer(self, task: VendorTask, state: str, **more: Any) -> web.Response:
        fields = {"id": task.id, "type": "video", "model": task.model, "created_at": "2026-07-10T12:00:00Z"}
        return web.json_response({**fields, "state": state, **more})

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.match_info["id"])
        progress = self.walk(task)
        if progress != "done":
            return self._answer(task, {"waiting": "queued", "working": "processing"}[progress])
        if task.fate in BROKEN:
            code = "content_moderated" if task.fate == "moderated" else "generation_failed"
            return self._answer(task, "failed", failure_code=code, failure_reason=self.gossip)
        return self._answer(task, "completed", output=[{"type": "video", "url": self.files.put(task)}])


class FalQueueVideos(VideoVendor):
    """Veo 3.1 at fal. The answer of the model, which names the file, is at a path of its own."""

    slug = "fal_queue"
    app = "/fal-ai/veo3.1"

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post(self.app, self._begin)
        router.add_post(f"{self.app}/image-to-video", self._begin)
        router.add_get(f"{self.app}/requests/{{id}}/status", self._tell)
        router.add_get(f"{self.app}/requests/{{id}}", self._give)
        router.add_put(f"{self.app}/requests/{{id}}/cancel", self._cancel)

    def is_signed(self, request: web.Request) -> bool:
        return request.headers.get(self.header) == f"Key {self.key}"

    def deny(self) -> web.Response:
        return web.json_response({"detail": "Authentication is required"}, status=401)

    def refuse(self, message: str, status: int) -> web.Response:
        issue = {"loc": ["body"], "msg": message, "type": "value_error"}
        return web.json_response({"detail": [issue] if status == 400 else message}, status=status)

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        by_image = request.path.endswith("/image-to-video")
        known = ("prompt", "aspect_ratio", "duration", "resolution", "negative_prompt", "seed")
        body = await read_body(request, *known, *(("image_url",) if by_image else ()))
        length = choose(body.get("duration"), "duration", "4s", "6s", "8s")
        tier = choose(body.get("resolution"), "resolution", "720p", "1080p", "4k")
        ratio = choose(body.get("aspect_ratio"), "aspect_ratio", "16:9", "9:16")
        image = read_image(body.get("image_url"), "image_url") if by_image else None
        prompt = expect_text(body.get("prompt"), "prompt")
        task_id = str(uuid.UUID(int=len(self.tasks), version=4))
        model = self.app.removeprefix("/")
        self.begin(VendorTask(task_id, prompt, model, int(length[:-1]), measure(tier, ratio), image))
        place = f"{self.origin}{self.app}/requests/{task_id}"
        fields = {"response_url": place, "status_url": f"{place}/status", "cancel_url": f"{place}/cancel"}
        return web.json_response({"status": "IN_QUEUE", "request_id": task_id, "queue_position": 0, **fields})

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.match_info["id"])
        progress = self.walk(task)
        fields: Json = {"request_id": task.id}
        if progress != "done":
            state = "IN_QUEUE" if progress == "waiting" else "IN_PROGRESS"
            return web.json_response({"status": state, **fields}, status=202)
        if task.fate in BROKEN:
            kind = "content_policy_violation" if task.fate == "moderated" else "runner_server_error"
            fields |= {"error": self.gossip, "error_type": kind}
        return web.json_response({"status": "COMPLETED", "metrics": {"inference_time": 60.1}, **fields})

    async def _give(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.match_info["id"])
        expect(self.find_progress(task) == "done", "Request is still in progress")
        return web.json_response({"video": {"url": self.files.put(task), "content_type": "video/mp4"}})

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.match_info["id"])
        if self.find_progress(task) != "waiting":
            return web.json_response({"status": "ALREADY_COMPLETED"}, status=400)
        self.drop(task)
        return web.json_response({"status": "CANCELLATION_REQUESTED"}, status=202)


def measure_lines(tier: str, ratio: str) -> str:
    """As ``measure``, of resolutions that only Luma has."""
    width, height = map(int, ratio.split(":"))
    lines = int(tier.removesuffix("p"))
    return "x".join(str(round(lines * side / min(width, height) / 2) * 2) for side in (width, height))
