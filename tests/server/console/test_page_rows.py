"""What the store does for a page does not grow with the age of the request log; and what pages weigh."""

import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.speed import SpeedRepository
from gateway.storage.usage_splits import SplitRepository
from scripts.pages_load import PAGES, add_keys, make_config
from scripts.rows_load import CHANNELS, DAY_MS, World
from tests.support.console import add_member, open_session
from tests.support.gateway import RunningGateway, start_gateway
from tests.support.sqlite_steps import count_steps
from tests.support.stores import copy_template

ROWS_PER_DAY, FEW_DAYS, MANY_DAYS = 100, 22, 66
ROUNDS = 2
MEMBERS, ACCOUNTS, LOG_DAYS = 60, 300, 92
MAX_BYTES = 80_000
"""What a page without its pictures, styles and scripts may weigh, before compression."""
LIMITED_PAGES = {"/sessions?end_user=user-0", "/routes/fast?last=7d"}
"""Pages that read up to a fixed number of rows, of which the younger log has fewer."""
COUNTED_PAGES = [
    path for path in PAGES if not {"30d", "90d"} & set(re.split(r"\W", path)) and path not in LIMITED_PAGES
]


async def fill(path: Path, days: int, end_ms: int) -> None:
    """Store the rows of so many days, and the sums that workers make of them: these do not run beside the pages."""
    database = await open_database(f"sqlite:///{path}")
    step_ms, count = DAY_MS // ROWS_PER_DAY, days * ROWS_PER_DAY
    rows = []
    for place, row in enumerate(World().make(count)):
        settled_ms = end_ms - (count - place) * step_ms
        rows.append(attrs.evolve(row, settled_ms=settled_ms, started_ms=settled_ms - row.total_ms))
    ledger, speed, splits = LedgerRepository(database), SpeedRepository(database), SplitRepository(database)
    for start in range(0, count, 500):
        await ledger.post(rows[start : start + 500])
    await speed.add_new_rows()
    while await speed.add_old_rows():
        pass
    while await splits.look_at_new_rows() or await splits.add_day(end_ms / 1000):
        pass
    await database.close()


@asynccontextmanager
async def open_filled(
    folder: Path, template: Path, days: int, end_ms: int, changes: Mapping[str, Any]
) -> AsyncIterator[tuple[RunningGateway, Mapping[str, str]]]:
    """A gateway with a log of so many days, and the headers of an administrator's browser."""
    folder.mkdir()
    await copy_template(template, folder)
    await fill(folder / "gateway.db", days, end_ms)
    gateway = await start_gateway(folder, template, {**make_config(), **changes})
    gateway.audited = False  # its accounts are made after their rows, and so begin with nothing spent
    await add_keys(gateway)
    session = await open_session(gateway, await add_member(gateway, "ada", "administrator", "acme"))
    yield gateway, {"Cookie": f"{COOKIE}={session}", "Sec-Fetch-Site": "same-origin"}
    await gateway.close()


async def weigh_pages(folder: Path, template: Path, days: int, end_ms: int) -> dict[str, int]:
    """Return how many steps each page takes, the fewest of ``ROUNDS`` times."""
    weights: dict[str, int] = {}
    few_channels = {"channel": make_config()["channel"][:CHANNELS]}
    async with (
        open_filled(folder, template, days, end_ms, few_channels) as (gateway, headers),
        count_steps(gateway.app[SERVICES].storage.database) as counts,
    ):
        for path in COUNTED_PAGES:
            rounds = []
            for _ in range(ROUNDS):
                before = counts["steps"]
                async with gateway.client.get(f"{gateway.url}/console{path}", headers=headers) as response:
                    assert response.status == 200, path
                    await response.read()
                rounds.append(counts["steps"] - before)
            weights[path] = min(rounds)
    return weights


@pytest.mark.timeout(300)  # some 60 pages, and 9,000 rows stored as requests store theirs
async def test_no_page_reads_more_of_an_older_log(tmp_path: Path, template_path: Path) -> None:
    end_ms = int(time.time() * 1000) - 60_000
    few = await weigh_pages(tmp_path / "few", template_path, FEW_DAYS, end_ms)
    many = await weigh_pages(tmp_path / "many", template_path, MANY_DAYS, end_ms)
    assert few["/requests"] > 1_000, "the steps are counted"
    grown = {path: (few[path], many[path]) for path in few if many[path] > 1.3 * few[path] + 5_000}
    assert not grown, "steps of the store for each page, of a log of 22 days and of one of 66"


@pytest.mark.timeout(300)
async def test_no_page_is_heavy_with_three_months_of_data_and_full_lists(tmp_path: Path, template_path: Path) -> None:
    end_ms = int(time.time() * 1000) - 60_000
    accounts = {"account": [{"name": name} for name in ("acme", *(f"account-{n:02}" for n in range(2, ACCOUNTS + 1)))]}
    heavy: dict[str, int] = {}
    async with open_filled(tmp_path / "data", template_path, LOG_DAYS, end_ms, accounts) as (gateway, headers):
        for number in range(MEMBERS):
            await add_member(gateway, f"a-member-with-a-name-{number}", "member", "acme")
        for path in PAGES:
            for language in ("en", "zh"):
                asked = {**headers, "Accept-Language": language}
                async with gateway.client.get(f"{gateway.url}/console{path}", headers=asked) as response:
                    assert response.status == 200, path
                    size = len(await response.read())
                if not 5_000 < size < MAX_BYTES:
                    heavy[f"{language} {path}"] = size
    assert not heavy
