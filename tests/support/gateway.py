"""A gateway to test: the real application, on a real port, over a real SQLite file, in this event loop."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import attrs
from aiohttp import web_app

from gateway.app import open_runner
from gateway.auth.passwords import HashCost
from gateway.config.schema import Config
from gateway.domain.request_log import RequestFilter, RequestRecord
from gateway.options import AppOptions
from gateway.parsing import parse_table
from gateway.server.context import SERVICES
from gateway.server.protocol import GatewayRunner
from gateway.storage.data_folder import DataFolder
from gateway.storage.open import open_database

KEY = "sk-test-key-of-the-only-caller"
CHAT = "/v1/chat/completions"
LEAST = HashCost(8, 1, 1)
SECRETS = ("pepper", "master.key", "media.key", "webhook.key", "admin.token")
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

_DECLARED: dict[str, Any] = {
    "account": [{"name": "acme"}],
    "key": [{"name": "test", "account": "acme", "secret": KEY}],
    "routing": {"trip_failures": 1000},
}
"""What a test does not say: whose key it is, and that a channel which fails is not left alone for it."""


async def make_template(path: Path) -> Path:
    """A migrated, empty database, to be copied: a migration costs a tenth of a second, a copy nothing."""
    database = await open_database(f"sqlite:///{path}")
    await database.close()
    return path


async def furnish(path: Path, template: Path, *, declared: bool) -> None:
    """A database and secrets for the data folder ``path``, copied: those of its own are synced to the disk.

    ``declared``: what a test does not say is in the database, as an earlier start of a gateway has left it there.
    """
    first = template.with_name("first")
    if not first.exists():
        await _start_first(first, template)
    shutil.copy(first / "gateway.db" if declared else template, path / "gateway.db")
    for name in SECRETS:
        descriptor = os.open(path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, (first / name).read_bytes())
        os.close(descriptor)


async def _start_first(path: Path, template: Path) -> None:
    """The data folder that the first start of all makes for itself."""
    draft = path.with_name("draft")
    draft.mkdir()
    shutil.copy(template, draft / "gateway.db")
    gateway = await start_gateway(draft, template, {"channel": [channel("http://127.0.0.1:9/v1")]})
    await gateway.close()
    draft.rename(path)


@attrs.define
class RunningGateway:
    """A gateway that answers at ``url``; ``client`` is a session with the caller's key on it.

    ``opened``: closes the runner and the services.
    """

    runner: GatewayRunner
    opened: contextlib.AsyncExitStack
    folder: DataFolder
    url: str
    client: aiohttp.ClientSession
    server: asyncio.Server
    tasks_before: set["asyncio.Task[Any]"]
    audited: bool = True
    """Whether the books are looked at when it is closed; not where a test has stopped it, or broken the store."""
    rows_before: str | None = None
    """The sequence of the last row that is none of this test's; None: they all are."""
    spent_before: int = 0
    """Nano-USD that others have spent."""
    sockets_before: int = 0
    """Sockets that were open without it, where somebody counts them."""
    agreed: int = -1
    """How many requests it had been asked when its books were last looked at, and nothing was held."""

    @property
    def app(self) -> Any:
        return self.runner.app

    @property
    def welcome(self) -> Any:
        return self.app[SERVICES].startup_info

    @property
    def running(self) -> int:
        """Visits to providers under way."""
        return int(self.app[SERVICES].proxy.running)

    @property
    def asked(self) -> int:
        """Requests that have come, of any kind."""
        server = self.runner.server
        assert server is not None
        return server.requests_count

    @property
    def admin_token(self) -> str:
        return self.folder.admin_token()

    def post(self, body: Any = None, path: str = CHAT, **kwargs: Any) -> Any:
        """``async with gateway.post({...}) as response``; the default body is a small chat call."""
        return self.client.post(self.url + path, json=HELLO if body is None else body, **kwargs)

    async def rows(self, expected: int) -> list[RequestRecord]:
        """Every request row of this test, once ``expected`` are stored; fails where there are more or fewer."""
        async with asyncio.timeout(15):
            while True:
                await self._await_writing()
                stored = await self.app[SERVICES].admin.request_log.list_requests(
                    RequestFilter(after=self.rows_before), 1000
                )
                if len(stored) >= expected and not self.running:
                    break
                await asyncio.sleep(0.01)
        assert len(stored) == expected, [item.row for item in stored]
        return [item.row for item in stored]

    async def _await_writing(self) -> None:
        """Until no request is with a provider, and the rows that wait for others are stored."""
        while self.running:  # noqa: ASYNC110 - a visit has no event to end with
            await asyncio.sleep(0.005)
        await self.app[SERVICES].billing.flusher.store_waiting()

    async def check_books(self) -> dict[str, Any]:
        """The audit of a gateway that is at rest: every balance agrees with its entries, and nothing is held."""
        async with asyncio.timeout(15):
            while self.app[SERVICES].billing.quota.open_reservations:  # noqa: ASYNC110 - a hold has no event to tend
                await asyncio.sleep(0.005)
        report = await self.app[SERVICES].billing.accounting.reconcile()
        assert report["ok"], report["problems"]
        assert report["held_usd"] == 0
        self.agreed = self.asked
        return dict(report)

    async def stop(self) -> None:
        """End as on SIGTERM: stop accepting, drain, clean up. The store is closed then, and cannot be audited."""
        self.audited = False
        self.server.close()
        await self.opened.aclose()

    async def close(self) -> None:
        """Stop, and check that nothing is left running and that the books agree."""
        await self.end()
        await check_tasks(self.tasks_before)
        with contextlib.suppress(AttributeError):
            web_app._cached_build_middleware.cache_clear()  # a private thing, which would keep 1,024 gateways in memory

    async def end(self) -> None:
        """Stop, and check that the books agree. It stops if they do not, too: no later test finds its socket open."""
        try:
            await self.client.close()
            if self.audited and self.agreed != self.asked:
                await self.check_books()
        finally:
            await self.stop()
            self.folder.close()


