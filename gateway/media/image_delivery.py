"""Delivers a generated image in the requested form: checks, fetches, encodes or stores it as needed."""

import attrs

from gateway.domain.image import MAX_IMAGE_BYTES, Image, ImageForm
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.images.image_data import check_image
from gateway.media.base64_steps import decode_base64, encode_base64
from gateway.media.signed_links import SignedLinks
from gateway.providers.base import parse_origin
from gateway.routing.target import Attempt
from gateway.upstream.safe_fetch import SafeFetcher

FETCH_TIMEOUT_S = 60.0


class ImageDelivery:
    """Converts images to the requested form, and checks that they are images.

    An image whose address the channel forwards (``pass_urls``) is neither fetched nor checked.
    """

    def __init__(self, fetcher: SafeFetcher, links: SignedLinks) -> None:
        self._fetcher = fetcher
        self._links = links

    def check_room(self) -> None:
        self._links.check_room()

    async def deliver(self, attempt: Attempt, inference: InferenceRequest, image: Image, form: ImageForm) -> Image:
        try:
            if form == "url":
                return await self._deliver_url(attempt, inference, image)
            return await self._deliver_data(attempt, image)
        except ProviderError as error:
            if image.quoted:
                error.failure_scope, error.answered = "nobody", True
            raise

    async def _deliver_url(self, attempt: Attempt, inference: InferenceRequest, image: Image) -> Image:
        """Return the image with a signed link, or with the provider's address.

        The address is returned if there is one and the channel forwards addresses.
        """
        if image.url is not None and attempt.channel.pass_urls:
            return attrs.evolve(image, data=None)
        raw = await self._fetch(attempt, image) if image.data is None else await _decode(image.data)
        link = await self._links.create_link(raw)
        return attrs.evolve(image, data=None, url=f"{inference.origin}{link}")

    async def _deliver_data(self, attempt: Attempt, image: Image) -> Image:
        if image.data is not None:
            await _decode(image.data, max_head=1)
            return attrs.evolve(image, url=None)
        raw = await self._fetch(attempt, image)
        return attrs.evolve(image, data=await encode_base64(raw), url=None)

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


async def _decode(data: str, max_head: int | None = None) -> bytes:
    """Return the decoded image, or only its first ``max_head`` pieces. All of the base64 is checked.

    Raises ``ProviderBadResponse`` for invalid base64, and for data that is no image.
    """
    pieces: list[bytes] = []
    try:
        async for piece in decode_base64(data):
            if max_head is None or len(pieces) < max_head:
                pieces.append(piece)
    except ValueError:
        pieces = []
    if not pieces:
        raise ProviderBadResponse("The provider's image is not valid base64")
    image = b"".join(pieces)
    check_image(image)
    return image
