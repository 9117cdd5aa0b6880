"""A new configuration while the gateway runs: applied whole or not at all, said in words, and felt by no running call.

The gateway is real and so is the file; what is not tried here is the signal (``test_serve.py``).
"""

import asyncio
import contextlib
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson
import pytest
import structlog

from gateway.app import open_runner
from gateway.config.live_settings import SettingsService
from gateway.config.loader import read_declared_config
from gateway.config.merge import merge_stored_settings
from gateway.config.reload import LiveConfig, Reloader, ReloadSource
from gateway.domain.audit_log import OPERATOR, AuditFilter
from gateway.domain.media import MediaRules
from gateway.errors import InvalidRequest, StoreUnavailable
from gateway.media.cleanup_worker import MediaCleanup
from gateway.options import AppOptions
from gateway.server.context import SERVICES
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.data_folder import DataFolder
from gateway.storage.media_files import MediaFiles
from gateway.storage.settings import SettingRepository
from tests.support.gateway import HELLO, KEY, RunningGateway, channel, make_template
from tests.support.gateway_process import write_toml
from tests.support.image_providers import draw
from tests.support.openai_images import CustomImages
from tests.support.repositories import LazyDatabase
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Received,
    ScriptedUpstream,
    Step,
    answer,
    chat_events,
    chunk,
)
from tests.support.started_gateways import StartGateway

Tables = dict[str, Any]

NOWHERE = "http://127.0.0.1:9/v1"
OTHER_KEY = "sk-the-key-of-another-caller"
PRICE = {"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2}
COST = 5 * 1_000 + 7 * 2_000
"""Of ``COMPLETION`` and of a whole stream, in nano-USD, at that price."""
BASE: Tables = {
    "account": [{"name": "acme"}],
    "key": [{"name": "test", "account": "acme", "secret": KEY}],
    "routing": {"trip_failures": 1000},
}


@attrs.frozen
class Reloadable:
    """A gateway, the file that it was started with, and what reads that file again."""

    gateway: RunningGateway
    file: Path
    reloader: Reloader
    in_force: LiveConfig
    audit_log: AuditLogRepository

    async def reload(self, tables: Tables | str) -> Any:
        """Write the file anew and have it read; what was changed."""
        self.write(tables)
        return await self.reloader.reload()

    def write(self, tables: Tables | str) -> None:
        self.file.write_text(tables if isinstance(tables, str) else write_toml({**BASE, **tables}))

    async def ask(self, model: str = "m", key: str = KEY) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        async with self.gateway.post({**HELLO, "model": model}, headers=headers) as response:
            return response.status, await response.json()

    async def models(self, key: str = KEY) -> list[str]:
        headers = {"Authorization": f"Bearer {key}"}
        async with self.gateway.client.get(f"{self.gateway.url}/v1/models", headers=headers) as response:
            return [listed["id"] for listed in (await response.json())["data"]]

    async def state(self) -> Any:
        """Everything that a reload could change."""
        services = self.gateway.app[SERVICES]
        return (
            self.in_force.config,
            services.routing.catalog.channels,
            [listed.id for listed in services.routing.catalog.list_models()],
            {name: line.channel for name, line in services.routing.load_balancer.channels.items()},
            services.routing.load_balancer.settings,
            services.routing.router.pricing,
            services.routing.router.models,
            self.in_force.words,
            await services.auth.accounts.list_accounts(),
            await services.auth.accounts.list_keys(),
        )


Reload = Callable[[Tables], Awaitable[Reloadable]]


@pytest.fixture
def reloadable(gateway_with: StartGateway, tmp_path: Path) -> Reload:
    """``site = await reloadable({"channel": […]})``: started from a file, which ``site.reload`` writes anew."""

    async def start(tables: Tables) -> Reloadable:
        file = tmp_path / "gateway.toml"
        file.write_text(write_toml({**BASE, **tables}))
        gateway = await gateway_with({**BASE, **tables})
        services = gateway.app[SERVICES]
        in_force = services.live_config
        in_force.effective = merge_stored_settings(read_declared_config(file, {}))
        database: Any = LazyDatabase()
        audit_log, settings = AuditLogRepository(database), SettingRepository(database)
        reloader = Reloader(
            in_force,
            ReloadSource(lambda: read_declared_config(file, {}), None, lambda _: contextlib.nullcontext()),
            settings,
            accounts=services.auth.accounts,
            channels=services.routing.channels,
            router=services.routing.router,
            audit_log=audit_log,
            clock=lambda: 1_750_000_000.0,
        )
        return Reloadable(gateway, file, reloader, in_force, audit_log)

    return start


def named(name: str) -> dict[str, Any]:
    """A good answer that says whose it is."""
    return {**COMPLETION, "choices": [{**COMPLETION["choices"][0], "message": {"role": "assistant", "content": name}}]}


def read_content(body: Any) -> Any:
    return body["choices"][0]["message"]["content"]


def listing(*ids: str) -> bytes:
    return answer({"object": "list", "data": [{"id": name, "object": "model"} for name in ids]})


async def test_channels_come_go_and_change_and_the_list_is_right_at_once(reloadable: Reload) -> None:
    async with ScriptedUpstream([answer(named("one"))]) as one, ScriptedUpstream([answer(named("two"))]) as two:
        site = await reloadable({"channel": [channel(one.base_url, "one")]})
        assert read_content((await site.ask())[1]) == "one"
        both = [channel(one.base_url, "one"), channel(two.base_url, "two", models=["m", "n"], priority=1)]
        assert await site.reload({"channel": both}) == {"changes": ["channel 'two' added"], "needs_restart": []}
        assert await site.models() == ["m", "n"]
        assert read_content((await site.ask())[1]) == "two"
        changed = [both[0] | {"models": ["m", "x"]}, both[1] | {"priority": -1, "weight": 3}]
        report = await site.reload({"channel": changed})
        assert report["changes"] == ["channel 'one' changed: models", "channel 'two' changed: priority, weight"]
        assert await site.models() == ["m", "n", "x"]
        assert read_content((await site.ask())[1]) == "one"
        report = await site.reload({"channel": changed[1:]})
        assert report["changes"] == ["channel 'one' removed"]
        assert await site.models() == ["m", "n"]
        assert read_content((await site.ask())[1]) == "two"
        assert (await site.ask("x"))[0] == 404
        await site.gateway.rows(5)


async def test_a_file_that_says_the_same_changes_nothing_and_says_so(reloadable: Reload) -> None:
    tables = {"channel": [channel(NOWHERE, model_map={"alias": "m"}, headers={"X-Team": "a"})], "price": [PRICE]}
    site = await reloadable(tables)
    before, pricing = await site.state(), site.gateway.app[SERVICES].routing.router.pricing
    assert await site.reload(tables) == {"changes": [], "needs_restart": []}
    site.gateway.app[SERVICES].routing.router.pricing = pricing  # its own like, which nothing can be compared with
    assert await site.state() == before


async def test_a_reload_is_on_record_with_what_it_has_changed_where_it_has(reloadable: Reload) -> None:
    tables: Tables = {"channel": [channel(NOWHERE)]}
    site = await reloadable(tables)
    site.write(tables)
    await site.reloader.reload(OPERATOR)
    assert list(await site.audit_log.list_audit(AuditFilter(), 9)) == []
    site.write({"channel": [channel(NOWHERE, weight=2, api_key="canary-key")]})
    await site.reloader.reload(OPERATOR)
    site.write({"channel": [channel(NOWHERE)], "nonsense": {}})
    with pytest.raises(InvalidRequest):
        await site.reloader.reload(OPERATOR)
    site.write({"channel": [channel(NOWHERE)], "billing": {"unpriced": "refuse"}})
    await site.reloader.reload_logged()
    second, first = await site.audit_log.list_audit(AuditFilter(), 9)
    assert {row.action for row in (first, second)} == {"configuration.reloaded"}
    assert [row.actor_kind for row in (first, second)] == ["token", "file"]
    changed = "channel 'up' changed: api_keys, weight"
    assert orjson.loads(first.detail) == {"changes": [[], [changed]]}
    assert orjson.loads(second.detail) == {"changes": [[], [changed, "billing.unpriced changed"]]}


async def test_a_channel_of_the_same_name_that_leads_elsewhere_is_called_there(reloadable: Reload) -> None:
    async with ScriptedUpstream([answer(named("old"))]) as old, ScriptedUpstream([answer(named("new"))]) as new:
        site = await reloadable({"channel": [channel(old.base_url)]})
        assert read_content((await site.ask())[1]) == "old"
        report = await site.reload({"channel": [channel(new.base_url, api_key="another-key")]})
        assert report["changes"] == ["channel 'up' changed: base_url, api_keys"]
        assert read_content((await site.ask())[1]) == "new"
        assert [call.headers["authorization"] for call in new.received] == ["Bearer another-key"]
        await site.gateway.rows(2)


async def test_prices_and_groups_are_those_of_the_moment_a_call_is_routed(reloadable: Reload) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY, "group": "vip"}
        tables: Tables = {"channel": [channel(up.base_url)], "key": [key], "price": [PRICE]}
        site = await reloadable(tables)
        await site.ask()
        tables["price"] = [PRICE | {"input_usd_per_million": 10, "output_usd_per_million": 20}]
        assert (await site.reload(tables))["changes"] == ["prices changed"]
        await site.ask()
        tables["group"] = [{"name": "vip", "price_multiplier": 2}]
        assert (await site.reload(tables))["changes"] == ["group 'vip' added"]
        await site.ask()
        tables["group"] = [{"name": "vip", "price_multiplier": 0.5}]
        assert (await site.reload(tables))["changes"] == ["group 'vip' changed: price_multiplier"]
        await site.ask()
        tables["channel"] = [channel(up.base_url, price_multiplier=3)]
        del tables["group"]
        report = await site.reload(tables)
        assert report["changes"] == ["channel 'up' changed: multiplier_ppm", "group 'vip' removed"]
        await site.ask()
        costs = sorted(row.cost_nanos for row in await site.gateway.rows(5))
        assert costs == sorted([COST, 10 * COST, 20 * COST, 5 * COST, 30 * COST])


