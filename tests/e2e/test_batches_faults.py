"""What can happen to a batch while it runs: providers, limits, money, restarts, other requests."""

import asyncio
from pathlib import Path
from typing import Any

import attrs
import openai
import orjson
import pytest
from openai.types import Batch

from gateway.cluster.limits.limiter import SharedRateLimiter
from gateway.domain.batch import Batch as StoredBatch
from gateway.server.context import SERVICES
from gateway.storage.batches import BatchRepository, find_no_process
from gateway.storage.data_folder import JOURNAL
from gateway.storage.file_folder import name_file
from gateway.storage.journal import parse_journal
from tests.support.admin_calls import ask_office
from tests.support.batch_calls import ask, await_end, await_requests, limited, make_line, read_results, start
from tests.support.fast_provider import Reaction, SwiftUpstream, failing, hanging, slow, well
from tests.support.gateway import KEY, channel, start_gateway
from tests.support.gateway_process import eventually
from tests.support.limit_servers import running_redis, wait_until_reached
from tests.support.scripted_upstream import COMPLETION
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway


def count(batch: Batch) -> tuple[int, int, int]:
    counts = batch.request_counts
    assert counts is not None
    return counts.total, counts.completed, counts.failed


async def test_an_indented_answer_is_one_line_of_the_results(gateway_with: StartGateway, sdk: MakeClient) -> None:
    indented = orjson.dumps(COMPLETION, option=orjson.OPT_INDENT_2).replace(b"\n", b"\r\n")
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(indented)}\r\n\r\n".encode()
    async with SwiftUpstream(lambda _: Reaction(head + indented)) as up:
        client = sdk(await gateway_with(limited(up)))
        ended = await await_end(client, await start(client, [ask(1), ask(2)]))
        results = await read_results(client, ended.output_file_id)
        assert results.keys() == {"c1", "c2"}
        assert results["c1"]["response"]["body"]["choices"] == COMPLETION["choices"]


