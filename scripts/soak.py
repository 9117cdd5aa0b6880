"""Runs a real gateway under mixed load with faults and leaving callers, and says what it cost and whether it leaked.

    .venv/bin/python scripts/soak.py --seconds 60

Three channels serve one model, the third in another language than most callers'. The second is broken for the middle
third of the time, and breaks off one stream in a hundred at any other. About half of the calls are streams, one in five
is asked in Anthropic's language, and one in a hundred leaves half-way. One in fifty is a picture, an edit of one, or a
recording to be heard, over channels of their own. Exit code 1 where a request has no row or more than one, where the
books do not agree, where memory grows, where descriptors or tasks are left over, where the log tells of a bug, where
more than one call in a hundred fails, or where the broken channel was not left alone and taken back.
"""

import argparse
import asyncio
import collections
import os
import random
import sqlite3
import sys
import tempfile
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.storage.data_folder import find_holder
from tests.support import anthropic_cassettes as messages
from tests.support.image_providers import draw
from tests.support.openai_audio import OpenAiAudio, make_wav
from tests.support.openai_images import CustomPictures
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    Received,
    Script,
    ScriptedUpstream,
    Step,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)

KEY = "sk-soak-soak-soak-soak"
RARELY = 0.01
SETTLE_S = 2.0
LOOKS = 10
MAX_GROWTH_MB = 6.0
"""In the second half: what is needed at a time was needed in the first."""
SELDOM = 0.02
PLANNED = ("json", "stream", "left half-way", "generations", "edits", "transcriptions")
SOUND = make_wav(2.0, 48_000)
IMAGE = draw(512, 512)
EVERY_CALL = frozenset({"request_settled", "request_served"})
WORDS = [f" word{index}" for index in range(40)]
PACE_S = 0.002
CHAT_ANSWER = [answer(COMPLETION)]
CHAT_STREAM = [step for part in chat_script(*WORDS) for step in (part, PACE_S)]
MESSAGES_ANSWER = [
    answer(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 5, "output_tokens": 7},
        },
    ),
]
MESSAGES_EVENTS = [
    messages.begin("msg_1"),
    messages.start(0, "text", text=""),
    *(messages.text(0, word) for word in WORDS),
    messages.stop(0),
    messages.finish("end_turn", output_tokens=7),
    messages.STOP,
]
MESSAGES_STREAM = [SSE_HEAD, *(step for part in MESSAGES_EVENTS for step in (chunk(part), PACE_S)), LAST_CHUNK]
BROKEN_OFF = [SSE_HEAD, chunk(event(delta("half"))), FIN]
DOWN = ([answer({"error": {"message": "on fire"}}, 500)], [RST])
HEAD = f"""
[server]
port = 0
log_format = "json"
[routing]
cooldown_s = 1
max_cooldown_s = 2
warm_up_s = 2
[[account]]
name = "soak"
quota_usd = 1000000
quota_period = "monthly"
rpm = 100000000
[[key]]
name = "soak"
account = "soak"
secret = "{KEY}"
quota_usd = 1000000
tpm = 1000000000
max_concurrency = 10000
[[price]]
model = "m"
input_usd_per_million = 2.5
output_usd_per_million = 10
"""
CHANNEL = """
[[channel]]
name = "{name}"
provider = "{provider}"
base_url = "{base_url}"
models = ["m"]
"""
PLAIN_CHANNEL = """
[[channel]]
name = "{model}"
provider = "{provider}"
base_url = "{base_url}"
api_key = "provider-key"
models = ["{model}"]
model_map = {{ {model} = "{theirs}" }}
"""


