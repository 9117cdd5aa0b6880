"""A cluster's ledger is checked every day; differences are logged as an error and change nothing."""

import asyncio
from contextlib import suppress
from typing import Any

from structlog.testing import capture_logs

from gateway.cluster.credit.ledger_check import CHECK_INTERVAL_S, FIRST_DELAY_S, MAX_SHOWN_PROBLEMS, LedgerCheck
from gateway.errors import StoreUnavailable
from tests.support.worker_loop import run_hurried


async def give(*problems: str) -> dict[str, Any]:
    return {"problems": list(problems)}


async def test_differences_are_an_error_with_the_first_of_them() -> None:
    check = LedgerCheck(lambda: give(*"abcdefg"))
    with capture_logs() as lines:
        await check.check()
    assert check.problem_count == 7
    (line,) = lines
    assert (line["event"], line["log_level"], line["failures"]) == ("ledger_incorrect", "error", 7)
    assert line["reason"] == "; ".join("abcdefg"[:MAX_SHOWN_PROBLEMS])


async def test_a_correct_ledger_is_no_line() -> None:
    with capture_logs() as lines:
        await LedgerCheck(give).check()
    assert not lines


def test_it_checks_every_day_whether_or_not_the_database_answers() -> None:
    at: list[float] = []

    async def check_for_three_days() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def reconcile() -> dict[str, Any]:
            at.append(loop.time() - began)
            raise StoreUnavailable("not now")

        task = asyncio.create_task(LedgerCheck(reconcile).run())
        await asyncio.sleep(FIRST_DELAY_S + 2.5 * CHECK_INTERVAL_S)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    with capture_logs() as lines:
        run_hurried(check_for_three_days())
    assert [round(one) for one in at] == [FIRST_DELAY_S + day * CHECK_INTERVAL_S for day in range(3)]
    assert {line["event"] for line in lines} == {"ledger_not_checked"}


async def test_a_node_that_leads_no_more_reports_nothing() -> None:
    check = LedgerCheck(lambda: give("a"))
    await check.check()
    task = asyncio.create_task(check.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert check.problem_count == 0
