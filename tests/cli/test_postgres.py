"""Commands that look into the data folder, where the database is on a server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main
from gateway.domain.balance import Quota
from gateway.errors import QuotaExceeded
from gateway.storage.data_folder import SECRETS, DataFolder
from tests.support.billing_services import capped
from tests.support.credit_checks import add_caller, audit
from tests.support.credit_gateway import LeasedGateway
from tests.support.credit_store import open_credit_store
from tests.support.gateway import start_gateway
from tests.support.postgres import SharedPostgres

NOWHERE = "postgresql://me:hidden@127.0.0.1:1/gateway"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = DataFolder(tmp_path / "data")
    for name in SECRETS:
        folder.make_secret(name)
    folder.close()
    return folder.path


def run(folder: Path, url: str, *words: str) -> Result:
    env = {"GATEWAY_DATA": str(folder), "GATEWAY_STORE__URL": url, "GATEWAY_DISCOVER": "0", "GATEWAY_SERVER__PORT": "0"}
    result = CliRunner().invoke(main, [*words], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "hidden" not in result.output
    return result


def find_database(result: Result) -> dict[str, Any]:
    (finding,) = (one for one in json.loads(result.stdout)["findings"] if one["check"] == "database")
    return dict(finding)


def test_a_downgrade_works_on_a_file_only(folder: Path) -> None:
    result = run(folder, NOWHERE, "downgrade", "0.7.0")
    assert result.exit_code == 1
    assert "is on a PostgreSQL server (store.url). Restore the backup" in result.stderr


def test_a_server_that_does_not_answer_is_not_backed_up(folder: Path, tmp_path: Path) -> None:
    result = run(folder, NOWHERE, "backup", str(tmp_path / "b.gwb"))
    assert (result.exit_code, "No backup was written. The database postgresql://127" in result.stderr) == (1, True)
    assert not (tmp_path / "b.gwb").exists()
    assert not list(folder.glob(".backup-*"))


async def test_a_server_is_backed_up_and_restored_to_another(
    folder: Path, shared_postgres: SharedPostgres, tmp_path: Path
) -> None:
    server, file = await shared_postgres.get_server(), tmp_path / "b.gwb"
    url, other = await server.make_database(), await server.make_database()
    written = await asyncio.to_thread(run, folder, url, "backup", str(file), "--json")
    manifest = json.loads(written.stdout)
    assert manifest["database"] == url.replace("gateway:hidden@", "")
    restored = await asyncio.to_thread(run, tmp_path / "new", other, "restore", str(file), "--json")
    assert json.loads(restored.stdout) == manifest
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert (names >= set(SECRETS), "gateway.db" in names) == (True, False)
    verified = await asyncio.to_thread(run, tmp_path / "new", other, "verify", "--json")
    assert json.loads(verified.stdout)["ok"]


async def test_a_command_between_two_runs_of_a_cluster_leaves_its_balances_right(
    folder: Path, shared_postgres: SharedPostgres, tmp_path: Path
) -> None:
    async with open_credit_store(shared_postgres) as store:
        lost, stopped = gateways = [LeasedGateway(store.url, name, tmp_path) for name in "ab"]
        for gateway in gateways:
            await gateway.start()
        caller = await add_caller(stopped, Quota(), capped(2_000))
        await lost.admit(caller, 300)
        stopped.settle(await stopped.admit(caller, 1_000), 900)
        await stopped.stop()
        await lost.kill()
        topped_up = await asyncio.to_thread(run, folder, store.url, "keys", "top-up", "laptop", "0.000005")
        assert topped_up.exit_code == 0, topped_up.output
        started = LeasedGateway(store.url, "b", tmp_path)
        await started.start()
        await audit(store)
        assert (await started.accounting.reconcile())["problems"] == []
        outstanding = await store.connection.fetchval("SELECT granted FROM credit_leases WHERE owner = 1")
        assert outstanding >= 300, "what the lost node may have spent stays set aside"
        with pytest.raises(QuotaExceeded):
            await started.admit(caller, 6_101 - outstanding)
        started.balances.note_credit("key", caller.key.id, 0)  # it remembers the refusal for a moment
        started.settle(await started.admit(caller, 6_100 - outstanding), 100)
        await started.stop()
        await audit(store)


async def test_the_one_gateway_that_takes_over_a_nodes_folder_ends_its_leases(
    folder: Path, shared_postgres: SharedPostgres, tmp_path: Path
) -> None:
    async with open_credit_store(shared_postgres) as store:
        of_node = DataFolder(folder)
        name = of_node.node_id()
        of_node.close()
        gateways = [LeasedGateway(store.url, each, tmp_path) for each in (name, "b")]
        for gateway in gateways:
            await gateway.start()
        caller = await add_caller(gateways[0], Quota(), capped(2_000))
        for gateway in gateways:
            await gateway.admit(caller, 300)
            await gateway.kill()
        config = {"store": {"url": store.url}}
        alone = await start_gateway(folder, tmp_path, config, furnished=False)
        await alone.close()
        assert await store.connection.fetchval("SELECT count(*) FROM credit_balances") == 0
        assert [each["node"] for each in await store.connection.fetch("SELECT node FROM credit_leases")] == ["b"]


def test_the_doctor_says_why_a_server_does_not_answer(folder: Path) -> None:
    found = find_database(run(folder, NOWHERE, "doctor", "--json"))
    assert found["state"] == "problem"
    assert "postgresql://127.0.0.1:1/gateway cannot be used" in found["text"]


async def test_the_doctor_says_which_schema_a_database_has(folder: Path, shared_postgres: SharedPostgres) -> None:
    url = await shared_postgres.empty()
    server = await shared_postgres.get_server()
    found = find_database(await asyncio.to_thread(run, folder, url, "doctor", "--json"))
    assert (found["state"], "schema 00" in found["text"]) == ("ok", True)
    empty = server.name_url("postgres")
    assert "answers (empty)" in find_database(await asyncio.to_thread(run, folder, empty, "doctor", "--json"))["text"]
    newer = await server.make_database()
    await server.execute("UPDATE alembic_version SET version_num = '9999'", newer.rpartition("/")[2])
    found = find_database(await asyncio.to_thread(run, folder, newer, "doctor", "--json"))
    assert (found["state"], "of a newer version" in found["text"]) == ("problem", True)