class Provider(ScriptedUpstream):
    """Answers as it is asked, whole or as a stream; ``down``, not at all."""

    def __init__(self, whole: Script, stream: Script, *, rarely: Script | None = None) -> None:
        super().__init__([self._answer])
        self._whole, self._stream, self._rarely = whole, stream, rarely
        self.down = False

    async def _answer(self, _received: Received) -> None:
        """The one step of its script, which ``_play`` plays another for."""

    async def _play(
        self,
        step: Step,  # noqa: ARG002 - there is but one
        received: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        for part in self._choose(received):
            if not await super()._play(part, received, reader, writer):
                return False
        return True

    def _choose(self, received: Received) -> Script:
        if self.down:
            return random.choice(DOWN)
        if not received.json.get("stream"):
            return self._whole
        return self._rarely if self._rarely and random.random() < RARELY else self._stream


@attrs.frozen
class Measure:
    """The gateway's process at one moment."""

    cpu_s: float
    resident_mb: float
    descriptors: int

    @classmethod
    def take(cls, process: psutil.Process) -> "Measure":
        """Now."""
        times = process.cpu_times()
        return cls(times.user + times.system, process.memory_info().rss / 1e6, process.num_fds())


@attrs.define
class Soak:
    """The callers and what became of their calls."""

    url: str
    calls: int = 0
    outcomes: collections.Counter[str] = attrs.Factory(collections.Counter)

    async def run(self, callers: int, seconds: float) -> None:
        """``callers`` of them, each calling again and again for ``seconds``."""
        until = time.monotonic() + seconds
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(self._caller(session, until) for _ in range(callers)))

    async def _caller(self, session: aiohttp.ClientSession, until: float) -> None:
        while time.monotonic() < until:
            self.calls += 1
            try:
                self.outcomes[await self._call(session)] += 1
            except aiohttp.ClientError as error:
                self.outcomes[type(error).__name__] += 1

    async def _upload(self, session: aiohttp.ClientSession) -> str:
        """A picture, an edit or a transcript."""
        kind = random.choice(["images/generations", "images/edits", "audio/transcriptions"])
        if kind == "images/generations":
            body: dict[str, Any] = {"json": {"model": "painter", "prompt": "hi", "response_format": "url"}}
        else:
            form = aiohttp.FormData({"model": "painter" if "edits" in kind else "listener", "prompt": "hi"})
            name, file = ("image", IMAGE) if "edits" in kind else ("file", SOUND)
            form.add_field(name, file, filename="file.wav" if name == "file" else "file.png")
            body = {"data": form}
        async with session.post(f"{self.url}/v1/{kind}", **body) as response:
            await response.read()
        return kind.rpartition("/")[2] if response.status == 200 else f"{kind} status {response.status}"

    async def _call(self, session: aiohttp.ClientSession) -> str:
        if random.random() < SELDOM:
            return await self._upload(session)
        kind, stream = random.choices(["chat/completions", "messages"], [4, 1])[0], random.random() < 0.5
        body = {"model": "m", "stream": stream, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
        async with session.post(f"{self.url}/v1/{kind}", json=body) as response:
            if stream and random.random() < 2 * RARELY:
                await response.content.readany()
                response.close()
                return "left half-way"
            raw = await response.read()
        if response.status != 200:
            return f"status {response.status}"
        if not stream:
            return "json"
        whole = raw.endswith(b"data: [DONE]\n\n") or b"event: message_stop\n" in raw[-100:]
        return "stream" if whole else "stream with an error event"


async def soak(seconds: float, callers: int) -> bool:
    """The whole run. True where nothing was lost or left over."""
    async with AsyncExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shaky = Provider(CHAT_ANSWER, CHAT_STREAM, rarely=BROKEN_OFF)
        providers = {
            "steady": ("custom", Provider(CHAT_ANSWER, CHAT_STREAM)),
            "shaky": ("custom", shaky),
            "translated": ("anthropic", Provider(MESSAGES_ANSWER, MESSAGES_STREAM)),
        }
        config = HEAD
        for name, (slug, provider) in providers.items():
            up = await stack.enter_async_context(provider)
            config += CHANNEL.format(name=name, provider=slug, base_url=up.base_url)
        image_backend, listener = CustomPictures(), OpenAiAudio()
        await stack.enter_async_context(image_backend)
        await stack.enter_async_context(listener)
        for made, model in ((image_backend, "painter"), (listener, "listener")):
            config += PLAIN_CHANNEL.format(model=model, provider=made.slug, base_url=made.base_url, theirs=made.model)
        (path / "gateway.toml").write_text(config)
        log = stack.enter_context((path / "log").open("wb"))
        command = ["-m", "gateway", "serve", "--config", f"{path}/gateway.toml", "--data", f"{path}/data"]
        environ = {**os.environ, "GATEWAY_DISCOVER": "0"}
        gateway = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=log, stderr=log, env=environ)
        try:
            good = await _drive(path / "data", psutil.Process(gateway.pid), seconds, callers, shaky)
        finally:
            gateway.terminate()
            status = await gateway.wait()
            print(f"exit code {status}")
        quiet = _report_log(path / "log")
    return good and quiet and status == 0


