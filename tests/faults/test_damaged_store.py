"""P6: a data folder of which a part is missing, damaged or another's is noticed at the start, and never begun anew."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from gateway.cli.main import main
from gateway.domain.audit_log import AuditFilter
from gateway.server.context import SERVICES
from gateway.storage import integrity_check
from gateway.storage.data_folder import SECRETS, DataFolder, DataFolderDamaged
from gateway.storage.database import DatabaseStartupError
from gateway.storage.identity import check_secrets
from gateway.storage.integrity_worker import IntegrityWorker
from gateway.storage.open import open_database
from tests.support.gateway import RunningGateway, channels, start_gateway
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer

PAGE = 4096
KILLED = b'{"pid": 1, "url": "http://127.0.0.1:8080"}'
Damage = Callable[[Path], object]


@pytest.fixture
async def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a gateway that was used and stopped: a key, a request, many rows. Made by the first test."""
    path = tmp_path_factory.getbasetemp() / "used"
    if not path.exists():
        draft = tmp_path_factory.mktemp("draft")
        await use(draft)
        draft.rename(path)
    return path


async def use(path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await start_gateway(path, path / "none", channels([up]), furnished=False)
        async with gateway.post() as response:
            assert response.status == 200
        await gateway.rows(1)
        await gateway.close()
    with closing(sqlite3.connect(path / "gateway.db")) as database:
        row = database.execute("SELECT * FROM settings LIMIT 0")
        assert row.fetchall() == []
        database.executemany(
            "INSERT INTO audit (at_ms, actor_kind, actor, address, action, subject, detail) VALUES (?,?,?,?,?,?,?)",
            [
                (number, "token", "", "", "key.edited", f"acme/{number}", orjson.dumps({"x": "y" * 80}).decode())
                for number in range(400)
            ],
        )
        database.commit()


@pytest.fixture
def folder(used: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to be damaged."""
    return Path(shutil.copytree(used, tmp_path / "data"))


async def start(folder: Path) -> RunningGateway:
    """Start a gateway over the folder; lets go of it where the gateway refuses."""
    held = asyncio.all_tasks()
    try:
        return await start_gateway(folder, folder / "none", {}, furnished=False)
    except (DatabaseStartupError, DataFolderDamaged):
        (folder / "gateway.lock").unlink()  # this process held the lock, and goes on
        await asyncio.sleep(0)
        assert not {task for task in asyncio.all_tasks() - held if not task.done()}
        raise


@contextlib.asynccontextmanager
async def starting(folder: Path) -> AsyncIterator[RunningGateway]:
    gateway = await start(folder)
    try:
        yield gateway
    finally:
        await gateway.close()


def write_at(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def find_page(path: Path, name: str) -> int:
    """The number of the page, from 1, at which a table or an index begins."""
    with closing(sqlite3.connect(path)) as database:
        found: int = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
    return found


def zero_page(folder: Path, name: str) -> None:
    path = folder / "gateway.db"
    write_at(path, (find_page(path, name) - 1) * PAGE, bytes(PAGE))


def cut(folder: Path, keep: Callable[[int], int]) -> None:
    path = folder / "gateway.db"
    os.truncate(path, keep(path.stat().st_size))


def spoil_index(folder: Path) -> None:
    """Take an entry out of an index: its pages are whole, and what it finds is not what the table has."""
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        database.execute("PRAGMA writable_schema = ON")
        sql = database.execute("SELECT sql FROM sqlite_master WHERE name = 'requests_by_account'").fetchone()[0]
        database.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'requests_by_account'", (f"{sql} WHERE 0",))
        database.commit()
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        database.execute("REINDEX requests_by_account")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'requests_by_account'", (sql,))
        database.commit()


def make_foreign(folder: Path, *, alembic: bool = False) -> None:
    (folder / "gateway.db").unlink()
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        database.execute("CREATE TABLE notes (text)")
        if alembic:
            for name in ("accounts", "requests"):
                database.execute(f"CREATE TABLE {name} (id)")
            database.execute("CREATE TABLE alembic_version (version_num)")
            database.execute("INSERT INTO alembic_version VALUES ('f00dcafe1234')")
        database.commit()


def drop_table(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        database.execute("DROP TABLE members")
        database.commit()


DATABASE_DAMAGE: dict[str, tuple[Damage, str]] = {
    "deleted": (lambda folder: (folder / "gateway.db").unlink(), r"gateway.db is missing.*pepper.*Restore gateway.db"),
    "empty": (lambda folder: cut(folder, lambda _size: 0), r"gateway.db is empty.*pepper.*Restore gateway.db"),
    "cut in half": (lambda folder: cut(folder, lambda size: size // 2 // PAGE * PAGE), "is damaged.*Restore"),
    "cut in a page": (lambda folder: cut(folder, lambda size: size - PAGE - 100), "is damaged.*Restore"),
    "last page cut": (lambda folder: cut(folder, lambda size: size - PAGE), "is damaged.*Restore"),
    "header of zeros": (lambda folder: write_at(folder / "gateway.db", 0, bytes(100)), "is damaged.*Restore"),
    "first page of zeros": (lambda folder: write_at(folder / "gateway.db", 0, bytes(PAGE)), "is damaged.*Restore"),
    "all zeros": (
        lambda folder: (folder / "gateway.db").write_bytes(bytes((folder / "gateway.db").stat().st_size)),
        "is damaged.*Restore",
    ),
    "page of keys zero": (lambda folder: zero_page(folder, "keys"), "is damaged.*Restore"),
    "page of the audit trail zero": (lambda folder: zero_page(folder, "audit"), "is damaged.*Restore"),
    "page of an index zero": (lambda folder: zero_page(folder, "requests_by_account"), "is damaged.*Restore"),
    "index without its entries": (spoil_index, "is damaged.*requests_by_account.*Restore"),
    "text": (lambda folder: (folder / "gateway.db").write_text("SELECT 1;\n" * 2000), "is damaged.*Restore"),
    "another program's": (make_foreign, "another program"),
    "another program's with migrations": (lambda folder: make_foreign(folder, alembic=True), "another program"),
    "a table dropped": (drop_table, "lost its tables members"),
}


@pytest.mark.parametrize("name", DATABASE_DAMAGE)
async def test_a_database_that_is_damaged_or_missing_is_refused_and_left_as_it_is(folder: Path, name: str) -> None:
    damage, message = DATABASE_DAMAGE[name]
    damage(folder)
    before = read_files(folder)
    with pytest.raises((DatabaseStartupError, DataFolderDamaged), match=f"(?s){message}"):
        await start(folder)
    assert read_files(folder) == before


@pytest.mark.parametrize("name", ["media", "files"])
async def test_a_file_in_place_of_a_folder_is_named(folder: Path, name: str) -> None:
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).touch()
    with pytest.raises(DatabaseStartupError, match=f"cannot be used: .*/{name}'"):
        await start(folder)


def read_files(folder: Path) -> dict[str, bytes]:
    """Everything that is somebody's in the folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".lock"}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("content", [None, b"", b"short", bytes(32), b"x" * 32], ids=["gone", "", "5", "zero", "other"])
async def test_a_secret_that_is_missing_or_another_is_refused_and_named(
    folder: Path, name: str, content: bytes | None
) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    before = read_files(folder)
    with pytest.raises(DataFolderDamaged, match=f"(?s){name}.*{SECRETS[name]}.*Restore.*--renew-secret {name}"):
        await start(folder)
    assert read_files(folder) == before


async def test_a_database_of_another_data_folder_is_refused_and_left_as_it_is(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    await use(other)
    shutil.copy(other / "gateway.db", folder / "gateway.db")
    before = read_files(folder)
    with pytest.raises(DataFolderDamaged, match=r"made with other secrets.*pepper.*Restore"):
        await start(folder)
    assert read_files(folder) == before


async def test_a_new_folder_beside_a_database_elsewhere_is_refused(folder: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    with pytest.raises(DataFolderDamaged, match=r"fresh/.* is missing"):
        await start_gateway(fresh, fresh, {"store": {"url": f"sqlite:///{folder / 'gateway.db'}"}}, furnished=False)
    assert not (fresh / "pepper").exists()


async def test_a_folder_that_moved_whole_starts_and_its_keys_are_good(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "moved")
    async with starting(moved) as gateway, gateway.client.get(f"{gateway.url}/v1/models") as response:
        assert response.status == 200


async def test_an_earlier_versions_folder_starts_and_knows_its_secrets_from_then_on(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        database.execute("DELETE FROM fingerprints")  # as its migration leaves them
        database.commit()
    async with starting(folder) as gateway, gateway.client.get(f"{gateway.url}/v1/models") as response:
        assert response.status == 200
    (folder / "pepper").write_bytes(os.urandom(32))
    with pytest.raises(DataFolderDamaged, match="pepper"):
        await start(folder)


async def test_an_earlier_versions_folder_without_its_pepper_is_refused(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        database.execute("DELETE FROM fingerprints")
        database.commit()
    (folder / "pepper").unlink()
    (folder / "media.key").unlink()  # which version 0.2.0 did not have
    with pytest.raises(DataFolderDamaged, match="pepper is missing"):
        await start(folder)


async def test_a_lost_secret_is_made_anew_only_when_told_to(folder: Path) -> None:
    path = folder / "media.key"
    path.write_bytes(b"")
    with closing(DataFolder(folder)) as held:
        database = await open_database(f"sqlite:///{folder / 'gateway.db'}")
        await check_secrets(held, database, renew=("media.key",))
        await database.close()
    assert len(path.read_bytes()) == 32
    async with starting(folder):
        pass


@pytest.mark.parametrize("lost", ["gateway.db-wal", "requests.journal"])
async def test_what_a_killed_gateway_left_and_is_gone_is_told(folder: Path, lost: str) -> None:
    (folder / "gateway.lock").write_bytes(KILLED)
    (folder / "gateway.db-wal").touch()
    (folder / lost).unlink()
    with capture_logs() as lines:
        async with starting(folder):
            pass
    reported = [line["path"] for line in lines if line["event"] == "store_file_missing"]
    assert reported == [str(folder / lost)]


async def test_a_start_after_a_kill_reads_what_the_log_alone_has(folder: Path, tmp_path: Path) -> None:
    """The look for damage neither folds the log in nor drops it."""
    database = await open_database(f"sqlite:///{folder / 'gateway.db'}")
    await database.write(lambda connection: connection.exec_driver_sql("UPDATE audit SET actor = 'committed'"))
    crashed = tmp_path / "crashed"
    shutil.copytree(folder, crashed)
    (crashed / "gateway.db-shm").unlink()
    await database.close()
    (crashed / "gateway.lock").write_bytes(KILLED)
    async with starting(crashed) as gateway:
        rows = await gateway.app[SERVICES].admin.audit_log.list_audit(AuditFilter(), 1000)
        assert sum(row.actor == "committed" for row in rows) >= 400


async def test_damage_that_is_found_while_it_serves_is_told_by_readyz_and_the_log(folder: Path) -> None:
    async with starting(folder) as gateway:
        database = gateway.app[SERVICES].storage.database
        await IntegrityWorker(database).check()
        async with gateway.client.get(f"{gateway.url}/readyz") as response:
            assert "damaged" not in await response.text()
        with closing(sqlite3.connect(folder / "gateway.db")) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        zero_page(folder, "audit")
        with capture_logs() as lines:
            await IntegrityWorker(database).check()
            await IntegrityWorker(database).check()
        async with gateway.client.get(f"{gateway.url}/readyz") as response:
            assert response.status == 503
            assert "The gateway's store is damaged; its log says how" in (await response.json())["problems"]
        gateway.audited = False
    assert [line["event"] for line in lines] == ["store_damaged"]


@pytest.mark.parametrize("bytes_per_s", [1, 10**9])
async def test_a_check_that_cannot_stop_reads_no_large_file_before_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_s: int
) -> None:
    monkeypatch.setattr(integrity_check, "CAN_STOP", False)
    monkeypatch.setattr(integrity_check, "READ_BYTES_PER_S", bytes_per_s)
    spoil_index(folder)
    if bytes_per_s > 1:
        with pytest.raises(DatabaseStartupError, match="is damaged"):
            await start(folder)
        return
    async with starting(folder) as gateway:
        with capture_logs() as lines:
            await IntegrityWorker(gateway.app[SERVICES].storage.database).check()
        assert [line["event"] for line in lines] == ["store_damaged"]
        gateway.audited = False


async def test_a_stop_does_not_wait_for_a_check_that_cannot_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, may_end = threading.Event(), threading.Event()

    def check_tables(_: sqlite3.Connection) -> list[str]:
        is_asked.set()
        may_end.wait()
        return []

    monkeypatch.setattr(integrity_check, "_check_tables", check_tables)
    monkeypatch.setattr(integrity_check, "STOP_TIMEOUT_S", 0.01)
    checking = asyncio.create_task(integrity_check.find_damage(folder / "gateway.db"))
    await asyncio.to_thread(is_asked.wait)
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    assert not may_end.is_set()
    may_end.set()


async def test_damage_that_a_read_meets_is_told(folder: Path) -> None:
    async with starting(folder) as gateway:
        zero_page(folder, "links")
        with capture_logs() as lines:
            async with gateway.client.get(
                f"{gateway.url}/admin/v1/links", headers={"Authorization": f"Bearer {gateway.admin_token}"}
            ) as response:
                assert response.status == 503
        assert "store_damaged" in {line["event"] for line in lines}
        gateway.audited = False


async def test_a_check_that_is_cancelled_as_it_ends_is_cancelled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_ended = threading.Event()

    def check_tables(connection: sqlite3.Connection) -> list[str]:
        connection.close()
        has_ended.set()
        return []

    monkeypatch.setattr(integrity_check, "_check_tables", check_tables)
    checking = asyncio.create_task(integrity_check.find_damage(folder / "gateway.db"))
    await asyncio.sleep(0)
    has_ended.wait()  # and its result waits for this loop
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking


async def test_a_check_that_is_cancelled_ends_at_once(folder: Path) -> None:
    async with starting(folder) as gateway:
        checking = asyncio.create_task(IntegrityWorker(gateway.app[SERVICES].storage.database).check())
        await asyncio.sleep(0)
        checking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checking


@pytest.mark.parametrize("words", ["accounts", "keys", "usage", "audit", "requests", "changes", "models", "channels"])
def test_a_command_that_only_looks_makes_no_folder(tmp_path: Path, words: str) -> None:
    done = CliRunner().invoke(main, [words, "--data", str(tmp_path / "typo")], obj={"GATEWAY_DISCOVER": "0"})
    assert not (tmp_path / "typo").exists()
    if words not in {"models", "channels"}:  # which tell what the configuration says
        assert done.exit_code == 2
        assert "No gateway here" in done.stderr