async def check_tasks(before: set["asyncio.Task[Any]"]) -> None:
    """Nothing is going on but what was going on ``before``, and who asks."""
    for _ in range(100):  # another gateway of the same test may be in the middle of a look at its store
        await asyncio.sleep(0)
        left = {task for task in asyncio.all_tasks() - before if not task.done()}
        left.discard(asyncio.current_task())
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left, f"tasks left behind: {left}"


async def start_gateway(
    path: Path,
    template: Path,
    config: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    discover: bool = False,
    clock: Callable[[], float] = time.time,
    furnished: bool = True,
) -> RunningGateway:
    """Start one over the data folder ``path``; accounts and keys are the test's own unless ``config`` has some.

    ``furnished``: a database that is not there is copied from ``template``, rather than made by the gateway.
    """
    before = asyncio.all_tasks()
    path.mkdir(exist_ok=True)
    if furnished and not (path / "gateway.db").exists():
        await furnish(path, template, declared=clock is time.time and not config.keys() & {"account", "key", "store"})
    folder = DataFolder(path)
    site = AppOptions(
        config=parse_table({**_DECLARED, **config}, Config),
        folder=folder,
        environ=environ or {},
        discover=discover,
        demo_pace_s=0.0,
        task_pace=0.02,
        clock=clock,
    )
    opened = contextlib.AsyncExitStack()
    runner = await opened.enter_async_context(
        open_runner(site, handler_cancellation=True, shutdown_timeout=1.0, read_bufsize=64 * 1024)
    )
    auth = runner.app[SERVICES].auth
    auth.unknown_keys.free_attempts = 1_000_000  # tests of refusals come by the hundred
    auth.sessions.hasher._cost = LEAST  # members of tests need no protection: 25 ms of a core each time
    assert runner.server is not None
    server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}, read_bufsize=2**16)
    return RunningGateway(runner, opened, folder, url, client, server, before)


def channel(base_url: str, name: str = "up", **more: Any) -> dict[str, Any]:
    """A ``[[channel]]`` that serves the model ``m``. Its timers are long: a busy machine is not a silent provider."""
    return {
        "name": name,
        "provider": "custom",
        "base_url": base_url,
        "api_key": "provider-key",
        "models": ["m"],
        "connect_timeout_s": 20,
        "first_byte_timeout_s": 20,
        "idle_timeout_s": 20,
        "total_timeout_s": 50,
        **more,
    }


def channels(upstreams: Sequence[Any], **more: Any) -> dict[str, Any]:
    """The configuration of one channel an upstream, asked in their order."""
    return {
        "channel": [
            channel(up.base_url, f"up{index}", **{"priority": -index, **more}) for index, up in enumerate(upstreams)
        ]
    }
