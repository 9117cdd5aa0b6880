"""A backup under load, restored elsewhere: the books agree, and nothing that was answered before it began is missing.

``make soak ARGS=tests/faults/test_backup_under_load.py`` takes twenty backups; the suite takes two.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest

from gateway.storage.restore import restore_backup
from tests.support.forked_commands import Forked
from tests.support.gateway_process import GatewayProcess
from tests.support.kill_runs import (
    ANSWER_COST,
    KEYS,
    STREAM_COST,
    Memory,
    check_offline,
    keep_calling,
    open_up,
    roll,
    site,
    telling,
)

CALLERS = 16
"""Of each key; each calls without a pause."""
LOAD_S = (0.05, 0.6)
BACKUP_S = 60

pytestmark = pytest.mark.slow


async def back_up(gateway: GatewayProcess, target: Path) -> None:
    """What an operator does, in a process of its own."""
    words = ["gateway", "backup", str(target), "--data", str(gateway.data), "--config", str(gateway.config)]
    out, err = target.with_suffix(".out"), target.with_suffix(".err")
    process = Forked(words, cwd=target.parent, env=os.environ, out=out, err=err)
    async with asyncio.timeout(BACKUP_S):
        while (code := process.poll()) is None:  # noqa: ASYNC110 - another process has no event to tend
            await asyncio.sleep(0.005)
    assert code == 0, out.read_text() + err.read_text()


async def wait_for_answers(memory: Memory, count: int) -> None:
    async with asyncio.timeout(BACKUP_S):
        while len(memory.whole) < count:  # noqa: ASYNC110 - callers of their own pace
            await asyncio.sleep(0.005)


async def check_restored(backup: Path, gateway: GatewayProcess, answered: dict[str, bool], key_id: int) -> None:
    """Restore a backup beside the gateway that goes on, and compare it with what was known when it began."""
    target = backup.with_suffix("")
    restore_backup(backup, target)
    tables = (target / "gateway.toml").read_text()
    assert tables == gateway.config.read_text()
    copy = GatewayProcess(target, {})
    copy.config.write_text(tables)
    check_offline(copy)
    async with copy:
        await copy.check_books()
        rows, _ = await copy.read_rows()
        by_mark = {row.client_request_id: row for row in rows}
        assert len(by_mark) == len(rows)
        for mark, stream in answered.items():
            row = by_mark[mark]
            assert (row.outcome, row.cost_nanos) == ("completed", STREAM_COST if stream else ANSWER_COST), row
        await copy.check_traffic(rows)
        assert key_id in {key["id"] for key in (await copy.ask("keys"))["data"]}


async def take_backups(folder: Path, count: int, rng: random.Random) -> None:
    memory = Memory()
    async with open_up(memory, rng, stream=False) as up, open_up(memory, rng, stream=True) as streaming:
        gateway = GatewayProcess(folder / "data", site(up, streaming, "release"))
        async with gateway:
            crowd = [
                asyncio.create_task(keep_calling(gateway.url, secret, f"{place}.{index}", memory, rng))
                for place, secret in enumerate(KEYS)
                for index in range(CALLERS)
            ]
            for number in range(count):
                await asyncio.sleep(rng.uniform(*LOAD_S))
                key_id = (await gateway.ask("keys", {"name": f"key of {number}", "account": "open"}))["id"]
                await wait_for_answers(memory, 1)
                answered = dict(memory.whole)
                await back_up(gateway, folder / f"{number}.gwb")
                await wait_for_answers(memory, len(answered) + 1)  # the load goes on
                await check_restored(folder / f"{number}.gwb", gateway, answered, key_id)
            for caller in crowd:
                caller.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
            assert await gateway.end() == 0
        check_offline(gateway)


@pytest.mark.parametrize("count", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
async def test_nothing_that_was_answered_before_a_backup_is_missing_from_it(tmp_path: Path, count: int) -> None:
    seed, rng = roll()
    with telling(seed):
        await take_backups(tmp_path, count, rng)
