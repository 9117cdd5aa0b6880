"""Deliver a generated image in the requested form: check it, fetch it if it is elsewhere, encode or store it."""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterator

import attrs

from gateway.domain.image import MAX_IMAGE_BYTES, Image, PictureForm
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.image_data import check_image
from gateway.media.signed_links import SignedLinks
from gateway.providers.base import parse_origin
from gateway.routing.target import Attempt
from gateway.upstream.interface import Fetcher

FETCH_TIMEOUT_S = 60.0
_STEP = 3 * 4 * 64 * 1024
"""Bytes decoded or encoded before the event loop runs other tasks: about 1 ms. A thread would hold the GIL as long."""


class ImageDelivery:
    """Converts images to the requested form, after checking that they are images.

    Args:
        fetcher: opens addresses of the public internet only.
        keeper: stores images for clients that want addresses.
    """

    def __init__(self, fetcher: Fetcher, keeper: SignedLinks) -> None:
        self._fetcher = fetcher
        self._keeper = keeper

    def check_room(self) -> None:
        """Raise ``StoreUnavailable`` if the disk has no room for another image."""
        self._keeper.check_room()

    async def give(self, attempt: Attempt, call: InferenceRequest, image: Image, form: PictureForm) -> Image:
        """Return ``image`` in ``form``. Raises ``ProviderError``, ``StoreUnavailable``."""
        try:
            if form == "url":
                return await self._give_url(attempt, call, image)
            return await self._give_data(attempt, image)
        except ProviderError as fault:
            if image.quoted:
                fault.failure_scope, fault.answered = "nobody", True
            raise

    async def _give_url(self, attempt: Attempt, call: InferenceRequest, image: Image) -> Image:
        """Return the image with a signed link, or with the provider's address if the channel passes addresses on."""
        if image.url is not None and attempt.channel.pass_urls:
            return attrs.evolve(image, data=None)
        raw = await self._fetch(attempt, image) if image.data is None else await _read(image.data)
        link = await self._keeper.keep(raw)
        return attrs.evolve(image, data=None, url=f"{call.origin}{link}")

    async def _give_data(self, attempt: Attempt, image: Image) -> Image:
        """Return the image in base64, checked."""
        if image.data is not None:
            check_image((await _decode(image.data, keep=1))[0])
            return attrs.evolve(image, url=None)
        raw = await self._fetch(attempt, image)
        return attrs.evolve(image, data=b"".join(await _in_turns(base64.b64encode, raw)).decode(), url=None)

    async def _fetch(self, attempt: Attempt, image: Image) -> bytes:
        channel = attempt.channel
        raw = await self._fetcher.fetch(
            image.url or "",
            trusted_origin=None if image.quoted else parse_origin(channel.base_url),
            proxy=channel.proxy,
            limit_bytes=MAX_IMAGE_BYTES,
            timeout_s=FETCH_TIMEOUT_S,
        )
        check_image(raw)
        return raw


async def _read(data: str) -> bytes:
    raw = b"".join(await _decode(data))
    check_image(raw)
    return raw


async def _decode(data: str, keep: int | None = None) -> list[bytes]:
    """Decode an image's base64 completely, in pieces; return the first ``keep`` of them, all if None."""
    try:
        return await _in_turns(_decode_strictly, _encode(data), keep)
    except ValueError:
        raise ProviderBadResponse("The provider's picture is not valid base64") from None


def _encode(data: str) -> bytes:
    if not data or len(data) % 4 or data.find("=", 0, -2) >= 0:  # the decoder would miss padding between two steps
        raise ValueError
    return data.encode("ascii")


def _decode_strictly(data: bytes) -> bytes:
    return binascii.a2b_base64(data, strict_mode=True)


async def _in_turns(code: Callable[[bytes], bytes], data: bytes, keep: int | None = None) -> list[bytes]:
    """Apply ``code`` to ``data`` in steps, and let other tasks run in between."""
    done: list[bytes] = []
    for step in _cut(data):
        piece = code(step)
        if keep is None or len(done) < keep:
            done.append(piece)
        if len(data) > _STEP:
            await asyncio.sleep(0)
    return done


def _cut(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _STEP] for start in range(0, len(data), _STEP))
