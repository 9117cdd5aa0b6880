"""Gateways that outlive a test: the next one that wants the same but for its channels finds them at rest, and empty.

To start and to stop a gateway costs more than most tests do with it. For tests of which each looks at its own rows and
at its own channels; what a test finds is what it would find in a gateway of its own, but for the numbers of rows, and
what it leaves is looked at before the next: books that agree, no hold, no visit, no task, no socket. A gateway is
stopped after a test that has changed its accounts, keys, members or settings, and after one with quotas or rate limits
that has sent a request: what was used of them would count in the next test.

Everything here belongs to the event loop of the session, and so do the tests: ``loop_scope="session"``.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson

from gateway.config.reload import build_channels
from gateway.config.schema import Config
from gateway.parsing import parse_table
from gateway.server.context import SERVICES
from tests.support.gateway import KEY, RunningGateway, channel, check_tasks, start_gateway
from tests.support.sockets import check_sockets, count_sockets

NO_CHANNEL = channel("http://127.0.0.1:9/v1", "nobody", models=["nobody"])
"""The channel of a gateway that nobody has: without any it would look for some."""


Mark = tuple[bytes, Callable[[], float]]
"""What makes a gateway one's own: its configuration without channels, and its clock."""

KEPT = ("accounts", "keys", "channels", "settings", "members", "sessions", "links", "identities", "passkeys", "alerts")
"""Tables of what a gateway is told, rather than of what it does. A test that changes these has had the gateway last."""

USED_UP = (b'"quota_usd"', b'"limit"', b'"credit_usd"', b'"rpm"', b'"tpm"', b'"burst"')
"""What a configuration with something to use up has one of."""

MOST = 16
"""Each has some threads and some files open; the one that has been idle for the longest is stopped."""


@attrs.frozen
class Loan:
    """A gateway that a test has, and what it had been told before."""

    mark: Mark
    standing: RunningGateway
    kept: list[list[Any]]


@attrs.define
class GatewayPool:
    """The gateways of one process of tests."""

    folder: Path
    template: Path
    _free: dict[Mark, RunningGateway] = attrs.Factory(dict)
    _lent: dict[str, Loan] = attrs.Factory(dict)
    _stores: dict[str, sqlite3.Connection] = attrs.Factory(dict)
    """Past each gateway, by its address: a connection of every lending's own would read the whole schema again."""
    _started: int = 0
    _tasks_before: set["asyncio.Task[Any]"] = attrs.Factory(asyncio.all_tasks)

    async def lend(self, config: Mapping[str, Any], clock: Callable[[], float] = time.time) -> RunningGateway:
        """A gateway with the channels of ``config``, as one test sees it; ``take_back`` it, the last one first."""
        rest = {name: value for name, value in config.items() if name != "channel"}
        channels: list[dict[str, Any]] = config.get("channel", [])
        mark = orjson.dumps({"found": not channels, **rest}, option=orjson.OPT_SORT_KEYS), clock
        standing = self._free.pop(mark, None) or await self._start(
            {**rest, "channel": [NO_CHANNEL][: len(channels)]}, clock
        )
        store = self._stores[standing.url]
        self._lent[standing.url] = Loan(mark, standing, _read_kept(store))
        if channels:
            await _offer(standing, channels)
        return attrs.evolve(
            standing,
            client=aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}, read_bufsize=2**16),
            tasks_before=asyncio.all_tasks(),
            sockets_before=count_sockets(),
            rows_before=_find_newest(store),
            spent_before=_read_spent(standing),
        )

    async def _start(self, config: Mapping[str, Any], clock: Callable[[], float]) -> RunningGateway:
        assert not self._lent, "the first gateway of a test must not see the second one start: lend one of them alone"
        if len(self._free) >= MOST:
            await self._end(self._free.pop(next(iter(self._free))))
        self._started += 1
        path = self.folder / f"standing{self._started}"
        gateway = await start_gateway(path, self.template, config, clock=clock)
        self._stores[gateway.url] = sqlite3.connect(gateway.folder.path / "gateway.db")
        return gateway

    async def _end(self, standing: RunningGateway) -> None:
        self._stores.pop(standing.url).close()
        await standing.end()

    async def take_back(self, lent: RunningGateway, *, audits: bool = True) -> None:
        """Look at what a test has left. Fails where that is anything; such a gateway is not lent again.

        ``audits``: whether the books are looked at now, of this gateway and of those before; else after a later test.
        """
        loan = self._lent.pop(lent.url)
        standing = loan.standing
        try:
            await lent.client.close()
            if any(each.origin == "file" for each in standing.app[SERVICES].routing.catalog.channels):
                await _offer(standing, [NO_CHANNEL])
            await _await_rows(standing)
            standing.agreed = lent.agreed
            for each in (standing, *self._free.values()) if audits else ():
                if each.agreed != each.asked:
                    await each.check_books()
            assert not lent.running
            await check_tasks(lent.tasks_before)
            await check_sockets(lent.sockets_before)
        except BaseException:
            standing.audited = False
            await self._end(standing)
            raise
        store = self._stores[standing.url]
        has_used = any(name in loan.mark[0] for name in USED_UP) and _find_newest(store) != lent.rows_before
        if _read_kept(store) == loan.kept and not has_used:
            self._free[loan.mark] = standing
        else:
            await self._end(standing)

    async def close(self) -> None:
        """Stop them all, and check that nothing is left running and that the books agree."""
        for standing in self._free.values():
            await self._end(standing)
        await check_tasks(self._tasks_before)


async def _await_rows(gateway: RunningGateway) -> None:
    """Until every call has ended and has its row in the store."""
    services = gateway.app[SERVICES]
    quota, queue = services.billing.quota, services.storage.write_queue
    async with asyncio.timeout(15):
        while gateway.running or quota.open_reservations or queue or queue.writing.locked():
            await asyncio.sleep(0.005)
            await services.billing.flusher.store_waiting()


async def _offer(gateway: RunningGateway, channels: list[dict[str, Any]]) -> None:
    """Exactly these channels; of one of the same name that was there before the last offer nothing is known."""
    await gateway.app[SERVICES].routing.channels.declare(build_channels(parse_table({"channel": channels}, Config)))


def _find_newest(store: sqlite3.Connection) -> str:
    """The sequence of the last row that is stored, past the gateway: it is asked for at every lending."""
    newest: int | None = store.execute("SELECT max(sequence) FROM requests").fetchone()[0]
    return str(newest or 0)


def _read_kept(store: sqlite3.Connection) -> list[list[Any]]:
    """The rows of each table of ``KEPT``."""
    return [store.execute(f"SELECT * FROM {table}").fetchall() for table in KEPT]  # noqa: S608 - names of ours


def _read_spent(gateway: RunningGateway) -> int:
    """Nano-USD that the only account has spent."""
    return int(gateway.app[SERVICES].billing.quota._balances.find_balance("account", 1).lifetime.spent_nanos)
