"""``gateway alerts`` and the admin API behind it."""

import pytest

from tests.support.alert_receivers import receiving
from tests.support.cli_operator import log, sit_down
from tests.support.console_people import make_administrator
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""


async def test_targets_are_tested_and_listed(gateway_with: StartGateway, unused_tcp_port: int) -> None:
    async with receiving() as receiver:
        targets = [
            {"name": "ops", "url": f"{receiver.url}/secret-path", "kinds": ["budget_100"]},
            {"name": "gone", "url": f"http://127.0.0.1:{unused_tcp_port}"},
        ]
        operator = await sit_down(gateway_with, {"alert": targets})
        assert await operator.see("alerts", "test", "ops") == "ops: delivered\n"
        assert receiver.list_kinds() == ["test"]
        both = await operator.type("alerts", "test")
        assert (both.exit_code, both.stdout.splitlines()[0]) == (1, "ops: delivered")
        assert both.stdout.splitlines()[1].startswith("gone: not delivered: 127.0.0.1 cannot be reached")
        listed = await operator.see("alerts")
        assert listed.splitlines()[0].split() == ["TARGET", "ADDRESS", "DELIVERED", "FAILED", "LAST", "ERROR"]
        assert "secret-path" not in listed
        shown = await operator.ask("alerts")
        assert [(one["name"], one["kinds"][:1], one["delivered"]) for one in shown["targets"]] == [
            ("ops", ["budget_100"], 2),
            ("gone", ["budget_80"], 0),
        ]
        missing = await operator.type("alerts", "test", "nobody")
        assert (missing.exit_code, "No [[alert]] has the name 'nobody'" in missing.stderr) == (1, True)

        ada = await make_administrator(operator.gateway)
        async with ada.session:
            _, page = await ada.open("/settings?topic=monitoring")
            assert 'data-call="POST /admin/v1/alerts/ops/test"' in page
            assert "secret-path" not in page
            assert (await ada.call("POST", "/alerts/ops/test", {}))[1] == {
                "name": "ops", "delivered": True, "error": None,
            }  # fmt: skip


@pytest.mark.parametrize("words", [("alerts", "test"), ("alerts", "test", "ops")])
async def test_without_targets_that_is_said(gateway_with: StartGateway, words: tuple[str, ...]) -> None:
    operator = await sit_down(gateway_with)
    assert "No targets" in (await operator.type("alerts")).output
    refused = await operator.type(*words)
    assert (refused.exit_code, "The configuration has no [[alert]]" in refused.stderr) == (1, True)
