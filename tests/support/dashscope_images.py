"""Alibaba Cloud Model Studio's pictures: tasks that take their time, and models that answer at once.

Rules: the pages that ``gateway/formats/images/dashscope.py`` names; a task can be cancelled while it is
PENDING.
"""

import base64
import re
from typing import Any, Literal

import attrs
from aiohttp import web

from tests.support.image_providers import Fate, ImageProvider, Json, ReceivedImageRequest, draw, parse_size

SERVICES = "/api/v1/services/aigc"
SIZE = re.compile(r"(\d{2,4})\*(\d{2,4})")
DATA_URL = re.compile(r"data:image/[a-z+]+;base64,([A-Za-z0-9+/]*=*)")
PARAMETERS = {"size", "n", "negative_prompt", "prompt_extend", "watermark", "seed", "thinking_mode"}
BLOCKED = {"code": "DataInspectionFailed", "message": "Output data may contain inappropriate content."}
Stumble = Literal["error", "html"]


class _Refused(Exception):
    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.answer = web.json_response({"code": code, "message": message, "request_id": "r-1"}, status=status)


@attrs.define
class _Task:
    heard: ReceivedImageRequest
    fate: Fate
    talks: bool
    asked: int = 0
    state: str = "PENDING"


class DashScopeImages(ImageProvider):
    """``provider = "dashscope"``.

    Args:
        polls: how often a task is asked after in vain.
        stumble: what the first poll is answered with instead: a status of 500, or a page with 200.
        endless: tasks stay in their queue.
    """

    slug = "dashscope"
    model = "wan2.2-t2i-flash"
    root = "/compatible-mode/v1"

    def __init__(self, *fates: Fate, polls: int = 1, stumble: Stumble | None = None, endless: bool = False) -> None:
        super().__init__(*fates)
        self._polls = polls
        self._stumble = stumble
        self._endless = endless
        self._tasks: dict[str, _Task] = {}
        self._files: list[bytes] = []

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post(f"{SERVICES}/text2image/image-synthesis", self._submit_fields)
        app.router.add_post(f"{SERVICES}/image2image/image-synthesis", self._submit_fields)
        app.router.add_post(f"{SERVICES}/image-generation/generation", self._submit_message)
        app.router.add_post(f"{SERVICES}/multimodal-generation/generation", self._answer_at_once)
        app.router.add_get("/api/v1/tasks/{id}", self._tell)
        app.router.add_post("/api/v1/tasks/{id}/cancel", self._cancel)
        app.router.add_get("/files/{number}.png", self._serve)

    def write_denied(self) -> Json:
        return {"code": "InvalidApiKey", "message": "Invalid API-key provided.", "request_id": "r-1"}

    async def _submit_fields(self, request: web.Request) -> web.StreamResponse:
        return await self._submit(request, talks=False)

    async def _submit_message(self, request: web.Request) -> web.StreamResponse:
        return await self._submit(request, talks=True)

    async def _submit(self, request: web.Request, *, talks: bool) -> web.StreamResponse:
        try:
            _expect(request.headers.get("X-DashScope-Async") == "enable", "current user api does not support "
                    "synchronous calls.", "AccessDenied", 403)  # fmt: skip
            heard = _hear(await request.json(), talks=talks)
        except _Refused as refused:
            return refused.answer
        fate = self.give()
        if fate == "fail":
            return _fail()
        self.heard.append(heard)
        task_id = f"0385dc79-5ff8-4d82-bcb6-{len(self._tasks):012}"
        self._tasks[task_id] = _Task(heard, fate, talks)
        return web.json_response({"output": {"task_status": "PENDING", "task_id": task_id}, "request_id": "r-1"})

    async def _answer_at_once(self, request: web.Request) -> web.StreamResponse:
        try:
            _expect("X-DashScope-Async" not in request.headers, "current user api does not support asynchronous "
                    "calls.", "AccessDenied", 403)  # fmt: skip
            heard = _hear(await request.json(), talks=True)
        except _Refused as refused:
            return refused.answer
        fate = self.give()
        if fate == "fail":
            return _fail()
        if fate == "block":
            return web.json_response({**BLOCKED, "request_id": "r-1"}, status=400)
        self.heard.append(heard)
        content = [{"image": url} for url in self._paint(heard)]
        choice = {"finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        usage = {"image_count": heard.count, "width": 64, "height": 64}
        return web.json_response({"output": {"choices": [choice]}, "usage": usage, "request_id": "r-1"})

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        if self._stumble is not None:
            status = 500 if self._stumble == "error" else 200
            self._stumble = None
            return web.Response(text="<html>Bad gateway</html>", content_type="text/html", status=status)
        task = self._tasks.get(request.match_info["id"])
        output: Json = {"task_id": request.match_info["id"], "task_status": task.state if task else "UNKNOWN"}
        if task is None or task.state == "CANCELED":
            return web.json_response({"output": output, "request_id": "r-1"})
        task.asked += 1
        if self._endless or task.asked <= self._polls:
            task.state = output["task_status"] = "PENDING" if self._endless else "RUNNING"
            return web.json_response({"output": output, "request_id": "r-1"})
        return web.json_response(self._end(task, output))

    def _end(self, task: _Task, output: Json) -> Json:
        task.state = output["task_status"] = "FAILED" if task.fate == "block" else "SUCCEEDED"
        if task.fate == "block":
            return {"output": output | BLOCKED, "request_id": "r-1"}
        urls = self._paint(task.heard)
        if task.talks:
            output["choices"] = [
                {
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": [{"image": url, "type": "image"}]},
                }
                for url in urls
            ]
        else:
            prompt = task.heard.prompt
            output["results"] = [
                {"orig_prompt": prompt, "actual_prompt": f"{prompt}, finely", "url": url} for url in urls
            ]
        return {"output": output, "usage": {"image_count": len(urls)}, "request_id": "r-1"}

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        task = self._tasks.get(request.match_info["id"])
        if task is None or task.state != "PENDING":
            return _Refused("UnsupportedOperation", "Failed to cancel the task, please confirm if the task is in "
                            "PENDING status.").answer  # fmt: skip
        task.state = "CANCELED"
        self.cancelled.append(request.match_info["id"])
        return web.json_response({"request_id": "r-1"})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._files[int(request.match_info["number"])], content_type="image/png")

    def _paint(self, heard: ReceivedImageRequest) -> list[str]:
        width, height = parse_size((heard.size or "64*64").replace("*", "x"))
        first = len(self._files)
        self._files += [draw(width, height, first + number) for number in range(heard.count)]
        return [f"{self.origin}/files/{number}.png" for number in range(first, len(self._files))]


