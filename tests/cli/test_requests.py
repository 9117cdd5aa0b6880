"""The request log at the command line: lists with causes, one request, keys by name."""

from typing import Any

import pytest

from tests.support.cli_operator import Operator, log, sit_down
from tests.support.fault_scene import call
from tests.support.gateway import channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""
REFUSAL = {"error": {"message": "The engine is overloaded, try later", "type": "server_error"}}


async def list_rows(operator: Operator) -> Any:
    return (await operator.ask("requests"))["data"]


async def test_one_request_is_shown_by_any_beginning_of_its_id_with_attempts_and_error(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], [answer(REFUSAL, 500)]) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url)]})
        assert [(await call(operator.gateway, stream=False)).status for _ in range(2)] == [200, 502]
        await operator.gateway.rows(2)
        fine, failed = await list_rows(operator)
        beginning = failed["id"].removeprefix("req_")[:14]
        shown = await operator.see("requests", "show", beginning, width=200)
        assert failed["id"] in shown
        assert "The engine is overloaded, try later" in shown
        assert "ATTEMPT  MODEL  CHANNEL" in shown
        assert (await operator.ask("requests", "show", f"req_{beginning}"))["id"] == failed["id"]
        assert (await operator.ask("requests", "show", fine["id"]))["id"] == fine["id"]
        listed = await operator.see("requests", width=200)
        assert "The engine is overloaded, try later" in listed
        assert beginning[:12] in listed
        for unknown in ("req_ffffffffffffff", "nothing", "ff", "%"):
            refused = await operator.type("requests", "show", unknown)
            assert (refused.exit_code, "No request has the id" in refused.stderr) == (1, True)


async def test_a_beginning_that_several_ids_have_is_refused(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(*[[answer(COMPLETION)]] * 2) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url)]})
        for _ in range(2):
            await call(operator.gateway, stream=False)
        await operator.gateway.rows(2)
        first, second = [row["id"] for row in await list_rows(operator)]
        common = next(end for end in range(len(first)) if first[end] != second[end])
        refused = await operator.type("requests", "show", first[:common])
        assert (refused.exit_code, refused.stderr) == (
            1,
            f"Several requests have an id that begins with '{first[:common]}': give more of it\n",
        )
        assert (await operator.ask("requests", "show", first[: common + 1]))["id"] == first


@pytest.mark.parametrize("by", ["id", "name", "last four characters"])
async def test_a_key_is_found_by_id_name_and_last_four_characters(gateway_with: StartGateway, by: str) -> None:
    operator = await sit_down(gateway_with)
    made = await operator.ask("keys", "create", "--name", "laptop", "--rpm", "60")
    given = {"id": str(made["id"]), "name": "laptop", "last four characters": made["secret"][-4:]}[by]
    assert (await operator.ask("keys", "show", given))["id"] == made["id"]
    assert await operator.see("keys", "edit", given, "--rpm", "none") == "laptop: rpm 60 → none\n"
    assert await operator.see("keys", "edit", given, "--rpm", "none") == "laptop: nothing changed\n"
    assert await operator.see("keys", "disable", given) == f"The key {given} is disabled.\n"
    assert (await operator.ask("requests", "--key", given))["data"] == []
    assert (await operator.ask("usage", "--key", given))["data"] == []
    assert (await operator.type("explain", "m", "--key", given)).exit_code == 1
    assert (await operator.ask("keys", "delete", given, "--yes")) == {"id": made["id"], "deleted": True}
    assert (await operator.ask("requests", "--key", str(made["id"])))["data"] == []  # the log still has the id


async def test_a_name_of_several_keys_is_refused_with_their_ids(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    await operator.ask("accounts", "add", "team")
    ids = [
        (await operator.ask("keys", "create", "--name", "ci", "--account", account))["id"]
        for account in ("acme", "team")
    ]
    refused = await operator.type("keys", "show", "ci")
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"Several keys are called 'ci'. Give one of these ids: {ids[0]} (ci of acme), {ids[1]} (ci of team)\n"
    )
    unknown = await operator.type("keys", "show", "cd")
    assert unknown.stderr == ("No key has the id, the name or the last four characters 'cd'; see: gateway keys\n")


async def test_an_edit_prints_what_changed(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    await operator.ask("accounts", "add", "team", "--rpm", "60")
    await operator.ask("groups", "set", "vip", "0.8")
    quota = await operator.see("accounts", "edit", "team", "--quota-usd", "5", "--groups", "vip", width=200)
    assert quota == "team: quota none → $5.00, groups none → vip, quota period none → lifetime\n"
    assert await operator.see("accounts", "edit", "team", "--name", "crew") == "team: name team → crew\n"
    url = "http://127.0.0.1:9/v1"
    await operator.ask("channels", "add", "lab", "--provider", "custom", "--base-url", url, "--model", "m", "--force")
    edited = await operator.see("channels", "edit", "lab", "--priority", "3", "--api-key", "sk-hidden", width=200)
    assert edited == "lab: priority 0 → 3, api keys changed\n"
