"""Replicate, with a model that looks at its input as closely as the real one: black-forest-labs/flux-schnell.

Rules: replicate.com/docs/reference/http and the model's page; a prediction can be cancelled until it has ended. The
addresses that its answers name lead nowhere.
"""

import base64
import re
from typing import Any, Literal

import attrs
from aiohttp import web

from tests.support.image_providers import Fate, ImageProvider, Json, ReceivedImageRequest, draw, parse_size

SHAPES = {
    "1:1": "1024x1024", "16:9": "1344x768", "21:9": "1536x640", "3:2": "1216x832", "2:3": "832x1216", "4:5": "896x1088",
    "5:4": "1088x896", "3:4": "896x1152", "4:3": "1152x896", "9:16": "768x1344", "9:21": "640x1536",
}  # fmt: skip
FIELDS = {
    "prompt", "aspect_ratio", "num_outputs", "num_inference_steps", "seed", "output_format", "output_quality",
    "go_fast", "megapixels", "disable_safety_checker",
}  # fmt: skip
DATA_URL = re.compile(r"data:image/[a-z+]+;base64,([A-Za-z0-9+/]*=*)")
NSFW = "NSFW content detected. Try running it again, or try a different prompt."
OVER = {"succeeded", "failed", "canceled"}
Stumble = Literal["error", "html"]


@attrs.define
class _Prediction:
    heard: ReceivedImageRequest
    fate: Fate
    asked: int = 0
    state: str = "starting"
    output: Any = None
    error: str | None = None


class ReplicateImages(ImageProvider):
    """``provider = "replicate"``.

    Args:
        polls: how often a prediction is asked after in vain.
        stumble: what the first poll is answered with instead: a status of 500, or a page with 200.
        endless: predictions never end.
    """

    slug = "replicate"
    model = "black-forest-labs/flux-schnell"

    def __init__(self, *fates: Fate, polls: int = 1, stumble: Stumble | None = None, endless: bool = False) -> None:
        super().__init__(*fates)
        self._polls = polls
        self._stumble = stumble
        self._endless = endless
        self._predictions: dict[str, _Prediction] = {}
        self._files: list[bytes] = []

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/models/{owner}/{name}/predictions", self._create)
        app.router.add_post("/v1/predictions", self._create_version)
        app.router.add_get("/v1/predictions/{id}", self._tell)
        app.router.add_post("/v1/predictions/{id}/cancel", self._cancel)
        app.router.add_get("/files/{number}.png", self._serve)

    def write_denied(self) -> Json:
        return {"title": "Unauthenticated", "detail": "You did not pass a valid authentication token", "status": 401}

    async def _create(self, request: web.Request) -> web.StreamResponse:
        model = f"{request.match_info['owner']}/{request.match_info['name']}"
        return self._begin(model, await request.json())

    async def _create_version(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not isinstance(body.get("version"), str):
            return _refuse("- version is required\n")
        return self._begin(body["version"], body)

    def _begin(self, model: str, body: Json) -> web.StreamResponse:
        given = body.get("input")
        wrong = _find_wrong(given) if model == self.model else None
        if not isinstance(given, dict) or wrong:
            return _refuse(wrong or "- input is required\n")
        fate = self.give()
        if fate == "fail":
            return web.json_response({"detail": "Internal server error", "status": 500}, status=500)
        sources = given.get("input_images") or given.get("input_image") or given.get("image") or []
        heard = ReceivedImageRequest(
            given["prompt"],
            given.get("num_outputs", 1),
            given.get("aspect_ratio"),
            tuple(map(_hear_image, sources if isinstance(sources, list) else [sources])),
            body=body,
        )
        self.heard.append(heard)
        prediction_id = f"gm3qorzdhgbfurvjtvhg6dck{len(self._predictions):02}"
        self._predictions[prediction_id] = _Prediction(heard, fate)
        return web.json_response(self._write(prediction_id), status=201)

    def _write(self, prediction_id: str) -> Json:
        found = self._predictions[prediction_id]
        return {
            "id": prediction_id,
            "input": found.heard.body["input"],
            "logs": "",
            "output": found.output,
            "error": found.error,
            "status": found.state,
            "urls": {
                "get": f"https://elsewhere.invalid/v1/predictions/{prediction_id}",
                "cancel": f"https://elsewhere.invalid/v1/predictions/{prediction_id}/cancel",
            },
        }

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        if self._stumble is not None:
            status = 500 if self._stumble == "error" else 200
            self._stumble = None
            return web.Response(text="<html>Bad gateway</html>", content_type="text/html", status=status)
        found = self._predictions.get(request.match_info["id"])
        if found is None:
            return web.json_response({"detail": "Prediction not found", "status": 404}, status=404)
        found.asked += 1
        if found.state not in OVER:
            found.state = "processing"
            if not self._endless and found.asked > self._polls:
                self._end(found)
        return web.json_response(self._write(request.match_info["id"]))

    def _end(self, found: _Prediction) -> None:
        if found.fate == "block":
            found.state, found.error = "failed", NSFW
            return
        found.state = "succeeded"
        width, height = parse_size(SHAPES.get(found.heard.size or "1:1"))
        first = len(self._files)
        self._files += [draw(width, height, first + number) for number in range(found.heard.count)]
        found.output = [f"{self.origin}/files/{number}.png" for number in range(first, len(self._files))]

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        found = self._predictions.get(request.match_info["id"])
        if found is None or found.state in OVER:
            return web.json_response({"detail": "Prediction has already ended", "status": 400}, status=400)
        found.state = "canceled"
        self.cancelled.append(request.match_info["id"])
        return web.json_response(self._write(request.match_info["id"]))

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._files[int(request.match_info["number"])], content_type="image/png")


def _find_wrong(given: Any) -> str | None:
    """What flux-schnell finds wrong with its input."""
    if not isinstance(given, dict) or not isinstance(given.get("prompt"), str):
        return "- input.prompt is required\n"
    if unknown := given.keys() - FIELDS:
        return f"- input: Additional properties {sorted(unknown)} are not allowed\n"
    if given.get("aspect_ratio", "1:1") not in SHAPES:
        return "- input.aspect_ratio: must be one of the allowed values\n"
    count = given.get("num_outputs", 1)
    if type(count) is not int or not 1 <= count <= 4:
        return "- input.num_outputs: Must be less than or equal to 4\n"
    if given.get("output_format", "webp") not in {"webp", "jpg", "png"}:
        return "- input.output_format: must be one of webp, jpg, png\n"
    return None


def _refuse(detail: str) -> web.Response:
    return web.json_response({"title": "Input validation failed", "detail": detail, "status": 422}, status=422)


def _hear_image(url: str) -> bytes:
    found = DATA_URL.fullmatch(url)
    assert found is not None, url[:64]
    return base64.b64decode(found[1])