async def test_what_is_served_without_a_price_follows_the_file(reloadable: Reload) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables: Tables = {"channel": [channel(up.base_url, models=["m", "n"])], "price": [PRICE]}
        site = await reloadable(tables)
        assert await site.models() == ["m", "n"]
        report = await site.reload({**tables, "billing": {"unpriced": "refuse"}})
        assert report["changes"] == ["billing.unpriced changed"]
        assert await site.models() == ["m"]
        assert [(await site.ask(name))[0] for name in ("m", "n")] == [200, 403]
        await site.gateway.rows(2)


async def test_how_calls_are_spread_follows_the_file(reloadable: Reload) -> None:
    async with ScriptedUpstream([answer(b"", 500)]) as down, ScriptedUpstream([answer(COMPLETION)]) as up:
        channels = [channel(down.base_url, "down", priority=1), channel(up.base_url)]
        routing = {"trip_failures": 1000}
        site = await reloadable({"channel": channels, "routing": {**routing, "max_attempts": 1}})
        assert (await site.ask())[0] == 502
        report = await site.reload({"channel": channels, "routing": {**routing, "max_attempts": 2, "cooldown_s": 60}})
        assert report["changes"] == ["routing.max_attempts changed", "routing.cooldown_s changed"]
        assert (await site.ask())[0] == 200
        settings = site.gateway.app[SERVICES].routing.load_balancer.settings
        assert (settings.max_attempts, settings.rules.cooldown_s) == (2, 60)
        await site.gateway.rows(2)


