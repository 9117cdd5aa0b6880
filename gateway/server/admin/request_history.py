"""What happened: requests, their sums, and what the cost of one is made of."""

from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager

import attrs

from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.billing.cost_breakdown import BillLine, list_lines
from gateway.domain.price import ONE_PPM
from gateway.domain.request_log import RequestFilter, RequestRecord, StoredRequest
from gateway.errors import NotFound, RateLimited
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.router import Router
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.traffic import TrafficRepository

PAGE = 200
"""Rows of an export that are in memory at a time."""
MOST_EXPORTED = 1_000_000
LOOK_AGAIN_S = 10.0
"""How long somebody whose session has ended goes on being given rows, at the most."""
MOST_EXPORTS = 2
"""Exports of one account, or of all, that go on at a time: each keeps the database busy."""


class RequestHistory:
    """Looks into what the store remembers.

    Args:
        log: where requests are found.
        traffic: where their sums are.
        directory: knows the groups of keys.
        catalog: the channels.
        router: knows what models cost now.

    Attributes:
        again_s: how often whoever exports is looked at again.
    """

    def __init__(
        self,
        log: RequestLogRepository,
        traffic: TrafficRepository,
        directory: ApiKeyAuthenticator,
        catalog: ModelCatalog,
        router: Router,
    ) -> None:
        self.log = log
        self.traffic = traffic
        self._catalog = catalog
        self._router = router
        self._directory = directory
        self._exports: Counter[int | None] = Counter()
        self.again_s = LOOK_AGAIN_S

    @property
    def exports(self) -> int:
        """Exports under way."""
        return self._exports.total()

    async def get(self, request_id: str, account_id: int | None = None) -> StoredRequest:
        """A request, of that account if one is named. Raises ``NotFound``."""
        found = await self.log.find_request(request_id)
        if found is None or account_id not in {None, found.row.account_id}:
            raise NotFound(f"No request has the id {request_id[:64]!r}", param="id")
        return found

    def list_lines(self, row: RequestRecord) -> list[BillLine]:
        """What its cost is made of, as far as can be told."""
        tariff, channel = self._router.tariff, self._catalog.find_channel(row.channel or "")
        caller = self._directory.find_caller(row.key_id)
        multiplier = tariff.find_multiplier(caller.key.group if caller else None)
        if channel is None:
            return list_lines(row, tariff.prices.find(row.model), multiplier)
        price = tariff.find_price(row.model, channel.upstream_model(row.model), channel.provider)
        return list_lines(row, price, -(-channel.multiplier_ppm * multiplier // ONE_PPM))

    @contextmanager
    def exporting(self, account_id: int | None) -> Iterator[None]:
        """One more export, until the end of the block. Raises ``RateLimited``."""
        if self._exports[account_id] >= MOST_EXPORTS:
            raise RateLimited(f"{MOST_EXPORTS} exports are under way already", retry_after_s=30)
        self._exports[account_id] += 1
        try:
            yield
        finally:
            self._exports[account_id] -= 1
            if not self._exports[account_id]:
                del self._exports[account_id]


async def walk(
    log: RequestLogRepository, wanted: RequestFilter, most: int = MOST_EXPORTED
) -> AsyncGenerator[Sequence[StoredRequest], None]:
    """Every row that matches, the newest first, a page at a time; a page may be empty, and is no end."""
    while True:
        page = await log.list_requests(wanted, min(PAGE, most))
        most -= len(page)
        yield page[::-1]
        if page.next is None or most <= 0:
            return
        wanted = attrs.evolve(wanted, before=page.next)
