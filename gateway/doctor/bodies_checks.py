"""Checks of kept bodies: how much there is, since when, and whether all of it can be read."""

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gateway.config.extras import list_missing_extras
from gateway.config.schema import Config
from gateway.doctor.finding import Finding
from gateway.storage.bodies.open_store import open_segment_store
from gateway.storage.bodies.segment_store import describe_other_owner
from gateway.storage.bodies.verification import check_bodies, find_mark, list_moved
from gateway.storage.media_location import BucketAddress, parse_location

_FOLDER = "bodies"
_MIB = 1024 * 1024
_ANY_AGE_S = 86_400.0


def check_kept_bodies(data: Path, database: Path | None, config: Config) -> Iterator[Finding]:
    """Check the segments of kept bodies: in the shared store if it is configured and usable, else in the data folder.

    A store is not usable without its extra. ``database`` is None if it is on a server: then nothing can be compared
    with it. Yields nothing if the data folder is checked, and has no kept bodies.
    """
    location = parse_location(config.store.bodies_url)
    is_installed = not any(problem.startswith("store.bodies_url") for problem in list_missing_extras(config))
    folder = data / _FOLDER
    if location is not None and is_installed:
        yield _check_store(location, database, sum(path.stat().st_size for path in folder.glob("*.segment")))
    elif folder.exists():
        yield from _check_folder(folder, database)


def _check_store(location: Path | BucketAddress, database: Path | None, waiting_bytes: int) -> Finding:
    """Check that the shared store is this gateway's, and has every segment that was moved there.

    ``waiting_bytes`` is the size of the segments that are still on this node.
    """
    store = open_segment_store(location)
    try:
        moved_names = set() if database is None else list_moved(database)
        if isinstance(location, Path) and location.is_dir() and database is not None and not moved_names:
            return Finding("bodies", "ok", f"Kept bodies are moved to {store.location}; none was moved yet")
        stored_names = set(asyncio.run(store.list_older(-_ANY_AGE_S)))
        stored_mark = asyncio.run(store.read_mark())
        is_foreign = database is not None and stored_mark not in ("", find_mark(database))
    except (OSError, sqlite3.Error) as error:
        fix = "Check store.bodies_url. Requests go on; what is kept meanwhile waits in the data folder"
        return Finding("bodies", "problem", f"The shared store of kept bodies cannot be used: {error}", fix)
    if is_foreign:
        fix = "Give this gateway a store.bodies_url of its own while the other one runs"
        return Finding("bodies", "warning", f"{store.location}: {describe_other_owner()}", fix)
    missing_count = len(moved_names - stored_names)
    text = f"{len(stored_names):,} segments of kept bodies are in {store.location}"
    if waiting_bytes:
        text = f"{text}, and {waiting_bytes / _MIB:,.1f} MiB wait on this node"
    if missing_count:
        fix = "Nothing restores them. Does a rule of the bucket delete old objects, or is store.bodies_url another one?"
        return Finding("bodies", "warning", f"{text}, and {missing_count:,} are missing there", fix)
    return Finding("bodies", "ok", text)


def _check_folder(folder: Path, database: Path | None) -> Iterator[Finding]:
    try:
        size = sum(path.stat().st_size for path in folder.glob("*.segment"))
        if database is None:
            yield Finding("bodies", "ok", f"Kept bodies take {size / _MIB:,.1f} MiB on this node")
            return
        check_result = check_bodies(database, folder)
    except (OSError, sqlite3.Error) as error:
        yield Finding(
            "bodies", "problem", f"The kept bodies in {folder} cannot be read: {error}", "Check owner and disk"
        )
        return
    oldest = (
        ""
        if check_result.oldest_ms is None
        else f", since {datetime.fromtimestamp(check_result.oldest_ms // 1000, UTC):%F}"
    )
    text = f"Bodies of {check_result.requests:,} requests are kept: {size / _MIB:,.1f} MiB{oldest}"
    if check_result.damaged:
        fix = "Nothing restores them. Delete the rest with 'gateway bodies delete', or let it expire"
        text = f"{text}. Those of {check_result.damaged:,} are damaged or missing: {check_result.problem}"
        yield Finding("bodies", "warning", text, fix)
    elif check_result.keyless:
        fix = f"Copy the data keys into {folder / 'keys'}, from where you keep them"
        yield Finding("bodies", "warning", f"{text}. Those of {check_result.keyless:,} have no data key here", fix)
    else:
        yield Finding("bodies", "ok", text)