async def test_a_tripped_channel_stays_tripped_unless_it_leads_elsewhere_now(reloadable: Reload) -> None:
    async with ScriptedUpstream([answer(b"", 500)]) as down, ScriptedUpstream([answer(COMPLETION)]) as up:
        tables: Tables = {"channel": [channel(down.base_url)], "routing": {"trip_failures": 1}}
        site = await reloadable(tables)
        assert (await site.ask())[0] == 502
        balancer = site.gateway.app[SERVICES].routing.load_balancer
        assert [breaker.state for *_, breaker in balancer.channels["up"].list_tripped()] == ["open"]
        tables["channel"] = [channel(down.base_url, weight=2)]
        await site.reload(tables)
        assert [breaker.state for *_, breaker in balancer.channels["up"].list_tripped()] == ["open"]
        tables["channel"] = [channel(up.base_url)]
        await site.reload(tables)
        assert not balancer.channels["up"].list_tripped()
        assert (await site.ask())[0] == 200
        await site.gateway.rows(2)


async def test_accounts_and_keys_come_go_and_change(reloadable: Reload) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        tables: Tables = {"channel": [channel(up.base_url)], "price": [PRICE]}
        site = await reloadable(tables)
        assert (await site.ask(key=OTHER_KEY))[0] == 401
        other = {"name": "other", "account": "blue", "secret": OTHER_KEY}
        more = {"account": [*BASE["account"], {"name": "blue"}], "key": [*BASE["key"], other]}
        report = await site.reload(tables | more)
        assert report["changes"] == ["account 'blue' added", "account 'blue': key 'other' added"]
        assert [(await site.ask(key=key))[0] for key in (KEY, OTHER_KEY)] == [200, 200]
        capped = more | {"key": [*BASE["key"], other | {"quota_usd": 0, "models": ["n"]}]}
        report = await site.reload(tables | capped)
        assert report["changes"] == ["account 'blue': key 'other' changed: quota_usd, models"]
        assert (await site.ask(key=OTHER_KEY))[0] == 403
        limited = capped | {"account": [{"name": "acme", "status": "disabled"}, {"name": "blue"}]}
        report = await site.reload(tables | limited)
        assert report["changes"] == ["account 'acme' changed: status"]
        assert (await site.ask())[0] == 401
        report = await site.reload(tables)
        assert report["changes"] == [
            "account 'blue' removed",
            "account 'acme' changed: status",
            "account 'blue': key 'other' removed",
        ]
        assert [(await site.ask(key=key))[0] for key in (KEY, OTHER_KEY)] == [200, 401]
        await site.gateway.rows(4)


async def test_keys_of_one_name_in_two_accounts_are_told_apart(reloadable: Reload) -> None:
    keys = [{"name": "k", "account": "acme", "secret": KEY}, {"name": "k", "account": "blue", "secret": OTHER_KEY}]
    tables: Tables = {"channel": [channel(NOWHERE)], "account": [{"name": "acme"}, {"name": "blue"}]}
    site = await reloadable({**tables, "key": keys})
    report = await site.reload({**tables, "key": [keys[0] | {"rpm": 5}, keys[1]]})
    assert report["changes"] == ["account 'acme': key 'k' changed: rpm"]
    report = await site.reload({**tables, "key": keys[:1]})
    assert report["changes"] == ["account 'acme': key 'k' changed: rpm", "account 'blue': key 'k' removed"]


async def test_what_is_read_at_start_only_needs_a_restart_until_it_is_as_it_was(reloadable: Reload) -> None:
    tables: Tables = {"channel": [channel(NOWHERE)]}
    site = await reloadable(tables)
    store = {"url": "sqlite:////tmp/elsewhere.db", "master_key": "ab" * 32}
    server = {"port": 9999, "max_upload_mb": 1, "max_file_mb": 1}
    later = {**tables, "server": server, "store": store, "ledger": {"on_crash": "charge"}}
    needed = [
        "server.port",
        "server.max_upload_mb",
        "server.max_file_mb",
        "store.url",
        "store.master_key",
        "ledger.on_crash",
    ]
    with structlog.testing.capture_logs() as log:
        assert await site.reload(later) == {"changes": [], "needs_restart": needed}
    (warning,) = [line for line in log if line["log_level"] == "warning"]
    assert all(name in warning["reason"] for name in needed)
    assert "ab" * 32 not in str(log)
    assert (await site.reload(later))["needs_restart"] == needed
    assert (await site.reload(tables))["needs_restart"] == []


GOOD = write_toml({**BASE, "channel": [channel(NOWHERE, "new")]})


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        pytest.param(GOOD + "[[channel", ["TOML: "], id="no TOML"),
        pytest.param("\udcff", ["TOML: "], id="no text"),
        pytest.param(GOOD + "colour = 'blue'\n", ["channel[0].colour: "], id="unknown key"),
        pytest.param(GOOD + "[surprise]\na = 1\n", ["surprise: "], id="unknown section"),
        pytest.param(GOOD + "proxy = '${NO_SUCH}'\n", ["channel[0].proxy: expected the environment variable NO_SUCH"]),
        pytest.param(GOOD + "[[price]]\nmodel = 'm'\ninput_usd_per_million = -1\n", ["price[0].input"], id="price"),
        pytest.param(
            GOOD + "weight = 0\nrpm = 'often'\n[routing2]\n[[group]]\nname = ''\n[[key]]\nname = 'k'\naccount = 'x'\n",
            ["channel[0].weight: ", "channel[0].rpm: ", "routing2: ", "group[0].name: ", "key[1].account: ",
             "key[1].secret: "],
            id="many",
        ),
    ],
)  # fmt: skip
async def test_a_bad_file_changes_nothing_and_every_problem_is_named(
    reloadable: Reload, text: str, problems: list[str]
) -> None:
    site = await reloadable({"channel": [channel(NOWHERE)], "price": [PRICE]})
    before = await site.state()
    site.file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with structlog.testing.capture_logs() as log, pytest.raises(InvalidRequest) as refused:
        await site.reloader.reload()
    assert [problem for problem in problems if problem not in refused.value.message] == []
    assert await site.state() == before
    assert log == []
    with structlog.testing.capture_logs() as log:
        await site.reloader.reload_logged()
    (line,) = log
    assert (line["event"], line["log_level"], line["error"]) == (
        "configuration_not_reloaded",
        "error",
        refused.value.message,
    )
    report = await site.reload(GOOD)
    assert report["changes"] == ["channel 'up' removed", "channel 'new' added", "prices changed"]


