"""Writes a backup of a data folder, possibly while a gateway serves from it.

The journal is read before the database: an answered request is in the journal until the database has it, so at least
one of the two copies contains it. A restored gateway settles a request in both only once, as after a crash
(``billing/recovery.py``). The database is copied in one read transaction by SQLite's online backup; the connection
cannot write or checkpoint. A database on a server is copied row by row, as of one moment, into a SQLite file: a backup
can be restored to either kind.

A backup is a tar file, compressed with gzip and optionally encrypted (``backup_encryption.py``). Its last member, the
manifest, lists the size and the SHA-256 of every other member.
"""

import asyncio
import fcntl
import gzip
import hashlib
import io
import os
import sqlite3
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import orjson

from gateway import __version__
from gateway.frozen import frozen
from gateway.storage.backup_encryption import EncryptingWriter
from gateway.storage.data_folder import DATABASE, JOURNAL, NODE_ID, SECRETS, UNSTORABLE, sync_folder
from gateway.storage.integrity_check import MAX_PROBLEMS, is_foreign, read_problems
from gateway.storage.media_location import BucketAddress, parse_location
from gateway.storage.schema import REVISION
from gateway.storage.sqlite_database import is_damage

FORMAT = 1
MANIFEST_NAME = "manifest.json"
CONFIG_NAME = "gateway.toml"
TOKEN_NAME = "admin.token"  # noqa: S105 - the name of a file
BODIES_FOLDER = "bodies"
MEDIA_FOLDERS = ("files", "media", "videos")
GZIP_LEVEL = 6
_OWNER_ONLY_MODE = 0o600
_COPY_PREFIX = ".backup-"
_BACKUP_FAILED = "No backup was written. Run 'gateway doctor'"


class BackupFailed(Exception):
    """No backup was written; the message is for the operator."""


@frozen
class BackupSource:
    """The contents of a backup.

    Attributes:
        database: the path of its database; meaningless if the database is on a server.
        media: whether stored media are included.
        bodies: whether the sealed segments of kept bodies are included. Their data keys never are: an account's
            deleted bodies would be readable in every older backup.
        bodies_url: the setting ``store.bodies_url``. Bodies in a shared folder or a bucket are not included.
        media_url: the setting ``store.media_url``: the location of media outside the folder. A bucket is not included.
        master_key: whether the setting ``store.master_key`` replaces the file ``master.key``.
        server: the URL of a database on a server; empty if the database is a file.
    """

    folder: Path
    database: Path
    config: Path | None = None
    media: bool = False
    media_url: str = ""
    master_key: bool = False
    server: str = ""
    bodies: bool = False
    bodies_url: str = ""

    @property
    def media_folder(self) -> Path | None:
        """The folder of the included media; None if no media are included."""
        location = parse_location(self.media_url) or self.folder
        return location if self.media and isinstance(location, Path) else None

    @property
    def media_elsewhere(self) -> str:
        """The location of media outside the data folder, without credentials; empty if they are in it."""
        return _describe_location(self.media_url)

    @property
    def bodies_elsewhere(self) -> str:
        """The location of kept bodies outside the data folder, without credentials; empty if they are in it."""
        return _describe_location(self.bodies_url)

    @property
    def database_elsewhere(self) -> str:
        """The address of a database outside the folder, without a password; empty if it is in the folder."""
        if self.server:
            from gateway.storage.postgres.address import describe_url  # noqa: PLC0415 - its driver is an extra

            return describe_url(self.server)
        return "" if self.database == self.folder / DATABASE else str(self.database.absolute())


def _describe_location(url: str) -> str:
    location = parse_location(url)
    return location.describe() if isinstance(location, BucketAddress) else str(location or "")


class _HashingReader(io.RawIOBase):
    """Reads ``file`` and computes the SHA-256 of the bytes read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        return data


class _Archive:
    """Adds members to a tar file and records their checksums."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.members: dict[str, dict[str, Any]] = {}

    def add(self, name: str, file: IO[bytes], size: int, mtime_s: float) -> None:
        reader = _HashingReader(file)
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, int(mtime_s), _OWNER_ONLY_MODE
        self._tar.addfile(info, reader)
        self.members[name] = {"bytes": size, "sha256": reader.sha256.hexdigest()}

    def add_bytes(self, name: str, data: bytes) -> None:
        self.add(name, io.BytesIO(data), len(data), datetime.now(UTC).timestamp())

    def add_file(self, name: str, path: Path) -> None:
        """Add a file. Does nothing if it does not exist, because a media file may be deleted meanwhile."""
        with suppress(FileNotFoundError), path.open("rb") as file:
            status = os.fstat(file.fileno())
            self.add(name, file, status.st_size, status.st_mtime)


def write_backup(source: BackupSource, target: Path, *, passphrase: str | None = None) -> Mapping[str, Any]:
    """Write a backup to the new file ``target``; return its manifest. Raises ``BackupFailed``, ``OSError``.

    The file gets its name when it is complete.
    """
    if target.exists():
        raise BackupFailed(f"{target} exists already; it is not replaced. Name another file")
    journal = _read_journals(source.folder)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with _copy_database(source) as (copy, schema), _create(draft) as file:
            manifest = _write_archive(source, file, journal, (copy, schema), passphrase)
        draft.rename(target)
        sync_folder(target.parent)
    finally:
        draft.unlink(missing_ok=True)
    return manifest


