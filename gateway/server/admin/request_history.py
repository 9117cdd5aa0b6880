"""Access to the request log, the traffic sums, and the cost breakdown of a request."""

from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager

import attrs

from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.billing.cost_breakdown import BillLine, list_lines
from gateway.domain.price import multiply_ppm
from gateway.domain.request_log import ID_PREFIX, RequestFilter, RequestRecord, StoredRequest
from gateway.errors import Conflict, NotFound, RateLimited
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.router import Router
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.subject_usage import SubjectUsageRepository
from gateway.storage.traffic import TrafficRepository

PAGE_ROWS = 200
"""Rows of an export held in memory at a time."""
MIN_ID_DIGITS = 4
"""Minimum number of digits in the beginning of an id by which a request can be named."""
_HEX = frozenset("0123456789abcdef")
MAX_EXPORTED_ROWS = 1_000_000
SESSION_CHECK_S = 10.0
"""Seconds between two checks of an exporting session."""
MAX_EXPORTS = 2
"""Maximum number of concurrent exports of an account; exports of all accounts are counted like an account."""


class RequestHistory:
    """Reads the request log, the sums of the traffic, and the sums of end users, sessions and tags.

    ``retry_s`` is the time in seconds between two checks of a session that exports requests.
    """

    def __init__(
        self,
        log: RequestLogRepository,
        traffic: TrafficRepository,
        directory: ApiKeyAuthenticator,
        catalog: ModelCatalog,
        router: Router,
        *,
        subjects: SubjectUsageRepository,
    ) -> None:
        self.log = log
        self.traffic = traffic
        self.subjects = subjects
        self._catalog = catalog
        self._router = router
        self._api_keys = directory
        self._export_counts: Counter[int | None] = Counter()
        self.retry_s = SESSION_CHECK_S

    @property
    def exports(self) -> int:
        return self._export_counts.total()

    async def get(self, request_id: str, account_id: int | None = None) -> StoredRequest:
        """Return the request with this id, or the only one whose id begins with it. ``req_`` is optional.

        The beginning of an id must have at least ``MIN_ID_DIGITS`` hexadecimal digits. Only requests of the account
        ``account_id`` are found; None: of any. Raises ``NotFound`` if there is no such request, or ``Conflict`` if
        several ids begin with ``request_id``.
        """
        stored_request = await self.log.find_request(request_id)
        if stored_request is not None and account_id in {None, stored_request.row.account_id}:
            return stored_request
        prefix = request_id.lower().removeprefix(ID_PREFIX)
        matches = []
        if stored_request is None and len(prefix) >= MIN_ID_DIGITS and _HEX.issuperset(prefix):
            matches = await self.log.find_by_prefix(f"{ID_PREFIX}{prefix}", account_id, limit=2)
        if not matches:
            raise NotFound(f"No request has the id '{request_id[:64]}'", param="id")
        if len(matches) > 1:
            raise Conflict(
                f"Several requests have an id that begins with '{request_id[:64]}': give more of it", param="id"
            )
        return matches[0]

    def list_lines(self, row: RequestRecord) -> list[BillLine]:
        """Return the lines of a request's cost, calculated with the current prices."""
        pricing, channel = self._router.pricing, self._catalog.find_channel(row.channel or "")
        caller = self._api_keys.find_caller(row.key_id)
        multiplier, batch_ppm = pricing.find_multiplier(caller.key.group if caller else None), row.batch_multiplier_ppm
        if channel is None:
            price_matches = [pricing.prices.find(name) for name in (row.model, row.served_model) if name]
        else:
            multiplier = multiply_ppm(channel.multiplier_ppm, multiplier)
            names = [(row.model, channel.upstream_model(row.model)), (row.served_model, row.served_model)]
            price_matches = [pricing.find_price(*pair, channel.provider) for pair in names if pair[0]]
        prices = [price for price in price_matches if price is not None]
        return list_lines(row, prices, multiply_ppm(multiplier, batch_ppm))

    @contextmanager
    def exporting(self, account_id: int | None) -> Iterator[None]:
        """Count an export of one account, or of all (None), until the block ends.

        Raises ``RateLimited`` if ``MAX_EXPORTS`` of them run already.
        """
        if self._export_counts[account_id] >= MAX_EXPORTS:
            raise RateLimited(f"{MAX_EXPORTS} exports are under way already", retry_after_s=30)
        self._export_counts[account_id] += 1
        try:
            yield
        finally:
            self._export_counts[account_id] -= 1
            if not self._export_counts[account_id]:
                del self._export_counts[account_id]


async def list_pages(
    log: RequestLogRepository, request_filter: RequestFilter, max_rows: int = MAX_EXPORTED_ROWS
) -> AsyncGenerator[Sequence[StoredRequest], None]:
    """Yield matching rows, at most ``max_rows``, the newest first, in pages. An empty page does not mark the end."""
    while True:
        page = await log.list_requests(request_filter, min(PAGE_ROWS, max_rows))
        max_rows -= len(page)
        yield page[::-1]
        if page.next is None or max_rows <= 0:
            return
        request_filter = attrs.evolve(request_filter, before=int(page.next))