def _expect(holds: object, message: str, code: str = "InvalidParameter", status: int = 400) -> None:
    if not holds:
        raise _Refused(code, message, status)


def _fail() -> web.Response:
    return web.json_response(
        {"code": "InternalError", "message": "An internal error.", "request_id": "r-1"}, status=500
    )


def _hear(body: Any, *, talks: bool) -> ReceivedImageRequest:
    _expect(isinstance(body, dict) and body.keys() <= {"model", "input", "parameters"}, "unknown field")
    _expect(isinstance(body.get("model"), str), "model is missing")
    parameters = body.get("parameters") or {}
    allowed = PARAMETERS if talks or body["model"].startswith("qwen") else PARAMETERS - {"negative_prompt"}
    _expect(parameters.keys() <= allowed, f"unknown parameter: {parameters.keys() - allowed}")
    size, count = parameters.get("size"), parameters.get("n", 1 if talks else 4)
    _expect(type(count) is int and 1 <= count <= (6 if talks else 4), "num_images_per_prompt must be between 1 and 4")
    _expect(size is None or (isinstance(size, str) and SIZE.fullmatch(size)), "size must be width*height")
    if size and body["model"].startswith("wan2.2"):
        _expect(all(512 <= int(side) <= 1440 for side in size.split("*")), "width and height must be in [512, 1440]")
    prompt, urls = _hear_message(body["input"]) if talks else _hear_fields(body["input"])
    _expect(isinstance(prompt, str) and prompt, "prompt is missing")
    return ReceivedImageRequest(prompt, count, size, tuple(map(_hear_image, urls)), body=body)


def _hear_message(fields: Any) -> tuple[Any, list[Any]]:
    _expect(fields.keys() == {"messages"} and len(fields["messages"]) == 1, "exactly one message is supported")
    (message,) = fields["messages"]
    _expect(message.keys() == {"role", "content"} and message["role"] == "user", "role must be user")
    texts = [part["text"] for part in message["content"] if "text" in part]
    _expect(len(texts) == 1, "exactly one text is supported")
    return texts[0], [part["image"] for part in message["content"] if "image" in part]


def _hear_fields(fields: Any) -> tuple[Any, list[Any]]:
    if "function" in fields:
        _expect(fields.keys() == {"function", "prompt", "base_image_url"}, "unknown input")
        return fields["prompt"], [fields["base_image_url"]]
    _expect(fields.keys() <= {"prompt", "negative_prompt", "images"}, "unknown input")
    return fields["prompt"], fields.get("images", [])


def _hear_image(url: Any) -> bytes:
    found = DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        raise _Refused("InvalidURL", "The image is not a URL that can be fetched")
    return base64.b64decode(found[1])