@pytest.mark.parametrize("text", ["", "# [[channel]]\n", "[routing]\nmax_attempts = 2\n"])
async def test_a_file_that_declares_nothing_any_more_is_taken_for_half_a_file(reloadable: Reload, text: str) -> None:
    site = await reloadable({"channel": [channel(NOWHERE)]})
    before = await site.state()
    site.file.write_text(text)
    with pytest.raises(InvalidRequest, match="has no channels, keys or accounts"):
        await site.reloader.reload()
    assert await site.state() == before


async def test_a_file_that_has_gone_changes_nothing(reloadable: Reload) -> None:
    site = await reloadable({"channel": [channel(NOWHERE)]})
    before = await site.state()
    site.file.unlink()
    with pytest.raises(InvalidRequest, match="No such file"):
        await site.reloader.reload()
    assert await site.state() == before


async def test_a_gateway_that_was_started_without_a_file_says_so(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [channel(NOWHERE)]})
    headers = {"Authorization": f"Bearer {gateway.admin_token}"}
    async with gateway.client.post(f"{gateway.url}/admin/v1/reload", headers=headers) as response:
        assert response.status == 409
        assert "without a configuration" in (await response.json())["error"]["message"]


async def test_a_stream_over_a_removed_channel_is_whole_and_costs_what_it_did_when_it_began(reloadable: Reload) -> None:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    first, *rest = chat_events("a", "b", "c")
    stream: list[Step] = [SSE_HEAD, chunk(first), wait, *map(chunk, rest), LAST_CHUNK]
    async with ScriptedUpstream(stream) as old, ScriptedUpstream([answer(named("new"))]) as new:
        site = await reloadable({"channel": [channel(old.base_url, "old", api_key="old-key")], "price": [PRICE]})
        async with site.gateway.post({**HELLO, "stream": True}) as response:
            assert await response.content.readany() == first
            expensive = PRICE | {"input_usd_per_million": 100, "output_usd_per_million": 100}
            await site.reload({"channel": [channel(new.base_url, "new")], "price": [expensive]})
            assert read_content((await site.ask())[1]) == "new"
            go_on.set()
            assert await response.read() == b"".join(piece for piece in rest if b"usage" not in piece)
        rows = {row.channel: row for row in await site.gateway.rows(2)}
        assert (rows["old"].outcome, rows["old"].status, rows["old"].cost_nanos) == ("completed", 200, COST)
        assert rows["new"].cost_nanos == (5 + 7) * 100_000
        assert [line.running for line in site.gateway.app[SERVICES].routing.load_balancer.channels.values()] == [0]


async def test_a_stream_of_a_key_that_is_taken_away_is_finished_and_charged(reloadable: Reload) -> None:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    first, *rest = chat_events("a", "b")
    async with ScriptedUpstream([SSE_HEAD, chunk(first), wait, *map(chunk, rest), LAST_CHUNK]) as up:
        site = await reloadable({"channel": [channel(up.base_url)], "price": [PRICE]})
        async with site.gateway.post({**HELLO, "stream": True}) as response:
            assert await response.content.readany() == first
            other = {"account": [{"name": "blue"}], "key": [{"name": "k", "account": "blue", "secret": OTHER_KEY}]}
            await site.reload({"channel": [channel(up.base_url)], "price": [PRICE], **other})
            assert [len(await site.models(OTHER_KEY)), (await site.ask())[0]] == [1, 401]
            go_on.set()
            assert (await response.read()).endswith(DONE)
        (row,) = await site.gateway.rows(1)
        assert (row.outcome, row.cost_nanos) == ("completed", COST)


async def test_running_calls_count_against_a_limit_that_a_reload_brings(reloadable: Reload) -> None:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    async with ScriptedUpstream([wait, answer(COMPLETION)]) as up:
        site = await reloadable({"channel": [channel(up.base_url)]})
        running = asyncio.create_task(site.ask())
        while not up.received:  # noqa: ASYNC110 - the other end of a socket has no event to tend
            await asyncio.sleep(0.005)
        await site.reload({"channel": [channel(up.base_url, max_concurrency=1)]})
        assert (await site.ask())[0] == 503
        go_on.set()
        assert (await running)[0] == 200
        assert (await site.ask())[0] == 200
        await site.gateway.rows(3)


SECRETS = {
    "api_key": "planted-provider-key-0001",
    "rotated": "planted-provider-key-0002",
    "header": "planted-header-value-0003",
    "proxy": "planted-proxy-word-0004",
    "key": "sk-planted-caller-key-0005",
    "master": "c0ffee" * 10 + "0006",
}


