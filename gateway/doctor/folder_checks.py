"""Checks of the data folder: permissions, journal, requests that the database refused, and free disk space."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from gateway.doctor.finding import Finding
from gateway.storage.data_folder import DATABASE, JOURNAL, SECRETS, UNSTORABLE
from gateway.storage.journal import parse_journal
from gateway.storage.media_files import MIN_FREE_BYTES
from gateway.storage.unstorable import count_unstorable

_PRIVATE_FILES = ("admin.token", DATABASE, f"{DATABASE}-wal", JOURNAL, UNSTORABLE, *SECRETS)
_OTHERS_ACCESS = stat.S_IRWXG | stat.S_IRWXO
_MIB = 1024 * 1024


def check_folder(data: Path) -> Iterator[Finding]:
    """Check the permissions of the folder and its private files."""
    problems = [*_check_access(data), *_check_privacy(data)]
    yield from problems or [Finding("folder", "ok", f"Only its owner can use the data folder {data.absolute()}")]


def _check_access(data: Path) -> Iterator[Finding]:
    """Yield the files that this user cannot use."""
    access = os.R_OK | os.W_OK
    paths = [data, *(data / name for name in _PRIVATE_FILES if (data / name).exists())]
    for path in paths:
        if not os.access(path, access | (os.X_OK if path is data else 0)):
            fix = f"Run the gateway and this command as the owner, or: chown -R $(id -un) {data}"
            yield Finding("folder", "problem", f"This user cannot read and write {path}", fix)


def _check_privacy(data: Path) -> Iterator[Finding]:
    """Yield the files that other users of the machine can use: reading a secret gives access to the API keys."""
    if data.stat().st_mode & _OTHERS_ACCESS:
        yield Finding("folder", "warning", f"Other users can look into {data}", f"chmod 700 {data}")
    for name in _PRIVATE_FILES:
        path = data / name
        if path.exists() and path.stat().st_mode & _OTHERS_ACCESS:
            yield Finding("folder", "problem", f"Other users can read {path}", f"chmod 600 {path}")


def check_journal(data: Path) -> Iterator[Finding]:
    """Check that every line of the journal can be read."""
    path = data / JOURNAL
    for journal_path in sorted(data.glob(f"{JOURNAL}.unread-*")):
        fix = "Its readable lines were settled. Remove it once you know what the others were"
        yield Finding("journal", "warning", f"{journal_path} has lines that an earlier start could not read", fix)
    try:
        requests, unreadable = parse_journal(path.read_bytes())
    except FileNotFoundError:
        yield Finding("journal", "ok", "There is no journal: no request waits to be settled")
        return
    except OSError as error:
        yield Finding("journal", "problem", f"{path} cannot be read: {error.strerror}", "Check its owner and its disk")
        return
    if unreadable:
        text = f"{path} is damaged: {unreadable} lines cannot be read, and may be charges"
        fix = "Restore the folder from a backup (gateway restore). Without one, a start settles the readable lines"
        yield Finding("journal", "problem", f"{text}", fix)
    else:
        yield Finding("journal", "ok", f"The journal can be read; requests in it: {len(requests)}")


def check_unstorable(data: Path) -> Iterator[Finding]:
    """Report requests that the database has refused to store."""
    path = data / UNSTORABLE
    try:
        row_count = count_unstorable(path)
    except OSError as error:
        yield Finding("records", "problem", f"{path} cannot be read: {error.strerror}", "Check its owner and its disk")
        return
    if row_count:
        text = f"The database has refused {row_count} requests: they were charged, and {path} has them with the reasons"
        yield Finding("records", "warning", text, "Report the reasons as a bug, and move the file away")


def check_space(data: Path, database: Path) -> Iterator[Finding]:
    """Check that the disk has space for requests and for a copy of the database."""
    free_bytes = shutil.disk_usage(data).free
    needed_bytes = database.stat().st_size if database.exists() else 0
    text = f"{free_bytes // _MIB} MiB are free on the disk of {data.absolute()}"
    if free_bytes < MIN_FREE_BYTES:
        fix = "Free space: new images are refused now, and soon every request"
        yield Finding("disk", "problem", text, fix)
    elif free_bytes < MIN_FREE_BYTES + needed_bytes:
        fix = f"Free space: a backup or an upgrade can need {needed_bytes // _MIB} MiB more"
        yield Finding("disk", "warning", text, fix)
    else:
        yield Finding("disk", "ok", text)
