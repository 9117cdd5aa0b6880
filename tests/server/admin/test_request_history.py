"""Recorded requests, as permitted users see them: one with its cost, and all of them page by page."""

from typing import Any

import attrs
import pytest

from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.domain.account import Account, ApiKey
from gateway.domain.channel import Channel
from gateway.domain.price import NANOS_PER_USD, ONE_PPM, Price, PriceList
from gateway.domain.request_log import RequestFilter, RequestPage, RequestRecord
from gateway.errors import NotFound, RateLimited
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy
from gateway.routing.router import Router
from gateway.server.admin.request_history import MAX_EXPORTS, PAGE_ROWS, RequestHistory, list_pages
from tests.support.repositories import Repositories
from tests.support.request_records import make_row

DOLLAR = Price("ours", input_nanos_per_million=NANOS_PER_USD)
THEIRS = Price("theirs", provider="openai", input_nanos_per_million=5 * NANOS_PER_USD)
UP = Channel(
    "up", "openai", "http://up/v1", models=("ours",), model_map=(("mine", "theirs"),), multiplier_ppm=1_500_000
)


class Room:
    """A history over a store in memory, with one channel and one key, of the group "vip" that pays half."""

    def __init__(self, store: Repositories) -> None:
        self.store = store
        self.directory = ApiKeyAuthenticator(store, store, pepper=b"", clock=lambda: 0.0)
        catalog, load_balancer = (
            ModelCatalog(clock=lambda: 0.0),
            LoadBalancer(lambda: 0.0, settings=DEFAULT_SETTINGS, shared=None),
        )
        catalog.set_channels([UP])
        pricing = PricingPolicy(PriceList([DOLLAR, THEIRS]), {"vip": ONE_PPM // 2})
        router = Router(catalog, load_balancer, pricing, models=(), routes={})
        self.history = RequestHistory(store, store.traffic, self.directory, catalog, router, subjects=store.subjects)

    async def add_key(self, group: str | None) -> int:
        account = await self.store.add_account(Account(0, "acme"))
        key = await self.store.add_key(ApiKey(0, account.id, "test", b"", "", group=group))
        await self.directory.reload()
        return key.id


@pytest.fixture
def room() -> Room:
    return Room(Repositories())


def million(**values: Any) -> RequestRecord:
    """A row of a million tokens in, and nothing else."""
    unused = ("completion_tokens", "cached_tokens", "images", "duration_ms", "characters", "cost_nanos")
    return attrs.evolve(make_row(1), prompt_tokens=1_000_000, **{**dict.fromkeys(unused, 0), **values})


@pytest.mark.parametrize(
    ("group", "row", "expected"),
    [
        (None, {"model": "ours", "channel": "up"}, 1.5),
        ("vip", {"model": "ours", "channel": "up"}, 0.75),
        ("other", {"model": "ours", "channel": "up"}, 1.5),
        (None, {"model": "mine", "channel": "up"}, 7.5),
        (None, {"model": "ours", "channel": "gone"}, 1.0),
        ("vip", {"model": "ours", "channel": None}, 0.5),
    ],
)
async def test_a_request_is_billed_at_the_price_of_its_model_over_its_channel_for_its_group(
    room: Room, group: str | None, row: dict[str, Any], expected: float
) -> None:
    key_id = await room.add_key(group)
    (line,) = room.history.list_lines(million(key_id=key_id, **row))
    assert [line.what, line.unit_usd, line.estimated] == ["input_tokens", pytest.approx(expected), True]


async def test_what_has_no_price_any_more_has_no_lines(room: Room) -> None:
    assert room.history.list_lines(million(model="mine", channel="gone")) == []


async def test_a_request_is_there_for_its_account_and_for_whoever_sees_all(room: Room) -> None:
    await room.store.post([make_row(1, account_id=3)])
    for account_id in (None, 3):
        assert (await room.history.get("req_1", account_id)).row.account_id == 3
    messages = set()
    for request_id, account_id in (("req_1", 4), ("req_2", 4), ("req_2", None)):
        with pytest.raises(NotFound) as caught:
            await room.history.get(request_id, account_id)
        messages.add(caught.value.message.replace(request_id, "ID"))
    assert len(messages) == 1


async def test_all_rows_are_walked_the_newest_first_and_no_more_than_asked_for(room: Room) -> None:
    await room.store.post([make_row(number) for number in range(2 * PAGE_ROWS + 3)])
    for most, pages in (
        (10**6, [PAGE_ROWS, PAGE_ROWS, 3]),
        (PAGE_ROWS + 1, [PAGE_ROWS, 1]),
        (PAGE_ROWS, [PAGE_ROWS]),
        (2, [2]),
    ):
        found = [page async for page in list_pages(room.store, RequestFilter(), most)]
        assert list(map(len, found)) == pages
        names = [one.row.id for page in found for one in page]
        assert names == [f"req_{2 * PAGE_ROWS + 2 - number}" for number in range(len(names))]


async def test_a_page_that_found_nothing_is_no_end() -> None:
    class Log(Repositories):
        async def list_requests(self, wanted: RequestFilter, limit: int) -> RequestPage:
            if wanted.before != 7:
                return RequestPage(more=True, next="7")
            return await super().list_requests(RequestFilter(), limit)

    log = Log()
    await log.post([make_row(1)])
    assert [len(page) async for page in list_pages(log, RequestFilter())] == [0, 1]


def test_so_many_exports_of_an_account_go_on_at_a_time(room: Room) -> None:
    history = room.history
    with history.exporting(1), history.exporting(None), history.exporting(1):
        assert history.exports == 3
        with pytest.raises(RateLimited, match=str(MAX_EXPORTS)), history.exporting(1):
            pass
        with history.exporting(2), history.exporting(None):
            pass
    assert history.exports == 0
    with pytest.raises(ZeroDivisionError), history.exporting(1):
        raise ZeroDivisionError
    assert history.exports == 0
