"""Takes the README's picture: the console's overview of a gateway that has had two busy weeks.

    python scripts/screenshot.py [--to scripts/console.png] [--chromium /usr/bin/chromium]

Starts a gateway of its own over a folder that goes away again, gives it made-up requests, and looks at it in Chromium.
The version is noted in the picture; a test compares it with that of the tree. Needs the development packages.
"""

import argparse
import asyncio
import math
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import attrs
from playwright.async_api import async_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway import __version__
from gateway.domain.request_log import RequestRecord
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database

ROOT = Path(__file__).parent.parent
WIDTH, HEIGHT = 1440, 900
VERSION_KEYWORD = b"Software"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser")
HOURS = 14 * 24
HOUR_MS = 3_600_000
MODELS = (("gpt-5.1", 9_000), ("claude-sonnet-4.5", 7_500), ("gemini-2.5-pro", 4_000), ("deepseek-chat", 900),
          ("gpt-image-1", 40_000), ("text-embedding-3-small", 60))  # fmt: skip
"""And what a token of each costs in nano-USD, about."""
KEYS = ((1, "first"), (2, "blog search"), (3, "support bot"))
LINK = re.compile(r"http://\S+/console/setup#\S+")
_EMPTY = RequestRecord(
    id="", started_ms=0, settled_ms=0, operation="chat", account_id=1, account="local", key_id=1, key_name="first",
    model="", channel="openai", status=200, outcome="completed", error_code=None, stream=True, attempts=1,
    prompt_tokens=0, completion_tokens=0, cached_tokens=0, usage_source="upstream", cost_nanos=0, reserved_nanos=0,
    overrun_nanos=0, first_byte_ms=400, total_ms=2_000,
)  # fmt: skip


def make_weeks(until_ms: int) -> Iterator[RequestRecord]:
    """Requests of two weeks, more of them by day than by night, on workdays and in the second week."""
    rng, number = random.Random(7), 0
    for hour in range(HOURS):
        at_ms = until_ms - (HOURS - hour) * HOUR_MS
        swing = 1 + math.sin((at_ms // HOUR_MS % 24 - 9) / 24 * 2 * math.pi)
        weekend = 0.4 if (at_ms // (24 * HOUR_MS) + 3) % 7 > 4 else 1.0
        growth = 0.8 + 0.4 * hour / HOURS
        for _ in range(round(rng.uniform(8, 16) * (0.3 + swing) * weekend * growth)):
            number += 1
            yield make_one(rng, number, at_ms + rng.randrange(HOUR_MS))


def make_one(rng: random.Random, number: int, at_ms: int) -> RequestRecord:
    """One request; a few fail."""
    (model, nanos), (key_id, key_name) = rng.choices(MODELS, (8, 7, 4, 5, 1, 3))[0], rng.choices(KEYS, (2, 3, 4))[0]
    tokens, first_byte_ms = round(rng.lognormvariate(6, 0.8)), round(rng.lognormvariate(5.9, 0.35))
    row = attrs.evolve(
        _EMPTY, id=f"req_{number:024x}", started_ms=at_ms, settled_ms=at_ms + 2_000, key_id=key_id, key_name=key_name,
        model=model, first_byte_ms=first_byte_ms, total_ms=first_byte_ms + round(tokens * rng.uniform(8, 25)),
    )  # fmt: skip
    if rng.random() < 0.03:
        return attrs.evolve(row, status=503, outcome="failed", error_code="overloaded", first_byte_ms=None)
    cached_tokens = tokens if rng.random() < 0.4 else 0
    return attrs.evolve(
        row, prompt_tokens=2 * tokens, cached_tokens=cached_tokens, completion_tokens=tokens, cost_nanos=tokens * nanos
    )


async def store_weeks(path: Path) -> None:
    """Put the weeks into the database."""
    database = await open_database(f"sqlite:///{path}")
    rows = sorted(make_weeks(int(time.time() * 1000)), key=lambda row: row.settled_ms)
    try:
        for first in range(0, len(rows), 500):
            await LedgerRepository(database).post(rows[first : first + 500])
    finally:
        await database.close()


def start(data: Path) -> "tuple[subprocess.Popen[str], str]":
    """A gateway, and the link that makes its administrator."""
    command = [sys.executable, "-m", "gateway", "serve", "--data", str(data), "--port", "0"]
    gateway = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in gateway.stdout or ():
        if found := LINK.search(line):
            return gateway, found[0]
    raise SystemExit("the gateway did not start")


def end(gateway: "subprocess.Popen[str]") -> None:
    """As on SIGTERM."""
    gateway.terminate()
    gateway.wait(timeout=30)


async def look(link: str, chromium: str) -> bytes:
    """Become the administrator, make the keys and return the picture."""
    origin = link.partition("/console")[0]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        headers = {"X-Gateway-Console": "1", "Content-Type": "application/json"}
        reported = {"token": link.partition("#")[2], "name": "ada", "passphrase": "purple hedgehog wagon"}
        for path, body in (
            ("setup", reported),
            *(("keys", {"account": "local", "name": name}) for _, name in KEYS[1:]),
        ):
            answer = await page.context.request.post(f"{origin}/admin/v1/{path}", data=body, headers=headers)
            if not answer.ok:
                raise SystemExit(await answer.text())
        change = {"quota_usd": 250, "quota_period": "monthly"}
        await page.context.request.patch(f"{origin}/admin/v1/accounts/local", data=change, headers=headers)
        await page.goto(f"{origin}/console/")
        await page.wait_for_load_state("networkidle")
        image = await page.screenshot()
        await browser.close()
        return note_version(image)


def note_version(image: bytes) -> bytes:
    """Return a PNG with this version of the gateway in a text chunk, after its header of 33 bytes."""
    content = b"tEXt" + b"\0".join((VERSION_KEYWORD, __version__.encode()))
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    return image[:33] + chunk + image[33:]


def read_version(image: bytes) -> str:
    """Return the version that a picture was taken from; empty if it has none."""
    _, _, after = image.partition(b"tEXt" + VERSION_KEYWORD + b"\0")
    length = struct.unpack(">I", image[33:37])[0] - len(VERSION_KEYWORD) - 1
    return after[:length].decode() if after else ""


def main() -> int:
    """Take it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "scripts" / "console.png")
    parser.add_argument("--chromium", default=next(filter(None, map(shutil.which, BROWSERS)), "chromium"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gateway, _ = start(Path(folder))  # makes the account and its key
        end(gateway)
        asyncio.run(store_weeks(Path(folder) / "gateway.db"))
        gateway, link = start(Path(folder))
        try:
            args.to.write_bytes(asyncio.run(look(link, args.chromium)))
        finally:
            end(gateway)
    print(f"{args.to}: {args.to.stat().st_size / 1024:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
