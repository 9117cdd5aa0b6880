"""First paint of the console's lists over millions of request rows: what does the server need for each page?

    python scripts/pages_load.py FILE [--limit-ms 150]

FILE is a store that ``scripts/rows_load.py --keep FILE`` made. A gateway is started on it, at the end of its rows, with
1,000 channels and 5,000 keys. Printed: CPU milliseconds of the process, the database's thread included, the best of
three, and the bytes of the page. Exit code 1 where a page took more than the limit.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
from sqlalchemy import insert

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.auth.accounts import make_secret
from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.open import open_database
from gateway.storage.row_mapping import build_key_row
from gateway.storage.schema import keys
from gateway.storage.speed import SpeedRepository
from scripts.rows_load import CHANNELS, DAY_MS, DAYS, MODELS, ROUTE, START_MS
from tests.support.console import add_member, open_session
from tests.support.gateway import RunningGateway, make_template, start_gateway

LIMIT_MS = 150.0
ROUNDS = 3
ALL_CHANNELS, ALL_KEYS = 1_000, 5_000
SUMMED_ROWS = 100_000
PAGES = (
    "", "?span=24h", "?span=90d", "/requests", "/requests?last=7d", "/requests?last=90d",
    "/requests?last=90d&status=error", "/requests?last=30d&channel=channel-03", "/requests?last=30d&end_user=user-0",
    "/requests?last=7d&text=zebra", "/sessions", "/sessions?end_user=user-0", "/keys", "/keys?sort=-spent_usd",
    "/keys/1", "/accounts", "/accounts/acme", "/members", "/channels", "/channels?sort=success_ratio",
    "/channels/channel-03", "/channel-weights", "/usage", "/usage?end_user=user-0&span=30d",
    "/models", f"/models/{quote(MODELS[0], safe='')}", "/routes",
    f"/routes/{ROUTE}?last=7d", "/limits", "/prices", "/audit", "/videos", "/batches", "/files", "/live", "/health",
)  # fmt: skip


def make_config() -> Mapping[str, Any]:
    """Return a configuration whose channels have the names of those in the rows, and many others."""
    channels = [
        {
            "name": f"channel-{number:02}",
            "provider": "custom",
            "base_url": "http://127.0.0.1:9/v1",
            "api_key": f"key-of-channel-{number}",
            "models": MODELS if number < CHANNELS else [f"model-{number}"],
            "priority": number % 10,
        }
        for number in range(ALL_CHANNELS)
    ]
    route = {
        "name": ROUTE,
        "step": [{"models": [{"model": MODELS[0], "weight": 9}, MODELS[1]]}, {"models": [MODELS[2]]}],
    }
    return {"account": [{"name": "acme"}], "channel": channels, "route": [route], "billing": {"unpriced": "free"}}


async def sum_durations(path: Path) -> None:
    """Sum the durations of all rows, as a gateway's worker does: otherwise it would run beside the pages."""
    database = await open_database(f"sqlite:///{path}")
    speed = SpeedRepository(database, max_rows=SUMMED_ROWS)
    await speed.add_new_rows()
    while await speed.add_old_rows():
        pass
    await database.close()


async def add_keys(gateway: RunningGateway) -> None:
    """Add the keys in one statement."""
    services = gateway.app[SERVICES]
    accounts = services.auth.accounts
    account = await accounts.get_stored_account("acme")
    rows = [
        build_key_row(attrs.evolve(accounts.make_blank_key(account, make_secret()), name=f"key-{number:03}"))
        for number in range(1, ALL_KEYS + 1)
    ]

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(insert(keys), rows)

    await services.storage.database.write(work)
    await accounts.reload()


async def time_page(gateway: RunningGateway, session: str, path: str) -> tuple[float, int]:
    """Return the milliseconds and the bytes of a page, the client's part included."""
    best_ms, size = float("inf"), 0
    for _ in range(ROUNDS):
        began = time.process_time()
        url, headers = (
            f"{gateway.url}/console{path}",
            {"Cookie": f"{COOKIE}={session}", "Sec-Fetch-Site": "same-origin"},
        )
        async with gateway.client.get(url, headers=headers) as response:
            size = len(await response.read())
            if response.status != 200:
                raise SystemExit(f"{path}: status {response.status}")
        best_ms = min(best_ms, (time.process_time() - began) * 1000)
    return best_ms, size


async def run(store: Path, limit_ms: float) -> int:
    """Start the gateway, and time all pages."""
    end_s = (START_MS + DAYS * DAY_MS) / 1000
    ahead_s = end_s - time.time()
    with tempfile.TemporaryDirectory(prefix="pages-", dir=store.parent) as name:
        folder = Path(name) / "data"
        folder.mkdir()
        shutil.copy(store, folder / "gateway.db")  # a gateway makes the store its own
        await sum_durations(folder / "gateway.db")
        template = await make_template(Path(name) / "template.db")
        gateway = await start_gateway(folder, template, make_config(), clock=lambda: time.time() + ahead_s)
        gateway.audited = False
        await add_keys(gateway)
        session = await open_session(
            gateway, await add_member(gateway, f"ada-{time.time_ns()}", "administrator", "acme")
        )
        times = {}
        for path in PAGES:
            times[path] = await time_page(gateway, session, path)
            print(f"  {path or '/':<44}{times[path][0]:8.1f} ms {times[path][1]:10,} bytes", flush=True)
        await gateway.close()
    slow = [path or "/" for path, (spent_ms, _) in times.items() if spent_ms > limit_ms]
    if slow:
        print(f"more than {limit_ms:g} ms: {', '.join(slow)}")
    return 1 if slow else 0


def main() -> int:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--limit-ms", type=float, default=LIMIT_MS)
    wanted = parser.parse_args()
    return asyncio.run(run(wanted.store, wanted.limit_ms))


if __name__ == "__main__":
    sys.exit(main())