@pytest.mark.parametrize("bad", ["", "[[channel]]\nname = 'x'\n", "proxy = 'ftp://planted-proxy-word-0004'\n", "= ="])
async def test_nothing_secret_is_in_a_report_or_in_the_log(
    reloadable: Reload, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    site = await reloadable({"channel": [channel(NOWHERE, api_key=SECRETS["api_key"])]})
    changed = channel(
        NOWHERE,
        api_key=SECRETS["rotated"],
        headers={"X-Secret": SECRETS["header"]},
        **({} if "ftp" in bad else {"proxy": f"http://user:{SECRETS['proxy']}@127.0.0.1:9"}),
    )
    tables: Tables = {
        **BASE,
        "key": [*BASE["key"], {"name": "other", "account": "acme", "secret": SECRETS["key"]}],
        "store": {"master_key": SECRETS["master"]},
        "channel": [changed],
    }
    with structlog.testing.capture_logs() as log:
        try:
            heard = str(await site.reload(write_toml(tables) + bad))
        except InvalidRequest as refused:
            heard = refused.message
            await site.reloader.reload_logged()
    assert bool(bad) != heard.startswith("{'changes'")
    assert log
    heard += str(log) + "".join(capsys.readouterr()) + repr(site.reloader)
    assert [name for name, secret in SECRETS.items() if secret in heard] == []


async def test_a_new_synchronized_channel_is_listed_when_the_reload_returns(reloadable: Reload) -> None:
    async with ScriptedUpstream([listing("s1", "s2")]) as up, ScriptedUpstream([answer(b"", 500)]) as down:
        site = await reloadable({"channel": [channel(NOWHERE)]})
        synced = [
            channel(up.base_url, "synced", models=[], sync=True),
            channel(down.base_url, "silent", models=[], sync=True),
        ]
        report = await site.reload({"channel": [channel(NOWHERE), *synced]})
        assert report["changes"] == ["channel 'synced' added", "channel 'silent' added"]
        assert await site.models() == ["m", "s1", "s2"]
        routing = site.gateway.app[SERVICES].routing
        errors = [
            routing.catalog.find_sync_status(routing.channels.get(name)).error for name in ("up", "synced", "silent")
        ]
        assert [bool(error) for error in errors] == [False, False, True]


async def test_a_fixed_channel_is_listed_while_another_ones_provider_has_not_answered_yet(reloadable: Reload) -> None:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    async with ScriptedUpstream([wait, listing("late")]) as up:
        site = await reloadable({"channel": [channel(NOWHERE)]})
        synced = channel(up.base_url, "synced", models=[], sync=True)
        site.write({"channel": [channel(NOWHERE, models=["n"]), synced]})
        reload = asyncio.create_task(site.reloader.reload())
        while not up.received:  # noqa: ASYNC110 - the other end of a socket has no event to tend
            await asyncio.sleep(0.005)
        assert await site.models() == ["n"]
        go_on.set()
        await reload
        assert await site.models() == ["late", "n"]


async def test_two_reloads_at_once_are_one_after_the_other(reloadable: Reload) -> None:
    """The second finds nothing new, and what the first one's provider has listed is not lost to it."""
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    async with ScriptedUpstream([wait, listing("s")]) as up:
        site = await reloadable({"channel": [channel(NOWHERE)]})
        site.write({"channel": [channel(NOWHERE), channel(up.base_url, "synced", models=[], sync=True)]})
        reloads = [asyncio.create_task(site.reloader.reload()) for _ in range(2)]
        while not up.received:  # noqa: ASYNC110 - the other end of a socket has no event to tend
            await asyncio.sleep(0.005)
        assert (await reloads[1])["changes"] == []
        go_on.set()
        assert (await reloads[0])["changes"] == ["channel 'synced' added"]
        assert await site.models() == ["m", "s"]
        assert len(up.received) == 1


async def test_a_reload_keeps_what_a_provider_is_just_listing(reloadable: Reload) -> None:
    """As at a start: the channels are asked, and a SIGHUP comes before they have answered."""
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    async with ScriptedUpstream([wait, listing("s")]) as up:
        tables = {"channel": [channel(up.base_url, "synced", models=[], sync=True)]}
        site = await reloadable(tables)
        while not up.received:  # noqa: ASYNC110 - the other end of a socket has no event to tend
            await asyncio.sleep(0.005)
        assert (await site.reload(tables))["changes"] == []
        go_on.set()
        async with asyncio.timeout(5):
            while await site.models() != ["s"]:  # noqa: ASYNC110 - the same
                await asyncio.sleep(0.01)


async def test_a_filter_that_is_changed_counts_at_once_and_keeps_what_is_known(reloadable: Reload) -> None:
    async with ScriptedUpstream([listing("a1", "a2", "b1")]) as up:
        site = await reloadable({"channel": [channel(up.base_url, models=["a*"], sync=True)]})
        await site.reload({"channel": [channel(up.base_url, models=["*1"], sync=True)]})
        assert await site.models() == ["a1", "b1"]
        known = up.base_url
        await up.__aexit__()
        await site.reload({"channel": [channel(known, models=["a*"], sync=True)]})
        assert await site.models() == ["a1"]  # its provider is gone: what is known, through the new filter


async def test_the_demo_gives_way_to_a_channel_that_answers_and_comes_back(reloadable: Reload) -> None:
    site = await reloadable({})
    demo = await site.models()
    assert "demo-chat" in demo
    assert (await site.reload({"channel": [channel(NOWHERE)]}))["changes"] == ["channel 'up' added"]
    assert await site.models() == sorted([*demo, "m"]), "a channel that does not answer takes nobody's place"
    async with ScriptedUpstream([listing("m")]) as up:
        await site.reload({"channel": [channel(up.base_url)]})
        assert await site.models() == ["m"]
        assert (await site.ask("demo-chat"))[0] == 404
    assert (await site.reload({}))["changes"] == ["channel 'up' removed"]
    assert await site.models() == demo
    assert (await site.ask("demo-chat"))[0] == 200
    await site.gateway.rows(2)


async def test_the_demo_is_found_by_a_reload_where_a_start_did_not_need_it(reloadable: Reload) -> None:
    site = await reloadable({"channel": [channel(NOWHERE)]})
    await site.reload({})
    assert (await site.ask("demo-chat"))[0] == 200
    await site.gateway.rows(1)


async def test_stored_channels_stay_and_a_files_channel_of_the_same_name_hides_one(reloadable: Reload) -> None:
    async with ScriptedUpstream([answer(named("stored"))]) as stored, ScriptedUpstream([answer(named("file"))]) as file:
        site = await reloadable({"channel": [channel(NOWHERE, "fixed", models=["f"])]})
        channels = site.gateway.app[SERVICES].routing.channels
        await channels.add(channel(stored.base_url, "mine"))
        await site.reload({"channel": [channel(NOWHERE, "fixed", models=["g"])]})
        assert await site.models() == ["g", "m"]
        assert read_content((await site.ask())[1]) == "stored"
        with structlog.testing.capture_logs() as log:
            await site.reload({"channel": [channel(file.base_url, "mine")]})
        assert [line["channel"] for line in log if line["event"] == "channel_hidden"] == ["mine"]
        assert read_content((await site.ask())[1]) == "file"
        await site.reload({})
        assert await site.models() == ["m"]
        assert read_content((await site.ask())[1]) == "stored"
        assert channels.get("mine").origin == "stored"
        await site.gateway.rows(3)


async def test_calls_that_go_on_while_the_file_is_read_again_and_again_are_all_answered(reloadable: Reload) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as one, ScriptedUpstream([answer(COMPLETION)]) as two:
        site = await reloadable({"channel": [channel(one.base_url, "one")], "price": [PRICE]})
        ups = [channel(one.base_url, "one"), channel(two.base_url, "two")]
        files: list[Tables] = [{"channel": [ups[0]]}, {"channel": ups}, {"channel": [ups[1]]}, {"channel": ups[::-1]}]

        enough = asyncio.Event()

        async def call() -> list[int]:
            statuses: list[int] = []
            while len(statuses) < 200 and not enough.is_set():
                statuses.append((await site.ask())[0])
            return statuses

        callers = asyncio.gather(*(call() for _ in range(4)))
        for tables in (*files, *files):
            await site.reload(tables | {"price": [PRICE]})
        enough.set()
        statuses = [status for reported in await callers for status in reported]
        assert len(statuses) > len(files)
        assert set(statuses) == {200}
        assert {row.cost_nanos for row in await site.gateway.rows(len(statuses))} == {COST}


# Pictures


@attrs.frozen
class Filed:
    """A gateway that was started from a file as ``gateway serve`` is, and reads it again by itself."""

    gateway: RunningGateway
    file: Path

    async def reload(self, tables: Tables) -> Any:
        """Write the file anew, and have the gateway read it; its answer."""
        self.file.write_text(write_toml({**BASE, **tables}))
        headers = {"Authorization": f"Bearer {self.gateway.admin_token}"}
        async with self.gateway.client.post(f"{self.gateway.url}/admin/v1/reload", headers=headers) as response:
            return await response.json()

    async def set(self, path: str, body: Any) -> Any:
        """Set something as the console does; the answer."""
        headers = {"Authorization": f"Bearer {self.gateway.admin_token}"}
        url = f"{self.gateway.url}/admin/v1/{path}"
        async with self.gateway.client.put(url, json=body, headers=headers) as response:
            return await response.json()

    async def paint(self, **more: Any) -> Any:
        """The answer to a call for a picture, or its error."""
        body = {"model": "m", "prompt": "a cat", **more}
        async with self.gateway.post(body, "/v1/images/generations") as response:
            answered = await response.json()
            return answered["data"] if response.status == 200 else (response.status, answered["error"])


Start = Callable[[Tables], Awaitable[Filed]]


@pytest.fixture
async def filed(tmp_path: Path, template_path: Path) -> AsyncIterator[Start]:
    """``site = await filed({"channel": […]})``."""
    started: list[RunningGateway] = []
    if not template_path.exists():
        await make_template(template_path)

    async def start(tables: Tables) -> Filed:
        before, file, path = asyncio.all_tasks(), tmp_path / "gateway.toml", tmp_path / "data"
        file.write_text(write_toml({**BASE, **tables}))
        path.mkdir()
        shutil.copy(template_path, path / "gateway.db")
        folder = DataFolder(path)
        declared = read_declared_config(file, {})
        site = AppOptions(
            declared.config,
            folder,
            {},
            discover=False,
            sources=declared.sources,
            read_config=lambda: read_declared_config(file, {}),
        )
        stack = AsyncExitStack()
        runner = await stack.enter_async_context(open_runner(site, handler_cancellation=True, shutdown_timeout=1.0))
        assert runner.server is not None
        server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"})
        started.append(RunningGateway(runner, stack, folder, url, client, server, before))
        return Filed(started[-1], file)

    yield start
    for gateway in started:
        await gateway.close()


async def test_what_the_console_has_set_stays_through_a_reload_and_gives_way_to_the_file(filed: Start) -> None:
    tables: Tables = {"channel": [channel(NOWHERE)]}
    site = await filed(tables)
    for path, body in (
        ("settings/routing/max_attempts", {"value": 5}),
        ("settings/media/keep_hours", {"value": 30}),
        ("groups/vip", {"price_multiplier": 3}),
        ("prices/m", {"usd_per_image": 1}),
    ):
        assert "error" not in await site.set(path, body)
    services = site.gateway.app[SERVICES]
    assert await site.reload(tables) == {"changes": [], "needs_restart": []}
    assert (services.routing.load_balancer.settings.max_attempts, services.routing.router.pricing.groups) == (
        5,
        {"vip": 3_000_000},
    )
    assert services.routing.router.pricing.find_price("m", "m", "custom").image_nanos == 10**9
    tables |= {"group": [{"name": "vip", "price_multiplier": 2}], "price": [PRICE], "media": {"link_hours": 40}}
    with structlog.testing.capture_logs() as log:
        report = await site.reload({**tables, "routing": {"max_attempts": 4, "trip_failures": 1000}})
    assert report["changes"] == [
        "routing.max_attempts changed",
        "media.link_hours changed",
        "media.keep_hours changed",
        "group 'vip' changed: price_multiplier",
        "prices changed",
    ]
    assert [line["path"] for line in log if line["event"] == "setting_ignored"] == ["media.keep_hours"]
    assert (services.routing.load_balancer.settings.max_attempts, services.routing.router.pricing.groups) == (
        4,
        {"vip": 2_000_000},
    )
    assert services.routing.router.pricing.find_price("m", "m", "custom").image_nanos == 0
    assert (
        "routing.max_attempts is set in the configuration file"
        in (await site.set("settings/routing/max_attempts", {"value": 6}))["error"]["message"]
    )
    await site.reload({"channel": tables["channel"]})
    assert (services.routing.load_balancer.settings.max_attempts, services.routing.router.pricing.groups) == (
        5,
        {"vip": 3_000_000},
    )


async def test_what_models_can_do_follows_the_file(filed: Start) -> None:
    async with CustomImages() as up:
        tables: Tables = {"channel": [up.channel()]}
        site = await filed(tables)
        assert len(await site.paint(n=2, size="64x64")) == 2
        tables["model"] = [{"name": "m", "max_n": 1}, {"name": "other", "sizes": []}]
        report = await site.reload(tables)
        assert report == {"changes": ["model 'm' added", "model 'other' added"], "needs_restart": []}
        status, error = await site.paint(n=2)
        assert (status, error["param"]) == (400, "n")
        assert error["message"].startswith("The model 'm' cannot do this: 'n' must be 1 (")
        tables["model"] = [{"name": "m", "max_n": 2, "sizes": ["64x64", "128x64"]}]
        assert (await site.reload(tables))["changes"] == ["model 'other' removed", "model 'm' changed: sizes, max_n"]
        assert len(await site.paint(n=2, size="128x64")) == 2
        status, error = await site.paint(size="32x32")
        assert (status, error["param"]) == (400, "size")
        assert "'size' must be one of 64x64, 128x64 (" in error["message"]
        del tables["model"]
        assert (await site.reload(tables))["changes"] == ["model 'm' removed"]
        assert len(await site.paint(n=2, size="32x32")) == 2
        assert len(up.heard) == 3
        await site.gateway.rows(5)


async def test_words_that_nobody_may_ask_a_image_of_follow_the_file_and_the_list(filed: Start, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("kraken\n")
    async with CustomImages() as up:
        tables: Tables = {"channel": [up.channel()]}
        site = await filed(tables)
        assert len(await site.paint(prompt="a kraken")) == 1
        tables["safety"] = {"words_file": str(words)}
        assert (await site.reload(tables))["changes"] == ["safety.words_file changed"]
        status, error = await site.paint(prompt="A Kraken!")
        assert (status, error["code"], error["param"]) == (400, "sensitive_words_detected", "prompt")
        assert "raken" not in error["message"]
        words.write_text("gorgon\n")
        assert (await site.paint(prompt="a kraken"))[0] == 400  # it is read at a reload, and not before
        assert (await site.reload(tables))["changes"] == ["the words of safety.words_file changed"]
        assert len(await site.paint(prompt="a kraken")) == 1
        assert (await site.paint(prompt="a gorgon"))[0] == 400
        del tables["safety"]
        assert (await site.reload(tables))["changes"] == ["safety.words_file changed"]
        assert len(await site.paint(prompt="a gorgon")) == 1
        assert len(up.heard) == 3
        await site.gateway.rows(6)


@pytest.mark.parametrize(
    ("raw", "message"),
    [(None, "No such file"), (b"fine\n\xff\n", "line 2 is not UTF-8"), (b"x" * (2 * 1024**2 + 1), "larger than 2 MB")],
    ids=["gone", "no text", "too large"],
)
async def test_a_broken_list_of_words_leaves_the_one_before_in_force_and_says_so(
    reloadable: Reload, tmp_path: Path, raw: bytes | None, message: str
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("kraken\n")
    tables: Tables = {"channel": [channel(NOWHERE)], "safety": {"words_file": str(words)}}
    site = await reloadable(tables)
    before, listed = await site.state(), site.in_force.words
    assert listed is not None
    words.unlink()
    if raw is not None:
        words.write_bytes(raw)
    with pytest.raises(InvalidRequest) as refused:
        await site.reload({**tables, "channel": [channel(NOWHERE, "new")]})
    assert refused.value.message.startswith(f"safety.words_file: {words}: ")
    assert message in refused.value.message
    assert await site.state() == before
    assert site.in_force.words is listed
    assert site.in_force.words.find("a kraken") == "kraken"
    with structlog.testing.capture_logs() as log:
        await site.reloader.reload_logged()
    assert [(line["event"], line["error"]) for line in log] == [("configuration_not_reloaded", refused.value.message)]
    words.write_text("gorgon\n")
    await site.reload(tables)
    assert (site.in_force.words.find("a kraken"), site.in_force.words.find("a gorgon")) == (None, "gorgon")


async def test_networks_that_images_may_be_fetched_from_follow_the_file(filed: Start) -> None:
    """The pictures lie at another server than the channel's own, of which it is a private address."""
    async with ScriptedUpstream([answer(draw(), content_type="image/png")]) as files:
        named = answer({"created": 1, "data": [{"url": f"{files.base_url}/1.png"}]})
        async with ScriptedUpstream([named]) as up:
            tables: Tables = {"channel": [channel(up.base_url)]}
            site = await filed(tables)
            status, error = await site.paint()
            assert (status, error["code"]) == (502, "upstream_error")
            assert not files.received
            report = await site.reload({**tables, "egress": {"allow": ["127.0.0.0/8"]}})
            assert report["changes"] == ["egress.allow changed"]
            assert len(await site.paint()) == 1
            assert (await site.reload(tables))["changes"] == ["egress.allow changed"]
            assert (await site.paint())[0] == 502
            assert len(files.received) == 1
            await site.gateway.rows(3)


async def test_how_long_links_are_good_follows_the_file_and_links_that_are_out_stay_as_they_are(filed: Start) -> None:
    async with CustomImages() as up:
        tables: Tables = {"channel": [up.channel()]}
        site = await filed(tables)

        async def draw_link() -> tuple[str, float]:
            (item,) = await site.paint()
            expires = int(item["url"].partition("expires=")[2].partition("&")[0])
            return item["url"], (expires - time.time()) / 3_600

        first, hours = await draw_link()
        assert 23.9 < hours <= 24.01
        report = await site.reload({**tables, "media": {"link_hours": 2, "max_gb": 0.5}})
        assert report["changes"] == ["media.link_hours changed", "media.max_gb changed"]
        second, hours = await draw_link()
        assert 1.9 < hours <= 2.01
        for link in (first, second):
            async with site.gateway.client.get(link) as response:
                assert response.status == 200
        await site.gateway.rows(2)


async def test_what_is_swept_follows_the_file(reloadable: Reload, tmp_path: Path) -> None:
    tables: Tables = {"channel": [channel(NOWHERE)]}
    site = await reloadable(tables)
    store = MediaFiles(tmp_path / "media")
    stored = await store.put(draw())
    sweep = MediaCleanup(store, site.in_force.find_media_rules, lambda: stored.stored_s + 25 * 3_600)
    await sweep.sweep()
    assert await store.find(stored.id) is not None
    await site.reload({**tables, "media": {"keep_hours": 24.5, "link_hours": 24.5}})
    assert site.in_force.find_media_rules() == MediaRules(24.5 * 3_600, 10 * 1024**3)
    await sweep.sweep()
    assert await store.find(stored.id) is None


BAD_TABLES: dict[str, Tables] = {
    "model[0].max_n": {"model": [{"name": "m", "max_n": 0}]},
    "model[1].name": {"model": [{"name": "m"}, {"name": "m"}]},
    "media.keep_hours": {"media": {"keep_hours": 1}},
    "egress.allow": {"egress": {"allow": ["10.0.0.0/40"]}},
    "safety.words": {"safety": {"words": "x"}},
    "server.max_file_mb": {"server": {"max_file_mb": 0}},
}


async def test_a_bad_word_about_images_changes_nothing_and_is_named(filed: Start) -> None:
    async with CustomImages() as up:
        tables: Tables = {"channel": [up.channel()], "model": [{"name": "m", "max_n": 1}]}
        site = await filed(tables)
        for where, table in BAD_TABLES.items():
            refused = await site.reload({**tables, "model": [], **table})
            assert refused["error"]["message"].startswith(f"{site.file}: {where}: ")
        assert (await site.paint(n=2))[0] == 400
        assert len(await site.paint()) == 1
        await site.gateway.rows(2)


@pytest.mark.slow
async def test_a_store_that_refuses_leaves_everything_as_it_was(reloadable: Reload) -> None:
    site = await reloadable({"channel": [channel(NOWHERE)], "price": [PRICE]})
    before = await site.state()
    more = {"account": [*BASE["account"], {"name": "blue"}], "channel": [channel(NOWHERE, "new", models=["n"])]}
    with contextlib.closing(sqlite3.connect(site.gateway.folder.path / "gateway.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await site.reload(more)
        assert await site.state() == before
    assert (await site.reload(more))["changes"] == [
        "channel 'up' removed",
        "channel 'new' added",
        "account 'blue' added",
        "prices changed",
    ]
    assert await site.models() == ["n"]


async def test_settings_of_another_node_are_in_force_although_a_reload_waits_for_its_turn(reloadable: Reload) -> None:
    """The beat of this node applies them: a wait would have others declare it dead."""
    site = await reloadable({"channel": [channel(NOWHERE)]})
    waiting, go_on = asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def wait(_: object) -> AsyncIterator[None]:
        waiting.set()
        await go_on.wait()  # for the start of a third node
        yield

    site.reloader._source = attrs.evolve(site.reloader._source, declaring=wait)
    reloading = asyncio.create_task(site.reload({"channel": [channel(NOWHERE, "new")]}))
    await waiting.wait()
    assert not site.reloader.changing.locked(), "settings can be changed at this node, too"
    await site.reloader._settings.change_settings({"routing.retry_ratio": 0.3}, 1)
    async with asyncio.timeout(5), site.reloader.changing:  # as while the provider of a channel is tested
        await site.reloader.adopt_stored()
    assert site.in_force.config.routing.retry_ratio == 0.3
    go_on.set()
    assert (await reloading)["changes"] == ["channel 'up' removed", "channel 'new' added"]
    assert site.in_force.config.routing.retry_ratio == 0.3, "the reload had read the settings before"


async def test_a_setting_that_another_node_changes_meanwhile_stays_in_force(reloadable: Reload) -> None:
    site = await reloadable({"channel": [channel(NOWHERE)]})
    store = site.reloader._settings
    service = SettingsService(site.in_force, site.reloader, store, clock=lambda: 1.0)
    change = store.change_settings

    async def change_beside_another(*args: Any) -> None:
        await change({"routing.max_attempts": 7}, 1, {})
        await site.reloader.adopt_stored()
        await change(*args)

    store.change_settings = change_beside_another  # type: ignore[method-assign, assignment]
    view = await service.put_setting("routing", "retry_ratio", 0.3, OPERATOR)
    routing = site.in_force.config.routing
    assert (view.value, routing.retry_ratio, routing.max_attempts) == (0.3, 0.3, 7)
