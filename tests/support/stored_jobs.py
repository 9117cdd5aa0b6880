"""What the database holds of a job after a shutdown."""

from collections.abc import Sequence
from typing import Any

from gateway.domain.request_log import RequestFilter, RequestRecord
from gateway.storage.open import open_database
from gateway.storage.request_log import RequestLogRepository
from tests.support.fault_scene import cost_of
from tests.support.gateway import RunningGateway

SHORT: dict[str, Any] = {"server": {"drain_timeout_s": 0.1}}


async def stored(gateway: RunningGateway) -> Sequence[RequestRecord]:
    """The rows as the next start of the gateway would find them."""
    database = await open_database(f"sqlite:///{gateway.folder.path / 'gateway.db'}")
    try:
        found = await RequestLogRepository(database).list_requests(RequestFilter(), 100)
    finally:
        await database.close()
    rows = [item.row for item in found]
    assert all(row.cost_nanos == cost_of(row) for row in rows)
    return rows
