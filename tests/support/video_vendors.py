"""Vendors of videos, each in a language of its own and as strict as its pages say; their files are at another origin.

The first word of a prompt says what becomes of it (``Fate``); any other goes well: the task waits, works, and is done.
A vendor looks at its key and at every field it is sent, refuses what the real one refuses in that one's words, and
keeps what it understood. What it says of failures gives away its key and its address, as a careless vendor might.

The rules are from the pages that ``gateway/formats/videos/*.py`` name. Google's answer to a wrong key is quoted in
google-gemini/gemini-cli issue 25198. The fields of Runway's calls are typed in runwayml/sdk-python,
``types/text_to_video_create_params.py`` and ``image_to_video_create_params.py``.
"""

import abc
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal, Self, get_args

import attrs
import jwt
import orjson
from aiohttp import web

from tests.support.image_providers import draw
from tests.support.openai_videos import write_clip
from tests.support.providers import Json, Refused, decode, expect, expect_list, expect_object, expect_text

CLIP_BYTES = 20_000
IMAGE = draw(32, 32)
DATA_URL = re.compile(r"data:image/(?:png|jpeg|webp);base64,([A-Za-z0-9+/]+=*)")
RANGE = re.compile(r"bytes=(\d+)-(\d+)")
Fate = Literal["ok", "refused", "moderated", "failed", "endless", "stale"]
"""Blocked when it is asked for, or when it is made; broken off; never begun; made, and its first address expires."""
BROKEN = ("failed", "moderated")
Progress = Literal["waiting", "working", "done"]


def write_film(prompt: str) -> bytes:
    """The video of a prompt."""
    return write_clip(prompt, CLIP_BYTES)


class Moderated(Exception):
    """The vendor's filter takes offence at what is asked for."""


@attrs.define(eq=False)
class VendorTask:
    """A task that was begun, as it was understood.

    Attributes:
        size: in pixels; None where the vendor was told no shape: its picture has one.
        picture: what it starts from: its bytes, or its address.
        addresses: that were given of its file.
    """

    id: str
    prompt: str
    model: str
    seconds: int
    size: str | None = None
    image: bytes | str | None = None
    mark: str = ""
    polls: int = 0
    cancelled: bool = False
    addresses: list[str] = attrs.Factory(list)

    @property
    def fate(self) -> Fate:
        first = self.prompt.split()[0]
        return first if first in get_args(Fate) else "ok"  # type: ignore[return-value]


