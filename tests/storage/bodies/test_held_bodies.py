"""Bodies of requests that have begun something: they are held until its end is in the log, then shown or destroyed."""

from pathlib import Path

import pytest

from gateway.domain.kept_body import BodyFilter
from gateway.domain.request_log import Outcome
from gateway.storage.bodies.body_store import BodyStore
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from tests.support.body_stores import NOW_S, Clock, add_accounts, find_marker, make_owner, make_parts, open_bodies
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.media_stores import KINDS as PLACE_KINDS
from tests.support.request_records import make_row
from tests.support.segment_stores import move_all, open_moving_node, open_place

MARKER = "marker-of-one-prompt"
ENDS: list[tuple[Outcome, bool]] = [
    ("completed", False),
    ("cancelled", False),
    ("client_closed", False),
    ("failed", True),
    ("interrupted", True),
    ("blocked", True),
]


@pytest.fixture(autouse=True)
async def payers(database: Database) -> None:
    await add_accounts(database, 1)


def hold(store: BodyStore, number: int, text: str = MARKER) -> None:
    parts = make_parts(text)
    size = sum(len(part.content) for part in parts)
    store.memory.used += size
    store.keep(make_owner(number), size, lambda: parts, is_held=True)


async def list_shown(store: BodyStore, *numbers: int) -> list[int]:
    """Those of the requests whose bodies are shown, one by one and in a list."""
    ids = {number: make_owner(number).request_id for number in numbers}
    shown = [number for number, request_id in ids.items() if await store.read(request_id) is not None]
    assert await store.list_kept([*ids.values()]) == {ids[number] for number in shown}
    return shown


async def end(database: Database, number: int, outcome: Outcome) -> None:
    await LedgerRepository(database).post([make_row(f"{number:04}", outcome=outcome)])


async def test_held_bodies_are_shown_or_destroyed_once_the_end_is_known(database: Database, tmp_path: Path) -> None:
    store = open_bodies(database, tmp_path / "bodies")
    numbers = range(len(ENDS) + 1)  # the last one has no end
    for number in numbers:
        hold(store, number, f"{MARKER} {number}.")
    await store.sweep()
    assert await list_shown(store, *numbers) == []
    assert (await store.describe()).requests == len(numbers)
    for number, (outcome, _) in enumerate(ENDS):
        await end(database, number, outcome)
    kept = [number for number, (_, is_kept) in enumerate(ENDS) if is_kept]
    assert await list_shown(store, *numbers) == kept  # at once
    await store.sweep()
    assert await list_shown(store, *numbers) == kept
    left = [number for number in numbers if find_marker(tmp_path, f"{MARKER} {number}.".encode())]
    assert left == [*kept, numbers[-1]]
    assert (await store.describe()).requests == len(left)
    await store.close()


async def test_a_restart_forgets_no_hold(database: Database, tmp_path: Path) -> None:
    first = open_bodies(database, tmp_path / "bodies")
    for number in (1, 2, 3):
        hold(first, number, f"{MARKER} {number}.")
    await first.write_waiting()
    await first.close()
    second = open_bodies(database, tmp_path / "bodies")
    await second.sweep()
    assert await list_shown(second, 1, 2, 3) == []
    await end(database, 1, "failed")
    await end(database, 2, "completed")
    await second.sweep()
    assert await list_shown(second, 1, 2, 3) == [1]
    assert (await second.delete(BodyFilter(account_id=1))).requests == 2
    await end(database, 3, "failed")
    await second.sweep()
    assert await list_shown(second, 1, 2, 3) == []
    assert find_marker(tmp_path, MARKER.encode()) == []
    await second.close()


@SQLITE_ONLY
async def test_held_bodies_expire_although_no_end_is_ever_known(database: Database, tmp_path: Path) -> None:
    store = open_bodies(database, tmp_path / "bodies")
    hold(store, 1)
    await store.write_waiting()
    await store.close()
    later = open_bodies(database, tmp_path / "bodies", clock=Clock(NOW_S + 8 * 86_400))
    await later.sweep()
    assert list((tmp_path / "bodies").glob("*.segment")) == []
    assert (await later.describe()).requests == 0
    await later.close()


@SQLITE_ONLY
@pytest.mark.parametrize("place_kind", PLACE_KINDS)
async def test_the_leader_ends_the_holds_of_absent_nodes(database: Database, place_kind: str, tmp_path: Path) -> None:
    async with open_place(place_kind, tmp_path) as place:
        gone, leader = (open_moving_node(database, tmp_path / name, place.open()) for name in "ab")
        for number in (1, 2):
            hold(gone, number, f"{MARKER} {number}.")
        await move_all(gone)
        await gone.close()
        assert await list_shown(leader, 1, 2) == []
        await end(database, 1, "failed")
        await end(database, 2, "completed")
        await leader.sweep()
        assert await list_shown(leader, 1, 2) == [1]
        assert place.find(f"{MARKER} 1.")
        assert place.find(f"{MARKER} 2.") == []
        await leader.close()
