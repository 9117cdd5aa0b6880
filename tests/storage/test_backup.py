"""A backup is whole or not there, and what is restored is what was backed up."""

import asyncio
import gzip
import io
import os
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from gateway import __version__
from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.write_queue import WriteQueue
from gateway.storage.backup import BackupFailed, BackupSource, write_backup
from gateway.storage.backup_encryption import CHUNK_BYTES, MAGIC
from gateway.storage.data_folder import DATABASE
from gateway.storage.journal import RequestJournal, parse_journal
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.restore import RestoreRefused, is_encrypted, restore_backup
from gateway.storage.schema import REVISION
from tests.support.gateway import furnish, make_template
from tests.support.request_records import make_row

pytestmark = pytest.mark.usefixtures("cheap_passphrases")
IMAGE = Path("media/ab/ab0123456789abcdef0123456789abcd.png")
FILE = Path("files/cd/cd0123456789abcdef0123456789abcd.bin")
HEAD = len(MAGIC) + 16
CHUNK = CHUNK_BYTES + 16
BACKUPS = 15


@pytest.fixture
async def folder(tmp_path: Path, template_path: Path) -> Path:
    """A data folder that no gateway has open, with a journal and a stored image."""
    if not template_path.exists():
        await make_template(template_path)
    home = tmp_path / "data"
    (home / IMAGE).parent.mkdir(parents=True, mode=0o700)
    await furnish(home, template_path, declared=False)
    (home / "requests.journal").write_bytes(b"the journal\n")
    (home / "requests.journal.unread-1").write_bytes(b"unread\n")
    (home / IMAGE).write_bytes(os.urandom(300_000))  # more than one chunk of an encrypted backup
    os.utime(home / IMAGE, (1_700_000_000, 1_700_000_000))
    (home / FILE).parent.mkdir(parents=True, mode=0o700)
    (home / FILE).write_bytes(b"lines")
    (home / "media" / "draft-1").write_bytes(b"half an image")
    return home


def back_up(folder: Path, name: str = "b.gwb", passphrase: str | None = None) -> Path:
    target = folder.parent / name
    write_backup(BackupSource(folder, folder / "gateway.db", media=True), target, passphrase=passphrase)
    return target


