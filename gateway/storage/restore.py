"""Restores a backup into a new data folder: everything is unpacked and checked in a draft folder, then moved.

A backup is read twice. The first pass writes nothing: it checks the manifest, the sizes and names, and the space that
the files need.
"""

import asyncio
import gzip
import hashlib
import io
import os
import re
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, cast

import attrs
import orjson

from gateway.storage.backup import BODIES_FOLDER, CONFIG_NAME, FORMAT, MANIFEST_NAME, TOKEN_NAME
from gateway.storage.backup_encryption import MAGIC, BackupUnreadable, DecryptingReader
from gateway.storage.backup_members import BackupMember, read_members
from gateway.storage.bodies.verification import check_bodies, release_node, remove_mark
from gateway.storage.data_folder import DATABASE, JOURNAL, SECRETS, UNSTORABLE, is_used, sync_folder
from gateway.storage.integrity_check import MAX_PROBLEMS, is_foreign, read_problems
from gateway.storage.schema import REVISION
from gateway.storage.schema_version import describe_newer

MAX_RATIO = 250
"""Limit of the files' total size in multiples of the backup's. Gzip compresses zeros a thousandfold; databases and
images are far from that."""
MIN_LIMIT_BYTES = 256 * 1024 * 1024
"""A total size of the files that is allowed whatever the ratio."""
SPARE_BYTES = 64 * 1024 * 1024
"""Bytes that stay free on the disk."""
_MIB = 1024 * 1024
_MAX_BYTES = {MANIFEST_NAME: 64 * _MIB, CONFIG_NAME: 16 * _MIB, **dict.fromkeys((TOKEN_NAME, *SECRETS), 65_536)}
"""Size limits of files that are read into memory."""
_FIELDS: Mapping[str, type] = {
    "version": str,
    "created": str,
    "schema": str,
    "media": bool,
    "media_store": str,
    "master_key_file": bool,
    "bodies": bool,
    "bodies_store": str,
    "bodies_node": str,
} | {"database": str}
_MAX_SHOWN_CHARS = 1_000
_REPEAT_HINT = "Make the database anew, and restore again"
_OWNER_ONLY_MODE, _OWNER_ONLY_FOLDER_MODE = 0o600, 0o700
_MEMBER_NAME = re.compile(
    rf"(?:{'|'.join(map(re.escape, (DATABASE, JOURNAL, UNSTORABLE, CONFIG_NAME, TOKEN_NAME, *SECRETS)))}"
    rf"|{re.escape(JOURNAL)}\.unread-[0-9]+|(?:media|videos|files)/[0-9a-f]{{2}}/[0-9a-f]{{1,64}}\.[a-z0-9]{{1,8}}"
    rf"|{BODIES_FOLDER}/[0-9]{{8,15}}\.segment)\Z"
)
"""The files that a backup can have. No file with another name is ever created."""


class RestoreRefused(Exception):
    """The backup was not restored, or only its database; the message tells the operator which, and what to do."""


def is_encrypted(backup: Path) -> bool:
    """Return whether a backup needs a passphrase. Raises ``OSError``."""
    with backup.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def restore_backup(backup: Path, target: Path, *, passphrase: str = "", server: str = "") -> Mapping[str, Any]:
    """Restore ``backup`` as the data folder ``target``, which must be empty or missing; return the manifest.

    A field ``kept_bodies`` is added to the manifest if the backup itself has kept bodies. The rows go to the empty
    database at the URL ``server``, if given. Nothing is left behind if a step fails before the last one, which moves
    the files into place. Raises ``RestoreRefused`` or ``OSError``.
    """
    _check_target(target)
    with _make_draft(target) as draft:
        free_bytes = max(0, shutil.disk_usage(draft).free - SPARE_BYTES)
        with _open(backup, passphrase) as source:
            manifest = _read_through(source, _BackupLimits(backup.stat().st_size, free_bytes))
        with _open(backup, passphrase) as source:
            _unpack(source, draft, manifest["members"])
        _check_database(draft / DATABASE, manifest)
        _remove_mark(draft)
        if manifest["bodies"] and not manifest["bodies_store"]:
            manifest = {**manifest, "kept_bodies": _check_kept_bodies(draft, manifest["bodies_node"])}
        if server:
            _fill_server(draft / DATABASE, server)
        try:
            _publish(draft, target)
        except OSError as error:
            if server:
                raise RestoreRefused(
                    f"The database was restored, and the folder was not: {error}. {_REPEAT_HINT}"
                ) from error
            raise
    return manifest


