"""Limits of users, sessions, tags and models: who is refused, what the refusal says, and what a restart knows."""

import asyncio
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.billing.limit_spec import LimitSpec
from gateway.config.loader import ConfigError, read_config
from gateway.domain.limit import parse_charges
from gateway.domain.price import NANOS_PER_USD
from gateway.parsing import parse_spec
from gateway.server.context import SERVICES
from tests.support.fault_scene import until
from tests.support.gateway import HELLO, KEY, RunningGateway, channel, start_gateway
from tests.support.gateway_process import write_toml
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.video_gateway import ACCOUNTS, VIDEOS, Heard, VideoGateway

PRICES = [{"model": "*", "usd_per_call": 0.01}]
KEYS = {"test": KEY, "other": "sk-another-key-of-the-caller"}
EACH_USER = {"name": "each user", "of": "user", "usd": 0.05, "window": "lifetime", "status": 429}


def furnish(up: ScriptedUpstream, *limits: dict[str, Any], **config: Any) -> dict[str, Any]:
    return {
        "channel": [channel(up.base_url, models=["m", "m2", "other"])],
        "price": PRICES,
        "limit": [*limits],
        **config,
    }


async def send(gateway: RunningGateway, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, Any]:
    async with gateway.post({**HELLO, **fields}, headers=headers or {}) as response:
        return response.status, await response.json()


async def count_answers(
    gateway: RunningGateway, calls: int, headers: dict[str, str] | None = None, **fields: Any
) -> int:
    """How many of ``calls`` at once are answered, when those that were refused for running ones have asked again."""
    answered, asked = 0, calls
    while asked:
        results = await asyncio.gather(*(send(gateway, headers, **fields) for _ in range(asked)))
        statuses = Counter([status for status, _ in results])
        answered, asked = answered + statuses[200], statuses[429] if statuses[200] else 0
    return answered