async def _drive(data: Path, process: psutil.Process, seconds: float, callers: int, shaky: Provider) -> bool:
    while not (url := (find_holder(data) or {}).get("url")):
        await asyncio.sleep(0.05)
    warm = Soak(url)
    await warm.run(callers, 2.0)
    await asyncio.sleep(SETTLE_S)
    before, well = Measure.take(process), await _ask(url, data, "health")
    run = Soak(url)
    resident: list[float] = []
    await asyncio.gather(run.run(callers, seconds), _break(shaky, seconds), _weigh(process, seconds, resident))
    await asyncio.sleep(SETTLE_S)
    after = Measure.take(process)
    calls = warm.calls + run.calls
    outcomes, channels = (_count_rows(data / "gateway.db", column) for column in ("outcome", "channel"))
    rows, failed = sum(outcomes.values()), run.calls - sum(run.outcomes[name] for name in PLANNED)
    print(f"{run.calls} calls in {seconds:g} s: {run.calls / seconds:.0f} a second; {failed} failed")
    print(f"outcomes: {dict(run.outcomes)}")
    print(f"CPU {(after.cpu_s - before.cpu_s) / run.calls * 1e6:.0f} us a call")
    along = ", ".join(f"{mb:.1f}" for mb in resident)
    print(f"resident {before.resident_mb:.1f} -> {after.resident_mb:.1f} MB; on the way {along}")
    ended = await _ask(url, data, "health")
    print(f"tasks {well['tasks']} -> {ended['tasks']}, calls under way {ended['running']}")
    print(f"descriptors {before.descriptors} -> {after.descriptors}")
    print(f"rows {rows} for {calls} calls: {outcomes}, {channels}")
    audit = await _ask(url, data, "audit")
    print(f"audit: {audit}")
    books_agree = audit["ok"] and audit["open_holds"] == 0
    few_failed = failed <= run.calls * RARELY
    flat = after.resident_mb <= resident[len(resident) // 2] + MAX_GROWTH_MB
    kept = after.descriptors <= before.descriptors + callers // 2 and ended["tasks"] <= well["tasks"] + callers // 2
    return books_agree and few_failed and rows == calls and flat and kept


async def _weigh(process: psutil.Process, seconds: float, resident: list[float]) -> None:
    for _ in range(LOOKS):
        await asyncio.sleep(seconds / (LOOKS + 1))
        resident.append(process.memory_info().rss / 1e6)


async def _break(shaky: Provider, seconds: float) -> None:
    await asyncio.sleep(seconds / 3)
    shaky.down = True
    await asyncio.sleep(seconds / 3)
    shaky.down = False


async def _ask(url: str, data: Path, door: str) -> dict[str, Any]:
    token = (data / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{url}/admin/v1/{door}") as response:
        return dict(await response.json())


def _count_rows(database: Path, column: str) -> dict[str, int]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return dict(connection.execute(f"SELECT {column}, COUNT(*) FROM requests GROUP BY {column}").fetchall())  # noqa: S608


def _report_log(path: Path) -> bool:
    """Print what the log says how often. False where it tells of a bug, or the broken channel was not seen to be so."""
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.startswith(b"{")]
    said = collections.Counter((line["level"], line["event"], line.get("channel")) for line in lines)
    for (level, name, channel), times in sorted(said.items(), key=str):
        if name not in EVERY_CALL:
            print(f"log: {level} {name}{f' {channel}' if channel else ''}: {times}")
    surprises = [line for line in lines if line["level"] in {"error", "critical"} or "exception" in line]
    for line in surprises[:5]:
        print(line)
    seen = said["warning", "channel_tripped", "shaky"] and said["info", "channel_recovered", "shaky"]
    return bool(seen) and not surprises


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--callers", type=int, default=50)
    given = parser.parse_args()
    sys.exit(0 if asyncio.run(soak(given.seconds, given.callers)) else 1)


if __name__ == "__main__":
    main()
