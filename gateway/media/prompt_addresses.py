"""Fetches images and files that a prompt references by URL, for providers that accept only inline data.

The reservation treats a URL as content of unknown length (``formats/references/provider_reads.py``).
"""

import asyncio
from urllib.parse import urlsplit

import attrs

from gateway.domain.media import SNIFF_BYTES, sniff_image
from gateway.errors import Overloaded, ProviderError, RequestTooLarge, UnsupportedByProvider
from gateway.formats.references.media_addresses import FetchedMedia, MediaAddress, copy_prompt, encode, list_addresses
from gateway.formats.references.prompt_files import find_type
from gateway.large_work import MAX_ON_LOOP, run_by_size
from gateway.memory_budget import Loan, MemoryBudget
from gateway.request_context import RequestContext
from gateway.routing.target import Attempt
from gateway.upstream.interface import FileRequest
from gateway.upstream.safe_fetch import SafeFetcher

FETCH_TIMEOUT_S, TOTAL_TIMEOUT_S = 15.0, 30.0
"""Timeouts in seconds: for an answer or the next piece from one server, and for all files of a request."""
MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_ADDRESSES = 20
"""Maximum of URLs per request: the number of images that one request to Bedrock may have."""
_MAX_PARALLEL_FETCHES = 4
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_REQUEST_SUBJECT = "The request with the files at its addresses"


class PromptAddresses:
    """Replaces the URLs in prompts by the images and files there, within the ``memory`` budget."""

    def __init__(self, fetcher: SafeFetcher, memory: MemoryBudget) -> None:
        self._fetcher = fetcher
        self._memory = memory

    async def load(self, ctx: RequestContext, attempt: Attempt) -> None:
        """Replace the URLs in the attempt's request by their content. Each URL is fetched once per request.

        Raises ``UnsupportedByProvider`` for more than ``MAX_ADDRESSES`` URLs, and if content cannot be used. In an
        earlier turn, a part whose content cannot be used becomes a text instead.
        Raises ``RequestTooLarge`` or ``Overloaded`` if there is not enough memory.
        """
        inference = attempt.translator.inference
        if inference.plain or next(list_addresses(inference.body), None) is None:
            return
        body = copy_prompt(inference.body)
        addresses = list(list_addresses(body))
        address_by_url = {address.url: address for address in reversed(addresses)}
        if len(address_by_url) > MAX_ADDRESSES:
            message = f"At most {MAX_ADDRESSES} images and files may be named by address; send the others as data"
            raise UnsupportedByProvider(message, param=addresses[-1].param)
        memory_loan = self._memory.lend(ctx)
        media_by_url: dict[str, FetchedMedia] = memory_loan.media_by_url
        await self._load_all(
            [address for address in address_by_url.values() if address.url not in media_by_url],
            media_by_url,
            memory_loan,
        )
        for address in addresses:
            _put_content(address, media_by_url[address.url], attempt)
        large = inference.large or sum(len(media.data) for media in media_by_url.values()) > MAX_ON_LOOP
        attempt.translator.inference = attrs.evolve(inference, body=body, large=large)

    async def _load_all(
        self, addresses: list[MediaAddress], media_by_url: dict[str, FetchedMedia], memory_loan: Loan
    ) -> None:
        """Fetch all addresses, a few concurrently, into ``media_by_url``.

        What cannot be used gets an entry with an error. Raises ``RequestTooLarge`` or ``Overloaded`` naming the field.
        """
        slots, deadline = asyncio.Semaphore(_MAX_PARALLEL_FETCHES), asyncio.get_running_loop().time() + TOTAL_TIMEOUT_S
        limit_errors: list[RequestTooLarge | Overloaded] = []

        async def load(address: MediaAddress) -> None:
            try:
                async with asyncio.timeout_at(deadline), slots:
                    media_by_url[address.url] = await self._load(address, memory_loan)
            except (ProviderError, TimeoutError):
                media_by_url[address.url] = FetchedMedia(error="it could not be fetched from its address")
            except (RequestTooLarge, Overloaded) as error:
                limit_errors.append(error)

        async with asyncio.TaskGroup() as group:
            for address in addresses:
                group.create_task(load(address))
        if limit_errors:
            raise limit_errors[0]

    async def _load(self, address: MediaAddress, memory_loan: Loan) -> FetchedMedia:
        raw = await self._read(address, memory_loan)
        if raw is None:
            return FetchedMedia(error=f"it is larger than {MAX_FILE_BYTES // 2**20} MB")
        head = raw[:SNIFF_BYTES]
        media_type = sniff_image(head) if address.kind == "image" else find_type(urlsplit(address.url).path, head)
        if address.kind == "image" and media_type not in _IMAGE_TYPES:
            return FetchedMedia(error="it is not a PNG, JPEG, GIF or WebP image")
        data = await run_by_size(len(raw), encode, raw)
        return FetchedMedia(media_type or "", raw if str(media_type).startswith("text/") else b"", data)

    async def _read(self, address: MediaAddress, memory_loan: Loan) -> bytes | None:
        """Return the file; None if it is too large. Memory for it and its base64 form is borrowed piece by piece.

        Raises ``ProviderError`` if it cannot be fetched, ``RequestTooLarge`` or ``Overloaded`` if memory is short.
        """
        file_request = FileRequest(address.url, trusted_origin=None, connect_s=FETCH_TIMEOUT_S, idle_s=FETCH_TIMEOUT_S)
        pieces: list[bytes] = []
        size = 0
        response = await self._fetcher.open(file_request)
        try:
            while piece := await response.read():
                size += len(piece)
                if size > MAX_FILE_BYTES:
                    return None
                memory_loan.take(3 * len(piece), _REQUEST_SUBJECT, address.param)
                pieces.append(piece)
        finally:
            response.close()
        return b"".join(pieces)


def _put_content(address: MediaAddress, media: FetchedMedia, attempt: Attempt) -> None:
    if not media.error:
        address.put(media)
        return
    kind = address.leave_out() if address.is_past else None
    if kind is None:
        raise UnsupportedByProvider(f"'{address.param}' cannot be used: {media.error}", param=address.param)
    attempt.translator.adapted = tuple(dict.fromkeys((*attempt.translator.adapted, kind)))