async def test_each_user_spends_the_whole_limit_and_no_more(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(furnish(up, EACH_USER))
        users = [f"u{number}" for number in range(6)]
        assert await asyncio.gather(*(count_answers(gateway, 12, user=user) for user in users)) == [5] * 6
        assert (await send(gateway))[0] == 200, "without a user, no limit of users"
        status, body = await send(gateway, user="u1")
        assert (status, body["error"]["code"]) == (429, "insufficient_quota")
        assert (
            "The limit 'each user' of the user 'u1' ($0.05 in all) is used up; $0.05 is spent"
            in body["error"]["message"]
        )
        assert len(up.received) == 31
        await gateway.check_books()


@pytest.mark.parametrize(
    ("limit", "counted", "free"),
    [
        ({"of": "session"}, {"headers": {"x-gateway-session": "s1"}}, {"user": "u1"}),
        ({"of": "tag:t"}, {"headers": {"x-gateway-tags": "a=b, t=web"}}, {"headers": {"x-gateway-tags": "a=web"}}),
        ({"of": "model:m*"}, {"model": "m2"}, {"model": "other"}),
        ({"of": "user", "keys": ["other"]}, None, {"user": "u1"}),
        ({"of": "user", "keys": ["test", "other"]}, {"user": "u1"}, {}),
        ({"of": "key"}, {}, None),
        ({"of": "account", "window": "rolling:7d"}, {"model": "m"}, None),
        ({"of": "user", "until": "2020-01-01"}, None, {"user": "u1"}),
    ],
    ids=lambda value: str(value)[:24],
)  # fmt: skip
async def test_a_limit_counts_its_subjects(
    gateway_with: StartGateway, limit: dict[str, Any], counted: dict[str, Any] | None, free: dict[str, Any] | None
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        keys = [{"name": name, "account": "acme", "secret": secret} for name, secret in KEYS.items()]
        accounts = [{"name": "acme"}]
        gateway = await gateway_with(furnish(up, {**EACH_USER, **limit}, key=keys, account=accounts))
        if counted is not None:
            assert await count_answers(gateway, 7, **counted) == 5
            assert (await send(gateway, **counted))[0] == 429
        if free is not None:
            assert await count_answers(gateway, 7, **free) == 7


async def test_each_subject_has_rates_of_its_own(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        limits = [{"name": "pace", "of": "user", "rpm": 3}, {"name": "words", "of": "tag:t", "tpm": 1}]
        gateway = await gateway_with(furnish(up, *limits))
        for user in ("u1", "u2"):
            results = await asyncio.gather(*(send(gateway, user=user) for _ in range(5)))
            assert [status for status, _ in results].count(200) == 3
        status, body = await send(gateway, user="u1")
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert body["error"]["message"].startswith("The 'pace' limit of 3 requests per minute is reached; retry in")
        assert (await send(gateway, {"x-gateway-tags": "t=a"}))[0] == 200
        status, body = await send(gateway, {"x-gateway-tags": "t=a"})
        assert "The 'words' limit of 1 token per minute is reached" in body["error"]["message"]
        assert (await send(gateway, {"x-gateway-tags": "t=b"}))[0] == 200
        assert (await send(gateway))[0] == 200


async def test_answers_say_what_is_left_and_models_without_a_price_are_refused(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        prices = [{"model": "m", "usd_per_call": 0.01}]
        limits = [EACH_USER, {**EACH_USER, "name": "wide", "of": "account", "usd": 5}]
        gateway = await gateway_with({**furnish(up, *limits), "price": prices})
        for headers, left in (({"x-gateway-user": "u1"}, "0.04"), ({"x-gateway-user": "u1"}, "0.03"), ({}, "4.97")):
            async with gateway.post(HELLO, headers=headers) as response:
                assert (response.status, response.headers["x-gateway-limit-usd-left"]) == (200, left)
        status, body = await send(gateway, model="m2")
        assert (status, body["error"]["code"]) == (403, "model_not_priced")
        assert "spending with this API key counts toward a limit" in body["error"]["message"]
        gateway.app[SERVICES].billing.limits.replace([])
        async with gateway.post(HELLO) as response:
            assert "x-gateway-limit-usd-left" not in response.headers


async def test_answers_name_a_limit_from_its_soft_share_on(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        each_user = {**EACH_USER, "name": "each user of the app", "soft": 0.8}
        fair = {"name": "fair", "raises": each_user["name"], "usd": 0.05}
        gateway = await gateway_with(furnish(up, each_user, {**EACH_USER, "name": "wide", "of": "account", "usd": 5}))
        limits = gateway.app[SERVICES].billing.limits
        specs = gateway.app[SERVICES].live_config.config.limit
        soft: list[str | None] = []
        for call in range(8):
            if call == 4:
                limits.replace([*specs, parse_spec(fair, LimitSpec)])
            async with gateway.post(HELLO, headers={"x-gateway-user": "u1"}) as response:
                assert response.status == 200
                soft.append(response.headers.get("x-gateway-limit-soft"))
        name = "each%20user%20of%20the%20app"
        assert soft == [None, None, None, name, None, None, None, name], "80 % of 0.05, and then of 0.10"
        async with gateway.post(HELLO, headers={"x-gateway-user": "u2"}) as response:
            assert "x-gateway-limit-soft" not in response.headers
        await gateway.check_books()


async def test_of_two_soft_limits_the_strictest_is_named(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        limits = [{**EACH_USER, "name": name, "usd": dollars, "soft": 0.1} for name, dollars in (("a", 2), ("b", 0.05))]
        gateway = await gateway_with(furnish(up, *limits, {**EACH_USER, "name": "c", "usd": 0.02}))
        async with gateway.post(HELLO, headers={"x-gateway-user": "u1"}) as response:
            assert response.headers["x-gateway-limit-soft"] == "b"


async def test_the_strictest_of_several_limits_is_named(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        limits = [{**EACH_USER, "name": f"limit {cents}", "usd": cents / 100} for cents in (4, 2, 3)]
        gateway = await gateway_with(furnish(up, *limits))
        assert await count_answers(gateway, 4, user="u1") == 2
        assert "The limit 'limit 2' of the user 'u1'" in (await send(gateway, user="u1"))[1]["error"]["message"]
        await gateway.check_books()


async def test_a_restart_knows_what_was_spent(tmp_path: Path, template_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = furnish(up, EACH_USER, {**EACH_USER, "name": "rolling", "usd": 0.04, "window": "rolling:24h"})
        for answered in (3, 1, 0):
            gateway = await start_gateway(tmp_path / "kept", template_path, config, furnished=False)
            try:
                assert [(await send(gateway, user="u1"))[0] for _ in range(3)].count(200) == answered
                assert (await send(gateway, user="u2"))[0] == 200
                await gateway.check_books()
            finally:
                await gateway.close()


async def test_limits_change_while_requests_run(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(furnish(up, EACH_USER))
        limits = gateway.app[SERVICES].billing.limits
        (spec,) = gateway.app[SERVICES].live_config.config.limit
        calls = [asyncio.create_task(send(gateway, user="u1")) for _ in range(4)]
        await until(lambda: len(up.received) > 0)
        limits.replace([])
        assert gateway.app[SERVICES].billing.balances.limits is None
        assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 4
        assert await count_answers(gateway, 7, user="u1") == 7
        limits.replace([attrs.evolve(spec, usd=Decimal("0.13"))])
        assert limits.spending is not None
        await limits.spending.filled.wait()
        assert await count_answers(gateway, 7, user="u1") == 2, "what was spent without the limit counts"
        await gateway.check_books()


async def test_a_limit_that_keeps_only_its_rates_refuses_no_money_while_a_request_runs(
    gateway_with: StartGateway,
) -> None:
    released = asyncio.Event()

    async def wait(_: Received) -> None:
        await released.wait()

    async with ScriptedUpstream([wait, answer(COMPLETION)], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(furnish(up, {**EACH_USER, "rpm": 1_000}))
        running = asyncio.create_task(send(gateway, user="u1"))
        await until(lambda: len(up.received) > 0)
        rates = parse_spec({"name": EACH_USER["name"], "of": "user", "window": "lifetime", "rpm": 1_000}, LimitSpec)
        gateway.app[SERVICES].billing.limits.replace([rates])
        assert await count_answers(gateway, 7, user="u1") == 7
        released.set()
        assert (await running)[0] == 200
        await gateway.check_books()


async def test_the_audit_finds_what_was_changed_in_the_counters(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(furnish(up, EACH_USER))
        gateway.audited = False
        await send(gateway, user="u1")
        services = gateway.app[SERVICES]
        await services.billing.flusher.store_waiting()
        await services.storage.database.write(
            lambda connection: connection.exec_driver_sql("UPDATE limit_counters SET spent_nanos = spent_nanos + 1")
        )
        report = await services.billing.accounting.reconcile()
        nanos = NANOS_PER_USD // 100
        assert report["problems"] == [
            f"limit 'each user', 1:u1, from 0: {nanos} spent, its counters say {nanos + 1} (nano-USD)",
            f"limit 'each user', 1:u1, from 0: {nanos + 1} counted, its requests say {nanos} (nano-USD)",
        ]


async def test_the_audit_finds_a_slice_that_a_rolling_limit_does_not_know(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(furnish(up, {**EACH_USER, "window": "rolling:24h"}))
        await send(gateway, user="u1")
        await gateway.check_books()
        gateway.audited = False
        services = gateway.app[SERVICES]
        (book,) = services.billing.limits.spending.list_books()
        (balance,) = book.balances.values()
        (slice_s,) = balance.spent_by_slice
        for spent_by_slice, known in (({}, 0), ({slice_s: 1}, 1)):
            balance.spent_by_slice = spent_by_slice
            report = await services.billing.accounting.reconcile()
            counted = f"{known} spent, its counters say {NANOS_PER_USD // 100} (nano-USD)"
            assert report["problems"] == [f"limit 'each user', 1:u1, from {slice_s}: {counted}"]


@pytest.mark.parametrize("window", ["hour", "rolling:24h"])
async def test_the_audit_passes_over_sums_that_were_deleted_with_their_windows(
    gateway_with: StartGateway, window: str
) -> None:
    """The balance of a user who is long gone stays in memory, with the last window in which something was spent."""
    now_s = 1_750_000_000.0
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(furnish(up, {**EACH_USER, "window": window}), clock=lambda: now_s)
        await send(gateway, user="u1")
        await gateway.rows(1)
        await gateway.check_books()
        now_s += 30 * 86_400
        assert await gateway.app[SERVICES].billing.limits.retire(now_s) == 1
        await gateway.check_books()
        await send(gateway, user="u1")
        await gateway.check_books()


@pytest.mark.parametrize(
    ("limit", "path", "expected"),
    [
        ({"of": "person"}, "limit[0].of", "expected key, account, user, session, tag:NAME or model:GLOB"),
        ({"window": "fortnight"}, "limit[0].window", "expected hour, 5h, day"),
        ({"timezone": "Berlin"}, "limit[0].timezone", "expected an IANA time zone"),
        ({"keys": ["nobody"]}, "limit[0].keys", "expected names of [[key]], not 'nobody'"),
        ({"raises": "nothing"}, "limit[0].raises", "expected the name of a [[limit]], not 'nothing'"),
        ({"usd": None}, "limit[0].usd", "expected an amount"),
        ({"soft": 1}, "limit[0].soft", "expected a share between 0 and 1, such as 0.8"),
        ({"soft": 0.5, "usd": None, "rpm": 1}, "limit[0].soft", "expected no value without usd"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_wrong_limit_is_refused_with_its_field(
    tmp_path: Path, limit: dict[str, Any], path: str, expected: str
) -> None:
    fields = {name: value for name, value in {**EACH_USER, **limit}.items() if value is not None}
    file = tmp_path / "gateway.toml"
    file.write_text(write_toml({"limit": [fields]}))
    with pytest.raises(ConfigError) as refusal:
        read_config(file, {})
    assert any(f"{path}: {expected}" in problem for problem in refusal.value.problems), refusal.value.problems


async def test_a_video_is_held_over_a_restart_and_counts_when_it_ends(tmp_path: Path, template_path: Path) -> None:
    limit = {"name": "films", "of": "user", "usd": 1.0, "window": "lifetime"}
    async with OpenAiVideos(Play(polls=["completed"]), waits=Play(polls=["queued"], hint_ms=600_000)) as provider:
        config = {
            "channel": [provider.channel()],
            "egress": {"allow": ["127.0.0.1"]},
            **ACCOUNTS,
            "limit": [limit],
            "price": [{"model": "m", "usd_per_second": 0.1}],
            "model": [{"name": "m", "seconds": [4, 8], "sizes": ["1280x720"]}],
        }
        gateway = await start_gateway(tmp_path / "kept", template_path, config, furnished=False)
        video_id = await film(VideoGateway(gateway, provider), "waits")
        gateway.audited = False
        await gateway.close()
        gateway = await start_gateway(tmp_path / "kept", template_path, config, furnished=False)
        try:
            videos = VideoGateway(gateway, provider)
            billing = gateway.app[SERVICES].billing
            assert billing.limits.spending is not None
            (book,) = billing.limits.spending.list_books()
            assert [balance.held_nanos for balance in book.balances.values()] == [4 * NANOS_PER_USD // 10]
            await videos.finish(await film(videos, "quick"))
            assert (await submit(videos, "quick")).error[:2] == (403, "insufficient_quota")
            await gateway.app[SERVICES].videos.jobs.cancel(video_id)
            await videos.finish(await film(videos, "quick"))
            await gateway.check_books()
            rows = await gateway.rows(4)
            charges = [parse_charges(row.limit_charges) for row in rows if row.cost_nanos]
            assert charges == [[(book.counter, "1:u1", 0)]] * 2
        except BaseException:
            gateway.audited = False
            raise
        finally:
            await gateway.close()


async def submit(videos: VideoGateway, prompt: str) -> Heard:
    body = {"model": "m", "prompt": prompt}
    return await videos.ask("POST", VIDEOS, json=body, headers={"x-gateway-user": "u1"})


async def film(videos: VideoGateway, prompt: str) -> str:
    heard = await submit(videos, prompt)
    assert heard.status == 200, heard.body
    return str(heard.json["id"])