def _write_archive(
    source: BackupSource,
    file: IO[bytes],
    journals: Mapping[str, bytes],
    database: tuple[IO[bytes], str],
    passphrase: str | None,
) -> Mapping[str, Any]:
    sink_file = EncryptingWriter(file, passphrase) if passphrase is not None else file
    with (
        gzip.GzipFile("", "wb", GZIP_LEVEL, sink_file, mtime=0) as gzip_file,
        tarfile.open(fileobj=gzip_file, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        archive = _Archive(tar)
        copy, schema = database
        archive.add(DATABASE, copy, os.fstat(copy.fileno()).st_size, datetime.now(UTC).timestamp())
        for name, data in journals.items():
            archive.add_bytes(name, data)
        for name in (*SECRETS, TOKEN_NAME):
            archive.add_file(name, source.folder / name)
        if source.config is not None:
            archive.add_file(CONFIG_NAME, source.config)
        for name, path in _list_media(source):
            archive.add_file(name, path)
        for path in _list_segments(source):
            archive.add_file(f"{BODIES_FOLDER}/{path.name}", path)
        manifest = {**_describe(source), "schema": schema, "members": dict(archive.members)}
        archive.add_bytes(MANIFEST_NAME, orjson.dumps(manifest))
    if isinstance(sink_file, EncryptingWriter):
        sink_file.finish()
    file.flush()
    os.fsync(file.fileno())
    return manifest


def _describe(source: BackupSource) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "media": source.media_folder is not None,
        "media_store": source.media_elsewhere,
        "master_key_file": not source.master_key,
        "database": source.database_elsewhere,
        "bodies": source.bodies,
        "bodies_store": source.bodies_elsewhere,
        "bodies_node": _read_node(source.folder),
    }


def _read_journals(folder: Path) -> dict[str, bytes]:
    """Return the journal, unreadable journals kept by earlier starts, and the file of refused rows."""
    kept_journals = sorted(folder.glob(f"{JOURNAL}.unread-*"))
    paths = (folder / JOURNAL, folder / UNSTORABLE, *kept_journals)
    return {path.name: path.read_bytes() for path in paths if path.exists()}


def _list_media(source: BackupSource) -> Iterator[tuple[str, Path]]:
    folder = source.media_folder
    if folder is None:
        return
    for folder_name in MEDIA_FOLDERS:
        for path in sorted((folder / folder_name).glob("[0-9a-f][0-9a-f]/*")):
            yield path.relative_to(folder).as_posix(), path


def _list_segments(source: BackupSource) -> list[Path]:
    """Return the segments of kept bodies.

    Called after the copy of the database: then they have every frame that the copy names.
    """
    if not source.bodies or source.bodies_url:
        return []
    return sorted((source.folder / BODIES_FOLDER).glob("[0-9]*.segment"))


def _read_node(folder: Path) -> str:
    """Return the id of the node that has this folder; empty without a cluster. The rows of its bodies have this id."""
    path = folder / NODE_ID
    return path.read_text().strip() if path.exists() else ""


@contextmanager
def _create(path: Path) -> Iterator[IO[bytes]]:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY_MODE), "wb") as file:
        yield file


@contextmanager
def _copy_database(source: BackupSource) -> Iterator[tuple[IO[bytes], str]]:
    """Copy the database into an unnamed file of the data folder; yield that file and the schema's revision.

    Raises ``BackupFailed``, ``OSError``.
    """
    if not source.server and not source.database.exists():
        raise BackupFailed(f"There is no database {source.database}. Run 'gateway doctor'")
    _remove_leftovers(source.folder)
    path = source.folder / f"{_COPY_PREFIX}{os.getpid()}"
    with _create(path), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            schema = _copy_server(source.server, path) if source.server else _copy(source.database, path)
        except sqlite3.Error as error:
            problem = "is damaged" if is_damage(error) else "cannot be read"
            raise BackupFailed(f"The database {source.database} {problem}: {error}. {_BACKUP_FAILED}") from error
        finally:
            path.unlink(missing_ok=True)
        yield file, schema


def _copy(database: Path, path: Path) -> str:
    """Copy a database and check the copy; return its schema's revision. Raises ``BackupFailed``, ``sqlite3.Error``."""
    with closing(_open_read_only(database)) as original, closing(sqlite3.connect(path)) as copy:
        copy.execute("PRAGMA synchronous=OFF")
        original.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file; the gateway's start chooses WAL again
        if is_foreign(copy):
            raise BackupFailed(f"{database} is not a database of a gateway")
        if problems := read_problems(copy, f"PRAGMA quick_check({MAX_PROBLEMS})"):
            raise BackupFailed(f"The database {database} is damaged: {'; '.join(problems)}. {_BACKUP_FAILED}")
        return str(copy.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def _copy_server(url: str, path: Path) -> str:
    from gateway.storage.copying.archive import save_server  # noqa: PLC0415 - the driver is an extra
    from gateway.storage.copying.store_copy import CopyFailed  # noqa: PLC0415 - as above

    try:
        asyncio.run(save_server(url, path))
    except CopyFailed as error:
        raise BackupFailed(f"No backup was written. {error}") from None
    return REVISION


def _open_read_only(database: Path) -> sqlite3.Connection:
    """Open a database that a gateway may be writing. A missing WAL is created empty for the gateway's next start."""
    uri = f"{database.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=5)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if os.access(database.parent, os.W_OK):
            raise
        return sqlite3.connect(f"{uri}&immutable=1", uri=True)  # on this file system no process can write
    return connection


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(f"{_COPY_PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
