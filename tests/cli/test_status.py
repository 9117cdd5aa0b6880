"""The commands about the gateway that runs: how it is doing, and the calls under way."""

import asyncio
import re

from gateway.cli.text import format_bytes, format_duration
from gateway.server.context import SERVICES
from tests.support.cli_operator import log, sit_down
from tests.support.fault_scene import UNHURRIED, call, until
from tests.support.gateway import channel
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, STALL, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

__all__ = ["log"]
"""A fixture of every test here, too."""


async def test_an_operator_sees_how_the_gateway_is_doing(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    shown = dict(line.split("  ", 1) for line in (await operator.see("health", width=200)).splitlines())
    assert shown["version"].split(",")[1] == f" Python {(await operator.ask('health'))['python']}"
    assert " writable; last commit " in shown["database"]
    assert shown["queue"].strip() == "0 records waiting"
    assert shown["channels"].strip() == "1 untested"
    operator.gateway.app[SERVICES].storage.write_queue.failing = True
    refused = await operator.type("health")
    operator.gateway.app[SERVICES].storage.write_queue.failing = False
    operator.gateway.app[SERVICES].storage.unstorable.count = 3
    assert "0 records waiting; 3 REFUSED by the database (gateway doctor)" in (await operator.type("health")).stdout
    assert (refused.exit_code, "NOT writable" in refused.stdout, "WRITES FAIL" in refused.stdout) == (1, True, True)


async def test_the_health_of_a_gateway_on_a_server_has_no_log(
    gateway_with: StartGateway, shared_postgres: SharedPostgres
) -> None:
    operator = await sit_down(gateway_with, {"store": {"url": await shared_postgres.empty()}})
    assert " on a PostgreSQL server; schema " in await operator.see("health", width=200)


async def test_calls_under_way_are_listed_and_one_is_ended(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url, **UNHURRIED)]})
        assert (await operator.type("running")).stderr == "No requests in progress.\n"
        calling = asyncio.create_task(call(operator.gateway, stream=False))
        await until(lambda: up.received)
        title, line = (await operator.see("running", width=140)).splitlines()
        assert title.split() == ["ID", "ACCOUNT", "KEY", "MODEL", "CHANNEL", "PHASE", "FOR", "FROM"]
        request_id, *rest = line.split()
        assert (rest[:5], rest[-1]) == (["acme", "test", "m", "up", "waiting"], "127.0.0.1")
        message = await operator.see("running", "cancel", request_id)
        assert message == f"The request {request_id} was cancelled.\n"
        assert (await calling).status == 409
        gone = await operator.type("running", "cancel", request_id)
        assert (gone.exit_code, "No request under way has the id" in gone.stderr) == (1, True)


async def test_a_table_of_channels_shows_what_their_calls_have_come_to(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], [answer({}, 500)]) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url)]})
        assert "FIRST" not in await operator.see("channels", width=140)
        assert "none yet" in await operator.see("channels", "show", "up")
        statuses = [(await call(operator.gateway, stream=False)).status for _ in range(2)]
        assert statuses == [200, 502]
        _, line = (await operator.see("channels", width=140)).splitlines()
        assert re.search(r" \d+ ms +33\.3 % ", line)
        assert "FIRST" not in await operator.see("channels", width=60)
        shown = await operator.see("channels", "show", "up")
        assert "3, 2 failed; success rate of the last calls 33.3 %" in shown


@table_rows(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (107_374_182, "102 MB"), (2**40, "1.0 TB"), (2**60, "1048576 TB")],
)
def test_sizes_in_few_words(size: int, text: str) -> None:
    assert format_bytes(size) == text


@table_rows(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (12.9, "12 s"), (185, "3 min 5 s"), (3600, "1 h 0 min"), (187_200, "2 d 4 h")],
)
def test_durations_in_few_words(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


async def test_a_gateway_that_is_alone_has_no_nodes(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    assert "This gateway is the only one on its database." in (await operator.type("nodes")).output
    assert (await operator.ask("nodes"))["data"] == []
    assert "The database has lost no changes." in (await operator.type("nodes", "lost-changes")).output