def _remove_mark(draft: Path) -> None:
    try:
        remove_mark(draft / DATABASE)
    except sqlite3.Error as error:
        raise RestoreRefused(f"The database in the backup is damaged: {error}. Nothing was restored") from None


def _check_kept_bodies(draft: Path, node: str) -> dict[str, int]:
    """Return how many requests of a backup have kept bodies, and how many of these are damaged.

    The rows lose the id of the former node: they are those of the gateway that opens the folder next. Raises
    ``RestoreRefused``.
    """
    try:
        release_node(draft / DATABASE, node)
        checked = check_bodies(draft / DATABASE, draft / BODIES_FOLDER)
    except sqlite3.Error as error:
        raise RestoreRefused(f"The database in the backup is damaged: {error}. Nothing was restored") from None
    return {"requests": checked.requests, "damaged": checked.damaged}


def _fill_server(database: Path, url: str) -> None:
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
    """Create a draft folder in ``target``, which is created if missing. After an error remove what was created."""
    missing_folders = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True, exist_ok=True, mode=_OWNER_ONLY_FOLDER_MODE)
    draft = Path(tempfile.mkdtemp(prefix=".restore-", dir=target))
    try:
        yield draft
    except BaseException:
        shutil.rmtree(missing_folders[-1] if missing_folders else draft)
        raise
    draft.rmdir()


@contextmanager
def _open(backup: Path, passphrase: str) -> Iterator[IO[bytes]]:
    """Open a backup to read its tar file. Raises ``RestoreRefused`` if it is damaged or not a backup."""
    try:
        with backup.open("rb") as file:
            source: IO[bytes] = file
            if file.read(len(MAGIC)) == MAGIC:
                source = io.BufferedReader(DecryptingReader(file, passphrase))
            else:
                file.seek(0)
            with gzip.GzipFile(fileobj=source, mode="rb") as gzip_file:
                yield cast("IO[bytes]", gzip_file)
    except (BackupUnreadable, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RestoreRefused(f"The backup {backup} cannot be read: {error}. Nothing was restored") from None


def _read_through(source: IO[bytes], limits: "_BackupLimits") -> dict[str, Any]:
    """Read a whole backup and return its manifest.

    Raises ``BackupUnreadable`` if a name or size differs from the manifest, the database is missing, or files exceed
    ``limits``. The contents of the files are not compared.
    """
    sizes: dict[str, int] = {}
    manifest: dict[str, Any] | None = None
    for member in read_members(source):
        limits.check(member.name, member.size)
        if member.name in sizes or not (member.name == MANIFEST_NAME or _MEMBER_NAME.match(member.name)):
            raise BackupUnreadable(f"it has {member.name[:200]!r}, which is no file of a backup")
        sizes[member.name] = member.size
        if member.name == MANIFEST_NAME:
            manifest = _read_manifest(member)
    if manifest is None:
        raise BackupUnreadable("it ends before its manifest")
    del sizes[MANIFEST_NAME]
    members = manifest["members"]
    for name in sorted(members.keys() | sizes.keys()):
        if name not in sizes or name not in members or members[name]["bytes"] != sizes[name]:
            raise BackupUnreadable(f"its file {name[:200]} is not what the manifest says")
    if DATABASE not in members:
        raise BackupUnreadable("it has no database")
    return manifest


def _unpack(source: IO[bytes], draft: Path, members: Mapping[str, Any]) -> None:
    unread_members = dict(members)
    for member in read_members(source):
        if member.name != MANIFEST_NAME:
            listed_member = unread_members.pop(member.name, None)  # the file may have changed since the first pass
            if (
                listed_member is None
                or listed_member["bytes"] != member.size
                or listed_member["sha256"] != _write_member(member, draft / member.name)
            ):
                raise BackupUnreadable(f"its file {member.name[:200]} is not what the manifest says")


def _write_member(member: BackupMember, path: Path) -> str:
    for folder in (path.parent.parent, path.parent):  # with ``parents=True`` the first would be open to others
        folder.mkdir(exist_ok=True, mode=_OWNER_ONLY_FOLDER_MODE)
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY_MODE), "wb") as file:
        for chunk in member.read_chunks():
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    os.utime(path, (member.mtime_s, member.mtime_s))  # the modification time of a media file is its age
    return digest.hexdigest()


