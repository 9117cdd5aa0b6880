"""The admin API's batches: listed, shown with what they cost, cancelled; and the multiplier of their prices."""

from typing import Any

import pytest
from openai import AsyncOpenAI

from gateway.config.files_schema import BatchesSection
from gateway.parsing import ValidationErrors, parse_table
from tests.support.admin_calls import ask_office
from tests.support.batch_calls import ask, await_end, await_requests, limited, start
from tests.support.console_people import invite, make_administrator
from tests.support.fast_provider import SwiftUpstream, hanging, well
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

HALF = {"batches": {"price_multiplier": 0.5, "max_active": 2}}


async def send_one(client: AsyncOpenAI) -> None:
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "line 0"}], max_tokens=9)


async def test_a_line_costs_its_part_and_the_row_says_which(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(well) as up:
        gateway = await gateway_with({**limited(up), **HALF})
        client = sdk(gateway)
        await send_one(client)
        batch = await await_end(client, await start(client, [ask(number) for number in range(3)]))
        whole, *lines = await gateway.rows(4)
        assert (whole.batch_id, whole.batch_multiplier_ppm) == (None, 1_000_000)
        assert {(row.batch_id, row.batch_multiplier_ppm) for row in lines} == {(batch.id, 500_000)}
        assert {row.cost_nanos for row in lines} == {-(-whole.cost_nanos // 2)}
        assert {row.reserved_nanos for row in lines} == {-(-whole.reserved_nanos // 2)}
        for row in (whole, *lines):
            shown = (await ask_office(gateway, "GET", f"/requests/{row.id}"))[1]
            assert (shown["batch_id"], shown["batch_multiplier_ppm"]) == (row.batch_id, row.batch_multiplier_ppm)
            assert shown["lines"]
            assert not any(line["estimated"] for line in shown["lines"])
        found = (await ask_office(gateway, "GET", f"/batches/{batch.id}"))[1]
        assert (found["requests"], found["cost_nanos"]) == (3, sum(row.cost_nanos for row in lines))
        assert (found["price_multiplier"], found["account"], found["key_name"]) == (0.5, "ours", "ours")


async def test_a_batch_keeps_the_multiplier_of_its_beginning(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(hanging) as up:
        gateway = await gateway_with({**limited(up), "batches": {"max_active": 1}})
        client = sdk(gateway)
        batch = await start(client, [ask(number) for number in range(4)])
        await await_requests(up, 1)
        status, _ = await ask_office(gateway, "PUT", "/settings/batches/price_multiplier", {"value": 0.25})
        assert status == 200
        found = (await ask_office(gateway, "GET", f"/batches/{batch.id}"))[1]
        assert found["price_multiplier"] == 1
        await client.batches.cancel(batch.id)
        up.die()
        assert (await await_end(client, batch)).status == "cancelled"


@pytest.mark.parametrize("number", [0, -0.5, 1.5, 0.1234567])
def test_a_multiplier_is_a_share_in_parts_per_million(number: Any) -> None:
    with pytest.raises(ValidationErrors):
        parse_table({"price_multiplier": number}, BatchesSection)
    assert parse_table({"price_multiplier": 0.123456}, BatchesSection).multiplier_ppm == 123_456


async def test_batches_are_listed_filtered_and_cancelled(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(well) as up:
        gateway = await gateway_with({**limited(up), **HALF})
        client = sdk(gateway)
        done = await await_end(client, await start(client, [ask(1)]))
        wrong = await await_end(client, await start(client, [b"{"]))
        up.behaviour = hanging
        live = await start(client, [ask(number) for number in range(5)])
        await await_requests(up, 2)

        async def list_ids(query: str) -> list[str]:
            status, answer = await ask_office(gateway, "GET", f"/batches?{query}")
            assert status == 200, answer
            return [one["id"] for one in answer["data"]]

        assert await list_ids("") == [live.id, wrong.id, done.id]
        assert await list_ids("live=true") == [live.id]
        assert await list_ids("status=failed&account=ours") == [wrong.id]
        assert await list_ids(f"limit=1&after={live.id}") == [wrong.id]
        for query in ("live=no", "status=none", "after=none"):
            assert (await ask_office(gateway, "GET", f"/batches?{query}"))[0] == 400
        errors = (await ask_office(gateway, "GET", f"/batches/{wrong.id}"))[1]["errors"]
        assert [(error["line"], error["code"]) for error in errors] == [(1, "invalid_json_line")]
        status, cancelled = await ask_office(gateway, "POST", f"/batches/{live.id}/cancel")
        assert (status, cancelled["status"], cancelled["live"]) == (200, "cancelling", True)
        up.die()
        assert (await await_end(client, live)).status == "cancelled"
        assert (await ask_office(gateway, "POST", f"/batches/{live.id}/cancel"))[0] == 409
        record = (await ask_office(gateway, "GET", "/audit-trail?limit=1"))[1]["data"][0]
        assert (record["action"], record["subject"], record["account"]) == ("batch.cancelled", live.id, "ours")


async def test_a_member_sees_no_batch_of_another_account(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(well) as up:
        config = limited(up)
        gateway = await gateway_with({**config, "account": [*config["account"], {"name": "theirs"}]})
        client = sdk(gateway)
        await await_end(client, await start(client, [ask(1)]))
        ada = await make_administrator(gateway)
        bea = await invite(ada, "bea", "member", "theirs")
        try:
            assert (await bea.call("GET", "/batches"))[1]["data"] == []
            assert (await bea.call("GET", "/batches?account=ours"))[0] == 404
            status, page = await ada.open("/batches")
            assert (status, "completed" in page) == (200, True)
        finally:
            await ada.session.close()
            await bea.session.close()
