"""What the fault tests of pictures share: the call, what it costs, and the audit of what is left behind."""

import asyncio
import base64
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gateway.domain.request_log import RequestFilter, RequestRecord
from gateway.server.context import SERVICES
from gateway.storage.open import open_database
from gateway.storage.request_log import RequestLogRepository
from tests.support.fault_scene import Heard, check_charged_once, hear, until
from tests.support.gateway import RunningGateway, channel
from tests.support.image_providers import draw, measure
from tests.support.scripted_upstream import ScriptedUpstream, answer

IMAGES = "/v1/images/generations"
EDITS = "/v1/images/edits"
PRICE = {"model": "*", "usd_per_image": 1}
A_IMAGE = 1_000_000_000
"""Nano-USD."""
PROMPT = "a lighthouse that nobody else is to hear of"
DATA = base64.b64encode(draw()).decode()
DATA_URL = f"data:image/png;base64,{DATA}"
PAINTED = answer({"created": 1, "data": [{"b64_json": DATA}]})
"""A good answer in the convention, whatever was asked for."""


def site(*ups: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """A configuration of channels, with a price on the pictures of the model."""
    return {"channel": list(ups), "price": [PRICE], **sections}


def task_channel(up: ScriptedUpstream, name: str = "tasks", **more: Any) -> dict[str, Any]:
    """A channel whose provider makes pictures as tasks, as Replicate does."""
    model = {"m": "black-forest-labs/flux-schnell"}
    return channel(up.base_url, name, provider="replicate", model_map=model, **{"total_timeout_s": 60, **more})


def healthy(up: ScriptedUpstream, **more: Any) -> dict[str, Any]:
    """The channel that is asked second, in the convention."""
    return channel(up.base_url, "healthy", **{"priority": -1, "fan_out": True, **more})


async def ask(gateway: RunningGateway, path: str = IMAGES, **body: Any) -> Heard:
    """A call for a picture, heard to its end."""
    sent = {"model": "m", "prompt": PROMPT, "response_format": "b64_json", **body}
    async with gateway.post(sent, path) as response:
        return await hear(response)


async def leave(calling: "asyncio.Task[Any]") -> None:
    """Hang up in the middle of a call."""
    calling.cancel()
    with suppress(asyncio.CancelledError):
        await calling


async def await_given_up(gateway: RunningGateway) -> None:
    """Until nothing is left that goes on for a caller who left."""
    await gateway.app[SERVICES].media.images.close()


def check_images(items: Sequence[dict[str, str]], count: int) -> None:
    """So many pictures in base64."""
    assert len(items) == count
    for item in items:
        assert measure(base64.b64decode(item["b64_json"], validate=True))


def check_row(row: RequestRecord, **expected: Any) -> RequestRecord:
    """A row says ``expected``, and costs what its pictures cost."""
    assert {name: getattr(row, name) for name in expected} == expected
    assert row.cost_nanos == row.images * A_IMAGE
    assert (row.error_code is None) == (row.outcome in {"completed", "client_closed"})
    return row


async def audit(gateway: RunningGateway, *ups: ScriptedUpstream, **expected: Any) -> RequestRecord:
    """After a scenario: one row that says ``expected``, money that adds up, no visit and no connection left."""
    (row,) = await gateway.rows(1)
    check_row(row, **expected)
    await audit_books(gateway, *ups)
    check_charged_once(gateway, row.cost_nanos)
    return row


async def audit_books(gateway: RunningGateway, *ups: ScriptedUpstream) -> None:
    """The same but for the rows."""
    assert gateway.running == 0
    await gateway.check_books()
    for up in ups:
        await until(lambda up=up: up.open_connections == 0)  # type: ignore[misc]


async def read_stored(gateway: RunningGateway) -> list[RequestRecord]:
    """The rows as the next start of a stopped gateway would find them."""
    database = await open_database(f"sqlite:///{gateway.folder.path / 'gateway.db'}")
    try:
        found = await RequestLogRepository(database).list_requests(RequestFilter(), 100)
    finally:
        await database.close()
    return [item.row for item in found]