class _Server(abc.ABC):
    """A real HTTP server on a loopback port. ``async with`` it."""

    def __init__(self) -> None:
        self._runner: web.AppRunner | None = None

    @abc.abstractmethod
    def make_app(self) -> web.Application:
        """What is served."""

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(self.make_app(), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def origin(self) -> str:
        assert self._runner is not None
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"


class FileHost(_Server):
    """Somebody else's server, where vendors put what they make. It wants no key: who has an address may look.

    Attributes:
        asked: address and headers of every request, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._films: dict[str, str] = {}
        self._expired: set[str] = set()

    def make_app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/films/{number}.mp4", self._serve_film)
        app.router.add_get("/pictures/{number}.png", self._serve_image)
        return app

    def put(self, task: VendorTask) -> str:
        """A new address of its film."""
        number = str(len(self._films) + 1)
        self._films[number] = task.prompt
        if task.fate == "stale" and not task.addresses:
            self._expired.add(number)
        task.addresses.append(f"{self.origin}/films/{number}.mp4?Expires=1785125946&Signature=a%2Fb%2B{number}%3D")
        return task.addresses[-1]

    def expire(self) -> None:
        """Every address that was given until now is refused from now on."""
        self._expired.update(self._films)

    async def _serve_film(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path_qs, dict(request.headers)))
        number = request.match_info["number"]
        # As signatures are made of an address in the bytes in which it was given.
        if number in self._expired or not request.raw_path.endswith(f"&Signature=a%2Fb%2B{number}%3D"):
            return web.Response(text="<Error><Code>AccessDenied</Code></Error>", status=403)
        film = write_film(self._films[number])
        found = RANGE.fullmatch(request.headers.get("Range", ""))
        if found is None:
            return web.Response(body=film, content_type="video/mp4")
        start, stop = int(found[1]), int(found[2]) + 1
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(film)}"}
        return web.Response(body=film[start:stop], status=206, headers=headers, content_type="video/mp4")

    async def _serve_image(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path_qs, dict(request.headers)))
        return web.Response(body=IMAGE, content_type="image/png")


class VideoVendor(_Server):
    """One vendor.

    Args:
        files: where its films are.

    Attributes:
        tasks: those that were begun, by their ids.
        refusals: what was wrong with what it did not take.
        asked: method and path of everything, in order.
        denied: the keys that were wrong, as they were told.
        cancelled: ids of tasks that were stopped; ``deleted``: of those that were forgotten.
    """

    slug: ClassVar[str]
    root: ClassVar[str] = ""
    header: ClassVar[str] = "Authorization"

    def __init__(self, files: FileHost) -> None:
        super().__init__()
        self.files = files
        self.tasks: dict[str, VendorTask] = {}
        self.refusals: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.denied: list[str] = []
        self.cancelled: list[str] = []
        self.deleted: list[str] = []

    @property
    def key(self) -> str:
        return f"hush-hush-{self.slug}"

    @property
    def base_url(self) -> str:
        return f"{self.origin}{self.root}"

    @property
    def gossip(self) -> str:
        """What nobody else should hear."""
        return f"The machine at {self.origin}/render/7 ran out of film for {self.key}"

    def make_app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 24, middlewares=[self._guard])
        self.add_routes(app.router)
        return app

    @abc.abstractmethod
    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Every path of the vendor that is served."""

    @abc.abstractmethod
    def deny(self) -> web.Response:
        """The answer to a wrong key."""

    @abc.abstractmethod
    def refuse(self, message: str, status: int) -> web.Response:
        """The answer to a call with something wrong in it."""

    def moderate(self) -> web.Response:
        """The answer to a call that its filter objects to."""
        raise NotImplementedError

    def is_signed(self, request: web.Request) -> bool:
        """Whether the key is right."""
        return request.headers.get(self.header) == f"Bearer {self.key}"

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.asked.append((request.method, request.path))
        if not self.is_signed(request):
            self.denied.append(request.headers.get(self.header, ""))
            return self.deny()
        try:
            return await handler(request)
        except Moderated:
            return self.moderate()
        except Refused as refused:
            self.refusals.append(str(refused))
            return self.refuse(str(refused), refused.fails.status)
        except web.HTTPException as lost:  # no such path, or not by that method
            self.refusals.append(f"{request.method} {request.path}: {lost.status}")
            raise

    def begin(self, task: VendorTask) -> VendorTask:
        """A task is taken on. Raises ``Moderated``."""
        if task.fate == "refused":
            raise Moderated
        self.tasks[task.id] = task
        return task

    def find(self, task_id: str, status: int = 404) -> VendorTask:
        """A task. Raises ``Refused``."""
        expect(task_id in self.tasks, "task not found", status)
        return self.tasks[task_id]

    def walk(self, task: VendorTask) -> Progress:
        """Somebody asks after it: it goes on."""
        if not task.addresses:
            task.polls += 1
        return self.find_progress(task)

    def find_progress(self, task: VendorTask) -> Progress:
        """How far it is."""
        if task.polls <= 1 or task.fate == "endless":
            return "waiting"
        return "working" if task.polls == 2 else "done"

    def find_address(self, task: VendorTask) -> str:
        """That of its film, which is the same whenever it is asked for."""
        return task.addresses[-1] if task.addresses else self.files.put(task)

    def drop(self, task: VendorTask) -> bool:
        """Stop a task that waits, forget one that has ended; False where it is at work."""
        progress = self.find_progress(task)
        if progress == "waiting":
            task.cancelled = True
            self.cancelled.append(task.id)
        elif progress == "done":
            self.deleted.append(self.tasks.pop(task.id).id)
        return progress != "working"


def choose(value: Any, where: str, *allowed: Any) -> Any:
    """One of some values, and of their kind. Raises ``Refused``."""
    expect(any(value == one and type(value) is type(one) for one in allowed), f"{where}: {value!r} is not in {allowed}")
    return value


async def read_body(request: web.Request, *known: str) -> Json:
    """A JSON object with none but the ``known`` fields. Raises ``Refused``."""
    expect(request.content_type == "application/json", f"Content-Type: {request.content_type}", 415)
    return expect_object(orjson.loads(await request.read()), "body", known)


def read_image(value: Any, where: str, *, bare: bool = False) -> bytes | str:
    """A picture: an address, or base64 behind ``data:…,``, or without it where it is ``bare``. Raises ``Refused``."""
    text = expect_text(value, where)
    if text.startswith(("http://", "https://")):
        return text
    if bare:
        return decode(text, where)
    found = DATA_URL.fullmatch(text)
    expect(found, f"{where}: neither an address nor a data: URL: {text[:32]}")
    assert found is not None
    return decode(found[1], where)


def read_content(value: Any) -> tuple[str, bytes | str | None]:
    """A text, and perhaps the first frame, as MiniMax and Volcengine have them. Raises ``Refused``."""
    words, *frames = expect_list(value, "content")
    expect(words.keys() == {"type", "text"} and words["type"] == "text", "content[0] is no text")
    expect(len(frames) <= 1, "content: one image is the first frame")
    image = None
    for frame in frames:
        expect(frame.keys() == {"type", "image_url", "role"} and frame["type"] == "image_url", "content[1]")
        choose(frame["role"], "role", "first_frame")
        image = read_image(expect_object(frame["image_url"], "image_url", {"url"}).get("url"), "url")
    return expect_text(words["text"], "text"), image


LINES = {"480p": 480, "720p": 720, "768P": 768, "1080p": 1080, "1080P": 1080, "2K": 1440, "4k": 2160}


def measure(tier: str, ratio: str) -> str:
    """Width and height of so many lines in that shape; sides are even."""
    width, height = map(int, ratio.split(":"))
    sides = (round(LINES[tier] * side / min(width, height) / 2) * 2 for side in (width, height))
    return "x".join(map(str, sides))


class GeminiVideos(VideoVendor):
    """Veo. Its file is at its own server, which wants the key and redirects a request that has it to another."""

    slug = "gemini"
    root = "/v1beta"
    header = "x-goog-api-key"

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1beta/models/{model}:predictLongRunning", self._begin)
        router.add_get("/v1beta/models/{model}/operations/{id}", self._tell)
        router.add_get("/v1beta/files/{id}:download", self._send_on)

    def is_signed(self, request: web.Request) -> bool:
        return request.headers.get(self.header) == self.key and "Authorization" not in request.headers

    def deny(self) -> web.Response:
        message = "API key not valid. Please pass a valid API key."
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
        error = {"code": 400, "message": message, "status": "INVALID_ARGUMENT", "details": [info]}
        return web.json_response({"error": error}, status=400)

    def refuse(self, message: str, status: int) -> web.Response:
        words = {404: "NOT_FOUND"}.get(status, "INVALID_ARGUMENT")
        return web.json_response({"error": {"code": status, "message": message, "status": words}}, status=status)

    def moderate(self) -> web.Response:
        words = "The prompt could not be submitted. It contains words that violate Google's Responsible AI practices."
        return self.refuse(words, 400)

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, "instances", "parameters")
        (instance,) = expect_list(body.get("instances"), "instances")
        expect_object(instance, "instances[0]", {"prompt", "image", "lastFrame", "video", "referenceImages"})
        known = {"aspectRatio", "durationSeconds", "resolution", "negativePrompt", "personGeneration", "seed"}
        parameters = expect_object(body.get("parameters", {}), "parameters", known)
        ratio = choose(parameters.get("aspectRatio", "16:9"), "aspectRatio", "16:9", "9:16")
        tier = choose(parameters.get("resolution", "720p"), "resolution", "720p", "1080p", "4k")
        seconds = choose(parameters.get("durationSeconds", 8), "durationSeconds", 4, 6, 8)
        expect(tier == "720p" or seconds == 8, "durationSeconds must be 8 for 1080p and 4k")
        image = None
        if "image" in instance:
            sent_image = expect_object(instance["image"], "image", {"bytesBase64Encoded", "mimeType"})
            choose(sent_image.get("mimeType"), "mimeType", "image/png", "image/jpeg")
            image = decode(sent_image.get("bytesBase64Encoded"), "bytesBase64Encoded")
        model, prompt = request.match_info["model"], expect_text(instance.get("prompt"), "prompt")
        task_id = f"idw2ph17nrn{len(self.tasks)}"
        self.begin(VendorTask(task_id, prompt, model, seconds, measure(tier, ratio), image))
        return web.json_response({"name": f"models/{model}/operations/{task_id}"})

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.match_info["id"])
        expect(task.model == request.match_info["model"], "Operation not found", 404)
        name = {"name": f"models/{task.model}/operations/{task.id}"}
        if self.walk(task) != "done":
            return web.json_response(name)
        if task.fate == "failed":
            return web.json_response({**name, "done": True, "error": {"code": 13, "message": self.gossip}})
        if task.fate == "moderated":
            reasons = [f"We can't create videos with real people's likenesses. {self.gossip}"]
            made: Json = {"raiMediaFilteredCount": 1, "raiMediaFilteredReasons": reasons}
        else:
            made = {
                "generatedSamples": [{"video": {"uri": f"{self.origin}/v1beta/files/{task.id}:download?alt=media"}}]
            }
        return web.json_response({**name, "done": True, "response": {"generateVideoResponse": made}})

    async def _send_on(self, request: web.Request) -> web.StreamResponse:
        expect(request.query_string == "alt=media", "alt must be media")
        address = self.files.put(self.find(request.match_info["id"]))
        return web.Response(status=302, headers={"Location": address})


