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
MOST = 20
"""Maximum of URLs per request: the number of images that one request to Bedrock may have."""
_AT_ONCE = 4
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_WHAT = "The request with the files at its addresses"


class PromptAddresses:
    """Replaces the URLs in prompts by the images and files there, within the ``memory`` budget."""

    def __init__(self, fetcher: SafeFetcher, memory: MemoryBudget) -> None:
        self._fetcher = fetcher
        self._memory = memory

    async def load(self, ctx: RequestContext, attempt: Attempt) -> None:
        """Replace the URLs in the attempt's request by their content. Each URL is fetched once per request.

        Raises ``UnsupportedByProvider`` if content cannot be used; in an earlier turn the part becomes text instead.
        Raises ``RequestTooLarge`` or ``Overloaded`` if there is not enough memory.
        """
        inference = attempt.translator.inference
        if inference.plain or next(list_addresses(inference.body), None) is None:
            return
        body = copy_prompt(inference.body)
        found = list(list_addresses(body))
        first = {one.url: one for one in reversed(found)}
        if len(first) > MOST:
            message = f"At most {MOST} images and files may be named by address; send the others as data"
            raise UnsupportedByProvider(message, param=found[-1].where)
        loan = self._memory.lend(ctx)
        loaded: dict[str, FetchedMedia] = loan.fetched
        await self._load_all([one for one in first.values() if one.url not in loaded], loaded, loan)
        for one in found:
            _put_content(one, loaded[one.url], attempt)
        large = inference.large or sum(len(media.data) for media in loaded.values()) > MAX_ON_LOOP
        attempt.translator.inference = attrs.evolve(inference, body=body, large=large)

    async def _load_all(self, addresses: list[MediaAddress], loaded: dict[str, FetchedMedia], loan: Loan) -> None:
        """Fetch all addresses, a few concurrently. Raises ``RequestTooLarge`` or ``Overloaded`` naming the field."""
        slots, deadline = asyncio.Semaphore(_AT_ONCE), asyncio.get_running_loop().time() + TOTAL_TIMEOUT_S
        refused: list[RequestTooLarge | Overloaded] = []

        async def load(one: MediaAddress) -> None:
            try:
                async with asyncio.timeout_at(deadline), slots:
                    loaded[one.url] = await self._load(one, loan)
            except (ProviderError, TimeoutError):
                loaded[one.url] = FetchedMedia(error="it could not be fetched from its address")
            except (RequestTooLarge, Overloaded) as error:
                refused.append(error)

        async with asyncio.TaskGroup() as group:
            for one in addresses:
                group.create_task(load(one))
        if refused:
            raise refused[0]

    async def _load(self, one: MediaAddress, loan: Loan) -> FetchedMedia:
        raw = await self._read(one, loan)
        if raw is None:
            return FetchedMedia(error=f"it is larger than {MAX_FILE_BYTES // 2**20} MB")
        head = raw[:SNIFF_BYTES]
        media_type = sniff_image(head) if one.kind == "image" else find_type(urlsplit(one.url).path, head)
        if one.kind == "image" and media_type not in _IMAGES:
            return FetchedMedia(error="it is not a PNG, JPEG, GIF or WebP image")
        data = await run_by_size(len(raw), encode, raw)
        return FetchedMedia(media_type or "", raw if str(media_type).startswith("text/") else b"", data)

    async def _read(self, one: MediaAddress, loan: Loan) -> bytes | None:
        """Return the file; None if it is too large. Memory for it and its base64 form is borrowed piece by piece."""
        file_request = FileRequest(one.url, trusted_origin=None, connect_s=FETCH_TIMEOUT_S, idle_s=FETCH_TIMEOUT_S)
        pieces: list[bytes] = []
        size = 0
        found = await self._fetcher.open(file_request)
        try:
            while piece := await found.read():
                size += len(piece)
                if size > MAX_FILE_BYTES:
                    return None
                loan.take(3 * len(piece), _WHAT, one.where)
                pieces.append(piece)
        finally:
            found.close()
        return b"".join(pieces)


def _put_content(one: MediaAddress, media: FetchedMedia, attempt: Attempt) -> None:
    if not media.error:
        one.put(media)
        return
    kind = one.leave_out() if one.is_past else None
    if kind is None:
        raise UnsupportedByProvider(f"'{one.where}' cannot be used: {media.error}", param=one.where)
    attempt.translator.adapted = tuple(dict.fromkeys((*attempt.translator.adapted, kind)))
