"""The source and target of a store's copy: a data folder with a SQLite database, or a database on a server."""
# ruff: noqa: PLC0415 - the driver of PostgreSQL is an extra

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from gateway.frozen import frozen
from gateway.installation import format_install_command
from gateway.storage.copying.sqlite_store import make_target, open_source, remove
from gateway.storage.copying.store_copy import CopyFailed, CopyReport, CopySource, CopyTarget, copy_store
from gateway.storage.data_folder import DATABASE, SECRETS, DataFolder, DataFolderLocked, sync_folder
from gateway.storage.identity import fingerprint
from gateway.storage.open import is_postgres

_DRAFT_PREFIX = ".copy-"
_SAME_KIND_ERROR = "Both are data folders. To copy a folder, use 'gateway backup' and 'gateway restore'"


@frozen
class StoreLocation:
    """A data folder, or the URL of a database on a server."""

    text: str

    @property
    def is_server(self) -> bool:
        return is_postgres(self.text)

    @property
    def folder(self) -> Path:
        return Path(self.text)

    def describe(self) -> str:
        if not self.is_server:
            return self.text
        from gateway.storage.postgres.address import describe_url

        return describe_url(self.text)


async def copy_between(
    source: StoreLocation, target: StoreLocation, progress: Callable[[str, int], None]
) -> CopyReport:
    """Copy every row of ``source`` to the empty ``target``; return what was copied. After an error nothing was copied.

    Raises ``CopyFailed`` with the reason, for instance that a gateway uses one of them, that the target has data, or
    that the copy differs from the source. Raises ``OSError`` if a file cannot be read or written.
    """
    for location in (source, target):
        if "://" in location.text and not location.is_server:  # the rest of the URL may contain a password
            scheme = location.text.partition("://")[0]
            raise CopyFailed(f"A store at {scheme}:// is not known: name a data folder, or a postgresql:// URL")
    if not (source.is_server or target.is_server):
        raise CopyFailed(_SAME_KIND_ERROR)
    if source == target:
        raise CopyFailed("Both are the same database")
    try:
        async with _open_source(source) as source_store, _open_target(target, source_store) as target_store:
            return await copy_store(source_store, target_store, progress)
    except DataFolderLocked as error:
        raise CopyFailed(f"{error}. Stop it first") from None
    except ModuleNotFoundError as missing:
        raise CopyFailed(
            f"PostgreSQL requires the postgres extra ({missing.name} is missing): {format_install_command('postgres')}"
        ) from None


def list_missing_secrets(folder: Path) -> list[str]:
    """Return the secret files missing from a folder."""
    return [name for name in SECRETS if not (folder / name).exists()]


@asynccontextmanager
async def _open_source(location: StoreLocation) -> AsyncIterator[CopySource]:
    if location.is_server:
        from gateway.storage.copying.postgres_store import open_source as open_server

        async with open_server(location.text) as server:
            yield server
        return
    database = location.folder / DATABASE
    if not database.exists():
        raise CopyFailed(f"There is no database {database}. Name the data folder of a gateway, or a postgresql:// URL")
    folder = DataFolder(location.folder)
    try:
        with open_source(database) as store:
            yield store
    finally:
        folder.close()


@asynccontextmanager
async def _open_target(location: StoreLocation, source: CopySource) -> AsyncIterator[CopyTarget]:
    if location.is_server:
        from gateway.storage.copying.postgres_store import open_target

        async with open_target(location.text) as server:
            yield server
        return
    new_folders = [folder for folder in (location.folder, *location.folder.parents) if not folder.exists()]
    folder = DataFolder(location.folder)
    try:
        async with _make_database(location.folder, source) as store:
            yield store
    except BaseException:
        _remove_folder(location.folder, new_folders)
        raise
    finally:
        folder.close()


@asynccontextmanager
async def _make_database(folder: Path, source: CopySource) -> AsyncIterator[CopyTarget]:
    database = folder / DATABASE
    if database.exists():
        raise CopyFailed(f"{folder} has a database already. Move {database} away, or name another data folder")
    await _check_secrets(folder, source)
    draft = folder / f"{_DRAFT_PREFIX}{DATABASE}"
    remove(draft)  # left by a killed copy: this process holds the folder's lock
    async with make_target(draft) as store:
        yield store
    draft.rename(database)
    sync_folder(folder)


async def _check_secrets(folder: Path, source: CopySource) -> None:
    """Raise ``CopyFailed`` if the folder has the secrets of another database: encrypted values would be unreadable."""
    if not await source.read_schema():
        return
    for name, known_fingerprint in await source.fetch("SELECT name, fingerprint FROM fingerprints"):
        path = folder / str(name)
        if path.exists() and fingerprint(str(name), path.read_bytes()) != known_fingerprint:
            raise CopyFailed(
                f"{path} is not the secret that {source.name} was made with. Name the data folder that it was used with"
            )


def _remove_folder(folder: Path, missing_folders: list[Path]) -> None:
    if missing_folders:
        with suppress(OSError):
            (folder / "gateway.lock").unlink()
            for new_folder in missing_folders:
                new_folder.rmdir()
