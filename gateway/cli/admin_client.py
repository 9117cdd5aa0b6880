"""Talking to the admin API: of the gateway that runs over a data folder, or of one started for just this command.

There is one code path for both. Where no gateway runs, the real application is served in this process on a free
loopback port, asked, and stopped; the folder is locked meanwhile, as by any gateway.
"""
# ruff: noqa: PLC0415 - aiohttp, SQLAlchemy and the application are imported where they are needed, so that a command
# that only asks a running gateway, or prints its help, does not wait for them.

import asyncio
import itertools
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import attrs
import click
import orjson

from gateway.storage.data_folder import DataFolder, DataFolderDamaged, DataFolderLocked, find_holder, is_used

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

    from gateway.config.merge import FileConfig

T = TypeVar("T")
Json = dict[str, Any]

SYNC_WAIT_S = 3.0
ANSWER_TIMEOUT_S = 15.0
PROVIDER_TIMEOUT_S = 60.0
"""For a change after which a provider is asked for its models."""
TEST_TIMEOUT_S = 300.0
"""A channel's test asks its provider with one key after the other."""
FOLLOW_EVERY_S = 0.5
_LOOK_EVERY_S = 0.05
_PAGE = 1000


class CliError(click.ClickException):
    """What the operator is told on standard error, without a traceback; the command exits with 1."""

    def show(self, file: Any = None) -> None:
        """Print the message as it is."""
        click.echo(self.message, file=file or sys.stderr)


class StartupError(CliError):
    """What the operator has to set right before a gateway can start here; the command exits with 2."""

    exit_code = 2


@attrs.frozen
class CliContext:
    """Which gateway a command is about, and how its answer is printed.

    Attributes:
        data: the data folder.
        config: the configuration file for where no gateway runs; None: none.
        environ: the environment, likewise.
        discover: whether unconfigured providers are looked for where no gateway runs.
        as_json: print the admin API's JSON.
        scratch: the data folder is made for this command and goes with it.
        looks: the command changes nothing, and makes no data folder that is not there.
        busy_wait_s: how long the folder may be held by a process that gives no address: one that starts, or another
            short command.
    """

    data: Path
    config: Path | None
    environ: Mapping[str, str]
    discover: bool = True
    as_json: bool = False
    scratch: bool = False
    looks: bool = False
    busy_wait_s: float = 5.0