class _Kling(VideoVendor):
    """What both of Kling's languages have in common."""

    slug = "kling"

    def answer(self, data: Any, code: int = 0, message: str = "SUCCEED", status: int = 200) -> web.Response:
        fields = {"code": code, "message": message, "request_id": "CjMkWmdJkuIAAAAAAA"}
        return web.json_response(fields if data is None else {**fields, "data": data}, status=status)

    def deny(self) -> web.Response:
        return self.answer(None, 1002, f"Authorization is invalid: {self.denied[-1]}", 401)

    def refuse(self, message: str, status: int) -> web.Response:
        return self.answer(None, 1203 if status == 404 else 1201, message, status)

    def moderate(self) -> web.Response:
        return self.answer(None, 1301, "Failure to pass the risk control system", 400)

    def explain(self, task: VendorTask) -> str:
        """Why a task has no video."""
        words = "Failure to pass the risk control system" if task.fate == "moderated" else "generation timed out"
        return f"{words}. {self.gossip}"


class KlingVideos(_Kling):
    """The newer language: the model is in the path, and one place tells of every task."""

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/text-to-video/{model}", self._begin)
        router.add_post("/image-to-video/{model}", self._begin)
        router.add_get("/tasks", self._tell)

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        by_words, model = request.path.startswith("/text"), request.match_info["model"]
        choose(model, "model", "kling-3.0", "kling-3.0-turbo", "kling-2.6")
        body = await read_body(request, "prompt" if by_words else "contents", "settings", "options")
        known = {"resolution", "duration", "multi_shot", "audio"} | ({"aspect_ratio"} if by_words else set())
        parameters = expect_object(body.get("settings", {}), "settings", known)
        tier = choose(parameters.get("resolution", "720p"), "resolution", "720p", "1080p", "4k")
        ratio = choose(parameters.get("aspect_ratio", "16:9"), "aspect_ratio", "16:9", "9:16", "1:1")
        seconds = choose(parameters.get("duration", 5), "duration", *range(3, 16))
        prompt, image = body.get("prompt"), None
        if not by_words:
            words, frame = expect_list(body.get("contents"), "contents")
            expect(words.keys() == {"type", "text"} and words["type"] == "prompt", "contents[0] is no prompt")
            expect(frame.keys() == {"type", "url"} and frame["type"] == "first_frame", "contents[1] is no frame")
            prompt, image = words["text"], read_image(frame["url"], "url", bare=True)
        size = measure(tier, ratio) if by_words else None
        task_id = f"8936059464028119{len(self.tasks):02}"
        self.begin(VendorTask(task_id, expect_text(prompt, "prompt"), model, seconds, size, image))
        return self.answer({"id": task_id, "status": "submitted", "create_time": 1781080778802, "external_id": ""})

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.query.get("task_ids", ""))
        progress = self.walk(task)
        if progress != "done":
            return self.answer([{"id": task.id, "status": "submitted" if progress == "waiting" else "processing"}])
        if task.fate in BROKEN:
            return self.answer([{"id": task.id, "status": "failed", "message": self.explain(task)}])
        video = {"type": "video", "id": "v", "url": self.find_address(task), "duration": f"{task.seconds}.041"}
        return self.answer([{"id": task.id, "status": "succeeded", "message": "", "outputs": [video]}])


