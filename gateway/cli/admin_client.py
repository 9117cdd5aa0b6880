"""A client of the admin API of a gateway: the one at ``--url``, or the one that runs with the data folder.

If no gateway is running, the application is served in this process on a free loopback port, called, and stopped. It
locks the data folder like any gateway.
"""
# ruff: noqa: PLC0415 - aiohttp, SQLAlchemy and the application are imported when needed: commands that print help or
# call a running gateway start faster without them.

import asyncio
import logging
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import attrs
import click
import orjson

from gateway.cli.context import TOKEN_VARIABLE, CliContext, CliError, Json, StartupError, load_file_config, open_folder
from gateway.storage.data_folder import DataFolder, DataFolderDamaged, DataFolderLocked, find_holder, is_used

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

T = TypeVar("T")

SYNC_WAIT_S = 3.0
ANSWER_TIMEOUT_S = 15.0
PROVIDER_TIMEOUT_S = 60.0
"""Timeout of changes, synchronizations and route tests, for which the gateway asks providers, and of each read of a
download."""
TEST_TIMEOUT_S = 300.0
"""Timeout of a channel test, which lists the models with each key, and may send a real request."""
FOLLOW_INTERVAL_S = 0.5
_POLL_INTERVAL_S = 0.05
_REQUEST_ID_PATTERN = re.compile(r" \(request id: \w+\)$")


