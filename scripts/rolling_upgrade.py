"""Do nodes of an older version and of this one serve together while each is replaced, without a failed request?

    .venv/bin/python -m scripts.rolling_upgrade --from REVISION [--nodes 3] [--journal disk] [--keep FOLDER]

The nodes of the older version are made from a revision of this repository's history, with the packages that it pins.
nginx and Caddy stand in front of them, as ``deploy`` has them. Callers ask for whole answers, streams and videos; one
spends a key to its limit. Meanwhile the nodes are replaced by this version, one after the other. Keys that are made and
disabled at nodes of one version must be served and refused at nodes of the other.

Exit code 1 if a request failed, if rows, charges and calls of the providers differ, or if ``gateway verify`` finds
something at any node. At the end a node of the older version is started again, and what it says is printed. The folder
``--keep`` keeps the older version for the next run, and in ``logs`` the logs of nodes and proxies of a run with
failures. Debian's packages ``postgresql``, ``nginx-light`` and ``caddy`` are needed.
"""

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import attrs
from typing_extensions import override

from gateway.storage.schema import OLDEST, REVISION
from tests.support.balancers import STREAM, Callers, run_caddy, run_nginx, wait_for_proxy
from tests.support.cluster import MASTER_KEY
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.postgres import owning_server
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.spending_callers import COST_NANOS, PRICE, RESERVED_NANOS, call, is_at_rest
from tests.support.video_scene import A_VIDEO, SECONDS, VIDEOS

ROOT = Path(__file__).resolve().parents[1]
KEYS = 6
CAP_NANOS = 600_000_000
"""Of the key that is spent to its limit: 50 requests."""
BETWEEN = 60
"""Requests that are answered at each proxy before the next node is replaced."""
WITHIN_S = 600.0
PATIENCE = 20.0
"""A busy machine makes a run longer, and its figures are the same."""
WAIT_S = 60.0
"""How long a caller waits for an answer, as the callers of ``Callers`` do."""
VIDEO_EVERY_S = 0.5
_PATIENT: dict[str, Any] = {"first_byte_timeout_s": 30, "idle_timeout_s": 30, "total_timeout_s": 60}
"""Of channels: the providers are in this process, which waits for a processor if the machine is busy."""
_PROGRAM = "import sys; sys.argv[0] = 'gateway'; from gateway.cli.main import main; main()"
_SUMS = """
SELECT (SELECT count(*) FROM requests WHERE outcome = 'completed') AS completed,
  (SELECT count(*) FROM requests WHERE outcome NOT IN ('completed', 'refused')) AS broken,
  (SELECT count(*) FROM entries WHERE kind = 'charge') AS charges,
  (SELECT coalesce(sum(cost_nanos), 0)::bigint FROM requests) AS of_rows,
  (SELECT coalesce(sum(amount_nanos), 0)::bigint FROM entries WHERE kind = 'charge') AS of_charges,
  (SELECT coalesce(sum(cost_nanos), 0)::bigint FROM usage_days) AS of_days,
  (SELECT coalesce(sum(reserved), 0)::bigint FROM credit_balances) AS reserved,
  (SELECT count(*) FROM credit_leases) AS leases
"""


@attrs.frozen
class Release:
    """An older version: its commit, its schema, and the folder where it is set up."""

    commit: str
    schema: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / ".venv" / "bin" / "python"


def find_release(revision: str, folder: Path) -> Release:
    """Find a revision whose nodes can be replaced one by one. Exits with what is wrong if there is none."""
    name = f"{revision}^{{commit}}"
    found = run("git", "rev-parse", "--verify", "--quiet", "--end-of-options", name, check=False)
    if found.returncode:
        fetch = "git fetch --unshallow gets the rest of a shallow clone"
        sys.exit(f"{revision!r} is not in the history of this repository ({fetch})")
    commit = found.stdout.strip()
    schema = run("git", "show", f"{commit}:gateway/storage/schema.py", check=False).stdout
    if run("git", "cat-file", "-e", f"{commit}:gateway/cluster/__init__.py", check=False).returncode:
        sys.exit(f"{revision} has no clusters: stop that gateway, and start this version with its data folder")
    number = re.search(r'^REVISION = "(\d+)"', schema, re.MULTILINE)
    if number is None or number[1] < OLDEST:
        oldest = f"nodes older than schema {OLDEST} take no requests beside this version"
        sys.exit(f"{revision} has schema {number[1] if number else 'unknown'}: {oldest}")
    return Release(commit, number[1], folder / commit[:12])


