"""A gateway over a disk that keeps only what was synced.

    python -m tests.support.synced_disk SHADOW [PRAGMA…] serve --data DATA …

SQLite reaches its files through a VFS. This one is the default one, but every ``xSync`` of a database or of a WAL also
copies that file, as it is at that moment, into the folder SHADOW: what a power cut would leave of it. (``kill -9``
leaves every byte that was written; what is between the two is what ``PRAGMA synchronous`` is about.)

A PRAGMA, such as ``synchronous=NORMAL``, is put over the gateway's own wherever it takes a connection.
"""

import ctypes
import shutil
import sqlite3
import sys
import traceback
from pathlib import Path
from typing import Any

KEPT = ("gateway.db", "gateway.db-wal")
_OK, _IOERR_FSYNC = 0, 1034
_KNOWN = 3
_NAME = b"synced-disk"
_INT, _WORD = ctypes.c_int, ctypes.c_void_p
_OPEN = ctypes.CFUNCTYPE(_INT, _WORD, ctypes.c_void_p, _WORD, _INT, ctypes.POINTER(_INT))
_READ = ctypes.CFUNCTYPE(_INT, _WORD, _WORD, _INT, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(_INT, _WORD, _INT)
_SIZE = ctypes.CFUNCTYPE(_INT, _WORD, ctypes.POINTER(ctypes.c_int64))


class _Vfs(ctypes.Structure):
    """``sqlite3_vfs``, version 3: https://sqlite.org/c3ref/vfs.html."""

    _fields_ = (
        ("version", _INT),
        ("file_size", _INT),
        ("longest_path", _INT),
        ("next", _WORD),
        ("name", ctypes.c_char_p),
        ("app_data", _WORD),
        ("open", _OPEN),
        ("others", _WORD * 15),
    )


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods``, version 3: https://sqlite.org/c3ref/io_methods.html."""

    _fields_ = (
        ("version", _INT),
        ("close", _WORD),
        ("read", _READ),
        ("write", _WORD),
        ("truncate", _WORD),
        ("sync", _SYNC),
        ("size", _SIZE),
        ("others", _WORD * 12),
    )


class _File(ctypes.Structure):
    """The beginning of every ``sqlite3_file``: https://sqlite.org/c3ref/file.html."""

    _fields_ = (("methods", _WORD),)


class Unfit(Exception):
    """This Python's SQLite takes no VFS from outside."""


def find_library() -> ctypes.CDLL:
    """The very library that the module ``sqlite3`` uses. Raises ``Unfit``."""
    try:
        import _sqlite3  # noqa: PLC0415 - where it is built in, it has no file

        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_libversion.restype = ctypes.c_char_p
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        version, vfs = library.sqlite3_libversion().decode(), library.sqlite3_vfs_find(None).contents
    except (ImportError, AttributeError, OSError) as error:
        raise Unfit(f"the sqlite3 module shows no symbols of SQLite: {error}") from error
    if version != sqlite3.sqlite_version or vfs.version != _KNOWN:
        raise Unfit(f"found SQLite {version} with a VFS of version {vfs.version}, in use is {sqlite3.sqlite_version}")
    return library


class SyncedDisk:
    """The default VFS with a memory. To be kept for as long as the process lives: SQLite has pointers into it."""

    def __init__(self, shadow: Path) -> None:
        self._shadow = shadow
        self._library = find_library()
        self._below = self._library.sqlite3_vfs_find(None).contents
        self._vfs = _Vfs.from_buffer_copy(self._below)
        self._vfs.name = _NAME
        self._vfs.open = _OPEN(self._on_open)
        self._on_sync_pointer = _SYNC(self._on_sync)
        self._ours: dict[int, _Methods] = {}
        self._files: dict[int, tuple[Path, _Methods]] = {}

    def register(self) -> None:
        """Be the default of every connection from now on."""
        assert self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1) == _OK

    def _on_open(self, _vfs: int, name: int | None, file: int, flags: int, out: Any) -> int:
        # SQLite keeps the pointer to the name, and names the -shm file after it: it is passed on as it is.
        result: int = self._below.open(ctypes.addressof(self._below), name, file, flags, out)
        path = Path(ctypes.string_at(name).decode() if name else "")
        if result == _OK and path.name in KEPT:
            opened = _File.from_address(file)
            below = _Methods.from_address(opened.methods)
            self._files[file] = path, below
            ours = self._ours.get(opened.methods)
            if ours is None:
                ours = self._ours[opened.methods] = _Methods.from_buffer_copy(below)
                ours.sync = self._on_sync_pointer
            opened.methods = ctypes.addressof(ours)
        return result

    def _on_sync(self, file: int, flags: int) -> int:
        path, below = self._files[file]
        result: int = below.sync(file, flags)
        if result == _OK:
            try:
                self._keep(path, _read(file, below))
            except Exception:  # noqa: BLE001 - an exception does not cross C: the gateway hears of a disk that failed
                traceback.print_exc()
                return _IOERR_FSYNC
        return result

    def _keep(self, path: Path, content: bytes) -> None:
        draft = self._shadow / f".{path.name}"
        draft.write_bytes(content)
        draft.rename(self._shadow / path.name)


def _read(file: int, methods: _Methods) -> bytes:
    """The whole file, through SQLite's own handle: closing another would drop the locks of this process on it."""
    size = ctypes.c_int64()
    assert methods.size(file, ctypes.byref(size)) == _OK
    buffer = ctypes.create_string_buffer(size.value)
    assert not size.value or methods.read(file, ctypes.addressof(buffer), size.value, 0) == _OK
    return buffer.raw


def put_over(pragmas: list[str]) -> None:
    """Say ``pragmas`` to every connection whenever it is taken, after what the gateway says when it is made."""
    from sqlalchemy import event  # noqa: PLC0415 - nothing of this before the VFS is there
    from sqlalchemy.pool import Pool  # noqa: PLC0415

    @event.listens_for(Pool, "checkout")
    def on_checkout(connection: Any, _record: object, _proxy: object) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()


def run(shadow: Path, pragmas: list[str], serve: list[str]) -> None:
    """The command ``gateway serve …``. What the data folder has already counts as synced."""
    shadow.mkdir(exist_ok=True)
    data = Path(serve[serve.index("--data") + 1])
    for name in KEPT:
        if (data / name).exists():
            shutil.copy(data / name, shadow / name)
    disk = SyncedDisk(shadow)
    disk.register()
    if pragmas:
        put_over(pragmas)

    from gateway.cli.main import main  # noqa: PLC0415

    main(serve)


if __name__ == "__main__":
    first = sys.argv.index("serve")
    run(Path(sys.argv[1]), sys.argv[2:first], sys.argv[first:])