class OlderKlingVideos(_Kling):
    """The older one, which also takes two keys, as a token made of them; each of two places tells of its own tasks."""

    access, secret = "hush-access-of-kling", "hush-secret-of-kling-0123456789abcdef"

    @property
    def key(self) -> str:
        return f"{self.access}:{self.secret}"

    @property
    def gossip(self) -> str:
        return super().gossip.replace(self.key, self.access)  # the other half is never told to anybody

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/videos/{kind:text2video|image2video}", self._begin)
        router.add_get("/v1/videos/{kind:text2video|image2video}/{id}", self._tell)

    def is_signed(self, request: web.Request) -> bool:
        scheme, _, token = request.headers.get(self.header, "").partition(" ")
        options: Any = {"require": ["iss", "exp", "nbf"]}
        try:
            jwt.decode(token, self.secret, algorithms=["HS256"], issuer=self.access, options=options)
        except jwt.InvalidTokenError:
            return False
        return scheme == "Bearer" and jwt.get_unverified_header(token) == {"alg": "HS256", "typ": "JWT"}

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        known = ("model_name", "prompt", "negative_prompt", "cfg_scale", "mode", "duration", "external_task_id")
        body = await read_body(request, *known, "aspect_ratio" if kind == "text2video" else "image")
        model = choose(body.get("model_name"), "model_name", "kling-v2-6", "kling-v2-5-turbo", "kling-v3")
        tier = {"std": "720p", "pro": "1080p"}[choose(body.get("mode", "std"), "mode", "std", "pro")]
        seconds = int(choose(body.get("duration", "5"), "duration", "5", "10"))
        mark = expect_text(body.get("external_task_id", "-"), "external_task_id")
        expect(all(task.mark != mark for task in self.tasks.values()), "external_task_id is there already")
        prompt, size, image = expect_text(body.get("prompt"), "prompt"), None, None
        if kind == "text2video":
            size = measure(tier, choose(body.get("aspect_ratio", "16:9"), "aspect_ratio", "16:9", "9:16", "1:1"))
        else:
            image = read_image(body.get("image"), "image", bare=True)
        task_id = f"8936059464028120{len(self.tasks):02}"
        task = self.begin(VendorTask(task_id, prompt, model, seconds, size, image, mark))
        return self._answer(task, "submitted")

    def _answer(self, task: VendorTask, status: str, **more: Any) -> web.Response:
        info = {"external_task_id": task.mark}
        return self.answer({"task_id": task.id, "task_status": status, "task_info": info, **more})

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.match_info["id"])
        expect((task.image is not None) == (request.match_info["kind"] == "image2video"), "task not found", 404)
        progress = self.walk(task)
        if progress != "done":
            return self._answer(task, "submitted" if progress == "waiting" else "processing")
        if task.fate in BROKEN:
            return self._answer(task, "failed", task_status_msg=self.explain(task))
        video = {"id": "v", "url": self.find_address(task), "duration": f"{task.seconds}.1"}
        return self._answer(task, "succeed", task_result={"videos": [video]})