async def test_a_line_that_the_provider_refuses_for_its_rate_is_sent_again(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    refuse = failing(429, Retry_After="1")
    async with SwiftUpstream(lambda seen: refuse(seen) if seen.number < 2 else well(seen)) as up:
        gateway = await gateway_with({**limited(up), "routing": {"max_attempts": 1}})
        client = sdk(gateway)
        ended = await await_end(client, await start(client, [ask(number) for number in range(4)]))
        assert count(ended) == (4, 4, 0)
        assert sum(row.cost_nanos > 0 for row in await gateway.rows(4)) == 4


async def test_a_channel_that_recovers_is_waited_for(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(failing(500)) as up:
        gateway = await gateway_with({**limited(up), "batches": {"max_active": 1}})
        client = sdk(gateway)
        balancer = gateway.app[SERVICES].routing.load_balancer
        batch = await start(client, [ask(number) for number in range(30)])
        async with asyncio.timeout(20):
            while balancer.any_open:  # noqa: ASYNC110 - the circuit breaker has no event
                await asyncio.sleep(0.01)
        up.behaviour = well
        ended = await await_end(client, batch)
        errors = await read_results(client, ended.error_file_id)
        assert {one["response"]["body"]["error"]["code"] for one in errors.values()} == {"upstream_error"}
        assert count(ended)[1] == 30 - len(errors) >= 5


async def test_money_that_other_lines_hold_is_waited_for(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(slow(0.1)) as up:
        line = ask(0)
        line["body"]["max_tokens"] = 4000
        lines = [{**line, "custom_id": f"c{number}"} for number in range(6)]
        priced = {"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 10}
        gateway = await gateway_with({**limited(up, quota_usd=0.05), "price": [priced]})
        client = sdk(gateway)
        ended = await await_end(client, await start(client, lines))
        assert count(ended) == (6, 6, 0)


async def test_a_batch_whose_channel_fails_leaves_its_slots_to_others(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with SwiftUpstream(hanging) as broken, SwiftUpstream(well) as up:
        broken.behaviour = failing(429, Retry_After="60")
        config: dict[str, Any] = limited(up)
        channels = [
            {**channel(up.base_url), "models": ["m"]},
            {**channel(broken.base_url), "name": "broken", "models": ["other"]},
        ]
        gateway = await gateway_with(
            {**config, "channel": channels, "billing": {"unpriced": "free"}, "batches": {"max_active": 2}}
        )
        client = sdk(gateway)
        messages = [{"role": "user", "content": "hi"}]
        stuck = await start(client, [make_line(number, model="other", messages=messages) for number in range(9)])
        await await_requests(broken, 1)
        ended = await await_end(client, await start(client, [ask(number) for number in range(9)]))
        assert count(ended) == (9, 9, 0)
        cancelled = await await_end(client, await client.batches.cancel(stuck.id))
        assert (cancelled.status, count(cancelled)[0]) == ("cancelled", 9)
        assert len(broken.seen) <= 2


async def test_ordinary_requests_find_room_beside_a_batch(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(hanging) as up:
        config = limited(up, max_concurrency=8)
        config["channel"][0]["max_concurrency"] = 4
        client = sdk(await gateway_with(config), max_retries=0)
        batch = await start(client, [ask(number) for number in range(20)])
        await await_requests(up, 3)
        up.behaviour = well
        for _ in range(3):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=9)
        assert up.most_running == 4
        await client.batches.cancel(batch.id)
        up.die()
        assert (await await_end(client, batch)).status == "cancelled"


async def test_a_key_keeps_places_for_other_requests(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(hanging) as up:
        client = sdk(await gateway_with(limited(up, max_concurrency=4)), max_retries=0)
        batch = await start(client, [ask(number) for number in range(40)])
        await await_requests(up, 3)
        up.behaviour = well
        for _ in range(5):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=9)
        assert up.most_running == 4
        await client.batches.cancel(batch.id)
        up.die()
        assert (await await_end(client, batch)).status == "cancelled"


async def test_a_cancelled_batch_sends_nothing_after_a_restart(
    gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path, template_path: Path
) -> None:
    del gateway_with  # it has made the template
    async with SwiftUpstream(hanging) as up:
        config = {**limited(up), "batches": {"max_active": 2}}
        first = await start_gateway(tmp_path / "own", template_path, config)
        client = sdk(first)
        batch = await start(client, [ask(number) for number in range(9)])
        await await_requests(up, 2)
        store = BatchRepository(first.app[SERVICES].storage.database, find_no_process)
        await client.batches.cancel(batch.id)
        up.die()
        await await_end(client, batch)
        sent = len(up.seen)
        found = await store.find_batch(batch.id, 1)
        assert found is not None
        # As a kill leaves it that comes before the results are written.
        times = {name: value for name, value in found.times.items() if name != "cancelled_at"}
        cut = attrs.evolve(found, status="cancelling", times=times, output_file_id=None, error_file_id=None)
        await store.save_batch(cut)
        first.audited = False
        await first.close()
        up.behaviour = well
        second = await start_gateway(tmp_path / "own", template_path, config)
        try:
            ended = await await_end(sdk(second), batch)
            assert (ended.status, len(up.seen)) == ("cancelled", sent)
            errors = await read_results(sdk(second), ended.error_file_id)
            assert [one["error"]["code"] for one in errors.values()] == ["interrupted"] * 2 + ["batch_cancelled"] * 7
        finally:
            second.audited = False
            await second.close()


@pytest.mark.parametrize("step", ["results written", "file adopted", "file recorded", "results lost"])
async def test_a_batch_that_was_killed_while_it_wrote_its_files_is_completed(
    gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path, template_path: Path, step: str
) -> None:
    del gateway_with
    async with SwiftUpstream(well) as up:
        config = limited(up)
        first = await start_gateway(tmp_path / "own", template_path, config)
        client = sdk(first)
        batch = await await_end(client, await start(client, [ask(number) for number in range(3)]))
        services, file_id = first.app[SERVICES], str(batch.output_file_id)
        store = BatchRepository(services.storage.database, find_no_process)
        found = await store.find_batch(batch.id, 1)
        assert found is not None
        times = {name: value for name, value in found.times.items() if name != "completed_at"}
        await store.save_batch(attrs.evolve(found, status="finalizing", times=times))
        folder, digits = services.files.files.folder.path, batch.id.removeprefix("batch_")
        stored = folder / name_file(file_id)[:2] / name_file(file_id)
        if step != "file recorded":
            record = await services.files.files.get(file_id, 1)
            await services.files.files.store.delete_file(record)
        if step == "results written":
            stored.rename(folder / f"batch-{digits}.output")
        elif step == "results lost":
            stored.unlink()
        await first.close()
        second = await start_gateway(tmp_path / "own", template_path, config)
        try:
            client = sdk(second)
            ended = await await_end(client, await client.batches.retrieve(batch.id))
            assert (ended.status, count(ended), len(up.seen)) == ("completed", (3, 3, 0), 3)
            if step == "results lost":
                assert ended.output_file_id is None
            else:
                assert (await read_results(client, ended.output_file_id)).keys() == {"c0", "c1", "c2"}
        finally:
            second.audited = False
            await second.close()


async def test_a_stop_does_not_lose_lines_that_wait_for_a_channel(
    gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path, template_path: Path
) -> None:
    del gateway_with  # it has made the template
    async with SwiftUpstream(failing(429, Retry_After="60")) as up:
        config = {**limited(up), "batches": {"max_active": 2}}
        first = await start_gateway(tmp_path / "own", template_path, config)
        batch = await start(sdk(first), [ask(number) for number in range(5)])
        await await_requests(up, 1)
        first.audited = False
        await first.close()
        up.behaviour = well
        second = await start_gateway(tmp_path / "own", template_path, config)
        try:
            assert count(await await_end(sdk(second), batch)) == (5, 5, 0)
        finally:
            second.audited = False
            await second.close()


async def test_a_line_is_on_record_once_its_mark_is_durable(
    gateway_with: StartGateway, sdk: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, a line without a durable mark is sent again: a record of its start would be a second one."""
    save, marks, commits_on = BatchRepository.save_batch, asyncio.Event(), asyncio.Event()

    async def save_late(repository: BatchRepository, batch: StoredBatch) -> bool:
        if batch.claimed:
            marks.set()
            await commits_on.wait()
        return await save(repository, batch)

    monkeypatch.setattr(BatchRepository, "save_batch", save_late)
    async with SwiftUpstream(hanging) as up:
        gateway = await gateway_with(limited(up))
        services, client = gateway.app[SERVICES], sdk(gateway)
        batch = await start(client, [ask(number) for number in range(3)])
        async with asyncio.timeout(20):
            await marks.wait()
            while services.billing.quota.open_reservations < 3:  # noqa: ASYNC110 - the lines have no event
                await asyncio.sleep(0.01)
        journal = gateway.folder.path / JOURNAL
        assert not parse_journal(journal.read_bytes())[0]
        assert not up.seen
        commits_on.set()
        await await_requests(up, 3)
        started = parse_journal(journal.read_bytes())[0]
        assert [(left.row.client_request_id, left.row.channel) for left in started] == [(batch.id, "up")] * 3
        up.die()
        assert count(await await_end(client, batch)) == (3, 0, 3)


async def test_a_batch_goes_on_without_the_name_of_its_input(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(slow(0.02)) as up:
        client = sdk(await gateway_with(limited(up)))
        batch = await start(client, [ask(number) for number in range(100)])
        await await_requests(up, 1)
        await client.files.delete(batch.input_file_id)
        assert count(await await_end(client, batch)) == (100, 100, 0)


async def test_two_batches_take_turns(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(slow(0.01)) as up:
        gateway = await gateway_with({**limited(up), "batches": {"max_active": 2}})
        client = sdk(gateway)
        long = await start(client, [ask(number) for number in range(200)])
        await await_requests(up, 5)
        short = await await_end(client, await start(client, [ask(1000 + number) for number in range(5)]))
        assert count(short) == (5, 5, 0)
        assert (await client.batches.retrieve(long.id)).status == "in_progress"
        await client.batches.cancel(long.id)
        assert (await await_end(client, long)).status == "cancelled"


async def test_lines_of_megabytes_are_sent_and_longer_ones_are_named(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with SwiftUpstream(well) as up:
        gateway = await gateway_with({**limited(up), "server": {"max_body_mb": 5}})
        client = sdk(gateway)
        long, longer = ask(1), ask(2)
        long["body"]["messages"][0]["content"] = "x" * 4_000_000
        ended = await await_end(client, await start(client, [long, ask(3)]))
        assert count(ended) == (2, 2, 0)
        longer["body"]["messages"][0]["content"] = "x" * 6_000_000
        failed = await await_end(client, await start(client, [ask(1), longer, ask(3)]))
        assert failed.errors is not None
        assert [(error.line, error.code) for error in failed.errors.data or []] == [(2, "line_too_long")]


async def test_a_deleted_account_ends_its_batches(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with SwiftUpstream(slow(0.02)) as up:
        gateway = await gateway_with({**limited(up), "account": [], "key": [], "batches": {"max_active": 1}})
        accounts = gateway.app[SERVICES].auth.accounts
        await accounts.add_account({"name": "ours"})
        await accounts.add_key({"name": "ours", "account": "ours", "secret": KEY})
        client = sdk(gateway)
        batch = await start(client, [ask(number) for number in range(100)])
        await await_requests(up, 3)
        await accounts.delete_account("ours")
        async with asyncio.timeout(20):
            while gateway.app[SERVICES].batches._runs:  # noqa: ASYNC110 - a batch without an account is nowhere
                await asyncio.sleep(0.01)
        assert len(up.seen) < 100
        with pytest.raises(openai.AuthenticationError):
            await client.batches.retrieve(batch.id)
        digits = batch.id.removeprefix("batch_")
        assert not list(gateway.app[SERVICES].files.files.folder.path.glob(f"batch-{digits}*"))


async def test_lines_wait_while_the_server_of_shared_rate_limits_is_away(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    async with running_redis() as redis, SwiftUpstream(slow(3.0)) as up:
        limits = {"store": "valkey", "url": redis.url, "when_down": "closed"}
        config = {**limited(up, rpm=1_000), "rate_limits": limits, "batches": {"max_active": 1}}
        gateway = await gateway_with(config)
        limiter = gateway.app[SERVICES].billing.quota._counters
        assert isinstance(limiter, SharedRateLimiter)
        await wait_until_reached(limiter, away=False)
        client = sdk(gateway)
        batch = await start(client, [ask(1), ask(2)])
        await await_requests(up, 1)
        redis.kill()
        await wait_until_reached(limiter, away=True)

        async def has_first_result() -> bool:
            return bool((await ask_office(gateway, "GET", f"/batches/{batch.id}"))[1]["completed"])

        await eventually(has_first_result, 30)
        async with gateway.post() as refused:  # the second line is no better off
            assert refused.status == 503
        assert len(up.seen) == 1
        await redis.start()
        ended = await await_end(client, batch)
        assert (ended.status, count(ended)) == ("completed", (2, 2, 0))
