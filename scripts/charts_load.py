"""Charts of a gateway with 50 million requests: how long does the server take for a period?

    python scripts/charts_load.py [--keys 400] [--per-hour 11574] [--days 190] [--hours 5] [--keep FOLDER]

Makes a data folder whose tables of sums are as large as those of that many requests: 400 keys of 40 accounts ask for 60
models over 12 channels, with a dozen kinds of failures. The rows themselves exist for the last three hours only. Then
a gateway is started on it, and each chart is asked for 20 times. Printed: the median and the longest in milliseconds,
and the mean of the gateway's CPU time. Exit code 1 if one of 30 or 90 days took more than 300 at the median.
"""

import argparse
import math
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import attrs
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.domain.traffic import HOUR_MS, SUMMED_FIELDS
from gateway.storage.bulk import BulkInsert
from gateway.storage.row_mapping import REQUEST_COLUMNS, request_values
from gateway.storage.schema import requests
from scripts.poll_load import find_ports
from scripts.rows_load import FAILING, FAULTS, KEYS, MODELS, START_MS, World

LIMIT_MS = 300.0
ROUNDS = 20
RECENT_HOURS = 3
SPEED_HOURS = 24 * 4
_HISTOGRAM = f"[{','.join(f'{bucket},{bucket % 7 + 1}' for bucket in range(60, 100))}]"
_SUMS = ", ".join(SUMMED_FIELDS)


@attrs.frozen
class Cell:
    """Requests that are alike, and how many of them there are in an hour on average."""

    account: int
    key: int
    model: str
    channel: str
    status: int
    outcome: str
    code: str
    rate: float


def list_cells(keys: int, per_hour: float) -> list[Cell]:
    """List the kinds of requests of ``rows_load.World``."""
    world = World()
    cells = []
    weights = [1 / (place + 1) for place in range(keys)]
    for place in range(keys):
        key = world._keys[place % KEYS]  # noqa: SLF001 - the same world
        share = weights[place] / sum(weights)
        models = [
            (MODELS[number], (index + 1) ** (1 / 3) - index ** (1 / 3)) for index, number in enumerate(key.models)
        ]
        total = sum(weight for _, weight in models)
        for model, weight in models:
            channels = world._channels[MODELS.index(model)]  # noqa: SLF001
            for channel in set(channels):
                rate = per_hour * share * weight / total * channels.count(channel) / len(channels)
                owner = (key.account, place + 1)
                name = f"channel-{channel:02}"
                cells.append(Cell(*owner, model, name, 200, "completed", "", rate * (1 - FAILING)))
                for status, outcome, code, _, is_sent in FAULTS:
                    fault_model, fault_channel = "" if status == 404 else model, name if is_sent else ""
                    fault_rate = rate * FAILING / len(FAULTS)
                    cells.append(Cell(*owner, fault_model, fault_channel, status, outcome, code or "", fault_rate))
    return cells


def draw(rng: random.Random, cells: Sequence[Cell], hours: int) -> Iterator[tuple[Cell, int]]:
    """Draw the cells that occur in so many hours, and how often."""
    for cell in cells:
        mean = cell.rate * hours
        if mean > 8:
            yield cell, max(int(mean + math.sqrt(mean) * rng.gauss(0, 1)), 1)
        elif rng.random() < 1 - math.exp(-mean):
            yield cell, max(round(mean), 1)