class MiniMaxVideos(VideoVendor):
    """Hailuo: whatever goes wrong has status 200. A task that is done names its file, whose address is asked for."""

    slug = "minimax"

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/video_generation", self._begin)
        router.add_get("/v1/query/video_generation", self._tell)
        router.add_get("/v1/files/retrieve", self._tell_address)

    def _answer(self, more: Json, code: int = 0, message: str = "success") -> web.Response:
        return web.json_response({**more, "base_resp": {"status_code": code, "status_msg": message}})

    def deny(self) -> web.Response:
        return self._answer({}, 2049, f"invalid api key {self.denied[-1]}")

    def refuse(self, message: str, status: int) -> web.Response:
        return self._answer({"status": status}, 2013, f"invalid params, {message}")

    def moderate(self) -> web.Response:
        return self._answer({"task_id": ""}, 1026, "video description contains sensitive content")

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        known = ("model", "prompt", "duration", "resolution", "prompt_optimizer", "fast_pretreatment")
        body = await read_body(request, *known, "first_frame_image", "aigc_watermark", "callback_url")
        model = choose(body.get("model"), "model", "MiniMax-Hailuo-2.3", "MiniMax-Hailuo-02")
        tier = choose(body.get("resolution", "768P"), "resolution", "768P", "1080P")
        seconds = choose(body.get("duration", 6), "duration", 6, 10)
        expect(tier == "768P" or seconds == 6, "1080P videos are 6 seconds long")
        size, image = measure(tier, "16:9"), None
        if "first_frame_image" in body:
            image = read_image(body["first_frame_image"], "first_frame_image")
        prompt = expect_text(body.get("prompt"), "prompt")
        task_id = f"1069161122122{len(self.tasks):02}"
        self.begin(VendorTask(task_id, prompt, model, seconds, size, image))
        return self._answer({"task_id": task_id})

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.query.get("task_id", ""))
        progress = self.walk(task)
        if progress != "done":
            status = "Queueing" if progress == "waiting" else "Processing"
            return self._answer({"task_id": task.id, "status": status, "file_id": ""})
        if task.fate in BROKEN:
            code = 1027 if task.fate == "moderated" else 1000
            return self._answer({"task_id": task.id, "status": "Fail", "file_id": ""}, code, self.gossip)
        file = {"file_id": f"20{task.id}", "video_width": 1920, "video_height": 1080}
        return self._answer({"task_id": task.id, "status": "Success", **file})

    async def _tell_address(self, request: web.Request) -> web.StreamResponse:
        file_id = request.query.get("file_id", "")
        expect(file_id.isdigit(), "file_id must be an integer")
        address = self.files.put(self.find(file_id.removeprefix("20")))
        file = {"file_id": int(file_id), "bytes": 0, "filename": "output_aigc.mp4", "purpose": "video_generation"}
        return self._answer({"file": {**file, "created_at": 1700469398, "download_url": address}})


