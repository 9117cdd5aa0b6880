"""The roof: what a start makes, and what it finds again."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.demo.models import MODEL_NAMES as DEMO_MODELS
from gateway.server.context import SERVICES
from gateway.services.auth import FIRST_ACCOUNT, FIRST_KEY
from tests.support.gateway import KEY, RunningGateway, channel, make_template, start_gateway
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

BARE: dict[str, Any] = {"account": [], "key": []}
OTHER_KEY = "sk-the-key-of-another-caller"


async def status_of(gateway: RunningGateway, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{gateway.url}/v1/models") as response:
        return response.status


async def start_again(path: Path, template: Path, config: dict[str, Any]) -> RunningGateway:
    if not template.exists():
        await make_template(template)
    return await start_gateway(path, template, config)


async def test_the_first_start_makes_an_account_and_a_key_that_works(gateway_with: StartGateway) -> None:
    gateway = await gateway_with(BARE)
    assert gateway.welcome.secret.startswith("sk-")
    assert (gateway.welcome.demo, gateway.welcome.models) == (True, tuple(sorted(DEMO_MODELS)))
    assert await status_of(gateway, gateway.welcome.secret) == 200
    (key,) = await gateway.app[SERVICES].auth.accounts.list_keys()
    assert (key["name"], key["account"], key["declared"]) == (FIRST_KEY, FIRST_ACCOUNT, False)


async def test_a_start_with_declared_keys_makes_none(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1")]})
    assert (gateway.welcome.secret, gateway.welcome.demo) == (None, False)
    assert await status_of(gateway, KEY) == 200


async def test_a_second_start_knows_the_first_ones_key_and_makes_no_other(tmp_path: Path, template_path: Path) -> None:
    first = await start_again(tmp_path / "data", template_path, BARE)
    secret = first.welcome.secret
    token = first.admin_token
    await first.close()
    second = await start_again(tmp_path / "data", template_path, BARE)
    try:
        assert second.welcome.secret is None
        assert second.admin_token == token
        assert await status_of(second, secret) == 200
    finally:
        await second.close()


async def test_rows_outlive_a_restart(tmp_path: Path, template_path: Path) -> None:
    first = await start_again(tmp_path / "data", template_path, {})
    async with first.post({"model": "nobody's", "messages": [{"role": "user", "content": "hi"}]}) as response:
        assert response.status == 404
    await first.close()  # at once: what has not been written yet is written on the way out
    second = await start_again(tmp_path / "data", template_path, {})
    try:
        (row,) = await second.rows(1)
        assert row.model == "nobody's"
    finally:
        await second.close()


async def test_a_key_that_the_file_no_longer_declares_is_disabled_and_can_be_edited(
    tmp_path: Path, template_path: Path
) -> None:
    both = {
        "key": [
            {"name": "one", "account": "acme", "secret": KEY},
            {"name": "two", "account": "acme", "secret": OTHER_KEY},
        ]
    }
    first = await start_again(tmp_path / "data", template_path, both)
    assert [await status_of(first, key) for key in (KEY, OTHER_KEY)] == [200, 200]
    await first.close()
    second = await start_again(tmp_path / "data", template_path, {"key": both["key"][:1]})
    try:
        assert [await status_of(second, key) for key in (KEY, OTHER_KEY)] == [200, 401]
        accounts = second.app[SERVICES].auth.accounts
        (_, other) = await accounts.list_keys()
        assert (other["status"], other["declared"]) == ("disabled", False)
        await accounts.edit_key(other["id"], {"status": "active"})
        assert await status_of(second, OTHER_KEY) == 200
    finally:
        await second.close()


async def test_a_declared_key_with_a_new_secret_has_only_that_one(tmp_path: Path, template_path: Path) -> None:
    first = await start_again(tmp_path / "data", template_path, {})
    await first.close()
    changed = {"key": [{"name": "test", "account": "acme", "secret": OTHER_KEY}]}
    second = await start_again(tmp_path / "data", template_path, changed)
    try:
        assert [await status_of(second, key) for key in (KEY, OTHER_KEY)] == [401, 200]
    finally:
        await second.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"one": KEY}, {"renamed": KEY}),
        ({"one": KEY, "two": OTHER_KEY}, {"one": OTHER_KEY, "two": KEY}),
        ({"one": KEY, "two": OTHER_KEY}, {"two": KEY}),
    ],
)
async def test_declared_keys_may_be_renamed_and_trade_their_secrets(
    tmp_path: Path, template_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    def declare(keys: dict[str, str]) -> dict[str, Any]:
        return {"key": [{"name": name, "account": "acme", "secret": secret} for name, secret in keys.items()]}

    first = await start_again(tmp_path / "data", template_path, declare(before))
    await first.close()
    second = await start_again(tmp_path / "data", template_path, declare(after))
    try:
        for secret in (KEY, OTHER_KEY):
            assert await status_of(second, secret) == (200 if secret in after.values() else 401)
    finally:
        await second.close()


async def test_the_demo_is_not_started_where_a_channel_is_configured(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1")]})
    assert [found.name for found in gateway.app[SERVICES].routing.catalog.channels] == ["up"]
    assert gateway.welcome.models == ("m",)


async def test_what_the_file_says_of_routing_is_in_force_from_the_start(gateway_with: StartGateway) -> None:
    routing = {"max_attempts": 2, "trip_failures": 7, "cooldown_s": 9, "sync_interval_s": 77}
    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1")], "routing": routing})
    settings = gateway.app[SERVICES].routing.load_balancer.settings
    assert (settings.max_attempts, settings.rules.failures, settings.rules.cooldown_s) == (2, 7, 9.0)
    assert gateway.app[SERVICES].live_config.find_sync_interval_s() == 77.0


async def test_every_job_of_the_house_runs_until_it_is_stopped(gateway_with: StartGateway) -> None:
    def running() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks()} & {"flush_ledger", "sync_models", "probe_channels"}

    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1")]})
    assert running() == {"flush_ledger", "sync_models", "probe_channels"}
    await gateway.stop()
    assert running() == set()


async def test_a_synchronized_channel_has_its_models_soon_after_the_start(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({"object": "list", "data": [{"id": "listed"}]})]) as up:
        config = {"channel": [channel(up.base_url, models=[], sync=True)]}
        gateway = await gateway_with(config)
        async with asyncio.timeout(5):
            while not gateway.app[SERVICES].routing.catalog.list_models():  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.005)
        assert [listed.id for listed in gateway.app[SERVICES].routing.catalog.list_models()] == ["listed"]


async def test_a_disabled_channel_is_configured_and_serves_nothing_and_the_demo_stays_away(
    gateway_with: StartGateway,
) -> None:
    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1", status="disabled")]})
    assert [found.name for found in gateway.app[SERVICES].routing.catalog.channels] == ["up"]
    assert (gateway.welcome.models, gateway.welcome.demo) == ((), False)
    async with gateway.post() as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


async def test_a_stored_channel_outlives_a_restart_and_sends_the_demo_away(tmp_path: Path, template_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        first = await start_again(tmp_path / "data", template_path, {})
        assert [found.name for found in first.app[SERVICES].routing.catalog.channels] == ["demo"]
        await first.app[SERVICES].routing.channels.add(channel(up.base_url, "mine"))
        assert [found.name for found in first.app[SERVICES].routing.catalog.channels] == ["mine"]
        await first.close()
        second = await start_again(tmp_path / "data", template_path, {})
        try:
            assert (second.welcome.models, second.welcome.demo) == (("m",), False)
            async with second.post() as response:
                assert response.status == 200
            assert up.received[0].headers["authorization"] == "Bearer provider-key"
        finally:
            await second.close()