def fill_sums(database: sqlite3.Connection, cells: Sequence[Cell], now_hour: int, days: int, hour_days: int) -> int:
    """Add the sums of so many days, and of the hours of the last ``hour_days``. Return the number of requests."""
    rng = random.Random(1)
    total = 0
    first = (now_hour // 24 - days + 1) * 24
    for day in range(first, now_hour + 1, 24):
        usage: defaultdict[tuple[object, ...], int] = defaultdict(int)
        failures: defaultdict[tuple[object, ...], int] = defaultdict(int)
        has_hours = day > now_hour - hour_days * 24
        for hour in range(day, min(day + 24, now_hour + 1)) if has_hours else (day,):
            spans = ((1, hour), (24, day)) if has_hours else ((24, day),)
            for cell, count in draw(rng, cells, 1 if has_hours else 24):
                total += count
                for span in spans:
                    owner = (*span, cell.account, cell.key, cell.model, cell.channel)
                    usage[(*owner, cell.status, cell.outcome)] += count
                    if cell.outcome != "completed":
                        failures[(*owner, cell.outcome, cell.code)] += count
        add_day(database, usage, failures)
    return total


def add_day(
    database: sqlite3.Connection, usage: dict[tuple[object, ...], int], failures: dict[tuple[object, ...], int]
) -> None:
    """Add the sums of a day and its hours."""
    rows = [
        (*key[:-1], count, 0 if key[-1] == "completed" else count, *(count * each for each in (2_000, 450, 700)),
         count * 900_000 if key[-1] == "completed" else 0, count * 2_300, count * 10_000)
        for key, count in usage.items()
    ]  # fmt: skip
    places = ", ".join("?" * (7 + len(SUMMED_FIELDS)))
    changes = ", ".join(f"{name} = {name} + excluded.{name}" for name in SUMMED_FIELDS)
    database.executemany(
        "INSERT INTO usage_hours (span, hour, account_id, key_id, model, channel, status, "  # noqa: S608 - constants
        f"{_SUMS}) VALUES ({places}) ON CONFLICT DO UPDATE SET {changes}",
        rows,
    )
    database.executemany(
        "INSERT INTO failure_hours VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [(*key, n) for key, n in failures.items()]
    )


def fill_speed(database: sqlite3.Connection, cells: Sequence[Cell], now_hour: int, days: int) -> None:
    """Add histograms for each day, and for the last hours."""
    completed = [cell for cell in cells if cell.outcome == "completed"]
    kinds = {("all", "", 0), *(("all", "", cell.account) for cell in completed)}
    kinds |= {("key", str(cell.key), cell.account) for cell in completed}
    kinds |= {("model", cell.model, account) for cell in completed for account in (0, cell.account)}
    kinds |= {("channel", cell.channel, 0) for cell in completed}
    first = (now_hour // 24 - days + 1) * 24
    spans = [(24, day) for day in range(first, now_hour + 1, 24)]
    spans += [(1, hour) for hour in range(now_hour - SPEED_HOURS, now_hour + 1)]
    for span in spans:
        database.executemany(
            "INSERT INTO speed_hours VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(*span, *kind, *[_HISTOGRAM] * 3) for kind in kinds],
        )


def fill_rows(database: sqlite3.Connection, per_hour: float, now_ms: int) -> int:
    """Add the rows of the last hours; return their number."""
    count = int(per_hour * RECENT_HOURS)
    add = BulkInsert(requests, REQUEST_COLUMNS).sqlite
    step_ms = RECENT_HOURS * HOUR_MS / count
    rows = (
        attrs.evolve(row, settled_ms=int(now_ms - (count - number) * step_ms), started_ms=START_MS)
        for number, row in enumerate(World().make(count))
    )
    database.executemany(add, map(request_values, rows))
    return count


def fill(path: Path, options: argparse.Namespace) -> None:
    """Add everything to the database of a new data folder."""
    began = time.monotonic()
    now_ms = int(time.time() * 1000)
    cells = list_cells(options.keys, options.per_hour)
    with closing(sqlite3.connect(path)) as database:
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -500000")
        total = fill_sums(database, cells, now_ms // HOUR_MS, options.days, options.hours)
        fill_speed(database, cells, now_ms // HOUR_MS, options.days)
        rows = fill_rows(database, options.per_hour, now_ms)
        database.commit()
        for table in ("usage_hours", "failure_hours", "speed_hours"):
            for span in (1, 24):
                ((number,),) = database.execute(f"SELECT count(*) FROM {table} WHERE span = {span}")  # noqa: S608
                print(f"{table}, span {span}: {number:,} rows")
    print(f"sums of {total:,} requests, {rows:,} rows, {path.stat().st_size / 2**20:,.0f} MB")
    print(f"in {time.monotonic() - began:.0f} s")


def list_questions() -> dict[str, dict[str, str]]:
    """The charts that pages ask for."""
    chosen: dict[str, dict[str, str]] = {
        "all": {}, "an account": {"account": "account-01"}, "a key": {"key": "1"}, "a model": {"model": MODELS[0]},
        "a channel": {"channel": "channel-03"}, "an account and a model": {"account": "account-01", "model": MODELS[0]},
    }  # fmt: skip
    questions = {}
    for days in (1, 3, 30, 90):
        for name, filters in chosen.items():
            for group in ("model", "key", "account", "channel", "status"):
                if group not in filters:
                    questions[f"{days} d, {name}, by {group}"] = {**filters, "group": group, "days": str(days)}
    return questions


class Gateway:
    """A gateway on a data folder."""

    def __init__(self, folder: Path) -> None:
        (port,) = find_ports(1)
        config = folder / "gateway.toml"
        accounts = "".join(f'[[account]]\nname = "account-{number:02}"\n' for number in range(1, 41))
        config.write_text(f"[server]\nport = {port}\n{accounts}")
        self._url = f"http://127.0.0.1:{port}"
        self._log = (folder / "log").open("wb")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--data", str(folder / "data")]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env={**os.environ})
        self._folder = folder

    def wait(self) -> None:
        for _ in range(6_000):
            try:
                with urllib.request.urlopen(f"{self._url}/readyz") as answer:  # noqa: S310 - our own
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise SystemExit((self._folder / "log").read_text())

    def ask(self, query: dict[str, str]) -> float:
        """Return how long the answer took, in milliseconds."""
        token = next((self._folder / "data").rglob("admin.token")).read_text().strip()
        asked = urllib.request.Request(  # noqa: S310
            f"{self._url}/admin/v1/usage/charts?{urlencode(query)}", headers={"Authorization": f"Bearer {token}"}
        )
        began = time.perf_counter()
        with urllib.request.urlopen(asked) as answer:  # noqa: S310
            answer.read()
        return (time.perf_counter() - began) * 1000

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def measure(gateway: Gateway, rounds: int, wanted: str) -> list[str]:
    """Print the times; return the questions that took too long."""
    slow = []
    now_s, process = time.time(), psutil.Process(gateway.process.pid)
    for name, query in list_questions().items():
        if wanted not in name:
            continue
        days = int(query.pop("days"))
        since_s = now_s // 3600 * 3600 - (days * 24 - 1) * 3600 if days < 3 else (now_s // 86400 - days + 1) * 86400
        query["since"] = time.strftime("%Y-%m-%dT%H:00:00Z", time.gmtime(since_s))
        began = process.cpu_times()
        times = [gateway.ask(query) for _ in range(rounds)]
        ended = process.cpu_times()
        cpu_ms = 1000 * (ended.user + ended.system - began.user - began.system) / rounds
        median = statistics.median(times)
        print(f"  {name:<40}{median:8.1f} ms, at most {max(times):8.1f}, CPU {cpu_ms:7.1f}", flush=True)
        if median > LIMIT_MS and days >= 30:
            slow.append(name)
    return slow


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=400)
    parser.add_argument("--per-hour", type=float, default=50_000_000 / 180 / 24)
    parser.add_argument("--days", type=int, default=190)
    parser.add_argument("--hours", type=int, default=5, help="the days whose hours are there")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", default="", help="questions whose names have this")
    parser.add_argument("--wait", type=float, default=0, help="seconds for work in the background")
    parser.add_argument("--keep", type=Path, help="the folder, made if missing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(exist_ok=True)
        is_new = not (folder / "data").exists()
        gateway = Gateway(folder)
        gateway.wait()
        if is_new:
            gateway.stop()
            (path,) = (folder / "data").rglob("gateway.db")
            fill(path, options)
            gateway = Gateway(folder)
            gateway.wait()
        try:
            time.sleep(options.wait)
            return 1 if measure(gateway, options.rounds, options.only) else 0
        finally:
            gateway.stop()


if __name__ == "__main__":
    sys.exit(main())