class MiniMaxH3Videos(VideoVendor):
    """The second version of its language. Every answer of a task that is done has a new address."""

    slug = "minimax"

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v2/video_generation", self._begin)
        router.add_get("/v2/query/video_generation/{id}", self._tell)
        router.add_delete("/v2/video_generation/{id}", self._drop)

    def _fail(self, kind: str, message: str, status: int) -> web.Response:
        error = {"type": kind, "message": message, "http_code": str(status)}
        return web.json_response({"type": "error", "error": error, "request_id": "0217852290"}, status=status)

    def deny(self) -> web.Response:
        return self._fail("authorized_error", f"login fail: {self.denied[-1]} (1004)", 401)

    def refuse(self, message: str, status: int) -> web.Response:
        return self._fail("bad_request_error", f"invalid params, {message} (2013)", status)

    def moderate(self) -> web.Response:
        return self._fail("unprocessable_entity_error", "input new_sensitive (1026)", 422)

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request, "model", "content", "resolution", "ratio", "duration", "aigc_watermark")
        model = choose(body.get("model"), "model", "MiniMax-H3")
        prompt, image = read_content(body.get("content"))
        tier = choose(body.get("resolution", "2K"), "resolution", "768P", "2K")
        shapes = ("21:9", "16:9", "4:3", "1:1", "3:4", "9:16")
        ratio = choose(body.get("ratio", "adaptive"), "ratio", *(shapes if image is None else ("adaptive",)))
        seconds = choose(body.get("duration"), "duration", *range(4, 16))
        size = measure(tier, ratio) if image is None else None
        task_id = f"4240109857386{len(self.tasks):02}"
        self.begin(VendorTask(task_id, prompt, model, seconds, size, image))
        return web.json_response({"task_id": task_id})

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.match_info["id"])
        progress = self.walk(task)
        parameters: Json = {"id": task.id, "model": task.model, "created_at": 1785125529, "task_type": "generation"}
        parameters["status"] = {"waiting": "queued", "working": "running"}.get(progress, "succeeded")
        if task.cancelled:
            parameters["status"] = "cancelled"
        elif progress == "done" and task.fate in BROKEN:
            code = "1027" if task.fate == "moderated" else "1000"
            parameters |= {"status": "failed", "error": {"code": code, "message": self.gossip}}
        elif progress == "done":
            parameters |= {"content": {"url": self.files.put(task)}, "duration": task.seconds, "modality": "video"}
        return web.json_response({"task": parameters})

    async def _drop(self, request: web.Request) -> web.StreamResponse:
        expect(self.drop(self.find(request.match_info["id"])), "a task that runs cannot be cancelled")
        return web.json_response({"task_id": request.match_info["id"]})


class RunwayVideos(VideoVendor):
    """Every answer of a task that is done has a new address."""

    slug = "runway"
    root = "/v1"
    ratios = ("1280:720", "720:1280")
    image_ratios = (*ratios, "1104:832", "960:960", "832:1104", "1584:672")

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/text_to_video", self._begin)
        router.add_post("/v1/image_to_video", self._begin)
        router.add_get("/v1/tasks/{id}", self._tell)
        router.add_delete("/v1/tasks/{id}", self._drop)

    def deny(self) -> web.Response:
        return web.json_response({"error": f"The key {self.denied[-1]} is not valid"}, status=401)

    def refuse(self, message: str, status: int) -> web.Response:
        issue = {"code": "custom", "path": [], "message": message}
        fields = {"error": "Validation of body failed", "issues": [issue], "docUrl": f"{self.origin}/docs"}
        return web.json_response(fields if status == 400 else {"error": message}, status=status)

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        self._check_version(request)
        by_image = request.path.endswith("/image_to_video")
        known = ("model", "promptText", "ratio", "duration", "seed", "contentModeration")
        body = await read_body(request, *known, *(("promptImage",) if by_image else ()))
        model = choose(body.get("model"), "model", "gen4.5")
        ratio = choose(body.get("ratio"), "ratio", *(self.image_ratios if by_image else self.ratios))
        seconds = choose(body.get("duration"), "duration", *range(2, 11))
        prompt = expect_text(body.get("promptText"), "promptText")
        expect(len(prompt) <= 1_000, "promptText is too long")
        image = None
        if by_image:
            (frame,) = expect_list(body.get("promptImage"), "promptImage")
            choose(expect_object(frame, "promptImage[0]", {"uri", "position"}).get("position"), "position", "first")
            image = read_image(frame.get("uri"), "uri")
            expect(isinstance(image, bytes) or image.startswith("https://"), "uri: only HTTPS is fetched")
        task_id = str(uuid.UUID(int=len(self.tasks), version=4))
        task = self.begin(VendorTask(task_id, prompt, model, seconds, ratio.replace(":", "x"), image))
        return web.json_response({"id": task.id})

    def _check_version(self, request: web.Request) -> None:
        expect(request.headers.get("X-Runway-Version") == "2024-11-06", "X-Runway-Version is missing or unknown")

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        self._check_version(request)
        task = self.find(request.match_info["id"])
        parameters: Json = {"id": task.id, "createdAt": "2024-06-27T19:49:32.335Z"}
        match self.walk(task):
            case "waiting":
                return web.json_response({**parameters, "status": "PENDING"})
            case "working":
                return web.json_response({**parameters, "status": "RUNNING", "progress": 0.4})
        if task.fate in BROKEN:
            code = "SAFETY.INPUT.TEXT" if task.fate == "moderated" else "INTERNAL.BAD_OUTPUT.CODE01"
            return web.json_response({**parameters, "status": "FAILED", "failure": self.gossip, "failureCode": code})
        return web.json_response({**parameters, "status": "SUCCEEDED", "output": [self.files.put(task)]})

    async def _drop(self, request: web.Request) -> web.StreamResponse:
        self._check_version(request)
        task = self.tasks.pop(self.find(request.match_info["id"]).id)
        (self.deleted if self.find_progress(task) == "done" else self.cancelled).append(task.id)
        return web.Response(status=204)


