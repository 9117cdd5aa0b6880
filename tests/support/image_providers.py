"""Providers of pictures, each in a language of its own, as strict as the vendor: what they have in common.

A test says what becomes of each request in turn (``"ok"``, ``"block"``, ``"fail"``); the provider looks at what it was
sent, refuses what the vendor refuses with the vendor's error, and keeps what it understood for the test to look at.
"""

import abc
import struct
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal, Self

import attrs
from aiohttp import web

KEY = "provider-key"
Json = dict[str, Any]
Fate = Literal["ok", "block", "fail"]


@attrs.frozen
class ReceivedImageRequest:
    """What arrived, in words that are nobody's. ``size`` is as the vendor was told it, None where it was not."""

    prompt: str
    count: int = 1
    size: str | None = None
    sources: tuple[bytes, ...] = ()
    mask: bytes | None = None
    body: Any = None


def draw(width: int = 8, height: int = 8, shade: int = 0) -> bytes:
    """A grey PNG of that size."""
    return _write_png(width, height, 0, bytes([shade % 256]) * width)


def _write_png(width: int, height: int, colour_type: int, row: bytes) -> bytes:
    """Every row alike."""
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)),
        (b"IDAT", zlib.compress((b"\0" + row) * height)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def draw_mask(width: int = 8, height: int = 8) -> bytes:
    """A mask of that size: all of it is to be painted anew."""
    return _write_png(width, height, 4, b"\0\0" * width)


def measure(image: bytes) -> tuple[int, int]:
    """Width and height of a PNG; fails where it is none."""
    assert image.startswith(b"\x89PNG\r\n\x1a\n"), image[:16]
    width, height = struct.unpack(">II", image[16:24])
    return int(width), int(height)


class ImageProvider(abc.ABC):
    """A real HTTP server on a loopback port. ``async with`` it.

    Attributes:
        heard: every request for pictures that it took.
        requests: method and path of everything that was asked, in order.
        cancelled: tasks that were cancelled.
    """

    slug: ClassVar[str]
    model: ClassVar[str]
    root: ClassVar[str] = "/v1"
    auth: ClassVar[tuple[str, str]] = ("Authorization", f"Bearer {KEY}")

    def __init__(self, *fates: Fate) -> None:
        self._fates = fates or ("ok",)
        self._given = 0
        self._runner: web.AppRunner | None = None
        self.heard: list[ReceivedImageRequest] = []
        self.requests: list[tuple[str, str]] = []
        self.cancelled: list[str] = []

    @abc.abstractmethod
    def add_routes(self, app: web.Application) -> None:
        """Every path of the vendor that is served."""

    @abc.abstractmethod
    def write_denied(self) -> Json:
        """The vendor's answer to a wrong key."""

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard], client_max_size=1 << 30)
        self.add_routes(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        name, value = self.auth
        if not request.path.startswith("/files/") and request.headers.get(name) != value:
            return web.json_response(self.write_denied(), status=401)
        return await handler(request)

    def give(self) -> Fate:
        """What becomes of the next request."""
        fate = self._fates[min(self._given, len(self._fates) - 1)]
        self._given += 1
        return fate

    @property
    def origin(self) -> str:
        assert self._runner is not None
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    @property
    def base_url(self) -> str:
        return f"{self.origin}{self.root}"

    def channel(self, name: str = "up", **more: Any) -> Json:
        """A ``[[channel]]`` that leads here, and serves the model ``m`` under the vendor's own name of one."""
        return {
            "name": name,
            "provider": self.slug,
            "base_url": self.base_url,
            "api_key": KEY,
            "models": ["m"],
            "model_map": {"m": self.model},
            "connect_timeout_s": 20,
            "first_byte_timeout_s": 5,
            "idle_timeout_s": 5,
            "total_timeout_s": 20,
            **more,
        }


def parse_size(size: str | None, default: str = "64x64") -> tuple[int, int]:
    """Width and height of ``64x64``."""
    width, _, height = (size or default).partition("x")
    return int(width), int(height)
