"""The gateway as a process: started as a user would, looked at from outside, and ended as a supervisor would."""

import asyncio
import contextlib
import http.client
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import psutil
import pytest

from gateway.storage.data_folder import find_holder
from tests.support.forked_commands import Forked
from tests.support.gateway import CHAT, HELLO, KEY, channel
from tests.support.gateway_process import GatewayProcess
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    Received,
    ScriptedUpstream,
    answer,
    chat_events,
    chunk,
    delta,
    event,
)

pytestmark = pytest.mark.slow

MB = 2**20
MAX_RSS = 116 * MB
MAX_GROWTH = 8 * MB
EVENTS = 100_000
EVENTS_A_CHUNK = 50
WAIT_LIMIT_S = 30
"""What is waited for comes sooner; only a machine with much else to do is this slow."""
MAX_START_CPU_S = 5
ASK = {"model": "demo-chat", "messages": [{"role": "user", "content": "hi"}]}

Serve = Callable[..., "Served"]


class Served:
    """A running ``gateway serve``; its output is in files, so that it never waits for a reader.

    ``afresh``: by a Python of its own, as a user would start it; else its imports are behind it.
    """

    def __init__(self, data: Path, *options: str, afresh: bool = False, **environ: str) -> None:
        self.data = data
        self.out, self.err = data.with_suffix(".out"), data.with_suffix(".err")
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        words = ["gateway", "serve", "--port", "0", "--data", str(data), *options]
        env = {**kept, "GATEWAY_DISCOVER": "0", **environ}
        self.process: Forked | subprocess.Popen[bytes]
        if not afresh:
            self.process = Forked(words, cwd=data.parent, env=env, out=self.out, err=self.err)
            return
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=data.parent, env=env, stdout=out, stderr=err
            )

    def url(self) -> str:
        """The address, once it answers. Fails if the process ends first.

        The file says first of all what a killed process has written there: until this one has locked and rewritten it.
        """
        until = time.monotonic() + WAIT_LIMIT_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            holder = find_holder(self.data) or {}
            if holder.get("pid") == self.process.pid and "url" in holder:
                return str(holder["url"])
            time.sleep(0.005)
        raise AssertionError(f"the gateway did not start: {self.err.read_text()}")

    @property
    def message(self) -> str:
        """What a first start prints, from its address to the call in Python, which is the end."""
        self.url()
        until = time.monotonic() + WAIT_LIMIT_S  # the folder says where it answers a moment before the terminal does
        while time.monotonic() < until:
            text = self.out.read_text()
            if re.search(r"client = .*\n", text):
                return text
            time.sleep(0.005)
        raise AssertionError(f"no message was printed: {self.out.read_text()}")

    @property
    def secret(self) -> str:
        """The first key, as it was printed."""
        found = re.search(r"^\s*key\s+(sk-\S+)\n", self.message, re.MULTILINE)
        assert found is not None, self.message
        return found.group(1)

    def rss(self) -> int:
        """Resident bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu_s(self) -> float:
        """Seconds of processor time so far: unlike those on the wall, they are the gateway's own."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def token(self) -> str:
        """Of the admin API."""
        return (self.data / "admin.token").read_text().strip()

    def log(self, event: str) -> list[dict[str, Any]]:
        """The lines of a JSON log that say ``event`` so far."""
        lines = [line for line in self.err.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        return [fields for line in lines if (fields := orjson.loads(line))["event"] == event]

    async def logged(self, *events: str) -> dict[str, Any]:
        """The first line that says one of ``events``, once there is one; fails where none comes."""
        async with asyncio.timeout(WAIT_LIMIT_S):
            while True:
                for event in events:
                    if found := self.log(event):
                        return found[0]
                await asyncio.sleep(0.01)

    def end(self, how: int = signal.SIGTERM) -> int:
        """Signal, and wait for the exit status."""
        self.process.send_signal(how)  # type: ignore[arg-type]
        return self.process.wait(WAIT_LIMIT_S)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """``served = serve()``: over the same data folder each time, ended with the test."""
    started: list[Served] = []

    def start(*options: str, name: str = "data", afresh: bool = False, **environ: str) -> Served:
        served = Served(tmp_path / name, *options, afresh=afresh, **environ)
        started.append(served)
        return served

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


def request(url: str, method: str, path: str, key: str = "", body: Any = None) -> tuple[int, bytes]:
    """One request as curl would make it."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_LIMIT_S)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Connection": "close"}
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else orjson.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()


def write_config(path: Path, up: ScriptedUpstream, more: str = "") -> str:
    """A file with one channel and one key; ``more`` belongs to the key, or stands after it."""
    written = path.with_suffix(".new")
    written.write_text(
        f"""
        [server]
        log_format = "json"
        [[channel]]
        name = "up"
        provider = "custom"
        base_url = "{up.base_url}"
        api_key = "provider-key"
        models = ["m"]
        [[account]]
        name = "acme"
        [[key]]
        name = "test"
        account = "acme"
        secret = "{KEY}"
        """
        + more
    )
    written.replace(path)  # at once: an empty file is a good one too, and nobody's key is in it
    return str(path)


SECOND = """
[[channel]]
name = "second"
provider = "custom"
base_url = "http://127.0.0.1:9/v1"
api_key = "planted-provider-key"
models = ["n"]
"""


async def list_models(url: str) -> list[str]:
    _, body = await asyncio.to_thread(request, url, "GET", "/v1/models", KEY)
    return [listed["id"] for listed in orjson.loads(body)["data"]]


def test_a_first_start_answers_soon_rests_small_and_prints_a_key_that_works(serve: Serve) -> None:
    served = serve(afresh=True)
    url = served.url()
    assert request(url, "GET", "/healthz")[0] == 200
    took = served.cpu_s()
    status, body = request(url, "POST", CHAT, served.secret, ASK)
    assert (status, orjson.loads(body)["model"]) == (200, "demo-chat")
    assert f"{url}/v1" in served.message
    print(f"answered after {took:.2f} s of CPU, rests at {served.rss() / MB:.1f} MB")  # noqa: T201
    assert took < MAX_START_CPU_S
    assert served.rss() < MAX_RSS
    assert served.end() == 0
    assert find_holder(served.data) is None


async def test_an_answer_tells_what_of_its_time_was_the_gateways_to_parts_of_a_millisecond(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"account": [{"name": "acme"}], "key": [{"name": "a", "account": "acme", "secret": KEY}]}
    async with ScriptedUpstream([answer(COMPLETION)] * 8) as up:
        tables["channel"] = [channel(up.base_url)]
        async with (
            GatewayProcess(tmp_path / "data", tables) as gateway,
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
        ):
            reported = []
            for _ in range(8):
                async with session.post(gateway.url + CHAT, json=HELLO) as response:
                    reported.append(float(response.headers["x-gateway-overhead-ms"]))
    assert all(ms > 0 for ms in reported)
    assert any(ms % 1 for ms in reported)


def test_a_second_start_is_quicker_knows_its_key_and_does_not_print_another(serve: Serve) -> None:
    first = serve()
    first.url()
    secret = first.secret
    assert first.end(signal.SIGINT) == 0
    second = serve(afresh=True)
    url = second.url()
    assert request(url, "POST", CHAT, secret, ASK)[0] == 200
    took = second.cpu_s()
    print(f"a restart answered after {took:.2f} s of CPU, rests at {second.rss() / MB:.1f} MB")  # noqa: T201
    assert took < MAX_START_CPU_S
    assert second.rss() < MAX_RSS
    assert second.end() == 0
    assert "sk-" not in second.out.read_text()


def test_a_second_process_on_the_same_folder_says_who_has_it_and_ends(serve: Serve, tmp_path: Path) -> None:
    first = serve()
    url = first.url()
    command = [sys.executable, "-m", "gateway", "serve", "--port", "0", "--data", str(first.data)]
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False)
    assert second.returncode != 0
    assert str(first.process.pid) in second.stderr
    assert url in second.stderr
    assert "Traceback" not in second.stderr
    assert request(url, "GET", "/healthz")[0] == 200


def test_a_port_that_is_taken_is_said_in_a_sentence(serve: Serve) -> None:
    first = serve()
    port = str(urlsplit(first.url()).port)
    second = serve("--port", port, name="other")
    assert second.process.wait(WAIT_LIMIT_S) != 0
    assert port in second.err.read_text()
    assert "Traceback" not in second.err.read_text()


def test_a_database_that_is_none_is_refused_and_left_as_it_is(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    database = tmp_path / "data" / "gateway.db"
    database.write_bytes(b"this is somebody's diary, and no database" * 200)
    before = database.read_bytes()
    served = serve()
    assert served.process.wait(WAIT_LIMIT_S) != 0
    assert "gateway.db" in served.err.read_text()
    assert "Traceback" not in served.err.read_text()
    assert database.read_bytes() == before


def test_a_killed_gateway_starts_again_with_everything_it_had_acknowledged(serve: Serve) -> None:
    first = serve()
    url, secret = first.url(), first.secret
    for _ in range(3):
        assert request(url, "POST", CHAT, secret, ASK)[0] == 200
    first.end(signal.SIGKILL)
    second = serve()
    assert request(second.url(), "POST", CHAT, secret, ASK)[0] == 200
    assert second.end() == 0
    with contextlib.closing(sqlite3.connect(second.data / "gateway.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT count(*) FROM requests").fetchone()[0] >= 1


def test_nothing_a_caller_sends_writes_control_characters_into_the_log(serve: Serve) -> None:
    served = serve()
    for path in ("/%1b%5b31mred", "/%00%07bell", "/a%0a2027-01-01%20forged=line", "/v1/models/%1b%5d0;title%07"):
        assert request(served.url(), "GET", path, served.secret)[0] == 404
    served.end()
    log = served.err.read_bytes()
    assert b"request_served" in log
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", log)
    assert b"\n2027" not in log


def test_a_json_log_is_json_in_every_line(serve: Serve) -> None:
    served = serve(GATEWAY_SERVER__LOG_FORMAT="json")
    url = served.url()
    for body in (ASK, {}, {**ASK, "model": "x\n\x1b"}):
        request(url, "POST", CHAT, served.secret, body)
    request(url, "GET", "/%0a%1b")
    served.end()
    events = [orjson.loads(line)["event"] for line in served.err.read_bytes().splitlines()]
    assert events.count("request_settled") == 3
    assert {"gateway_started", "request_served", "gateway_stopped"} <= set(events)


@pytest.mark.parametrize("verbose", [(), ("--verbose",)])
def test_requests_of_the_admin_api_and_the_console_are_logged_only_on_request(
    serve: Serve, verbose: tuple[str, ...]
) -> None:
    served = serve(*verbose, GATEWAY_SERVER__LOG_FORMAT="json")
    url = served.url()
    paths = ("/admin/v1/keys", "/console/sign-in", "/admin/v1/keys/99", "/v1/models")
    statuses = [request(url, "GET", path, served.secret if path == "/v1/models" else served.token)[0] for path in paths]
    assert statuses == [200, 200, 404, 200]
    served.end()
    logged = [line["path"] for line in map(orjson.loads, served.err.read_bytes().splitlines()) if "path" in line]
    expected = paths if verbose else paths[2:]
    assert [path for path in logged if path in paths] == list(expected)


async def test_the_message_of_a_start_waits_for_the_models_and_has_a_request_with_one(
    serve: Serve, tmp_path: Path
) -> None:
    asked = asyncio.Event()

    async def listing(_received: Received) -> None:
        asked.set()
        await asyncio.sleep(0.2)

    async with ScriptedUpstream([listing, answer({"object": "list", "data": [{"id": "late-model"}]})]) as up:
        config = tmp_path / "sync.toml"
        config.write_text(f'[[channel]]\nname = "up"\nprovider = "custom"\nbase_url = "{up.base_url}"\nsync = true\n')
        served = serve("--config", str(config))
        message = await asyncio.to_thread(lambda: served.message)
        assert asked.is_set()
        assert '"model":"late-model"' in message


async def test_sigterm_lets_a_running_stream_finish_and_writes_its_row(serve: Serve, tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    first, *rest = chat_events("a", "b", "c")
    async with ScriptedUpstream([SSE_HEAD, chunk(first), wait, *map(chunk, rest), LAST_CHUNK]) as up:
        served = serve("--config", write_config(tmp_path / "gateway.toml", up))
        url = await asyncio.to_thread(served.url)
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
            session.post(url + CHAT, json={**HELLO, "stream": True}) as response,
        ):
            assert await response.content.readany() == first
            served.process.send_signal(signal.SIGTERM)
            await until_refused(url)
            assert served.process.poll() is None
            go_on.set()
            assert (await response.read()).endswith(DONE)
        assert await asyncio.to_thread(served.process.wait, WAIT_LIMIT_S) == 0
    with contextlib.closing(sqlite3.connect(served.data / "gateway.db")) as database:
        rows = database.execute("SELECT outcome, status, completion_tokens FROM requests").fetchall()
    assert rows == [("completed", 200, 7)]


async def until_refused(url: str) -> None:
    """Return once nobody listens at ``url`` any more; fail where somebody goes on."""
    address, until = urlsplit(url), time.monotonic() + WAIT_LIMIT_S
    while time.monotonic() < until:
        try:
            _, writer = await asyncio.open_connection(address.hostname, address.port)
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # it had been let in to wait, and nobody will come
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        await asyncio.sleep(0.02)
    raise AssertionError(f"{url} still listens")


async def test_sigterm_breaks_off_what_does_not_finish_in_time_with_an_error_event(
    serve: Serve, tmp_path: Path
) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(event(delta("a"))), 30]) as up:
        config = write_config(tmp_path / "gateway.toml", up)
        served = serve("--config", config, GATEWAY_SERVER__DRAIN_TIMEOUT_S="0.2")
        url = await asyncio.to_thread(served.url)
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
            session.post(url + CHAT, json={**HELLO, "stream": True}) as response,
        ):
            await response.content.readany()
            served.process.send_signal(signal.SIGTERM)
            rest = await response.read()
        assert orjson.loads(rest.removeprefix(b"data: "))["error"]["code"] == "overloaded"
        assert await asyncio.to_thread(served.process.wait, WAIT_LIMIT_S) == 0
    with contextlib.closing(sqlite3.connect(served.data / "gateway.db")) as database:
        assert database.execute("SELECT outcome, status FROM requests").fetchall() == [("interrupted", 200)]


async def test_a_second_sigterm_breaks_off_what_the_first_lets_finish(serve: Serve, tmp_path: Path) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(event(delta("a"))), STALL]) as up:
        config = write_config(tmp_path / "gateway.toml", up)
        served = serve("--config", config, GATEWAY_SERVER__DRAIN_TIMEOUT_S="3600")
        url = await asyncio.to_thread(served.url)
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
            session.post(url + CHAT, json={**HELLO, "stream": True}) as response,
        ):
            await response.content.readany()
            served.process.send_signal(signal.SIGTERM)
            await until_refused(url)
            assert served.process.poll() is None
            served.process.send_signal(signal.SIGTERM)
            rest = await response.read()
        assert orjson.loads(rest.removeprefix(b"data: "))["error"]["code"] == "overloaded"
        assert await asyncio.to_thread(served.process.wait, WAIT_LIMIT_S) == 0


async def test_memory_stays_flat_through_a_hundred_thousand_events(serve: Serve, tmp_path: Path) -> None:
    many = chunk(event(delta("word ")) * EVENTS_A_CHUNK)
    last = chunk(b"".join(chat_events("end")))
    async with ScriptedUpstream([SSE_HEAD, *([many] * (EVENTS // EVENTS_A_CHUNK)), last, LAST_CHUNK]) as up:
        served = serve("--config", write_config(tmp_path / "gateway.toml", up), afresh=True)
        url = await asyncio.to_thread(served.url)
        seen, tail = 0, b""
        samples: list[Any] = []
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
            session.post(url + CHAT, json={**HELLO, "stream": True}) as response,
        ):
            async for piece in response.content.iter_any():
                seen += piece.count(b"\n\n")
                tail = (tail + piece)[-200:]
                if seen >= 10_000 * (len(samples) + 1):
                    samples.append(served.rss())
        assert tail.endswith(DONE)
        assert seen >= EVENTS
        growth = max(samples) - samples[0]
        print(f"{samples[0] / MB:.1f} MB after 10,000 events, at most {growth / MB:.1f} MB more")  # noqa: T201
        assert len(samples) >= 9
        assert growth < MAX_GROWTH
        assert served.rss() < MAX_RSS


async def test_two_hundred_requests_leave_no_descriptor_open(serve: Serve, tmp_path: Path) -> None:
    good, down = [answer(COMPLETION)], [answer(b"", 501)]  # which is not tried again
    stream = [SSE_HEAD, *map(chunk, chat_events("a")), LAST_CHUNK]
    async with ScriptedUpstream(*[good, stream, down] * 80) as up:
        served = serve("--config", write_config(tmp_path / "gateway.toml", up))
        url = await asyncio.to_thread(served.url)

        async def call(number: int) -> int:
            headers = {"Authorization": f"Bearer {KEY}"}
            body = {**HELLO, "stream": number % 3 == 1}
            async with aiohttp.ClientSession(headers=headers) as session, session.post(url + CHAT, json=body) as found:
                await found.read()
                return found.status

        assert {await call(number) for number in range(6)} == {200, 501}
        before = await settle(served)
        statuses = [await call(number) for number in range(6, 150)]
        statuses += await asyncio.gather(*(call(0) for _ in range(50)))
        assert {200, 501} <= set(statuses) <= {200, 501, 502}  # 502: a stream for a request that asked for none
        # Connections to the provider are kept for the next call; there are at most as many as ran side by side.
        after = await fall(served, lambda: before + up.open_connections)
        await up.__aexit__()
        rest = await fall(served, lambda: before)
        print(f"{before} descriptors before, {after} after, {rest} without the provider")  # noqa: T201


async def settle(served: Served) -> int:
    """The descriptors, once their number has stood still for a moment."""
    process, last = psutil.Process(served.process.pid), -1
    for _ in range(50):
        now: int = process.num_fds()
        if now == last:
            return now
        last = now
        await asyncio.sleep(0.1)
    return last


async def fall(served: Served, limit: Callable[[], int]) -> int:
    """The descriptors once they are no more than ``limit``; fail where some stay open."""
    now: int
    process, until = psutil.Process(served.process.pid), time.monotonic() + WAIT_LIMIT_S
    while (now := process.num_fds()) > limit():
        assert time.monotonic() < until, f"{now} descriptors are open, not at most {limit()}"
        await asyncio.sleep(0.05)
    return int(now)


def test_the_log_says_which_channel_failed_and_why(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(
        '[server]\nlog_format = "json"\n[[account]]\nname = "a"\n'
        f'[[key]]\nname = "k"\naccount = "a"\nsecret = "{KEY}"\n'
        '[[channel]]\nname = "dead"\nprovider = "custom"\nbase_url = "http://127.0.0.1:1/v1"\nmodels = ["m"]\n'
    )
    served = serve("--config", str(config))
    status, _ = request(served.url(), "POST", CHAT, KEY, HELLO)
    served.end()
    lines = [orjson.loads(line) for line in served.err.read_text().splitlines()]
    (failed,) = [line for line in lines if line["event"] == "attempt_failed"]
    assert status == 502
    assert (failed["channel"], failed["level"]) == ("dead", "warning")
    assert "127.0.0.1:1" in failed["reason"]


@pytest.mark.parametrize(
    ("more", "event", "models"),
    [
        pytest.param(SECOND, "configuration_reloaded", ["m", "n"], id="good"),
        pytest.param(SECOND + "weight = 0\ncolour = 'red'\n", "configuration_not_reloaded", ["m"], id="bad"),
        pytest.param(SECOND + "= =", "configuration_not_reloaded", ["m"], id="no TOML"),
    ],
)
async def test_sighup_reads_the_file_again_and_a_running_stream_does_not_feel_it(
    serve: Serve, tmp_path: Path, more: str, event: str, models: list[str]
) -> None:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    first, *rest = chat_events("a", "b", "c", usage=False)
    async with ScriptedUpstream([SSE_HEAD, chunk(first), wait, *map(chunk, rest), LAST_CHUNK]) as up:
        served = serve("--config", write_config(tmp_path / "gateway.toml", up))
        url = await asyncio.to_thread(served.url)
        assert await list_models(url) == ["m"]
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
            session.post(url + CHAT, json={**HELLO, "stream": True}) as response,
        ):
            assert await response.content.readany() == first
            write_config(tmp_path / "gateway.toml", up, more)
            served.process.send_signal(signal.SIGHUP)
            body = await served.logged("configuration_reloaded", "configuration_not_reloaded")
            assert await list_models(url) == models
            go_on.set()
            assert await response.read() == b"".join(rest)
    assert body["event"] == event
    reported = body["reason"] if event == "configuration_reloaded" else body["error"]
    for part in {"good": ["channel 'second' added"], "bad": ["channel[1].weight: ", "channel[1].colour: "]}.get(
        "good" if event == "configuration_reloaded" else "bad" if "weight" in more else "", ["TOML: "]
    ):
        assert part in reported
    assert await asyncio.to_thread(served.end) == 0
    assert "planted-provider-key" not in served.err.read_text() + served.out.read_text()


@pytest.mark.parametrize("moment", ["lock", "gateway.db"])
async def test_sighup_during_a_start_is_survived_and_heard(serve: Serve, tmp_path: Path, moment: str) -> None:
    """From when the folder is held, or the database is made: what the file says at the signal is what counts."""
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        served = serve("--config", write_config(tmp_path / "gateway.toml", up))
        async with asyncio.timeout(WAIT_LIMIT_S):
            while not (find_holder(served.data) if moment == "lock" else (served.data / moment).exists()):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        write_config(tmp_path / "gateway.toml", up, SECOND)
        served.process.send_signal(signal.SIGHUP)
        url = await asyncio.to_thread(served.url)
        await served.logged("configuration_reloaded")
        assert await list_models(url) == ["m", "n"]
        assert await asyncio.to_thread(served.end) == 0


async def test_many_signals_and_many_files_leave_a_gateway_that_serves_the_last(serve: Serve, tmp_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        served = serve("--config", write_config(tmp_path / "gateway.toml", up))
        url = await asyncio.to_thread(served.url)
        for number in range(20):
            write_config(tmp_path / "gateway.toml", up, SECOND + ("= =" if number % 3 == 1 else ""))
            served.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.01)
        write_config(tmp_path / "gateway.toml", up, SECOND.replace('"n"', '"last"'))
        served.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(WAIT_LIMIT_S):
            while await list_models(url) != ["last", "m"]:  # noqa: ASYNC110 - another process has no event to tend
                await asyncio.sleep(0.02)
        assert (await asyncio.to_thread(request, url, "POST", CHAT, KEY, HELLO))[0] == 200
        assert await asyncio.to_thread(served.end) == 0
    assert "Traceback" not in served.err.read_text()


async def test_sigterm_does_not_wait_for_a_provider_that_a_reload_is_asking(serve: Serve, tmp_path: Path) -> None:
    async with ScriptedUpstream([STALL]) as silent:
        served = serve("--config", write_config(tmp_path / "gateway.toml", silent))
        await asyncio.to_thread(served.url)
        synced = SECOND.replace("http://127.0.0.1:9/v1", silent.base_url) + "sync = true\n"
        write_config(tmp_path / "gateway.toml", silent, synced)
        served.process.send_signal(signal.SIGHUP)
        await served.logged("configuration_reloaded")
        async with asyncio.timeout(WAIT_LIMIT_S):
            while not silent.received:  # noqa: ASYNC110 - another process has no event to tend
                await asyncio.sleep(0.01)
        assert await asyncio.to_thread(served.end) == 0
        assert silent.hung_up.is_set()  # which it does when the gateway ends, not thirty seconds later
    assert "Traceback" not in served.err.read_text()


async def test_sighup_while_the_gateway_ends_is_nothing(serve: Serve, tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    first, *rest = chat_events("a", "b")
    async with ScriptedUpstream([SSE_HEAD, chunk(first), wait, *map(chunk, rest), LAST_CHUNK]) as up:
        served = serve("--config", write_config(tmp_path / "gateway.toml", up))
        url = await asyncio.to_thread(served.url)
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
            session.post(url + CHAT, json={**HELLO, "stream": True}) as response,
        ):
            assert await response.content.readany() == first
            served.process.send_signal(signal.SIGTERM)
            await served.logged("gateway_stopping")
            served.process.send_signal(signal.SIGHUP)
            go_on.set()
            assert (await response.read()).endswith(DONE)
        assert await asyncio.to_thread(served.process.wait, WAIT_LIMIT_S) == 0
    assert served.log("configuration_reloaded") == []


async def test_the_admin_api_reads_the_file_again_and_answers_what_that_changed(serve: Serve, tmp_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        served = serve("--config", write_config(tmp_path / "gateway.toml", up))
        url = await asyncio.to_thread(served.url)

        async def reload(token: str) -> tuple[int, Any]:
            status, body = await asyncio.to_thread(request, url, "POST", "/admin/v1/reload", token)
            return status, orjson.loads(body)

        assert (await reload(KEY))[0] == 401
        assert await reload(served.token) == (200, {"changes": [], "needs_restart": []})
        more = SECOND + "[server]\nmax_body_mb = 1\n"
        write_config(tmp_path / "gateway.toml", up, more)
        status, refused = await reload(served.token)
        assert (status, refused["error"]["code"]) == (400, "invalid_request")
        assert "TOML: " in refused["error"]["message"]  # there are two [server] tables
        path = tmp_path / "gateway.toml"
        path.write_text(path.read_text().replace("[server]\nmax_body_mb = 1\n", ""))
        path.write_text(path.read_text().replace('log_format = "json"', 'log_format = "json"\nmax_body_mb = 1'))
        assert await reload(served.token) == (
            200,
            {"changes": ["channel 'second' added"], "needs_restart": ["server.max_body_mb"]},
        )
        assert await list_models(url) == ["m", "n"]
        assert [line["reason"] for line in served.log("restart_required")] == ["read at start only: server.max_body_mb"]
        assert await asyncio.to_thread(served.end) == 0
    assert "planted-provider-key" not in served.err.read_text() + served.out.read_text()