class DashScopeVideos(VideoVendor):
    """Wan 2.6 and 2.7. A task can be stopped as long as it waits."""

    slug = "dashscope"
    root = "/compatible-mode/v1"
    sizes = ("1920*1080", "1080*1920", "1440*1440", "1280*720", "720*1280", "960*960")
    shapes: ClassVar[dict[tuple[str, str], str]] = {
        ("1080P", "16:9"): "1920x1080",
        ("1080P", "9:16"): "1080x1920",
        ("720P", "16:9"): "1280x720",
        ("720P", "9:16"): "720x1280",
    }

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/api/v1/services/aigc/video-generation/video-synthesis", self._begin)
        router.add_get("/api/v1/tasks/{id}", self._tell)
        router.add_post("/api/v1/tasks/{id}/cancel", self._cancel)

    def _answer(self, status: int = 200, **more: Any) -> web.Response:
        return web.json_response({**more, "request_id": "7438d53d-6eb8-4596-8835-08cd22e09d9b"}, status=status)

    def deny(self) -> web.Response:
        return self._answer(401, code="InvalidApiKey", message="Invalid API-key provided.")

    def refuse(self, message: str, status: int) -> web.Response:
        return self._answer(status, code="InvalidParameter", message=message)

    def moderate(self) -> web.Response:
        return self._answer(400, code="DataInspectionFailed", message="Input data may contain inappropriate content.")

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        expect(request.headers.get("X-DashScope-Async") == "enable", "synchronous calls are not supported", 403)
        body = await read_body(request, "model", "input", "parameters")
        model = choose(body.get("model"), "model", "wan2.6-t2v", "wan2.6-i2v", "wan2.7-t2v", "wan2.7-i2v")
        newer, by_words = "2.7" in model, "t2v" in model
        start = {"media"} if newer else {"img_url"}
        fields = expect_object(
            body.get("input"), "input", {"prompt", "negative_prompt"} | (set() if by_words else start)
        )
        shape = {"resolution", "ratio"} if newer else {"size"}
        known = {"duration", "prompt_extend", "watermark", "seed"} | (shape if by_words else {"resolution"})
        parameters = expect_object(body.get("parameters", {}), "parameters", known)
        lengths = (5, 10, 15) if by_words and not newer else range(2, 16)
        seconds = choose(parameters.get("duration", 5), "duration", *lengths)
        image = None if by_words else self._read_image(fields)
        size = self._read_size(parameters, newer=newer) if by_words else None
        if not by_words:
            choose(parameters.get("resolution", "1080P"), "resolution", "720P", "1080P")
        task_id = f"0385dc79-5ff8-4d82-bcb6-{len(self.tasks):012}"
        task = VendorTask(task_id, expect_text(fields.get("prompt"), "prompt"), model, seconds, size, image)
        return self._answer(output={"task_status": "PENDING", "task_id": self.begin(task).id})

    def _read_image(self, fields: Json) -> bytes | str:
        if "img_url" in fields:
            return read_image(fields["img_url"], "img_url")
        (medium,) = expect_list(fields.get("media"), "media")
        choose(expect_object(medium, "media[0]", {"type", "url"}).get("type"), "type", "first_frame")
        return read_image(medium.get("url"), "url")

    def _read_size(self, parameters: Json, *, newer: bool) -> str:
        if not newer:
            size: str = choose(parameters.get("size", "1920*1080"), "size", *self.sizes)
            return size.replace("*", "x")
        words = (parameters.get("resolution", "1080P"), parameters.get("ratio", "16:9"))
        return self.shapes[choose(words, "resolution and ratio", *self.shapes)]

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        task = self.tasks.get(request.match_info["id"])
        if task is None:
            return self._answer(output={"task_id": request.match_info["id"], "task_status": "UNKNOWN"})
        output: Json = {"task_id": task.id, "task_status": "CANCELED" if task.cancelled else "SUCCEEDED"}
        progress = self.walk(task)
        if task.cancelled:
            return self._answer(output=output)
        if progress != "done":
            output["task_status"] = "PENDING" if progress == "waiting" else "RUNNING"
            return self._answer(output=output)
        if task.fate in BROKEN:
            code = "DataInspectionFailed" if task.fate == "moderated" else "InternalError.Timeout"
            return self._answer(output={**output, "task_status": "FAILED", "code": code, "message": self.gossip})
        output["video_url"] = self.find_address(task)
        usage = {"duration": task.seconds, "output_video_duration": task.seconds, "video_count": 1, "SR": 720}
        return self._answer(output={**output, "orig_prompt": task.prompt}, usage=usage)

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.match_info["id"])
        expect(self.find_progress(task) == "waiting", "Failed to cancel the task, please confirm it is PENDING")
        self.drop(task)
        return self._answer()