class AdminClient:
    """A client of the admin API.

    ``certificate`` is the only certificate to accept; True to verify as usual. ``offline``: the gateway runs in this
    process, only for this command.
    """

    def __init__(
        self, session: "aiohttp.ClientSession", url: str, certificate: "aiohttp.Fingerprint | bool", *, offline: bool
    ) -> None:
        self._session = session
        self.certificate = certificate
        self.url = url
        self.offline = offline

    async def get(self, *path: str, query: Mapping[str, Any] | None = None) -> Json:
        """Send a GET request for ``path`` and return the JSON. Raises ``CliError``, like all methods."""
        return await self.call("GET", *path, query=query)

    async def call(
        self,
        method: str,
        *path: str,
        body: Json | None = None,
        query: Mapping[str, Any] | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Json:
        """Send a request and return the JSON of the response. ``query`` values of None are left out."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=5)
        with self._translate_errors(timeout_s):
            url = self._format_url(path, query or {})
            async with self._session.request(method, url, json=body, timeout=timeout) as response:
                answer = _read_answer(self.url, response.status, await response.read())
        _note_missing_nodes(answer)
        return answer

    async def download(self, *path: str, query: Mapping[str, Any]) -> AsyncIterator[bytes]:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=PROVIDER_TIMEOUT_S)
        with self._translate_errors(PROVIDER_TIMEOUT_S):
            async with self._session.get(self._format_url(path, query), timeout=timeout) as response:
                if response.status != 200:  # noqa: PLR2004
                    _read_answer(self.url, response.status, await response.read())
                async for piece in response.content.iter_any():
                    yield piece

    def _format_url(self, path: Sequence[str], query: Mapping[str, Any]) -> "URL":
        from yarl import URL

        url = URL("/".join((f"{self.url}/admin/v1", *(quote(segment, safe="") for segment in path))), encoded=True)
        parameters = {name: str(value) for name, value in query.items() if value is not None}
        return url.update_query(parameters) if parameters else url

    @contextmanager
    def _translate_errors(self, timeout_s: float) -> Iterator[None]:
        import aiohttp

        try:
            yield
        except TimeoutError:
            raise CliError(f"The gateway at {self.url} does not answer (waited {timeout_s:g} s)") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CliError(f"The gateway at {self.url} does not answer: {reason}") from None

    async def test_channels(self, *names: str, **query: Any) -> list[Json]:
        """Test the named channels concurrently, and return their results.

        Without names, these are all active channels.
        """
        if not names:
            channels = (await self.get("channels"))["data"]
            names = tuple(channel["name"] for channel in channels if channel["status"] == "active")
        calls = (self.call("POST", "channels", name, "test", query=query, timeout_s=TEST_TIMEOUT_S) for name in names)
        return list(await asyncio.gather(*calls))

    async def sync_channels(self, *names: str) -> list[Json]:
        """Synchronize the models of the named channels concurrently, and return the channels.

        Without names, these are all active channels that synchronize.
        """
        if not names:
            channels = (await self.get("channels"))["data"]
            names = tuple(channel["name"] for channel in channels if channel["status"] == "active" and channel["sync"])
        calls = (self.call("POST", "channels", name, "sync", timeout_s=PROVIDER_TIMEOUT_S) for name in names)
        return list(await asyncio.gather(*calls))

    async def await_models(self) -> None:
        """Wait up to ``SYNC_WAIT_S`` until a gateway started for this command has fetched its channels' models."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + SYNC_WAIT_S
        while self.offline and loop.time() < deadline_s:
            channels = (await self.get("channels"))["data"]
            if not any(map(awaits_models, channels)):
                return
            await asyncio.sleep(_POLL_INTERVAL_S)


def awaits_models(channel: Json) -> bool:
    """Return whether a channel is going to fetch its models for the first time, and has not failed yet."""
    asks_provider = channel["sync"] and channel["status"] == "active"
    return asks_provider and channel["offers"] is None and channel["sync_error"] is None


def _read_answer(url: str, status: int, body: bytes) -> Json:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise CliError(f"The server at {url} is not this gateway's admin API (HTTP {status})")
    if status < 400:  # noqa: PLR2004
        return answer
    error = answer.get("error") or {}
    message, param = error.get("message") or f"HTTP {status}", error.get("param")
    if status < 500:  # noqa: PLR2004 - an operator's mistake; the log has no details
        message = _REQUEST_ID_PATTERN.sub("", message)
    raise CliError(f"{message} [{param}]" if param and param != "value" and param not in message else message)


def _note_missing_nodes(answer: Json) -> None:
    """Print a note if a change is not in force at all cluster nodes yet."""
    in_force = answer.get("in_force")
    if isinstance(in_force, dict) and in_force["nodes"] < in_force["of"]:
        message = (
            f"In force at {in_force['nodes']} of {in_force['of']} nodes after {in_force['ms']} ms. A node that cannot "
            "apply it "
            "within 10 seconds takes no requests until it has: gateway nodes"
        )
        click.echo(message, err=True)


def run(context: CliContext, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Run ``work`` with a client of the admin API, and return its result. Raises ``CliError``."""

    async def connect_and_work() -> T:
        async with open_admin(context) as admin:
            return await work(admin)

    return asyncio.run(connect_and_work())


def call(
    context: CliContext,
    method: str,
    *path: str,
    body: Json | None = None,
    query: Mapping[str, Any] | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Json:
    """Send one request to the admin API, and return the JSON of the response. Raises ``CliError``."""
    return run(context, lambda admin: admin.call(method, *path, body=body, query=query, timeout_s=timeout_s))


def run_with_channels(context: CliContext, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Run like ``run``, but use a temporary data folder in place of an unused one, which is not created."""
    return run(context, work) if context.url or is_used(context.data) else run_without_trace(context, work)


def run_without_trace(context: CliContext, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Run like ``run``, but with a temporary data folder if no gateway is running."""
    if is_running(context):
        return run(context, work)
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder:
        return run(attrs.evolve(context, data=Path(folder), scratch=True), work)


@asynccontextmanager
async def open_admin(context: CliContext) -> AsyncIterator[AdminClient]:
    """Connect to the gateway at ``--url``, the running gateway, or one in this process. Raises ``CliError``."""
    if context.url:
        async with _connect(context.url.rstrip("/"), _find_token(context)) as admin:
            yield admin
        return
    address = await _find_gateway(context)
    if isinstance(address, dict):
        token, certificate = _read_token(context.data), str(address.get("certificate", ""))
        async with _connect(str(address["url"]), token, certificate) as admin:
            yield admin
        return
    try:
        async with _serve_here(context, address) as url, _connect(url, address.admin_token(), offline=True) as admin:
            yield admin
    finally:
        address.close()


@asynccontextmanager
async def _connect(
    url: str, token: str, certificate_digest: str = "", *, offline: bool = False
) -> AsyncIterator[AdminClient]:
    """Connect to a gateway.

    ``certificate_digest`` is the SHA-256 of the certificate that the gateway announces, in hex. This certificate is
    trusted without an authority.
    """
    import aiohttp

    certificate = aiohttp.Fingerprint(bytes.fromhex(certificate_digest)) if certificate_digest else True
    headers, connector = {"Authorization": f"Bearer {token}"}, aiohttp.TCPConnector(ssl=certificate)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        yield AdminClient(session, url, certificate, offline=offline)


async def _find_gateway(context: CliContext) -> Json | DataFolder:
    """Return the running gateway's announcement; if no gateway is running, the locked data folder.

    Raises ``StartupError`` if the folder was never used or cannot be opened, and ``CliError`` if the process that holds
    the folder announces no address.
    """
    loop, data = asyncio.get_running_loop(), context.data
    deadline_s = loop.time() + context.busy_wait_s
    while True:
        holder = find_running_process(data)
        if holder is None:
            if not context.scratch and not is_used(data):
                raise StartupError(
                    f"No gateway here (looked in {data}). Use --data or GATEWAY_DATA, or start one: gateway serve"
                )
            try:
                return open_folder(data)
            except DataFolderLocked as error:  # another process started meanwhile
                holder = error.holder
        if holder.get("url"):
            return holder
        if loop.time() > deadline_s:
            pid = holder.get("pid", "unknown")
            raise CliError(f"The data folder {data} is in use by process {pid}, which announces no address")
        await asyncio.sleep(_POLL_INTERVAL_S)


def require_running(context: CliContext, verb: str) -> None:
    """Raise ``CliError`` if no gateway is running."""
    if not is_running(context):
        raise CliError(f"Nothing to {verb}: no gateway runs with the data folder {context.data}")


def is_running(context: CliContext) -> bool:
    """Return whether the command would call a running gateway. Raises ``CliError``."""
    return bool(context.url) or find_running_process(context.data) is not None


def find_running_process(data: Path) -> Json | None:
    """Return the announcement of the process that holds the folder, empty at its start; None if no process holds it.

    Raises ``StartupError`` if the folder cannot be read.
    """
    try:
        return find_holder(data)
    except OSError as error:
        raise StartupError(f"The data folder {data} cannot be read: {error.strerror}") from None


def _find_token(context: CliContext) -> str:
    if not (context.url or "").startswith(("http://", "https://")):
        raise CliError(f"--url must begin with http:// or https://, not {context.url!r}")
    if token := context.environ.get(TOKEN_VARIABLE, "").strip():
        return token
    raise CliError(f"Set {TOKEN_VARIABLE} to the content of the file admin.token of the gateway at {context.url}")


def _read_token(data: Path) -> str:
    path = data / "admin.token"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CliError(f"The admin token {path} cannot be read: {error.strerror}") from None


@asynccontextmanager
async def _serve_here(context: CliContext, folder: DataFolder) -> AsyncIterator[str]:
    """Serve the application in this process; yield its address. Raises ``StartupError``."""
    file_config = load_file_config(context.config, context.environ)
    config = file_config.config
    if context.scratch:
        config = attrs.evolve(config, store=type(config.store)())

    from aiohttp import web

    from gateway.app import open_runner
    from gateway.log import configure_log
    from gateway.options import AppOptions
    from gateway.storage.database import DatabaseStartupError

    configure_log(config.server.log_format, logging.WARNING)
    # Only ``serve`` stores the file's accounts and keys in the database: this command may use a different file.
    options = AppOptions(
        config, folder, context.environ, discover=context.discover, declare=False, sources=file_config.sources
    )
    async with AsyncExitStack() as stack:
        try:
            runner = await stack.enter_async_context(open_runner(options, shutdown_timeout=1.0))
        except (DatabaseStartupError, DataFolderDamaged) as error:
            raise StartupError(str(error)) from None
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
