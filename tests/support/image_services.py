"""The image service over scripted backends."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson
from typing_extensions import override

from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.capability import Capability
from gateway.domain.channel import Channel
from gateway.domain.http_request import HttpRequest
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse, ProviderError, StoreUnavailable
from gateway.formats.images.openai import parse_images_inference
from gateway.media.image_delivery import ImageDelivery
from gateway.media.images import ImageService
from gateway.media.signed_links import SignedLinks
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy
from gateway.routing.router import Router
from gateway.routing.target import Attempt
from gateway.routing.target_list import TargetList
from gateway.upstream.interface import PumpResult, Sink
from gateway.upstream.safe_fetch import SafeFetcher

CALLER = Caller(Account(1, "acme"), ApiKey(1, 1, "k", b"", ""))


TASK = "gm3qorzdhgbfurvjtvhg6dck00"


NOW_S = 1_750_000_000


@attrs.frozen
class Answered:
    """What a provider answers, after ``wait_s``."""

    body: Any = None
    status: int = 200
    wait_s: float = 0.0
    headers: Mapping[str, str] = {}


class Reply:
    """``upstream.port.Reply`` over a ``Answered``."""

    def __init__(self, answered: Answered) -> None:
        self.status, self.headers = answered.status, answered.headers
        self._raw = answered.body if isinstance(answered.body, bytes) else orjson.dumps(answered.body)

    async def read(self, limit: int) -> bytes:
        assert len(self._raw) <= limit
        return self._raw

    async def pump(self, sink: Sink) -> PumpResult:
        sink(self._raw, None)
        return PumpResult.ENDED

    def abort(self, error: ProviderError) -> None:
        raise AssertionError(error)

    def finish(self) -> None: ...

    def close(self) -> None: ...


Answer = Answered | ProviderError


Clerk = Callable[["Asked"], Answer]


@attrs.frozen
class Asked:
    """A request as the provider saw it, and when."""

    at: float
    method: str
    path: str
    body: Any
    number: int


class Provider:
    """``upstream.port.Upstream``: answers as ``clerk`` says, and keeps what it was asked."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk = clerk
        self.asked: list[Asked] = []
        self.running = self.most = 0

    async def send(self, http_request: HttpRequest) -> Reply:
        body = orjson.loads(http_request.body) if isinstance(http_request.body, bytes) else None
        path = http_request.url[len("http://up/v1") :]
        asked = Asked(asyncio.get_running_loop().time(), http_request.method, path, body, len(self.asked))
        self.asked.append(asked)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            answered = self._clerk(asked)
            if isinstance(answered, ProviderError):
                raise answered
            await asyncio.sleep(answered.wait_s)
            return Reply(answered)
        finally:
            self.running -= 1

    async def close(self) -> None: ...

    @property
    def polls(self) -> list[float]:
        """When it was asked after a task."""
        return [asked.at for asked in self.asked if asked.method == "GET"]

    @property
    def cancels(self) -> list[str]:
        return [asked.path for asked in self.asked if asked.path.endswith("/cancel")]


class Files(SafeFetcher):
    """A fetcher over a table."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self.asked: list[dict[str, Any]] = []

    @override
    async def fetch(self, url: str, **more: Any) -> bytes:
        self.asked.append({"url": url, **more})
        if url not in self._files:
            raise ProviderBadResponse("The provider's file was answered with status 404")
        return self._files[url]

    @override
    async def close(self) -> None: ...


class StoreDouble(SignedLinks):
    """Keeps images in a list."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.full = False

    @override
    async def create_link(self, data: bytes) -> str:
        self.kept.append(data)
        return f"/media/{len(self.kept) - 1}"

    @override
    def check_room(self) -> None:
        if self.full:
            raise StoreUnavailable("no room")


@attrs.define
class ImageServices:
    """The rooms of a picture, over one channel ``up``."""

    provider: Provider
    images: ImageService
    shelf: StoreDouble
    files: Files
    router: Router
    board: LoadBalancer

    def route(self, inference: InferenceRequest) -> TargetList:
        route = self.router.route(CALLER, inference)
        route.rank()
        return route

    def begin(self, inference: InferenceRequest) -> Attempt:
        return self.route(inference).start("1", NOW_S)

    async def answer(self, inference: InferenceRequest | None = None) -> Any:
        """The answer, parsed; and when it was there."""
        inference = inference or ask()
        raw, usage = await self.images.answer(self.begin(inference), inference)
        return orjson.loads(raw), usage, asyncio.get_running_loop().time()


def ask(**more: Any) -> InferenceRequest:
    body = {"model": "m", "prompt": "a cat", "response_format": "b64_json", **more}
    return attrs.evolve(parse_images_inference(body), origin="https://gateway.example")


def image_services(
    clerk: Clerk,
    provider: str = "replicate",
    model: str = "black-forest-labs/flux-schnell",
    *,
    files: Mapping[str, bytes] | None = None,
    models: Sequence[Capability] = (),
    **more: Any,
) -> ImageServices:
    channel = Channel("up", provider, "http://up/v1", ("key-of-up",), ("m",), model_map=(("m", model),), **more)
    catalog, board = (
        ModelCatalog(clock=lambda: 0.0),
        LoadBalancer(lambda: asyncio.get_running_loop().time(), settings=DEFAULT_SETTINGS, shared=None),
    )
    catalog.set_channels([channel])
    board.set_channels([channel])
    router = Router(catalog, board, PricingPolicy(), models=(), routes={})
    router.models = tuple(models)
    made, shelf, table = Provider(clerk), StoreDouble(), Files(files or {})
    images = ImageService(made, ImageDelivery(table, shelf), find_words=lambda: None, clock=lambda: float(NOW_S))
    return ImageServices(made, images, shelf, table, router, board)


def task(state: str, **more: Any) -> Answered:
    return Answered({"id": TASK, "status": state, **more})


BEGUN = task("starting")


def play(*answers: Answer, cancel: Answer = BEGUN) -> Clerk:
    """Answers in their order, the last again and again; wishes to cancel are answered beside them."""
    left = list(answers)

    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("/cancel"):
            return cancel
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


def images(*data: str, **more: Any) -> Answered:
    return Answered({"created": 1, "data": [{"b64_json": one} for one in data], **more})


def number(count: int) -> Capability:
    return Capability("m", max_n=count)
