"""The commands about sessions of requests, as an operator sees them."""

import pytest

from tests.support.cli_operator import log, sit_down
from tests.support.fault_scene import site
from tests.support.gateway import HELLO, KEY, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""

OTHER_KEY = "sk-test-key-of-another-account"


async def test_sessions_are_listed_shown_and_ended(gateway_with: StartGateway) -> None:
    keys = [
        {"name": "agent", "account": "acme", "secret": KEY},
        {"name": "theirs", "account": "other", "secret": OTHER_KEY},
    ]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        accounts = [{"name": "acme"}, {"name": "other"}]
        operator = await sit_down(gateway_with, site(channel(up.base_url), account=accounts, key=keys))
        assert "No sessions." in (await operator.type("sessions")).output
        for session, secret in (("run1", KEY), ("run2", KEY), ("run2", OTHER_KEY)):
            headers = {"x-gateway-budget": f"0.5; session={session}", "Authorization": f"Bearer {secret}"}
            async with operator.gateway.post(HELLO, headers=headers) as response:
                assert response.status == 200
        listed = (await operator.ask("sessions"))["data"]
        assert [(one["session"], one["account"]) for one in listed] == [
            ("run2", "other"),
            ("run2", "acme"),
            ("run1", "acme"),
        ]
        assert (await operator.ask("sessions", "--limit", "2"))["data"] == listed[:2]
        assert (await operator.ask("sessions", "--key", "agent"))["data"] == listed[1:]
        table = await operator.see("sessions", width=140)
        assert "$0.50" in table
        shown = await operator.see("sessions", "show", "run1", width=100)
        assert "first prompt tokens" in shown
        several = await operator.type("sessions", "show", "run2")
        assert "name one with --account (acme, other)" in several.output
        ended = await operator.see("sessions", "end", "run2", "--account", "other", "--yes")
        assert ended == "The session run2 is ended.\n"
        assert "ended" in await operator.see("sessions", "--account", "other", width=140)
        assert (await operator.ask("sessions", "show", "run2", "--account", "acme"))["ended_at"] is None


@pytest.mark.parametrize("verb", ["show", "end"])
async def test_an_unknown_session_is_named(gateway_with: StartGateway, verb: str) -> None:
    operator = await sit_down(gateway_with, site(channel("http://127.0.0.1:9/v1")))
    words = ("sessions", verb, "none", *(["--yes"] if verb == "end" else []))
    result = await operator.type(*words)
    assert result.exit_code == 1
    assert "There is no session 'none'" in result.output