def read_tree(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def read_rows(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_what_is_restored_is_what_was_backed_up(folder: Path, tmp_path: Path, passphrase: str | None) -> None:
    before = read_tree(folder)
    backup = back_up(folder, passphrase=passphrase)
    assert is_encrypted(backup) == (passphrase is not None)
    assert backup.stat().st_mode & 0o777 == 0o600
    target = tmp_path / "new" / "data"
    manifest = restore_backup(backup, target, passphrase=passphrase or "")
    assert (manifest["version"], manifest["schema"], manifest["media"]) == (__version__, REVISION, True)
    after = read_tree(target)
    assert set(before) - set(after) == {"media/draft-1"}
    assert set(manifest["members"]) == set(after)
    for name in set(after) - {"gateway.db"}:
        assert after[name] == before[name]
    assert read_rows(target / "gateway.db") == read_rows(folder / "gateway.db")
    assert {path.stat().st_mode & 0o777 for path in target.rglob("*")} == {0o600, 0o700}
    assert (target / IMAGE).stat().st_mtime == 1_700_000_000
    assert sorted(path.name for path in folder.parent.iterdir()) == ["b.gwb", "data", "new"]


def test_a_backup_has_what_the_log_alone_has_and_leaves_it_alone(folder: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(folder / "gateway.db")) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("INSERT INTO settings VALUES ('routing.retry_ratio', '0.5', 1)")
        writer.commit()
        log = (folder / "gateway.db-wal").read_bytes()
        backup = back_up(folder)
        assert log
        assert (folder / "gateway.db-wal").read_bytes() == log
    restore_backup(backup, tmp_path / "new")
    assert any("routing.retry_ratio" in row for row in read_rows(tmp_path / "new/gateway.db"))


def test_media_are_left_out_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    write_backup(BackupSource(folder, folder / "gateway.db"), tmp_path / "b")
    restore_backup(tmp_path / "b", tmp_path / "new")
    assert not (tmp_path / "new/media").exists()
    assert (tmp_path / "new/gateway.db").exists()


def test_a_backup_replaces_no_file(folder: Path) -> None:
    (folder.parent / "b.gwb").write_text("mine")
    with pytest.raises(BackupFailed, match="exists already"):
        back_up(folder)
    assert (folder.parent / "b.gwb").read_text() == "mine"


def test_a_damaged_database_is_not_backed_up(folder: Path) -> None:
    with (folder / "gateway.db").open("r+b") as file:
        file.seek(3 * 4096)
        file.write(bytes(4096))
    with pytest.raises(BackupFailed, match=r"is damaged.*doctor"):
        back_up(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["data"]
    assert not list(folder.glob(".backup-*"))


def test_a_copy_that_a_killed_backup_left_goes_with_the_next(folder: Path) -> None:
    (folder / ".backup-1").write_bytes(b"half")
    back_up(folder)
    assert not list(folder.glob(".backup-*"))


async def test_every_answered_request_is_in_the_journal_or_in_the_database_of_a_backup(folder: Path) -> None:
    """Rows move from the journal to the database meanwhile; the journal forgets them at once."""
    (folder / "requests.journal").unlink()
    database = await open_database(f"sqlite:///{folder / 'gateway.db'}")
    journal, queue = RequestJournal(folder / "requests.journal", rotate_bytes=0), WriteQueue()
    flushing = asyncio.create_task(LedgerFlusher(queue, LedgerRepository(database), journal, commit_delay_s=0).run())
    answered: list[str] = []

    async def answer_requests() -> None:
        while True:
            row = make_row(f"answered {len(answered)}")
            journal.record_end(row)
            queue.put(row)
            answered.append(row.id)
            await asyncio.sleep(0.001)

    answering = asyncio.create_task(answer_requests())
    for number in range(BACKUPS):
        await asyncio.sleep(0.02)
        before = set(answered)
        backup = await asyncio.to_thread(back_up, folder, f"{number}.gwb")
        restore_backup(backup, backup.with_suffix(""))
        unsettled, unreadable = parse_journal((backup.with_suffix("") / "requests.journal").read_bytes())
        with closing(sqlite3.connect(backup.with_suffix("") / "gateway.db")) as copy:
            stored = {row[0] for row in copy.execute("SELECT id FROM requests")}
        assert not before - stored - {left.row.id for left in unsettled}
        assert not unreadable
    for task in (answering, flushing):
        task.cancel()
    await asyncio.gather(answering, flushing, return_exceptions=True)
    journal.close()
    await database.close()


Change = Callable[[bytes], bytes]
DAMAGE: dict[str, tuple[Change, Change]] = {
    "cut in half": (lambda data: data[: len(data) // 2],) * 2,
    "cut by a byte": (lambda data: data[:-1],) * 2,
    "a bit flipped": (lambda data: data[:150_000] + bytes([data[150_000] ^ 1]) + data[150_001:],) * 2,
    "something behind it": (lambda data: data + b"x",) * 2,
    "empty": (lambda _data: b"", lambda data: data[: len(MAGIC)]),
    "last chunk gone": (lambda data: data[:-9], lambda data: data[: HEAD + (len(data) - HEAD) // CHUNK * CHUNK]),
    "chunks exchanged": (
        lambda data: data[100_000:200_000] + data[:100_000] + data[200_000:],
        lambda data: (
            data[:HEAD] + data[HEAD + CHUNK : HEAD + 2 * CHUNK] + data[HEAD : HEAD + CHUNK] + data[HEAD + 2 * CHUNK :]
        ),
    ),
    "a chunk left out": (
        lambda data: data[:100_000] + data[165_536:],
        lambda data: data[: HEAD + CHUNK] + data[HEAD + 2 * CHUNK :],
    ),
}


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    folder: Path, tmp_path: Path, passphrase: str | None, subtests: pytest.Subtests
) -> None:
    backup = back_up(folder, passphrase=passphrase)
    whole = backup.read_bytes()
    assert len(whole) > HEAD + 3 * CHUNK
    for damage, changes in DAMAGE.items():
        with subtests.test(damage):
            backup.write_bytes(changes[passphrase is not None](whole))
            with pytest.raises(RestoreRefused, match=r"cannot be read.*Nothing was restored"):
                restore_backup(backup, tmp_path / "far" / "new", passphrase=passphrase or "")
            assert not (tmp_path / "far").exists()


def test_an_empty_folder_stays_one_if_the_backup_is_refused(folder: Path, tmp_path: Path) -> None:
    backup, target = back_up(folder), tmp_path / "new"
    os.truncate(backup, backup.stat().st_size - 1)
    target.mkdir()
    with pytest.raises(RestoreRefused):
        restore_backup(backup, target)
    assert not list(target.iterdir())


def test_a_wrong_passphrase_is_named(folder: Path, tmp_path: Path) -> None:
    backup = back_up(folder, passphrase="correct horse")
    with pytest.raises(RestoreRefused, match="passphrase is wrong"):
        restore_backup(backup, tmp_path / "new", passphrase="wrong horse")
    assert b"the journal" not in backup.read_bytes()


def rewrite(backup: Path, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> None:
    """Change the members of a backup."""
    with tarfile.open(backup) as tar:
        members = [(info, (tar.extractfile(info) or io.BytesIO()).read()) for info in tar]
    change(members)
    with gzip.open(backup, "wb", 1) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_restored_database_runs_no_code_of_the_backup(folder: Path, tmp_path: Path) -> None:
    statements = (
        'CREATE TRIGGER "a ""quoted"" name" AFTER UPDATE ON accounts BEGIN UPDATE accounts SET quota_nanos = NULL; END',
        "CREATE VIEW shown AS SELECT name FROM accounts",
        "CREATE TRIGGER of_a_view INSTEAD OF INSERT ON shown BEGIN DELETE FROM requests; END",
        "CREATE INDEX an_index_of_the_operator ON requests (model)",
    )
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    restore_backup(back_up(folder), tmp_path / "new")
    with closing(sqlite3.connect(tmp_path / "new" / DATABASE)) as connection:
        kinds = {kind for (kind,) in connection.execute("SELECT DISTINCT type FROM sqlite_master")}
        (names,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'an_index_of_the_operator'")
    assert (kinds, names) == ({"table", "index"}, (1,))


@pytest.mark.parametrize(
    "name",
    ["../outside", "/tmp/outside", "media/../../outside", "media/ab/../../../x.png", "gateway.lock", "pepper"],  # noqa: S108
)
def test_a_member_that_no_backup_has_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    backup = back_up(folder)
    rewrite(backup, lambda members: members.insert(-1, (tarfile.TarInfo(name), b"x")))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RestoreRefused, match="no file of a backup"):
        restore_backup(backup, tmp_path / "new")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_member_that_is_no_file_is_refused(folder: Path, tmp_path: Path, kind: bytes) -> None:
    backup = back_up(folder)
    link = tarfile.TarInfo("gateway.toml")
    link.type, link.linkname = kind, "/etc/passwd"
    rewrite(backup, lambda members: members.insert(-1, (link, b"")))
    with pytest.raises(RestoreRefused, match="no file of a backup"):
        restore_backup(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("which", range(8))
def test_a_member_that_was_changed_is_named(folder: Path, tmp_path: Path, which: int) -> None:
    backup = back_up(folder)
    names: list[str] = []

    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info, data = members[which]
        members[which] = info, bytes([data[0] ^ 1]) + data[1:]
        names.append(info.name)

    rewrite(backup, change)
    with pytest.raises(RestoreRefused, match=f"its file {names[0]} is not what the manifest says"):
        restore_backup(backup, tmp_path / "new")


def test_a_member_that_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    backup = back_up(folder)
    rewrite(backup, lambda members: members.__delitem__(0))
    with pytest.raises(RestoreRefused, match=r"its file gateway\.db is not what"):
        restore_backup(backup, tmp_path / "new")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schema", "9999", r"newer version.*schema 9999.*Install version 7\.8\.9 or newer"),
        ("format", 2, r"another format \(2\); version 7\.8\.9 wrote it"),
        ("members", None, "manifest is damaged"),
    ],
)
def test_a_backup_of_a_newer_version_is_refused(
    folder: Path, tmp_path: Path, field: str, value: object, message: str
) -> None:
    backup = back_up(folder)

    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info, data = members[-1]
        members[-1] = info, orjson.dumps({**orjson.loads(data), "version": "7.8.9", field: value})

    rewrite(backup, change)
    with pytest.raises(RestoreRefused, match=message):
        restore_backup(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("gateway.db", "holds a gateway"), ("pepper", "holds a gateway"), ("notes", "is not empty: it has notes")],
)
def test_a_folder_in_use_is_not_overwritten(folder: Path, tmp_path: Path, name: str, message: str) -> None:
    backup, target = back_up(folder), tmp_path / "new"
    target.mkdir()
    (target / name).write_text("mine")
    with pytest.raises(RestoreRefused, match=message):
        restore_backup(backup, target)
    assert read_tree(target) == {name: b"mine"}
