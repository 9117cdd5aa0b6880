"""Batches by the ``openai`` library."""

from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from gateway.server.context import SERVICES
from tests.support.batch_calls import (
    CHAT,
    CONFIG,
    OTHER,
    ask,
    await_end,
    await_requests,
    limited,
    make_line,
    read_results,
    start,
)
from tests.support.fast_provider import SwiftUpstream, hanging, slow, well
from tests.support.gateway import KEY, start_gateway
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway


@pytest.mark.parametrize(
    ("endpoint", "model", "fields"),
    [
        (CHAT, "demo-chat", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/embeddings", "demo-embedding", {"input": "hi"}),
        ("/v1/responses", "demo-chat", {"input": "hi"}),
        ("/v1/completions", "demo-chat", {"prompt": "hi"}),
    ],
)
async def test_each_line_is_answered_charged_and_recorded(
    gateway_with: StartGateway, sdk: MakeClient, endpoint: str, model: str, fields: dict[str, Any]
) -> None:
    gateway = await gateway_with(CONFIG)
    client = sdk(gateway)
    lines = [make_line(number, endpoint, model=model, user=f"u{number}", **fields) for number in range(30)]
    begun = await start(client, lines, endpoint, metadata={"what": "test"})
    assert (begun.status, begun.endpoint, begun.metadata) == ("validating", endpoint, {"what": "test"})
    assert begun.expires_at == begun.created_at + 86_400
    batch = await await_end(client, begun)
    assert (batch.status, batch.errors, batch.error_file_id, batch.model) == ("completed", None, None, model)
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (30, 30, 0)
    assert None not in {batch.in_progress_at, batch.finalizing_at, batch.completed_at}
    results = await read_results(client, batch.output_file_id)
    assert results.keys() == {line["custom_id"] for line in lines}
    assert all(one["error"] is None and one["response"]["status_code"] == 200 for one in results.values())
    rows = await gateway.rows(30)
    assert {row.id for row in rows} == {one["response"]["request_id"] for one in results.values()}
    assert {row.client_request_id for row in rows} == {batch.id}
    assert {row.end_user for row in rows} == {f"u{number}" for number in range(30)}
    assert batch.usage is not None
    assert batch.usage.input_tokens == sum(row.prompt_tokens for row in rows)
    assert batch.usage.output_tokens == sum(row.completion_tokens for row in rows)
    assert [one.id async for one in await client.batches.list(limit=1)] == [batch.id]
    file = await client.files.retrieve(str(batch.output_file_id))
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")


async def test_a_response_of_a_batch_can_be_continued(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with(CONFIG)
    client = sdk(gateway)
    line = make_line(1, "/v1/responses", model="demo-chat", input="hi")
    batch = await await_end(client, await start(client, [line], "/v1/responses"))
    (result,) = (await read_results(client, batch.output_file_id)).values()
    first = result["response"]["body"]["id"]
    assert (await client.responses.retrieve(first)).id == first
    assert (await client.responses.create(model="demo-chat", input="and?", previous_response_id=first)).output_text
    await gateway.rows(2)


async def test_what_is_wrong_with_the_input_is_named_by_line(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with(CONFIG)
    client = sdk(gateway)
    wrong: list[Any] = [
        make_line(1),
        b"{not json",
        b"",
        make_line(1),
        {**make_line(5), "url": "/v1/embeddings"},
        {**make_line(6), "method": "GET"},
        {**make_line(7), "body": {"messages": []}},
        make_line(8, model="nobody's", messages=[{"role": "user", "content": "hi"}]),
        {**make_line(9), "custom_id": ""},
        make_line(10, model="demo-chat", messages=[{"role": "user", "content": "hi"}], stream=True),
    ]
    batch = await await_end(client, await start(client, wrong))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(error.line, error.code, error.param) for error in batch.errors.data or []] == [
        (2, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "mismatched_endpoint", "url"),
        (6, "invalid_method", "method"),
        (7, "missing_required_parameter", "body.model"),
        (8, "model_not_found", "body.model"),
        (9, "missing_required_parameter", "custom_id"),
        (10, "invalid_request", "body.stream"),
    ]
    empty = await await_end(client, await start(client, [b"", b" "]))
    assert empty.errors is not None
    assert [error.code for error in empty.errors.data or []] == ["empty_file"]
    await gateway.rows(0)


async def test_what_is_wrong_with_a_batch_is_refused(gateway_with: StartGateway, sdk: MakeClient) -> None:
    client = sdk(await gateway_with(CONFIG))
    create: Any = client.batches.create
    other = await client.files.create(file=("a", b"x"), purpose="user_data")
    good = await client.files.create(file=("a", b"x"), purpose="batch")
    usual = {"input_file_id": good.id, "endpoint": CHAT, "completion_window": "24h"}
    for wrong, param in (
        ({"input_file_id": other.id}, "input_file_id"),
        ({"input_file_id": "file-nobody's"}, "input_file_id"),
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"endpoint": {"of": "batches"}}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await create(**{**usual, **wrong})
        assert caught.value.param == param
    with pytest.raises(openai.NotFoundError):
        await create(**{**usual, "input_file_id": "file-" + "0" * 32})


async def test_a_batch_belongs_to_its_account(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with(CONFIG)
    ours, theirs = sdk(gateway), sdk(gateway, api_key=OTHER)
    batch = await await_end(ours, await start(ours, [make_line(1)]))
    for call in (
        theirs.batches.retrieve(batch.id),
        theirs.batches.cancel(batch.id),
        theirs.files.content(str(batch.output_file_id)),
        theirs.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),  # type: ignore[arg-type]
    ):
        with pytest.raises(openai.NotFoundError):
            await call
    assert (await theirs.batches.list()).data == []
    with pytest.raises(openai.ConflictError, match="completed"):
        await ours.batches.cancel(batch.id)
    await gateway.rows(1)


async def test_a_line_that_is_refused_is_in_the_error_file(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with({**CONFIG, "server": {"base_url": "https://ai.example.com/v1"}})
    client = sdk(gateway)
    wrong = make_line(2, model="demo-chat", messages=[{"role": "user", "content": "hi"}], temperature=-1)
    batch = await await_end(client, await start(client, [make_line(1), wrong, make_line(3)]))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 1)
    assert (await read_results(client, batch.output_file_id)).keys() == {"c1", "c3"}
    (error,) = (await read_results(client, batch.error_file_id)).values()
    assert (error["custom_id"], error["error"], error["response"]["status_code"]) == ("c2", None, 400)
    assert error["response"]["body"]["error"]["param"] == "temperature"
    assert (
        error["response"]["body"]["error"]["doc_url"] == "https://ai.example.com/help/reference/errors#invalid_request"
    )
    await gateway.rows(3)


async def test_a_cancelled_batch_keeps_what_is_done(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(hanging) as up:
        up.behaviour = lambda seen: well(seen) if seen.number < 5 else hanging(seen)
        gateway = await gateway_with({**limited(up), "batches": {"max_active": 2}})
        client = sdk(gateway)
        batch = await start(client, [ask(number) for number in range(50)])
        await await_requests(up, 7)
        cancelling = await client.batches.cancel(batch.id)
        assert cancelling.status == "cancelling"
        up.die()  # the two lines that run fail
        ended = await await_end(client, cancelling)
        assert (ended.status, ended.cancelled_at is None, ended.completed_at) == ("cancelled", False, None)
        assert ended.request_counts is not None
        assert (ended.request_counts.total, ended.request_counts.completed) == (50, 5)
        assert len(await read_results(client, ended.output_file_id)) == 5
        assert len({orjson.loads(seen.body)["messages"][0]["content"] for seen in up.seen}) == 7


async def test_rate_limits_are_waited_for(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(well) as up:
        gateway = await gateway_with(limited(up, rpm=600, burst=2, max_concurrency=1))
        client = sdk(gateway)
        ended = await await_end(client, await start(client, [ask(number) for number in range(8)]))
        assert ended.request_counts is not None
        assert (ended.request_counts.completed, ended.request_counts.failed) == (8, 0)
        assert up.most_running == 1
        await gateway.rows(8)


async def test_a_key_without_money_has_errors_for_lines(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(well) as up:
        gateway = await gateway_with(limited(up, quota_usd=0.0001))
        client = sdk(gateway)
        ended = await await_end(client, await start(client, [ask(number) for number in range(20)]))
        assert (ended.status, ended.request_counts is None) == ("completed", False)
        errors = await read_results(client, ended.error_file_id)
        assert len(up.seen) + len(errors) == 20
        assert {one["response"]["body"]["error"]["code"] for one in errors.values()} == {"insufficient_quota"}


async def test_a_disabled_key_sends_nothing_more(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(well) as up:
        two = [
            {"name": name, "account": "ours", "secret": secret} for name, secret in (("ours", KEY), ("other", OTHER))
        ]
        up.behaviour = slow(0.05)
        gateway = await gateway_with({**limited(up), "account": [], "key": [], "batches": {"max_active": 1}})
        accounts = gateway.app[SERVICES].auth.accounts
        await accounts.add_account({"name": "ours"})
        ids = [(await accounts.add_key(fields))["id"] for fields in two]
        client = sdk(gateway)
        batch = await start(client, [ask(number) for number in range(40)])
        await await_requests(up, 3)
        await accounts.edit_key(ids[0], {"status": "disabled"})
        ended = await await_end(sdk(gateway, api_key=OTHER), batch)
        assert ended.request_counts is not None
        assert ended.request_counts.failed > 30
        errors = await read_results(sdk(gateway, api_key=OTHER), ended.error_file_id)
        assert {one["response"]["body"]["error"]["code"] for one in errors.values()} == {"key_disabled"}
        assert len(up.seen) == ended.request_counts.completed


async def test_a_batch_expires_after_a_day(gateway_with: StartGateway, sdk: MakeClient) -> None:
    now = [1_800_000_000.0]
    async with SwiftUpstream(hanging) as up:
        gateway = await gateway_with({**limited(up), "batches": {"max_active": 2}}, clock=lambda: now[0])
        client = sdk(gateway)
        batch = await start(client, [ask(number) for number in range(9)])
        await await_requests(up, 2)
        now[0] += 86_401
        up.behaviour = well
        for run in gateway.app[SERVICES].batches._runs.values():
            run.check_expiry()
        up.die()
        ended = await await_end(client, batch)
        assert ended.status == "expired"
        errors = await read_results(client, ended.error_file_id)
        codes = [one["error"]["code"] for one in errors.values() if one["error"]]
        assert codes == ["batch_expired"] * 7
        assert len(errors) == 9


async def test_a_batch_goes_on_after_a_restart(
    gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path, template_path: Path
) -> None:
    async with SwiftUpstream(slow(0.02)) as up:
        config = {**limited(up), "batches": {"max_active": 2}}
        first = await start_gateway(tmp_path / "own", template_path, config)
        batch = await start(sdk(first), [ask(number) for number in range(40)])
        await await_requests(up, 10)
        first.audited = False  # it runs: the second gateway is audited
        await first.close()
        second = await start_gateway(tmp_path / "own", template_path, config)
        try:
            ended = await await_end(sdk(second), batch)
            assert ended.request_counts is not None
            assert (ended.request_counts.completed, ended.request_counts.failed) == (40, 0)
            assert len(up.seen) == 40
        finally:
            await second.close()
    del gateway_with
