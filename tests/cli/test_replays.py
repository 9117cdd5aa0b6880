"""Kept requests that are sent again from the command line: one, and a set over several models."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from gateway.cli.admin_client import AdminClient
from gateway.cli.context import Json
from gateway.cli.replays import MAX_RETRIES, replay_once, sum_models
from tests.support.cli_operator import log, sit_down
from tests.support.gateway import KEY, channel
from tests.support.module_sleep import replace_sleep
from tests.support.started_gateways import StartGateway
from tests.support.text_provider import open_text_provider

__all__ = ["log"]
"""A fixture of every test here, too."""


@pytest.mark.usefixtures("log")
async def test_a_request_and_a_set_are_sent_again(gateway_with: StartGateway, tmp_path: Path) -> None:
    async with open_text_provider([]) as base_url:
        config = {
            "channel": [channel(base_url, models=["m", "new", "newer"])],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
            "requests": {"keep_bodies": "all"},
        }
        operator = await sit_down(gateway_with, config)
        bodies = [{"model": "m", "messages": [{"role": "user", "content": f"{number}"}]} for number in range(3)]
        for body in bodies:
            async with operator.gateway.post(body) as response:
                assert response.status == 200
        async with operator.gateway.post(bodies[0], headers={"x-gateway-keep": "no"}) as response:
            assert response.status == 200
        rows = (await operator.ask("requests", "--model", "m"))["data"]
        first_id = next(row["id"] for row in rows if row["id"] != rows[0]["id"])
        shown = await operator.see("requests", "replay", first_id, "--model", "new", "--key", "test", width=200)
        assert "- m" in shown
        assert "+ new" in shown
        schema = tmp_path / "schema.json"
        schema.write_text('{"type": "string"}')
        set_words = ("requests", "replay", "--of-model", "m", "--key", "test", "--expect", "newer says")
        answer = await operator.ask(*set_words, "--model", "new", "--model", "newer")
        assert [(row["model"], row["sent"], row["unsent"], row["passed"]) for row in answer["models"]] == [
            ("new", 3, 1, 0), ("newer", 3, 1, 3),
        ]  # fmt: skip
        table = await operator.see(*set_words, "--model", "new", "--schema", str(schema), width=200)
        assert "SAME OUTCOME" in table
        refused = await operator.type("requests", "replay", first_id, "--model", "none", "--key", "nobody")
        assert refused.exit_code == 1


def test_what_was_refused_is_neither_sent_nor_passed() -> None:
    def make_result(outcome: str, problems: list[str]) -> Json:
        run = {"outcome": outcome, "cost_usd": 1.0, "total_ms": 2, "problems": problems}
        return {
            "model": "m",
            "first": {**run, "outcome": "completed"},
            "second": run,
            "same_text": None,
            "same_tools": None,
        }

    (summed,) = sum_models(
        [make_result("completed", []), make_result("refused", ["no"]), make_result("failed", ["no"])]
    )
    assert (summed["sent"], summed["unsent"], summed["passed"], summed["same_text"]) == (2, 1, 1, 0)


class BusyGateway(AdminClient):
    """Refuses a request for now, as often as said, and answers then."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.calls = 0

    @override
    async def call(self, *args: Any, **kwargs: Any) -> Json:
        self.calls += 1
        is_refused = self.calls <= self.refusals
        return {"outcome": "refused" if is_refused else "completed", "retry_after_s": 7 if is_refused else None}


@pytest.mark.parametrize(
    ("refusals", "low_priority", "calls", "outcome"),
    [
        (0, True, 1, "completed"),
        (3, True, 4, "completed"),
        (99, True, MAX_RETRIES + 1, "refused"),
        (3, False, 1, "refused"),
    ],
)
async def test_a_set_sends_what_was_refused_for_now_once_more(
    monkeypatch: pytest.MonkeyPatch, refusals: int, low_priority: bool, calls: int, outcome: str
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    replace_sleep(monkeypatch, "gateway.cli.replays", sleep)
    gateway = BusyGateway(refusals)
    result = await replay_once(gateway, "req_1", {"model": "m", "low_priority": low_priority}, asyncio.Semaphore(1))
    assert (gateway.calls, result["outcome"]) == (calls, outcome)
    assert set(waits) <= {7}