class VolcengineVideos(VideoVendor):
    """Seedance 1.0 pro."""

    slug = "volcengine"
    root = "/api/v3"
    sizes: ClassVar[dict[tuple[str, str], str]] = {
        ("1080p", "16:9"): "1920x1088",
        ("1080p", "9:16"): "1088x1920",
        ("720p", "16:9"): "1248x704",
        ("720p", "9:16"): "704x1248",
    }

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/api/v3/contents/generations/tasks", self._begin)
        router.add_get("/api/v3/contents/generations/tasks/{id}", self._tell)
        router.add_delete("/api/v3/contents/generations/tasks/{id}", self._drop)

    def _fail(self, code: str, message: str, kind: str, status: int) -> web.Response:
        error = {"code": code, "message": f"{message} Request id: 021743414619", "param": "", "type": kind}
        return web.json_response({"error": error}, status=status)

    def deny(self) -> web.Response:
        words = "The API key or AK/SK in the request is missing or invalid."
        return self._fail("AuthenticationError", words, "Unauthorized", 401)

    def refuse(self, message: str, status: int) -> web.Response:
        return self._fail("NotFound" if status == 404 else "InvalidParameter", message, "BadRequest", status)

    def moderate(self) -> web.Response:
        words = "The request failed because the input text may contain sensitive information."
        return self._fail("InputTextSensitiveContentDetected", words, "BadRequest", 400)

    async def _begin(self, request: web.Request) -> web.StreamResponse:
        known = ("model", "content", "resolution", "ratio", "duration", "seed", "camera_fixed", "watermark")
        body = await read_body(request, *known)
        model = choose(body.get("model"), "model", "doubao-seedance-1-0-pro-250528")
        prompt, image = read_content(body.get("content"))
        expect("--" not in prompt, "a command in a prompt")
        shape = (body.get("resolution", "1080p"), body.get("ratio", "16:9"))
        size = self.sizes[choose(shape, "resolution and ratio", *self.sizes)]
        seconds = choose(body.get("duration", 5), "duration", *range(2, 13))
        task_id = f"cgt-20250331175019-{len(self.tasks):05}"
        self.begin(VendorTask(task_id, prompt, model, seconds, size, image))
        return web.json_response({"id": task_id})

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        task = self.find(request.match_info["id"])
        progress = self.walk(task)
        parameters: Json = {"id": task.id, "model": task.model, "created_at": 1743414619, "updated_at": 1743414673}
        parameters["status"] = {"waiting": "queued", "working": "running"}.get(progress, "succeeded")
        if task.cancelled:
            parameters["status"] = "cancelled"
        elif progress == "done" and task.fate in BROKEN:
            moderated = task.fate == "moderated"
            code = "OutputVideoSensitiveContentDetected" if moderated else "InternalServiceError"
            parameters |= {"status": "failed", "error": {"code": code, "message": self.gossip}}
        elif progress == "done":
            parameters |= {
                "content": {"video_url": self.find_address(task)},
                "duration": task.seconds,
                "framespersecond": 24,
            }
        return web.json_response(parameters)

    async def _drop(self, request: web.Request) -> web.StreamResponse:
        expect(self.drop(self.find(request.match_info["id"])), "The task is running")
        return web.json_response({})


VENDORS: tuple[type[VideoVendor], ...] = (
    GeminiVideos,
    KlingVideos,
    OlderKlingVideos,
    MiniMaxVideos,
    MiniMaxH3Videos,
    RunwayVideos,
    DashScopeVideos,
    VolcengineVideos,
)
