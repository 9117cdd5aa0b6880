"""Message batches by the ``anthropic`` library, over channels of every chat model."""

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types.messages import MessageBatch

from tests.support.batch_calls import OTHER, await_requests, limited
from tests.support.fast_provider import SwiftUpstream, hanging, well
from tests.support.gateway import KEY, channel
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.sdk_clients import MakeClaude
from tests.support.started_gateways import StartGateway

NOBODYS = "msgbatch_" + "0" * 32
CONFIG: dict[str, Any] = {
    "account": [{"name": "ours"}, {"name": "theirs"}],
    "key": [
        {"name": "ours", "account": "ours", "secret": KEY},
        {"name": "theirs", "account": "theirs", "secret": OTHER},
    ],
}


def ask(number: int, model: str = "demo-chat", **more: Any) -> Any:
    params = {"model": model, "max_tokens": 16, "messages": [{"role": "user", "content": f"line {number}"}], **more}
    return {"custom_id": f"c{number}", "params": params}


async def await_end(client: AsyncAnthropic, batch: MessageBatch) -> MessageBatch:
    async with asyncio.timeout(30):
        while batch.processing_status != "ended":
            await asyncio.sleep(0.02)
            batch = await client.messages.batches.retrieve(batch.id)
    return batch


async def read_results(client: AsyncAnthropic, batch: MessageBatch) -> dict[str, Any]:
    return {one.custom_id: one.result async for one in await client.messages.batches.results(batch.id)}


async def test_each_request_has_its_message_or_its_error(gateway_with: StartGateway, claude: MakeClaude) -> None:
    gateway = await gateway_with(CONFIG)
    client = claude(gateway)
    wrong = (ask(10, temperature=9), ask(11, model="none-such"))
    begun = await client.messages.batches.create(requests=[*map(ask, range(10)), *wrong])
    assert (begun.processing_status, begun.request_counts.processing, begun.results_url) == ("in_progress", 12, None)
    assert (begun.expires_at - begun.created_at).total_seconds() == 86_400
    ended = await await_end(client, begun)
    counts = ended.request_counts
    assert (counts.processing, counts.succeeded, counts.errored, counts.canceled, counts.expired) == (0, 10, 2, 0, 0)
    results = await read_results(client, ended)
    assert {name: one.type for name, one in results.items()} == {
        **{f"c{number}": "succeeded" for number in range(10)},
        "c10": "errored",
        "c11": "errored",
    }
    message = results["c3"].message
    assert (message.type, message.role, message.content[0].type) == ("message", "assistant", "text")
    assert results["c10"].error.error.type == "invalid_request_error"
    assert results["c11"].error.error.type == "not_found_error"
    rows = await gateway.rows(12)
    assert {row.batch_id for row in rows} == {begun.id}
    assert {row.operation for row in rows} == {"messages"}


async def test_batches_are_listed_cancelled_and_deleted(gateway_with: StartGateway, claude: MakeClaude) -> None:
    async with SwiftUpstream(well) as up:
        client = claude(await gateway_with({**limited(up), "batches": {"max_active": 2}}))
        batches = client.messages.batches
        done = await await_end(client, await batches.create(requests=[ask(1, "m")]))
        up.behaviour = hanging
        live = await batches.create(requests=[ask(number, "m") for number in range(5)])
        await await_requests(up, 3)
        assert [one.id async for one in batches.list(limit=1)] == [live.id, done.id]
        newer = await batches.list(before_id=done.id)
        assert [one.id for one in newer.data] == [live.id]
        with pytest.raises(anthropic.ConflictError):
            await batches.delete(live.id)
        with pytest.raises(anthropic.NotFoundError):
            await (await client.messages.with_raw_response.batches.retrieve(NOBODYS)).parse()
        cancelling = await batches.cancel(live.id)
        assert (cancelling.processing_status, cancelling.cancel_initiated_at is None) == ("canceling", False)
        up.die()
        ended = await await_end(client, cancelling)
        assert (ended.request_counts.canceled, ended.request_counts.errored) == (3, 2)
        kinds = [one.type for one in (await read_results(client, ended)).values()]
        assert sorted(kinds) == ["canceled"] * 3 + ["errored"] * 2
        assert (await batches.delete(live.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await batches.retrieve(live.id)
        assert [one.id async for one in batches.list()] == [done.id]


@pytest.mark.parametrize(
    ("requests", "param"),
    [
        ([], "requests"),
        ([{**ask(1), "custom_id": "a b"}], "requests.0.custom_id"),
        ([ask(1), ask(1)], "requests.1.custom_id"),
        ([{"custom_id": "a", "params": {"messages": []}}], "requests.0.params"),
        ([ask(1, stream=True)], "requests.0.params.stream"),
    ],
)
async def test_what_is_wrong_with_a_batch_is_refused(
    gateway_with: StartGateway, claude: MakeClaude, requests: Any, param: str
) -> None:
    client = claude(await gateway_with(CONFIG))
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.batches.create(requests=requests)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"], body["error"]["param"]) == ("error", "invalid_request_error", param)


async def test_the_headers_of_a_batch_are_those_of_its_requests(gateway_with: StartGateway, claude: MakeClaude) -> None:
    """Except for the feature that stands for batches; a feature that no channel allows is each request's error."""
    body: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_sequence": None,
    }
    body |= {"stop_reason": "end_turn", "usage": {"input_tokens": 5, "output_tokens": 7}}
    async with ScriptedUpstream([answer(body)]) as up:
        client = claude(await gateway_with({"channel": [channel(up.base_url, provider="anthropic")]}))
        beta = client.beta.messages.batches
        good: Any = await beta.create(
            requests=[ask(1, "m"), ask(2, "m")], betas=["context-1m-2025-08-07", "effort-2025-11-24"]
        )
        assert (await await_end(client, good)).request_counts.succeeded == 2
        assert {sent.headers["anthropic-beta"] for sent in up.received} == {"context-1m-2025-08-07,effort-2025-11-24"}
        plain = await client.messages.batches.create(
            requests=[ask(1, "m")], extra_headers={"anthropic-beta": "message-batches-2024-09-24"}
        )
        assert (await await_end(client, plain)).request_counts.succeeded == 1
        assert "anthropic-beta" not in up.received[-1].headers
        expensive: Any = await beta.create(requests=[ask(1, "m")], betas=["skills-2025-10-02"])
        ended = await await_end(client, expensive)
        result = (await read_results(client, ended))["c1"]
        assert "anthropic-beta" in result.error.error.message
        assert result.error.error.model_dump()["doc_url"] == "/help/reference/errors#invalid_request"
        assert len(up.received) == 3
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.batches.create(requests=[ask(1, "m")], extra_headers={"anthropic-beta": "a;b"})
        refused: Any = caught.value.body
        assert refused["error"]["param"] == "anthropic-beta"


async def test_a_batch_belongs_to_its_account(gateway_with: StartGateway, claude: MakeClaude) -> None:
    gateway = await gateway_with(CONFIG)
    ours, theirs = claude(gateway), claude(gateway, api_key=OTHER)
    batch = await await_end(ours, await ours.messages.batches.create(requests=[ask(1)]))
    batches = theirs.messages.batches
    for call in (batches.retrieve(batch.id), batches.cancel(batch.id), batches.delete(batch.id)):
        with pytest.raises(anthropic.NotFoundError):
            await call
    assert (await batches.list()).data == []
    await gateway.rows(1)
