"""The commands about limits, as an operator sees them."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.cli.times import resolve_moment
from tests.support.cli_operator import Operator, log, sit_down
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

__all__ = ["log"]
"""A fixture of every test here, too."""

PRICES = [{"model": "*", "usd_per_call": 0.01}]
OTHER = [answer(COMPLETION)]
CONFIG: dict[str, Any] = {
    "channel": [channel("http://127.0.0.1:9/v1", "lab", models=["m"])],
    "limit": [{"name": "filed", "of": "account", "usd": 100}],
}


@pytest.fixture
async def operator(gateway_with: StartGateway) -> Operator:
    return await sit_down(gateway_with, CONFIG)


async def test_limits_are_added_shown_changed_raised_and_deleted(operator: Operator) -> None:
    made = await operator.see("limits", "add", "each user", "--of", "user", "--usd", "1", "--window", "day")
    assert "each user" in made
    assert "usd" in await operator.see("limits", "show", "each user", width=100)
    assert await operator.see("limits", "edit", "each user", "--usd", "2") == "each user: usd 1 → 2\n"
    assert (await operator.ask("limits", "show", "each user"))["window"] == "day", "what is not named stays"
    await operator.see("limits", "raise", "each user", "--usd", "5", "--until", "2100-01-02", "--why", "the fair")
    raised = await operator.ask("limits", "show", "each user until 2100-01-02")
    assert (raised["raises"], raised["usd"], raised["until"]) == ("each user", 5, "2100-01-02T00:00:00Z")
    assert (await operator.ask("limits", "subjects", "each user"))["data"] == []
    assert await operator.see("limits", "edit", "each user", "--rpm", "20", "--soft", "0.8", width=100)
    await operator.see("limits", "edit", "each user", "--usd", "3")
    edited = await operator.ask("limits", "show", "each user")
    assert (edited["rpm"], edited["tpm"], edited["soft"], edited["usd"]) == (20, None, 0.8, 3), (
        "what is not named stays"
    )
    await operator.see("limits", "edit", "each user", "--soft", "none")
    assert (await operator.ask("limits", "show", "each user"))["soft"] is None
    assert await operator.see("limits", "delete", "each user until 2100-01-02", "--yes")
    assert await operator.see("limits", "delete", "each user", "--yes") == "The limit each user is deleted.\n"
    assert [limit["name"] for limit in (await operator.ask("limits"))["data"]] == ["filed"]


async def test_a_new_limit_says_since_when_it_counts(operator: Operator) -> None:
    for words, is_reported in (("add", True), ("edit", False)):
        result = await operator.type("limits", words, "each user", "--of", "user", "--usd", "1")
        assert ("Counted is what was spent from 20" in result.stderr) is is_reported
    changes = 0
    for window in ("day", "rolling:24h"):  # on the first of a month, the day begins with the month
        before = await operator.ask("limits", "show", "each user")
        result = await operator.type("limits", "edit", "each user", "--window", window)
        after = await operator.ask("limits", "show", "each user")
        is_changed = before["counts_since"] != after["counts_since"]
        assert (f"Counted is what was spent from {after['counts_since']} on" in result.stderr) is is_changed
        changes += is_changed
    assert changes > 0
    result = await operator.type("limits", "add", "ever", "--of", "user", "--usd", "1", "--window", "lifetime")
    assert result.stderr == "Counted is all that was spent.\n"
    result = await operator.type("limits", "add", "pace", "--of", "user", "--rpm", "3")
    assert result.stderr == ""


async def test_a_new_limit_refuses_by_what_was_spent_before_it_was_there(gateway_with: StartGateway) -> None:
    """What runs when the limit comes into force counts, too, when it ends; none of that is an overrun."""
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def wait(_: Received) -> None:
        is_asked.set()
        await may_answer.wait()

    async with ScriptedUpstream([answer(COMPLETION)], [answer(COMPLETION)], [wait, answer(COMPLETION)], OTHER) as up:
        config = {"channel": [channel(up.base_url, "lab", models=["m"])], "price": PRICES}
        operator = await sit_down(gateway_with, config)
        gateway = operator.gateway
        assert [await send(gateway, "ann") for _ in range(2)] == [200, 200]
        running = asyncio.create_task(send(gateway, "bob"))
        await is_asked.wait()
        result = await operator.type("limits", "add", "each user", "--of", "user", "--usd", "0.015")
        assert "Counted is what was spent from 20" in result.stderr
        assert await send(gateway, "ann") == 429, "0.02 were spent before"
        may_answer.set()
        assert await running == 200
        async with asyncio.timeout(60):
            while (await list_spent(operator)).get("bob") != 0.01:
                assert await send(gateway, "ann") == 429
        assert await send(gateway, "bob") == 429, "0.01 was spent by what ran: 0.005 is left"
        assert await send(gateway, "eve") == 200
        assert await list_spent(operator) == {"ann": 0.02, "bob": 0.01, "eve": 0.01}
        await operator.see("limits", "delete", "each user", "--yes")
        assert await send(gateway, "eve") == 200
        await operator.type("limits", "add", "each user", "--of", "user", "--usd", "0.015")
        assert await list_spent(operator) == {"ann": 0.02, "bob": 0.01, "eve": 0.02}
        assert {key["overrun_usd"] for key in (await operator.ask("keys"))["data"]} == {0}
        await gateway.check_books()


async def send(gateway: RunningGateway, user: str) -> int:
    async with gateway.post({**HELLO, "user": user}) as response:
        await response.read()
        return int(response.status)


async def list_spent(operator: Operator) -> dict[str, float]:
    rows = (await operator.ask("limits", "subjects", "each user"))["data"]
    return {row["subject"]: row["spent_usd"] for row in rows}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("add", "filed", "--of", "user", "--usd", "1"), 1, "There is a limit 'filed' already"),
        (("edit", "filed", "--usd", "1"), 1, "The configuration file declares the limit 'filed'"),
        (("edit", "none", "--usd", "1"), 1, "There is no limit 'none'"),
        (("raise", "none", "--usd", "1", "--until", "7d"), 1, "There is no limit 'none'"),
        (("add", "x"), 2, "Give a value"),
        (("show", "fild"), 1, "did you mean 'filed'?"),
    ],
)
async def test_what_cannot_be_done_is_said(operator: Operator, words: tuple[str, ...], code: int, message: str) -> None:
    result = await operator.type("limits", *words)
    assert result.exit_code == code
    assert message in result.output


@table_rows(
    ("text", "direction", "moment"),
    [
        ("friday", 1, "2026-12-04"),
        ("Monday", 1, "2026-12-07"),
        ("monday", -1, "2026-11-23"),
        ("sunday", -1, "2026-11-29"),
        ("tomorrow", 1, "2026-12-01"),
    ],
)
def test_a_weekday_is_the_next_or_the_last_one(text: str, direction: int, moment: str) -> None:
    assert resolve_moment(text, datetime(2026, 11, 30, 12, tzinfo=UTC), direction) == moment