class AdminClient:
    """The admin API at ``url``.

    Args:
        session: carries the token.
        url: of the gateway.
        offline: the gateway was started for this command alone.
    """

    def __init__(self, session: "aiohttp.ClientSession", url: str, *, offline: bool) -> None:
        self._session = session
        self.url = url
        self.offline = offline

    async def get(self, *path: str, query: Mapping[str, Any] | None = None) -> Json:
        """What is at ``path``. Raises ``CliError``, as every call here."""
        return await self.call("GET", *path, query=query)

    async def call(
        self,
        method: str,
        *path: str,
        body: Json | None = None,
        query: Mapping[str, Any] | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Json:
        """One call; ``query`` values that are None are left out."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=5)
        with self._explained(timeout_s):
            url = self._format_url(path, query or {})
            async with self._session.request(method, url, json=body, timeout=timeout) as response:
                return _read_answer(self.url, response.status, await response.read())

    async def download(self, *path: str, query: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """What is at ``path``, as it comes."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=PROVIDER_TIMEOUT_S)
        with self._explained(PROVIDER_TIMEOUT_S):
            async with self._session.get(self._format_url(path, query), timeout=timeout) as response:
                if response.status != 200:  # noqa: PLR2004
                    _read_answer(self.url, response.status, await response.read())
                async for piece in response.content.iter_any():
                    yield piece

    def _format_url(self, path: Sequence[str], query: Mapping[str, Any]) -> "URL":
        from yarl import URL

        url = URL("/".join((f"{self.url}/admin/v1", *(quote(part, safe="") for part in path))), encoded=True)
        wanted = {name: str(value) for name, value in query.items() if value is not None}
        return url.update_query(wanted) if wanted else url

    @contextmanager
    def _explained(self, timeout_s: float) -> Iterator[None]:
        """What goes wrong on the way to the gateway, in words."""
        import aiohttp

        try:
            yield
        except TimeoutError:
            raise CliError(f"The gateway at {self.url} does not answer (waited {timeout_s:g} s)") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CliError(f"The gateway at {self.url} does not answer: {reason}") from None

    async def test_channels(self, *names: str) -> list[Json]:
        """What each channel's provider answers now, side by side; without names, of every channel in use."""
        if not names:
            channels = (await self.get("channels"))["data"]
            names = tuple(channel["name"] for channel in channels if channel["status"] == "active")
        calls = (self.call("POST", "channels", name, "test", timeout_s=TEST_TIMEOUT_S) for name in names)
        return list(await asyncio.gather(*calls))

    async def sync_channels(self, *names: str) -> list[Json]:
        """Each channel after it has asked its provider for its models; without names, all that do so by themselves."""
        if not names:
            channels = (await self.get("channels"))["data"]
            names = tuple(channel["name"] for channel in channels if channel["status"] == "active" and channel["sync"])
        calls = (self.call("POST", "channels", name, "sync", timeout_s=PROVIDER_TIMEOUT_S) for name in names)
        return list(await asyncio.gather(*calls))

    async def await_models(self) -> None:
        """Where the gateway has only just started, give synchronised channels a moment to hear of their models."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SYNC_WAIT_S
        while self.offline and loop.time() < until:
            channels = (await self.get("channels"))["data"]
            if not any(map(may_still_answer, channels)):
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def follow_requests(self, query: Mapping[str, Any]) -> AsyncIterator[Json]:
        """Request rows that match: the last ones, then every new one, for ever."""
        page = await self.get("requests", query=query)
        rows, last, more = page["data"][::-1], page["newest"], False
        while True:
            for row in rows:
                yield row
            if not more:
                await asyncio.sleep(FOLLOW_EVERY_S)
            page = await self.get("requests", query={**query, "after": last, "limit": _PAGE})
            rows, last, more = page["data"], page["next"], page["more"]


def may_still_answer(channel: Json) -> bool:
    """Whether a channel that has only just started may yet say which models it has."""
    asks = channel["sync"] and channel["status"] == "active"
    return asks and channel["offers"] is None and channel["sync_error"] is None


def _read_answer(url: str, status: int, raw: bytes) -> Json:
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise CliError(f"What answers at {url} is not this gateway's admin API (HTTP {status})")
    if status < 400:  # noqa: PLR2004
        return answer
    error = answer.get("error") or {}
    message, param = error.get("message") or f"HTTP {status}", error.get("param")
    raise CliError(f"{message} [{param}]" if param and param not in message else message)


async def create_key(admin: AdminClient, account: str | None, fields: Json) -> Json:
    """A new key of ``account``, or of the only one there is; without a name in ``fields`` it gets a free one."""
    if account is None:
        names = [listed["name"] for listed in (await admin.get("accounts"))["data"]]
        if not names:
            raise CliError("There is no account yet; add one: gateway accounts add NAME")
        if len(names) > 1:
            raise CliError(f"Whose key? Choose with --account: {', '.join(names)}")
        account = names[0]
    if "name" not in fields:
        taken = {key["name"] for key in (await admin.get("keys"))["data"] if key["account"] == account}
        number = next(number for number in itertools.count(len(taken) + 1) if f"key-{number}" not in taken)
        fields = {"name": f"key-{number}", **fields}
    return await admin.call("POST", "keys", body={"account": account, **fields})


def ask(place: CliContext, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Do ``work`` with the admin API of ``place``. Raises ``CliError``."""

    async def do() -> T:
        async with open_admin(place) as admin:
            return await work(admin)

    return asyncio.run(do())


def look(place: CliContext, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """As ``ask``, for ``work`` that changes nothing. Raises ``CliError`` if the data folder has never been used."""
    return ask(attrs.evolve(place, looks=True), work)


def call(
    place: CliContext,
    method: str,
    *path: str,
    body: Json | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Json:
    """One call of the admin API of ``place``. Raises ``CliError``."""
    start = look if method == "GET" else ask
    return start(place, lambda admin: admin.call(method, *path, body=body, timeout_s=timeout_s))


def get_settled(place: CliContext, *path: str, query: Mapping[str, Any] | None = None) -> Json:
    """What is at ``path`` once the channels have had time to say what they offer. Raises ``CliError``.

    Over a data folder that has never been used it is what the configuration says, and the folder is not made.
    """

    async def work(admin: AdminClient) -> Json:
        await admin.await_models()
        return await admin.get(*path, query=query)

    return ask_channels(place, work)


def ask_channels(place: CliContext, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """As ``ask``, about channels; of a data folder that has never been used they are those of the configuration."""
    return ask(place, work) if is_used(place.data) else probe(place, work)


def probe(place: CliContext, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """As ``ask``; where no gateway runs, over a data folder of its own that leaves no trace. Raises ``CliError``."""
    if find_running(place.data) is not None:
        return ask(place, work)
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder:
        return ask(attrs.evolve(place, data=Path(folder), scratch=True), work)


@asynccontextmanager
async def open_admin(place: CliContext) -> AsyncIterator[AdminClient]:
    """The admin API of ``place``, from the gateway that runs there or from one in this process. Raises ``CliError``."""
    found = await _find(place)
    if isinstance(found, str):
        async with _connect(found, _read_token(place.data), offline=False) as admin:
            yield admin
        return
    try:
        async with _serve_here(place, found) as url, _connect(url, found.admin_token(), offline=True) as admin:
            yield admin
    finally:
        found.close()


@asynccontextmanager
async def _connect(url: str, token: str, *, offline: bool) -> AsyncIterator[AdminClient]:
    import aiohttp

    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        yield AdminClient(session, url, offline=offline)


async def _find(place: CliContext) -> str | DataFolder:
    """The address of the gateway that runs over the data folder; where none does, the folder itself, locked."""
    loop, data = asyncio.get_running_loop(), place.data
    until = loop.time() + place.busy_wait_s
    while True:
        holder = find_running(data)
        if holder is None:
            if place.looks and not is_used(data):
                raise StartupError(f"The data folder {data} has never been used: 'gateway serve' makes it")
            try:
                return open_folder(data)
            except DataFolderLocked as busy:  # taken since
                holder = busy.holder
        if url := holder.get("url"):
            return str(url)
        if loop.time() > until:
            pid = holder.get("pid", "unknown")
            raise CliError(f"The data folder {data} is in use by process {pid}, which gives no address to ask")
        await asyncio.sleep(_LOOK_EVERY_S)


def need_running(place: CliContext, verb: str) -> None:
    """Raise ``CliError`` where no gateway runs."""
    if find_running(place.data) is None:
        raise CliError(f"There is nothing to {verb}: no gateway runs over {place.data}")


def find_running(data: Path) -> Json | None:
    """What the process that has the folder says of itself; None where none does. Raises ``CliError``."""
    try:
        return find_holder(data)
    except OSError as error:
        raise StartupError(f"The data folder {data} cannot be read: {error.strerror}") from None


def open_folder(data: Path) -> DataFolder:
    """The data folder, locked. Raises ``CliError``, or ``DataFolderLocked``."""
    try:
        return DataFolder(data)
    except OSError as error:
        raise StartupError(f"The data folder {data} cannot be used: {error.strerror}") from None


def _read_token(data: Path) -> str:
    path = data / "admin.token"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CliError(f"The admin token {path} cannot be read: {error.strerror}") from None


@asynccontextmanager
async def _serve_here(place: CliContext, folder: DataFolder) -> AsyncIterator[str]:
    """The application over ``folder``, in this process; yields its address."""
    declared = load_declared(place.config, place.environ)
    config = declared.config
    if place.scratch:
        config = attrs.evolve(config, store=type(config.store)())

    from aiohttp import web

    from gateway.app import create_app
    from gateway.log import configure_log
    from gateway.options import AppOptions
    from gateway.server.context import SERVICES
    from gateway.server.protocol import GatewayRunner
    from gateway.storage.database import DatabaseStartupError

    configure_log(config.server.log_format, logging.WARNING)
    # What another file declared is none of this command's business: only ``serve`` makes the store agree with one.
    site = AppOptions(config, folder, place.environ, discover=place.discover, declare=False, sources=declared.sources)
    app = create_app(site)
    runner = GatewayRunner(app, access_log=None, shutdown_timeout=1.0)
    try:
        try:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        except (DatabaseStartupError, DataFolderDamaged) as error:
            raise StartupError(str(error)) from None
        if (secret := app[SERVICES].startup_info.secret) and not place.scratch:
            click.echo(f"First use of {folder.path}: its first key, shown only now, is\n  {secret}", err=True)
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def load_declared(path: Path | None, environ: Mapping[str, str]) -> "FileConfig":
    """The configuration. Raises ``CliError`` with every problem of it, one a line."""
    from gateway.config.loader import ConfigError, read_declared

    try:
        return read_declared(path, environ)
    except ConfigError as error:
        raise StartupError(str(error)) from None