@attrs.define
class _BackupLimits:
    """Limits on the size of an unpacked backup, in bytes.

    ``packed_bytes``: the size of the backup file. ``free_bytes``: free disk space. ``total_bytes``: the members so far.
    """

    packed_bytes: int
    free_bytes: int
    total_bytes: int = 0

    def check(self, name: str, size: int) -> None:
        """Count a member. Raises ``BackupUnreadable`` if it exceeds a limit, before the member is read."""
        self.total_bytes += size
        if size > _MAX_BYTES.get(name, size):
            raise BackupUnreadable(f"its file {name} has {size} bytes, and {_MAX_BYTES[name]} are the most")
        if self.total_bytes > max(self.packed_bytes * MAX_RATIO, MIN_LIMIT_BYTES):
            raise BackupUnreadable(f"its files have more than {MAX_RATIO} times its size")
        if self.total_bytes > self.free_bytes:
            raise BackupUnreadable(
                f"its files have {self.total_bytes} bytes or more, and the disk has room for {self.free_bytes}"
            )


def _read_manifest(member: BackupMember) -> dict[str, Any]:
    try:
        manifest = orjson.loads(b"".join(member.read_chunks()))
    except orjson.JSONDecodeError:
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("members"), dict):
        raise BackupUnreadable("its manifest is damaged")
    if manifest.get("format") != FORMAT:
        format_and_version = (
            ascii(manifest.get("format"))[:_MAX_SHOWN_CHARS],
            ascii(manifest.get("version"))[:_MAX_SHOWN_CHARS].strip("'"),
        )
        raise BackupUnreadable(
            f"it is of another format ({format_and_version[0]}); version {format_and_version[1]} wrote it"
        )
    for name, kind in _FIELDS.items():
        value: Any = manifest.setdefault(name, kind())  # older backups lack some of them
        if type(value) is not kind or (
            isinstance(value, str) and not (len(value) <= _MAX_SHOWN_CHARS and value.isprintable())
        ):
            raise BackupUnreadable(f"its manifest is damaged: {name}")
    for name, description in manifest["members"].items():
        if not isinstance(description, dict) or [type(description.get(field)) for field in ("bytes", "sha256")] != [
            int,
            str,
        ]:
            raise BackupUnreadable(f"its manifest is damaged: {name[:_MAX_SHOWN_CHARS]!r}")
    return manifest


def _check_database(path: Path, manifest: Mapping[str, Any]) -> None:
    """Drop triggers and views. Raises ``RestoreRefused`` if the database is foreign, damaged or too new."""
    if (schema := str(manifest["schema"])) > REVISION:
        raise RestoreRefused(f"The backup is {describe_newer(schema, str(manifest['version']))}. Nothing was restored")
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA trusted_schema=OFF")
            is_foreign_database = is_foreign(connection) or not path.stat().st_size
            problems = [] if is_foreign_database else read_problems(connection, f"PRAGMA quick_check({MAX_PROBLEMS})")
            if not problems and not is_foreign_database:
                _drop_code(connection)
    except sqlite3.Error as error:
        raise RestoreRefused(f"The database in the backup is damaged: {error}. Nothing was restored") from None
    if is_foreign_database or problems:
        reason = "is not one of a gateway" if is_foreign_database else f"is damaged: {'; '.join(problems)}"
        raise RestoreRefused(f"The database in the backup {reason}. Nothing was restored")


def _drop_code(connection: sqlite3.Connection) -> None:
    """Drop the triggers and views of a database: a gateway creates none, and they would run with its statements."""
    objects = connection.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchall()
    for kind, name in objects:
        quoted_name = name.replace('"', '""')
        connection.execute(f'DROP {kind} IF EXISTS "{quoted_name}"')  # dropping a view drops its triggers


def _publish(draft: Path, target: Path) -> None:
    """Move everything into place, the database last, because no gateway starts without it."""
    for folder in (path for path in draft.rglob("*") if path.is_dir()):
        sync_folder(folder)
    for path in sorted(draft.iterdir(), key=lambda path: path.name == DATABASE):
        path.rename(target / path.name)
    sync_folder(target)
    sync_folder(target.absolute().parent)
