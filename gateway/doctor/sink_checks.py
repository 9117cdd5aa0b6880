"""Checks of the sinks that requests are delivered to."""

import socket
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from gateway.config.schema import Config
from gateway.config.sink_schema import SinkSpec
from gateway.doctor.finding import Finding
from gateway.domain.sink import BEHIND_AFTER_S
from gateway.storage.integrity_check import build_read_only_uri

TIMEOUT_S = 3.0
_PORTS = {"http": 80, "https": 443}


def check_sinks(config: Config, database: Path) -> Iterator[Finding]:
    """Check that each sink's receiver can be reached, and that no request has waited for long.

    Buckets are not asked, and the waiting requests of a PostgreSQL database are not looked at.
    """
    if not config.sink:
        return
    waiting_ms = {} if config.store.is_postgres else _read_waiting(database)
    for spec in config.sink:
        lag_s = time.time() - waiting_ms[spec.name] / 1000 if spec.name in waiting_ms else 0.0
        if lag_s >= BEHIND_AFTER_S:
            text = f"The oldest request that waits for the sink {spec.name} was settled {lag_s / 60:.0f} minutes ago"
            yield Finding("sink", "warning", text, f"See why: gateway sinks, gateway sinks test {spec.name}")
        yield _check_receiver(spec)


def _check_receiver(spec: SinkSpec) -> Finding:
    """Check that the receiver's port accepts a connection. Nothing is sent, because the receiver would keep it."""
    if spec.kind == "bucket":
        fix = f"Write a sample: gateway sinks test {spec.name}"
        return Finding("sink", "skipped", f"Nothing is written to the bucket of the sink {spec.name}", fix)
    url_parts = urlsplit(spec.url)
    place = url_parts.netloc.rpartition("@")[2]
    try:
        host, port = url_parts.hostname or "", url_parts.port or _PORTS[url_parts.scheme]
        place = f"{host}:{port}"
        socket.create_connection((host, port), TIMEOUT_S).close()
    except (OSError, ValueError) as error:  # ``ValueError``: no port, or a name that cannot be encoded
        text = f"The receiver of the sink {spec.name} cannot be reached at {place}: {error}"
        return Finding("sink", "problem", text, "Start it, or correct the url of the [[sink]]; requests wait for it")
    return Finding("sink", "ok", f"The receiver of the sink {spec.name} can be reached at {place}")


def _read_waiting(database: Path) -> Mapping[str, int]:
    """Return, by sink, when its oldest waiting request was settled, in Unix milliseconds.

    Sinks without one are left out. Empty if the database cannot be read.
    """
    try:
        with closing(sqlite3.connect(build_read_only_uri(database), uri=True)) as connection:
            return dict(connection.execute("SELECT name, waiting_ms FROM sinks WHERE waiting_ms IS NOT NULL"))
    except sqlite3.Error:  # of another version, or damaged, which another check reports
        return {}
