"""What every driver says of a route's requests and their copies, side by side."""

from typing import Any

import attrs

from gateway.domain.request_log import RequestRecord
from gateway.storage.database import Database
from gateway.storage.shadow_comparison import ModelSums, compare_models
from tests.support.request_records import charge
from tests.support.stores import Stores

AT_MS = 1_000_000


def row(name: object, cost: int, **values: Any) -> RequestRecord:
    fields = {"route": "fast", "model": "fast", "served_model": "old", "first_byte_ms": 10, "total_ms": 40, **values}
    return attrs.evolve(charge(name, cost, at_ms=AT_MS), **fields)


async def test_each_model_has_its_sums_and_copies_come_last(stores: Stores, database: Database) -> None:
    copy = {"model": "new", "served_model": "", "shadow": True}
    rows = [
        row(1, 5),
        row(2, 7, first_byte_ms=20, total_ms=60),
        row(3, 0, outcome="failed", status=502, total_ms=9_000),
        row(4, 11, **copy, agreement_ppm=500_000, agreed_on="tools"),
        row(8, 0, **copy, agreement_ppm=1_000_000, agreed_on="text,tools,finish"),
        row(5, 0, **copy, outcome="failed", status=502),
        row(6, 1, route="other"),
        row(7, 1, settled_ms=AT_MS - 10),
    ]
    for each in rows:
        await stores.ledger.post([each])
    own, copies = await compare_models(database, "fast", AT_MS)
    tokens = rows[0].completion_tokens
    assert own == ModelSums("old", False, 3, 1, 15.0, 50.0, tokens, 12)
    assert copies == ModelSums("new", True, 3, 1, 10.0, 40.0, tokens, 11, 2, 0.75, 1, 2, 1)


async def test_without_rows_there_is_nothing(database: Database) -> None:
    assert await compare_models(database, "fast", 0) == []
