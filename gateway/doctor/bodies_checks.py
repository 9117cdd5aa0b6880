"""Checks of kept bodies: how much there is, since when, and whether all of it can be read."""

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gateway.doctor.finding import Finding
from gateway.storage.bodies.verification import check_bodies

_FOLDER = "bodies"
_MIB = 1024 * 1024


def check_kept_bodies(data: Path, database: Path | None) -> Iterator[Finding]:
    """Check the segments of kept bodies. ``database`` is None if it is on a server: then only their size is known."""
    folder = data / _FOLDER
    if not folder.exists():
        return
    try:
        size = sum(path.stat().st_size for path in folder.glob("*.segment"))
        if database is None:
            yield Finding("bodies", "ok", f"Kept bodies take {size / _MIB:,.1f} MiB on this node")
            return
        checked = check_bodies(database, folder)
    except (OSError, sqlite3.Error) as error:
        yield Finding(
            "bodies", "problem", f"The kept bodies in {folder} cannot be read: {error}", "Check owner and disk"
        )
        return
    oldest = "" if checked.oldest_ms is None else f", since {datetime.fromtimestamp(checked.oldest_ms // 1000, UTC):%F}"
    text = f"Bodies of {checked.requests:,} requests are kept: {size / _MIB:,.1f} MiB{oldest}"
    if checked.damaged:
        fix = "Nothing restores them. Delete the rest with 'gateway bodies delete', or let it expire"
        text = f"{text}. Those of {checked.damaged:,} are damaged or missing: {checked.problem}"
        yield Finding("bodies", "warning", text, fix)
    elif checked.keyless:
        fix = f"Copy the data keys into {folder / 'keys'}, from where you keep them"
        yield Finding("bodies", "warning", f"{text}. Those of {checked.keyless:,} have no data key here", fix)
    else:
        yield Finding("bodies", "ok", text)
