"""A power cut leaves what was synced: every row and credit that was ever shown is among it, and the books agree."""

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from gateway.storage.data_folder import SECRETS
from tests.support import synced_disk
from tests.support.fault_scene import until
from tests.support.gateway import make_template
from tests.support.gateway_process import GatewayProcess
from tests.support.kill_runs import KEYS, Memory, keep_calling, open_up, roll, site, telling

CUTS = 6
CALLERS = 24
LOAD_S = (0.3, 0.7)
OFTEN = "wal_autocheckpoint=40"
"""Pages, in place of 1,000: so that some cuts come in the middle of a checkpoint, or soon after one."""
SYNCED = (*SECRETS, "admin.token")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@attrs.define
class Shown:
    """What the admin API has shown: rows by their id, credits by their reference."""

    rows: dict[str, Any] = attrs.Factory(dict)
    credits: dict[str, int] = attrs.Factory(dict)


@pytest.fixture(autouse=True)
def fit() -> None:
    """The reason why there is nothing to see here, where it is so; continuous integration must have a fit Python."""
    try:
        synced_disk.find_library()
    except synced_disk.Unfit as unfit:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(unfit))


@contextlib.asynccontextmanager
async def on_synced_disk(
    data: Path, shadow: Path, tables: dict[str, Any], pragmas: Sequence[str]
) -> AsyncIterator[GatewayProcess]:
    command = ("tests.support.synced_disk", str(shadow), *pragmas, "serve")
    async with GatewayProcess(data, tables, command=command) as gateway:
        yield gateway


async def watch(gateway: GatewayProcess, shown: Shown) -> None:
    """Look at the rows as they come, and add a little money now and then, until the gateway is gone."""
    with contextlib.suppress(aiohttp.ClientError):
        _, last = await gateway.read_rows()
        while True:
            rows, last = await gateway.read_rows(last)
            shown.rows |= {row.id: row for row in rows}
            reference = f"payment {len(shown.credits)} at {gateway.url}"
            made = await gateway.ask("accounts/tight/credits", {"amount_usd": 0.0005, "reference": reference})
            shown.credits[reference] = made["sequence"]


async def cut(gateway: GatewayProcess, shown: Shown, rng: random.Random, name: str) -> None:
    """Load, and in the middle of it the end. What the process could still write is not looked at."""
    memory = Memory()
    watcher = asyncio.create_task(watch(gateway, shown))
    crowd = [
        asyncio.create_task(keep_calling(gateway.url, secret, f"{name}.{index}.{place}", memory, rng))
        for place, secret in enumerate(KEYS)
        for index in range(CALLERS // len(KEYS))
    ]
    before = len(shown.rows)
    await until(lambda: len(shown.rows) > before)
    await asyncio.sleep(rng.uniform(*LOAD_S))
    await gateway.kill()
    await asyncio.gather(watcher, *crowd)


def survive(data: Path, shadow: Path, into: Path) -> Path:
    """A data folder as the power cut left it: the synced bytes, and the secrets, which are synced when made."""
    into.mkdir()
    for name in synced_disk.KEPT:
        if (shadow / name).exists():
            shutil.copy(shadow / name, into / name)
    for name in SYNCED:
        shutil.copy(data / name, into / name)
    return into


async def check_all_there(gateway: GatewayProcess, shown: Shown) -> None:
    await gateway.check_books()
    stored = {row.id: row for row in (await gateway.read_rows())[0]}
    lost = [row for row in shown.rows.values() if stored.get(row.id) != row]
    assert not lost, f"{len(lost)} of {len(shown.rows)} rows that were shown are lost: {lost[:3]}"
    found = (await gateway.ask("accounts/tight/credits?limit=1000"))["data"]
    assert {credit["reference"]: credit["sequence"] for credit in found}.items() >= shown.credits.items()


async def test_a_power_cut_loses_nothing_that_was_shown(tmp_path: Path) -> None:
    """Again and again, each gateway over what the last one's disk had kept."""
    seed, rng = roll()
    shown, memory = Shown(), Memory()
    data = tmp_path / "data"
    with telling(seed):
        async with open_up(memory, rng, stream=False) as up, open_up(memory, rng, stream=True) as streaming:
            tables = site(up, streaming, "release")
            for number in range(CUTS):
                shadow = tmp_path / f"shadow{number}"
                async with on_synced_disk(data, shadow, tables, [OFTEN] if number % 2 else []) as gateway:
                    await check_all_there(gateway, shown)
                    await cut(gateway, shown, rng, f"r{number}")
                data = survive(data, shadow, tmp_path / f"data{number}")
            async with GatewayProcess(data, tables) as gateway:
                await check_all_there(gateway, shown)
                assert await gateway.end() == 0
    with contextlib.closing(sqlite3.connect(data / "gateway.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    print(f"{CUTS} cuts: {len(shown.rows)} rows and {len(shown.credits)} credits shown, none lost")  # noqa: T201
    assert len(shown.rows) > 10 * CUTS
    assert shown.credits


async def test_such_a_cut_does_lose_what_was_shown_where_commits_are_not_synced(tmp_path: Path) -> None:
    """The control: with ``synchronous=NORMAL`` the same cut loses rows, so the test above can fail."""
    seed, rng = roll()
    shown, memory = Shown(), Memory()
    data, shadow = tmp_path / "data", tmp_path / "shadow"
    data.mkdir()
    await make_template(data / "gateway.db")
    with telling(seed):
        async with open_up(memory, rng, stream=False) as up, open_up(memory, rng, stream=True) as streaming:
            tables = site(up, streaming, "release")
            async with on_synced_disk(data, shadow, tables, ["synchronous=NORMAL"]) as gateway:
                await cut(gateway, shown, rng, "control")
    left = survive(data, shadow, tmp_path / "left") / "gateway.db"
    with contextlib.closing(sqlite3.connect(left)) as database:
        kept = {row_id for (row_id,) in database.execute("SELECT id FROM requests")}
    print(f"not synced: {len(shown.rows.keys() - kept)} of {len(shown.rows)} rows lost")  # noqa: T201
    assert shown.rows.keys() - kept
