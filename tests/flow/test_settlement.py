"""Every request leaves one row."""

import asyncio
from decimal import Decimal
from typing import Any

import attrs
import pytest

from gateway.dialects.openai_chat import read_chat_call
from gateway.domain.call import Call
from gateway.domain.caller import Account, ApiKey, Caller
from gateway.domain.fault import InvalidRequest, UpstreamError, UpstreamTimeout
from gateway.domain.price import Price, PriceList, nanos
from gateway.domain.request import RequestRow
from gateway.domain.usage import NO_USAGE, Usage
from gateway.flow.admission import Delivery, Grant, admit
from gateway.flow.settlement import CLIENT_CLOSED_STATUS, Arrival, Outcome, RowQueue, Settlement

CALLER = Caller(Account(1, "acme"), ApiKey(7, 1, "laptop", b"", ""))
CALL = read_chat_call({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
PRICE = Price("m", input_nanos_per_million=nanos(Decimal(2)), output_nanos_per_million=nanos(Decimal(10)))
ARRIVAL = Arrival("req_1", CALLER, "chat", started_ms=1_000, started_at=10.0, client_request_id="theirs")


class Desk:
    """A settlement over a queue that can be looked into."""

    def __init__(self, **prices: Price) -> None:
        self.queue = RowQueue()
        self.settlement = Settlement(self.queue, PriceList(prices))

    def settle(
        self, delivery: Delivery, outcome: Outcome, price: Price | None = PRICE, call: Call = CALL
    ) -> RequestRow:
        row = self.settlement.settle(ARRIVAL, Grant(CALLER, call, price, delivery), outcome)
        assert self.queue.take(10) == [row]
        return row


def delivered(**more: Any) -> Delivery:
    usage = Usage(1_000, 100, 10, "upstream")
    return Delivery(
        **{"channel": "up", "model": "theirs", "attempts": 2, "usage": usage, "first_byte_at": 10.25, **more}
    )


async def test_the_row_of_a_success_has_every_field() -> None:
    row = Desk().settle(delivered(), Outcome("completed", now=12.5))
    assert row == RequestRow(
        id="req_1",
        started_ms=1_000,
        operation="chat",
        account="acme",
        key_id=7,
        key_name="laptop",
        model="m",
        channel="up",
        status=200,
        ending="completed",
        error_code=None,
        stream=False,
        attempts=2,
        prompt_tokens=1_000,
        completion_tokens=100,
        cached_tokens=10,
        usage_source="upstream",
        cost_nanos=1_000 * 2_000 + 100 * 10_000,
        first_byte_ms=250,
        total_ms=2_500,
        client_request_id="theirs",
    )


async def test_a_stream_that_failed_after_its_first_byte_was_a_200_and_is_charged() -> None:
    row = Desk().settle(delivered(), Outcome("upstream_failed", 11.0, UpstreamError("x")))
    assert (row.status, row.ending, row.error_code) == (200, "upstream_failed", "upstream_error")
    assert row.cost_nanos > 0


async def test_a_failure_before_the_first_byte_has_the_faults_status() -> None:
    row = Desk().settle(Delivery(channel="up", attempts=3), Outcome("upstream_failed", 11.0, UpstreamTimeout("x")))
    assert (row.status, row.error_code, row.first_byte_ms, row.cost_nanos) == (504, "upstream_timeout", None, 0)
    assert (row.attempts, row.usage_source) == (3, "none")


async def test_a_caller_who_left_before_the_first_byte_is_a_499_of_the_log_alone() -> None:
    row = Desk().settle(Delivery(channel="up", attempts=1), Outcome("client_closed", 11.0))
    assert (row.status, row.error_code) == (CLIENT_CLOSED_STATUS, None)
    row = Desk().settle(delivered(), Outcome("client_closed", 11.0))
    assert row.status == 200


@pytest.mark.parametrize("call", [None, CALL])
async def test_a_call_refused_before_it_was_granted_costs_nothing(call: Call | None) -> None:
    desk = Desk()
    row = desk.settlement.refuse(ARRIVAL, call, Outcome("refused", 10.001, InvalidRequest("x", param="n")))
    assert desk.queue.take(10) == [row]
    assert (row.model, row.channel, row.attempts) == ("m" if call else "", None, 0)
    assert (row.status, row.error_code, row.cost_nanos, row.total_ms) == (400, "invalid_request", 0, 1)


async def test_the_channels_multiplier_counts() -> None:
    plain = Desk().settle(delivered(), Outcome("completed", 11.0))
    double = Desk().settle(delivered(multiplier_ppm=2_000_000), Outcome("completed", 11.0))
    free = Desk().settle(delivered(multiplier_ppm=0), Outcome("completed", 11.0))
    assert (double.cost_nanos, free.cost_nanos) == (2 * plain.cost_nanos, 0)


async def test_a_model_priced_only_under_the_providers_name_has_that_price() -> None:
    desk = Desk(theirs=attrs.evolve(PRICE, model="theirs"))
    assert desk.settle(delivered(), Outcome("completed", 11.0), price=None).cost_nanos == 3_000_000
    assert desk.settle(delivered(model="neither"), Outcome("completed", 11.0), price=None).cost_nanos == 0


async def test_admission_gives_the_price_under_which_it_was_given() -> None:
    grant = admit(CALLER, CALL, PriceList({"m": PRICE}))
    assert (grant.price, grant.delivery.attempts, grant.delivery.usage) == (PRICE, 0, NO_USAGE)


def rows_of(*names: str) -> list[RequestRow]:
    made = Desk().settle(Delivery(), Outcome("completed", 11.0))
    return [attrs.evolve(made, id=name) for name in names]


async def test_the_queue_gives_rows_in_their_order_and_never_more_than_asked() -> None:
    queue, rows = RowQueue(), rows_of("1", "2", "3")
    for row in rows:
        queue.put(row)
    assert len(queue) == 3
    assert queue.take(2) == rows[:2]
    assert queue.take(2) == rows[2:]
    assert queue.take(2) == []


async def test_rows_put_back_come_first_and_in_their_old_order() -> None:
    queue, rows = RowQueue(), rows_of("1", "2", "3", "4")
    for row in rows[:3]:
        queue.put(row)
    taken = queue.take(2)
    queue.put(rows[3])
    queue.put_back(taken)
    assert queue.take(10) == rows


async def test_who_waits_for_a_row_wakes_with_the_first_and_waits_again_after_the_last() -> None:
    queue, (row,) = RowQueue(), rows_of("1")
    waiting = asyncio.create_task(queue.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.put(row)
    async with asyncio.timeout(1):
        await waiting
    queue.put_back(queue.take(1))
    async with asyncio.timeout(1):
        await queue.wait()
    queue.take(1)
    waiting = asyncio.create_task(queue.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
