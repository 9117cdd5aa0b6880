"""Restores a backup into a new data folder: everything is unpacked and checked beside its place before it is moved."""

import asyncio
import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from gateway.storage.backup import CONFIG, FORMAT, MANIFEST, TOKEN
from gateway.storage.backup_encryption import MAGIC, BackupUnreadable, DecryptingReader
from gateway.storage.data_folder import DATABASE, JOURNAL, SECRETS, UNSTORABLE, is_used, sync_folder
from gateway.storage.schema import REVISION
from gateway.storage.schema_version import describe_newer

MAX_MANIFEST_BYTES = 64 * 1024 * 1024
_COPY_BYTES = 1024 * 1024
_AGAIN = "Make the database anew, and restore again"
_OWNER_ONLY, _OWNER_ONLY_FOLDER = 0o600, 0o700
_MEMBER = re.compile(
    rf"(?:{'|'.join(map(re.escape, (DATABASE, JOURNAL, UNSTORABLE, CONFIG, TOKEN, *SECRETS)))}"
    rf"|{re.escape(JOURNAL)}\.unread-[0-9]+|(?:media|videos|files)/[0-9a-f]{{2}}/[0-9a-f]{{1,64}}\.[a-z0-9]{{1,8}})\Z"
)
"""The files that a backup can have. No other name is ever created."""


class RestoreRefused(Exception):
    """Nothing was restored; the message is for the operator."""


def is_encrypted(backup: Path) -> bool:
    """Return whether a backup needs a passphrase. Raises ``OSError``."""
    with backup.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def restore_backup(backup: Path, target: Path, *, passphrase: str = "", server: str = "") -> Mapping[str, Any]:
    """Restore ``backup`` as the data folder ``target``, which must be empty or missing; return the manifest.

    On failure nothing is left behind.

    Args:
        backup: the file.
        target: the data folder.
        passphrase: of an encrypted backup.
        server: the URL of an empty database on a PostgreSQL server, for the rows; empty: they are put into the folder.

    Raises:
        RestoreRefused: the target is in use or has data, or the backup is damaged or of a newer version.
        OSError: a file cannot be read or written.
    """
    _check_target(target)
    with _make_draft(target) as draft:
        try:
            with _open(backup, passphrase) as tar:
                manifest = _unpack(tar, draft)
        except (BackupUnreadable, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise RestoreRefused(f"The backup {backup} cannot be read: {error}. Nothing was restored") from None
        _check_schema(manifest)
        if server:
            _fill_server(draft / DATABASE, server)
        try:
            _publish(draft, target)
        except OSError as error:
            if server:
                raise RestoreRefused(f"The database was restored, and the folder was not: {error}. {_AGAIN}") from error
            raise
    return manifest


def _fill_server(database: Path, url: str) -> None:
    """Move the rows of a restored file to a server."""
    from gateway.storage.copying.archive import fill_server  # noqa: PLC0415 - the driver is an extra
    from gateway.storage.copying.store_copy import CopyFailed  # noqa: PLC0415 - as above
    from gateway.storage.database import DatabaseStartupError  # noqa: PLC0415 - as above

    try:
        asyncio.run(fill_server(database, url))
    except (CopyFailed, DatabaseStartupError) as error:
        raise RestoreRefused(f"Nothing was restored. {error}") from None
    for path in database.parent.glob(f"{DATABASE}*"):
        path.unlink()


def _check_target(target: Path) -> None:
    if is_used(target):
        raise RestoreRefused(f"{target} holds a gateway; it is not overwritten. Name another data folder (--data)")
    if target.exists() and (names := sorted(path.name for path in target.iterdir())):
        raise RestoreRefused(f"{target} is not empty: it has {', '.join(names[:3])}. Name a new data folder (--data)")


@contextmanager
def _make_draft(target: Path) -> Iterator[Path]:
    """Make a folder in ``target``, and ``target`` if it is missing; remove what was made if it is not published."""
    missing = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True, exist_ok=True, mode=_OWNER_ONLY_FOLDER)
    draft = Path(tempfile.mkdtemp(prefix=".restore-", dir=target))
    try:
        yield draft
    except BaseException:
        shutil.rmtree(missing[-1] if missing else draft)
        raise
    draft.rmdir()


@contextmanager
def _open(backup: Path, passphrase: str) -> Iterator[tarfile.TarFile]:
    """Open a backup as a tar file. At the end the rest is read, so that its checksums are checked too."""
    with backup.open("rb") as file:
        source: IO[bytes] = file
        if file.read(len(MAGIC)) == MAGIC:
            source = io.BufferedReader(DecryptingReader(file, passphrase))
        else:
            file.seek(0)
        with gzip.GzipFile(fileobj=source, mode="rb") as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            yield tar
            while packed.read(_COPY_BYTES):
                pass


def _unpack(tar: tarfile.TarFile, draft: Path) -> Mapping[str, Any]:
    """Write every member below ``draft`` and compare it with the manifest, which is returned."""
    found: dict[str, dict[str, Any]] = {}
    for member in tar:
        content = tar.extractfile(member) if member.isreg() else None
        if content is None or member.name in found:
            raise BackupUnreadable(f"it has {member.name!r}, which is no file of a backup")
        if member.name == MANIFEST:
            manifest = _read_manifest(content)
            _compare(manifest["members"], found)
            return manifest
        if not _MEMBER.match(member.name):
            raise BackupUnreadable(f"it has {member.name!r}, which is no file of a backup")
        found[member.name] = _write_member(content, draft / member.name, member.mtime)
    raise BackupUnreadable("it ends before its manifest")


def _write_member(content: IO[bytes], path: Path, mtime_s: float) -> dict[str, Any]:
    for folder in (path.parent.parent, path.parent):  # with ``parents=True`` the first would be open to others
        folder.mkdir(exist_ok=True, mode=_OWNER_ONLY_FOLDER)
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY), "wb") as file:
        while data := content.read(_COPY_BYTES):
            digest.update(data)
            size += len(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.utime(path, (mtime_s, mtime_s))  # the age of a media file is its modification time
    return {"bytes": size, "sha256": digest.hexdigest()}


def _read_manifest(content: IO[bytes]) -> dict[str, Any]:
    try:
        manifest = orjson.loads(content.read(MAX_MANIFEST_BYTES))
    except orjson.JSONDecodeError:
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("members"), dict):
        raise BackupUnreadable("its manifest is damaged")
    if manifest.get("format") != FORMAT:
        raise BackupUnreadable(
            f"it is of another format ({manifest.get('format')}); version {manifest.get('version')} wrote it"
        )
    return manifest


def _compare(expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise BackupUnreadable(f"its file {name} is not what the manifest says")
    if DATABASE not in found:
        raise BackupUnreadable("it has no database")


def _check_schema(manifest: Mapping[str, Any]) -> None:
    if (schema := str(manifest["schema"])) > REVISION:
        raise RestoreRefused(f"The backup is {describe_newer(schema, str(manifest['version']))}. Nothing was restored")


def _publish(draft: Path, target: Path) -> None:
    """Move everything to its place, the database last: without it no gateway starts."""
    for folder in (path for path in draft.rglob("*") if path.is_dir()):
        sync_folder(folder)
    for path in sorted(draft.iterdir(), key=lambda path: path.name == DATABASE):
        path.rename(target / path.name)
    sync_folder(target)
    sync_folder(target.absolute().parent)
