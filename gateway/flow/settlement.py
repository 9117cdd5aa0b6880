"""Room 6: on the way out every request leaves one row, written behind the request's back in one commit with others.

Nothing here waits, so nothing here can be cancelled half-way.
"""

import asyncio
from collections import deque

import attrs

from gateway.domain.call import Call, Operation
from gateway.domain.caller import Caller
from gateway.domain.fault import Fault
from gateway.domain.price import PriceList, cost_nanos
from gateway.domain.request import Ending, RequestRow
from gateway.flow.admission import Delivery, Grant

_SILENT = Delivery()


class RowQueue:
    """Rows on their way to the store: put without waiting, taken all at once."""

    def __init__(self) -> None:
        self._rows: deque[RequestRow] = deque()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, row: RequestRow) -> None:
        """Add a row."""
        self._rows.append(row)
        self._arrived.set()

    def put_back(self, rows: list[RequestRow]) -> None:
        """Rows that could not be stored go to the front again, in their order."""
        self._rows.extendleft(reversed(rows))
        self._arrived.set()

    async def wait(self) -> None:
        """Until there is a row."""
        await self._arrived.wait()

    def take(self, most: int) -> list[RequestRow]:
        """The oldest rows, ``most`` of them at the most."""
        rows = [self._rows.popleft() for _ in range(min(most, len(self._rows)))]
        if not self._rows:
            self._arrived.clear()
        return rows


@attrs.frozen
class Arrival:
    """Who came when: what is known of a request before its body has been read."""

    id: str
    caller: Caller
    operation: Operation
    started_ms: int
    started_at: float
    client_request_id: str | None = None


CLIENT_CLOSED_STATUS = 499
"""The status of a row whose caller left before it was answered; no caller ever sees it."""


@attrs.frozen
class Outcome:
    """How a request ended. ``fault`` None is a success; ``now`` is loop time."""

    ending: Ending
    now: float
    fault: Fault | None = None


class Settlement:
    """Turns what happened into rows.

    Args:
        queue: where rows go.
        prices: for a model that only its channel knows by the name in the price list.
    """

    def __init__(self, queue: RowQueue, prices: PriceList) -> None:
        self._queue = queue
        self._prices = prices

    def settle(self, arrival: Arrival, grant: Grant, outcome: Outcome) -> RequestRow:
        """A granted call has ended."""
        delivery = grant.delivery
        price = grant.price or (self._prices.find(delivery.model) if delivery.model else None)
        cost = cost_nanos(price, delivery.usage, delivery.multiplier_ppm)
        return self._put(_write_row(arrival, grant.call, delivery, outcome, cost))

    def refuse(self, arrival: Arrival, call: Call | None, outcome: Outcome) -> RequestRow:
        """A call ended before it was granted: no channel was asked, and nothing is charged."""
        return self._put(_write_row(arrival, call, _SILENT, outcome, 0))

    def _put(self, row: RequestRow) -> RequestRow:
        self._queue.put(row)
        return row


def _write_row(arrival: Arrival, call: Call | None, delivery: Delivery, outcome: Outcome, cost: int) -> RequestRow:
    first = delivery.first_byte_at
    usage = delivery.usage
    return RequestRow(
        id=arrival.id,
        started_ms=arrival.started_ms,
        operation=arrival.operation,
        account=arrival.caller.account.name,
        key_id=arrival.caller.key.id,
        key_name=arrival.caller.key.name,
        model=call.model if call else "",
        channel=delivery.channel,
        status=_read_status(delivery, outcome),
        ending=outcome.ending,
        error_code=outcome.fault.public_code if outcome.fault else None,
        stream=call.stream if call else False,
        attempts=delivery.attempts,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        usage_source=usage.source,
        cost_nanos=cost,
        first_byte_ms=None if first is None else round((first - arrival.started_at) * 1000),
        total_ms=round((outcome.now - arrival.started_at) * 1000),
        client_request_id=arrival.client_request_id,
    )


def _read_status(delivery: Delivery, outcome: Outcome) -> int:
    if delivery.first_byte_at is not None:
        return 200
    if outcome.ending == "client_closed":
        return CLIENT_CLOSED_STATUS
    return outcome.fault.status if outcome.fault else 200