def set_up(release: Release) -> None:
    """Make the folder of an older version, with its pinned packages and the driver of PostgreSQL."""
    if release.python.exists():
        return
    release.folder.mkdir(parents=True)
    with subprocess.Popen(["git", "archive", release.commit], cwd=ROOT, stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x"], cwd=release.folder, stdin=archive.stdout, check=True)
    run("make", "-s", ".venv/run.stamp", cwd=release.folder)
    pins = (release.folder / "scripts" / "pins-dev.txt").read_text()
    driver = re.search(r"^asyncpg==(?:.*\\\n)*.*$", pins, re.MULTILINE)
    if driver is None:
        sys.exit(f"{release.commit} pins no asyncpg in scripts/pins-dev.txt")
    wanted = release.folder / "driver.txt"
    wanted.write_text(driver[0])
    run(str(release.python), "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "-r", str(wanted))


def run(*words: str, cwd: Path = ROOT, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end. With ``check`` this program exits if it failed."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done


class ReleasedNode(GatewayProcess):
    """A node of an older version."""

    def __init__(self, release: Release, data: Path, tables: dict[str, Any]) -> None:
        super().__init__(data, tables, patience=PATIENCE)
        self._release = release

    @override
    def launch(self) -> None:
        options = ("--port", str(self.port), "--data", str(self.data), "--config", str(self.config))
        with self.err.open("wb") as err:
            self._process = subprocess.Popen(
                [self._release.python, "-c", _PROGRAM, "serve", *options],
                cwd=self._release.folder,
                env={"PATH": "/usr/bin:/bin", "GATEWAY_DISCOVER": "0"},
                stdout=subprocess.DEVNULL,
                stderr=err,
            )


@attrs.define
class Load:
    """All requests of a run, through each of ``proxies``, and what became of them.

    Attributes:
        made: answers by kind; each is a call of a provider.
        failed: what went wrong, in words.
    """

    proxies: Sequence[str]
    callers: Sequence[Callers]
    capped: aiohttp.ClientSession
    videos: aiohttp.ClientSession
    made: Counter[str] = attrs.Factory(Counter)
    failed: list[str] = attrs.Factory(list)
    refused: int = 0
    going_on: bool = True

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Ask while the block runs, then wait for the last answers and the last videos."""
        works: list[Coroutine[Any, Any, None]] = [self._spend(), self._make_videos()]
        works += (callers.run(number) for callers in self.callers for number in range(KEYS))
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            self.going_on = False
            for callers in self.callers:
                callers.going_on = False
            for done in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(done, BaseException):
                    self.failed.append(repr(done))
            for callers in self.callers:
                self.made += callers.done
                self.failed += callers.failed

    async def wait(self, more: int) -> None:
        until = [callers.done.total() + more for callers in self.callers]

        async def is_reached() -> bool:
            return all(callers.done.total() >= each for callers, each in zip(self.callers, until, strict=True))

        await eventually(is_reached, WITHIN_S)

    async def _spend(self) -> None:
        """Spend the key with the limit, also when nothing is left."""
        number = 0
        while self.going_on:
            number += 1
            status, body = await self._ask(self.capped, "POST", "/v1/chat/completions", number, _CHAT)
            if status == 200:
                self.made["capped"] += 1
            elif status == 403 and self.made["capped"]:
                self.refused += 1
            else:
                self.failed.append(f"limited key: {status} {body}")
            await asyncio.sleep(0.1)

    async def _make_videos(self) -> None:
        """Submit videos, and ask for each until it has ended."""
        number, following = 0, []
        while self.going_on:
            number += 1
            fields = {"model": "v", "prompt": f"video {number}", "seconds": str(SECONDS)}
            status, body = await self._ask(self.videos, "POST", VIDEOS, number, fields)
            if status == 200:
                self.made["videos"] += 1
                following.append(asyncio.create_task(self._follow(body["id"], number)))
            else:
                self.failed.append(f"video: {status} {body}")
            await asyncio.sleep(VIDEO_EVERY_S)
        await asyncio.gather(*following)

    async def _follow(self, video: str, number: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while True:
                number += 1
                status, body = await self._ask(self.videos, "GET", f"{VIDEOS}/{video}", number)
                if status != 200 or body["status"] == "failed":
                    self.failed.append(f"video {video}: {status} {body}")
                    return
                if body["status"] == "completed":
                    return
                await asyncio.sleep(0.5)

    async def _ask(
        self, caller: aiohttp.ClientSession, method: str, path: str, number: int, body: object = None
    ) -> tuple[int, Any]:
        url = self.proxies[number % len(self.proxies)] + path
        try:
            async with caller.request(method, url, json=body) as response:
                return response.status, await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return 0, repr(error)


_CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}


@attrs.define
class Trial:
    """The nodes of one run; ``nodes`` changes as they are replaced."""

    release: Release
    tables: dict[str, Any]
    url: str
    nodes: list[GatewayProcess]
    served: int = 0
    """Requests that ``check_both_ways`` was answered."""

    async def kill(self) -> None:
        """End every node that still runs."""
        for node in self.nodes:
            await node.kill()

    async def replace(self, number: int) -> None:
        """Stop a node in order, and start this version at its address with its data folder."""
        old = self.nodes[number]
        port = int(old.url.rpartition(":")[2])
        status = await old.end()
        if status:
            raise AssertionError(f"the node ended with {status}:\n{old.err.read_text()[-2000:]}")
        old.err.rename(old.err.with_suffix(".older"))
        # Not forked off another process: the first start of that one would stop callers and providers for seconds.
        command = ("-c", _PROGRAM, "serve")
        self.nodes[number] = GatewayProcess(old.data, self.tables, command=command, port=port, patience=PATIENCE)
        await self.nodes[number].start()

    async def check_both_ways(self) -> None:
        """A key that is made and disabled at any node is served and refused at another, whatever their versions."""
        for number, maker in enumerate(self.nodes):
            user = self.nodes[number - 1]
            key = await maker.ask("keys", {"name": f"both{self.served}", "account": "acme"})
            await self._wait_for(user, key["secret"], 200)
            await maker.ask(f"keys/{key['id']}", {"status": "disabled"}, "PATCH")
            await self._wait_for(user, key["secret"], 401)

    async def _wait_for(self, node: GatewayProcess, secret: str, status: int) -> None:
        async def is_answered() -> bool:
            found = await call(node, secret)
            self.served += found == 200
            return found == status

        await eventually(is_answered, WITHIN_S)

    async def check(self, load: Load, provider_calls: int) -> list[str]:
        """Compare answers, calls, rows and charges of all nodes at rest; return what is wrong."""
        await eventually(lambda: is_at_rest(self.nodes), WITHIN_S)
        connection = await asyncpg.connect(self.url)
        try:
            found = dict(await connection.fetchrow(_SUMS))
        finally:
            await connection.close()
        answered = load.made.total() + self.served
        print(f"answers {dict(load.made)} and {self.served} of other keys; refused at the limit {load.refused}")
        print(f"calls of providers {provider_calls}; database {found}")
        checks = {
            "answers, calls of providers, rows and charges differ": len(
                {answered, provider_calls, found["completed"], found["charges"]}
            )
            == 1,
            "requests broke off": not found["broken"],
            "the sums of rows, charges and days differ": found["of_rows"] == found["of_charges"] == found["of_days"],
            "credit is still reserved": not found["reserved"],
            "the limited key was not spent to its limit": (
                0 <= CAP_NANOS - load.made["capped"] * COST_NANOS < RESERVED_NANOS and load.refused
            ),
        }
        wrong = [what for what, holds in checks.items() if not holds]
        for node in self.nodes:
            done = run(sys.executable, "-m", "gateway", "verify", "--data", str(node.data), check=False)
            wrong += [f"gateway verify: {done.stdout}{done.stderr}"] if done.returncode else []
        return wrong

    async def go_back(self) -> None:
        """Start a node of the older version in the place of one of this version, and print what it says."""
        node = self.nodes[0]
        await node.end()
        older = ReleasedNode(self.release, node.data, self.tables)
        if self.release.schema == REVISION:
            async with older:
                print(f"the older version has the same schema, {REVISION}, and starts again")
            return
        older.launch()
        status = await older.wait()
        print(f"the older version ends with {status} and says: {older.err.read_text()[-1000:]}")


def make_tables(urls: Sequence[str], videos: OpenAiVideos, url: str, journal: str) -> dict[str, Any]:
    """Return the configuration of every node."""
    chats, streams = urls
    return {
        "server": {"log_format": "json", "shutdown_delay_s": 2.5, "trusted_proxies": ["127.0.0.1"]},
        "channel": [
            channel(chats, **_PATIENT),
            channel(streams, "streams", models=["s"], **_PATIENT),
            videos.channel("videos", models=["v"], **_PATIENT),
        ],
        "account": [{"name": "acme"}],
        "price": [PRICE, {**PRICE, "model": "s"}, {"model": "v", "usd_per_second": A_VIDEO / 1e9 / SECONDS}],
        "egress": {"allow": ["127.0.0.1"]},
        "store": {"url": url, "master_key": MASTER_KEY},
        "cluster": {"enabled": True, "journal": journal},
    }


@asynccontextmanager
async def open_load(trial: Trial, folder: Path) -> AsyncIterator[Load]:
    """Put nginx and Caddy in front of the nodes, and make callers with keys of their own."""
    ask = trial.nodes[0].ask
    names = [("limited", CAP_NANOS / 1e9), ("videos", 1e6), *((f"k{number}", 1e3) for number in range(2 * KEYS))]
    secrets = [
        (await ask("keys", {"name": name, "account": "acme", "quota_usd": quota}))["secret"] for name, quota in names
    ]
    async with AsyncExitStack() as stack:
        made = []
        for number, run_proxy in enumerate((run_nginx, run_caddy)):
            place = folder / run_proxy.__name__
            place.mkdir()
            url = stack.enter_context(run_proxy(place, trial.nodes))
            await wait_for_proxy(url, place / "error")
            made.append((url, Callers(url, secrets[2 + number * KEYS :][:KEYS], place / "error")))
        capped, videos = [await stack.enter_async_context(open_caller(secret, WAIT_S)) for secret in secrets[:2]]
        yield Load([url for url, _ in made], [callers for _, callers in made], capped, videos)


async def upgrade(release: Release, folder: Path, count: int, journal: str) -> list[str]:
    """Replace every node under load. Return what is wrong."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(owning_server())
        await server.execute("CREATE DATABASE upgraded")
        url = server.name_url("upgraded")
        chats = await stack.enter_async_context(ScriptedUpstream([0.02, answer(COMPLETION)]))
        streams = await stack.enter_async_context(ScriptedUpstream(STREAM))
        plays = Play(polls=("queued", "in_progress", "completed"), hint_ms=1000, size=2_000)
        films = await stack.enter_async_context(OpenAiVideos(plays))
        tables = make_tables((chats.base_url, streams.base_url), films, url, journal)
        nodes: list[GatewayProcess] = [ReleasedNode(release, folder / f"node{each}", tables) for each in range(count)]
        trial = Trial(release, tables, url, nodes)
        stack.push_async_callback(trial.kill)
        for node in nodes:
            await node.start()
        load = await stack.enter_async_context(open_load(trial, folder))
        async with load.run():
            for number in range(count):
                await load.wait(BETWEEN)
                await trial.check_both_ways()
                await trial.replace(number)
                print(f"replaced {number + 1} of {count}: {sum(each.done.total() for each in load.callers)} answers")
            await load.wait(BETWEEN)
            await trial.check_both_ways()
        calls = len(chats.received) + len(streams.received) + len(films.submits)
        wrong = [*load.failed, *await trial.check(load, calls)]
        await trial.go_back()
        return wrong


def keep_logs(folder: Path, kept: Path) -> None:
    """Copy the logs of nodes and proxies over those of the former run that failed."""
    kept.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.err", "*.older", "run_*/error"):
        for log in folder.glob(pattern):
            shutil.copy(log, kept / "-".join(log.relative_to(folder).parts))


def main() -> None:
    """Upgrade as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="revision", required=True)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--journal", choices=("disk", "store"), default="disk")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="upgrade-") as folder:
        release = find_release(asked.revision, (asked.keep or Path(folder)).resolve())
        print(f"from {release.commit[:12]}, schema {release.schema}, to schema {REVISION}")
        set_up(release)
        wrong = asyncio.run(upgrade(release, Path(folder), asked.nodes, asked.journal))
        if wrong and asked.keep:
            keep_logs(Path(folder), asked.keep / "logs")
    print(f"{len(wrong)} wrong" if wrong else "no request failed, and the books agree")
    print(*wrong[:20], sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
