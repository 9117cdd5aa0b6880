"""A gateway in a process of its own, to be killed, starved and started again: asked over HTTP, and always ended."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import attrs
import orjson

from gateway.domain.request_log import RequestRecord
from gateway.storage.data_folder import find_holder
from tests.support.forked_commands import Forked
from tests.support.gateway import CHAT, KEY

Tables = Mapping[str, Any]
Rows = list[RequestRecord]

SERVE = ("gateway", "serve")
START_S = 30
END_S = 20
_PAGE = 1000
_FIELDS = tuple(field.name for field in attrs.fields(RequestRecord))


def write_toml(tables: Tables) -> str:
    """``{"server": {…}, "channel": [{…}, …]}`` as a file."""
    lines: list[str] = []
    for name, value in tables.items():
        for table in value if isinstance(value, list) else [value]:
            lines.append(f"[[{name}]]" if isinstance(value, list) else f"[{name}]")
            lines += (f"{key} = {_write_value(item)}" for key, item in table.items())
    return "\n".join(lines) + "\n"


def _write_value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{orjson.dumps(key).decode()} = {_write_value(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_write_value, value)) + "]"
    return orjson.dumps(value).decode()


class GatewayProcess:
    """``gateway serve`` over the data folder ``data``; started on entering, and ended whatever happens.

    Args:
        data: the data folder.
        tables: the configuration file.
        command: the module that Python runs, or ``-c`` and a program whose imports are its own; and the words before
            the options of ``serve``.
        environ: what its environment has besides.
        patience: the factor of the time that it may take to start, to answer and to end.

    Attributes:
        port: where it listens; 0 picks a free one at each start.
    """

    def __init__(
        self,
        data: Path,
        tables: Tables,
        *,
        command: Sequence[str] = SERVE,
        environ: Mapping[str, str] = {},
        port: int = 0,
        patience: float = 1.0,
    ) -> None:
        self.data = data
        self.config = data.with_suffix(".toml")
        self.err = data.with_suffix(".err")
        self.config.write_text(write_toml({"server": {"log_format": "json"}, **tables}))
        self.url = self.token = ""
        self.port = port
        self._command = command
        self._environ = environ
        self._patience = patience
        self._process: Forked | subprocess.Popen[bytes] | None = None
        self._admin: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.kill()
            raise

    async def __aexit__(self, *_exc: object) -> None:
        await self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start the process, and wait for nothing."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        options = ("--port", str(self.port), "--data", str(self.data), "--config", str(self.config))
        words, cwd = [*self._command, *options], Path(__file__).parents[2]
        env = {**kept, "GATEWAY_DISCOVER": "0", **self._environ}
        if self._command[0] != "-c":
            self._process = Forked(words, cwd=cwd, env=env, err=self.err)
            return
        with self.err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, *words], cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=err
            )

    async def start(self) -> Self:
        """Start it and wait until it answers. Fails with its log where it does not."""
        self.launch()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S * self._patience):
                while self.running:
                    holder = find_holder(self.data) or {}
                    if holder.get("pid") == self.pid and "url" in holder:
                        self.url = str(holder["url"])
                        self.token = (self.data / "admin.token").read_text()
                        self._admin = aiohttp.ClientSession(headers={"Authorization": f"Bearer {self.token}"})
                        return self
                    await asyncio.sleep(0.02)
        raise AssertionError(f"the gateway did not start:\n{self.err.read_text()[-4000:]}")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def kill(self) -> None:
        """``kill -9``, now; returns when it is gone."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGKILL)
        await self.wait()

    async def end(self) -> int:
        """SIGTERM; returns the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await self.wait()

    async def wait(self) -> int:
        """Until the process is gone; its exit status."""
        try:
            async with asyncio.timeout(END_S * self._patience):
                while self.running:  # noqa: ASYNC110 - another process has no event to tend
                    await asyncio.sleep(0.005)
            return (self._process.poll() if self._process is not None else None) or 0
        finally:
            if self._admin is not None:
                await self._admin.close()
                self._admin = None

    async def ask(self, path: str, body: Any = None, method: str = "") -> Any:
        """The JSON that the admin API has at ``path``; with a ``body`` it is posted there, unless by another method."""
        assert self._admin is not None
        url = f"{self.url}/admin/v1/{path}"
        method = method or ("GET" if body is None else "POST")
        timeout = aiohttp.ClientTimeout(total=10 * self._patience)
        async with self._admin.request(method, url, json=body, timeout=timeout) as response:
            answer = await response.json()
            assert response.status < 300, (path, answer)
            return answer

    async def read_rows(self, after: int = 0) -> tuple[Rows, int]:
        """Every stored row after the sequence ``after``, and the last one's sequence."""
        rows: Rows = []
        while True:
            page = (await self.ask(f"requests?limit={_PAGE}&after={after}"))["data"]
            rows += (RequestRecord(**{name: item[name] for name in _FIELDS}) for item in page)
            after = page[-1]["sequence"] if page else after
            if len(page) < _PAGE:
                return rows, after

    async def probe(self) -> tuple[int, dict[str, Any]]:
        """What ``/readyz`` says."""
        assert self._admin is not None
        async with self._admin.get(f"{self.url}/readyz") as response:
            return response.status, await response.json()

    async def check_books(self) -> dict[str, Any]:
        """The audit of a gateway at rest: every balance is the sum of its entries, and no hold is left."""
        report: dict[str, Any] = await self.ask("audit")
        assert report["ok"], report["problems"]
        assert (report["open_holds"], report["held_usd"]) == (0, 0), report
        return report

    async def check_traffic(self, rows: Iterable[RequestRecord]) -> None:
        """The sums of hours and of days are those of ``rows``, which are all that there are, of the last day."""
        rows = list(rows)
        reported = {"requests": len(rows)}
        for name in ("prompt_tokens", "completion_tokens", "cost_nanos", "total_ms"):
            reported[name] = sum(getattr(row, name) for row in rows)
        for by in ("hour", "day"):
            total = (await self.ask(f"usage?by={by}"))["total"]
            assert {name: total[name] for name in reported} == reported, by

    def read_log(self, event: str) -> list[dict[str, Any]]:
        """The lines of the log that say ``event``, since the last start."""
        found = []
        for line in self.err.read_bytes().splitlines():
            with contextlib.suppress(orjson.JSONDecodeError):  # the last may have been cut off
                fields = orjson.loads(line)
                if fields["event"] == event:
                    found.append(fields)
        return found


def open_caller(key: str = KEY, within_s: float = 10) -> aiohttp.ClientSession:
    """A caller that waits no longer than a test may."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=within_s),
    )


def ask_chat(caller: aiohttp.ClientSession, url: str, body: Any, mark: str = "") -> Any:
    """``async with ask_chat(…) as response``; ``mark`` becomes the row's client_request_id."""
    return caller.post(url + CHAT, json=body, headers={"X-Request-Id": mark} if mark else {})


async def eventually(condition: Callable[[], Any], within_s: float) -> None:
    """Return once the coroutine of ``condition`` comes out true; fail where it never does."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - another process has no event to tend
            await asyncio.sleep(0.05)
