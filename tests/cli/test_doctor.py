"""``gateway doctor`` finds what is wrong, says what to do, and changes nothing."""

import asyncio
import json
import os
import shutil
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from gateway.cli.main import main
from gateway.storage.channels import PURPOSE, build_associated_data
from gateway.storage.data_folder import JOURNAL, SECRETS
from gateway.storage.encryption import SecretBox
from gateway.storage.identity import MASTER_KEY_NAME
from gateway.storage.schema import REVISION
from tests.support.certificates import write_certificate
from tests.support.gateway import start_gateway
from tests.support.scripted_upstream import ScriptedUpstream, answer

MODELS = {"object": "list", "data": [{"id": "m", "object": "model"}]}
OFF_LIMIT = {"GATEWAY_DISCOVER": "0", "GATEWAY_SERVER__PORT": "0"}
Damage = Callable[[Path], object]


@pytest.fixture
async def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that a gateway has served from and closed; it has a channel with a sealed key."""
    made = tmp_path_factory.getbasetemp() / "examined"
    if not made.exists():
        draft = tmp_path_factory.mktemp("draft")
        await make_folder(draft)
        draft.rename(made)
    return Path(shutil.copytree(made, tmp_path / "data"))


async def make_folder(path: Path) -> None:
    gateway = await start_gateway(path, path / "none", {}, furnished=False)
    async with ScriptedUpstream([answer(MODELS)]) as up:
        body = {"name": "up", "provider": "custom", "base_url": up.base_url, "api_keys": ["sk"], "models": ["m"]}
        headers = {"Authorization": f"Bearer {gateway.admin_token}"}
        async with gateway.client.post(f"{gateway.url}/admin/v1/channels", json=body, headers=headers) as response:
            assert response.status < 300, await response.text()
    await gateway.close()
    path.chmod(0o700)


def run(folder: Path, *words: str, env: dict[str, str] | None = None) -> Result:
    done = CliRunner().invoke(main, ["doctor", "--data", str(folder), *words], env={**OFF_LIMIT, **(env or {})})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def find(folder: Path, check: str, **kwargs: Any) -> list[dict[str, str]]:
    """The findings of one check that are no success."""
    findings = json.loads(run(folder, "--json", **kwargs).stdout)["findings"]
    return [finding for finding in findings if finding["check"] == check and finding["state"] != "ok"]


def read_state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    paths = [folder, *folder.rglob("*")]
    return {
        str(path): (path.stat().st_mode, path.stat().st_mtime_ns, b"" if path.is_dir() else path.read_bytes())
        for path in paths
    }


def test_a_sound_folder_has_no_problem_and_stays_as_it_is(folder: Path) -> None:
    before = read_state(folder)
    done = run(folder)
    assert done.exit_code == 0, done.output
    assert read_state(folder) == before
    report = json.loads(run(folder, "--json").stdout)
    assert report["ok"]
    states = {finding["check"]: finding["state"] for finding in report["findings"]}
    assert states == {
        **dict.fromkeys(("settings", "folder", "database", "schema", "secrets", "journal", "disk", "port"), "ok"),
        "clock": "skipped",
    }


def test_no_folder_is_created(tmp_path: Path) -> None:
    done = run(tmp_path / "typo")
    assert done.exit_code == 1
    assert "gateway serve" in done.stdout
    assert not list(tmp_path.iterdir())


def write(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def execute(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def other_secrets(folder: Path, name: str) -> None:
    (folder / name).write_bytes(os.urandom(32))


def break_sealed(folder: Path) -> None:
    execute(folder, "UPDATE channels SET sealed = randomblob(60)")


ORPHAN = (
    "INSERT INTO links (digest, kind, account_id, role, created_ms, expires_ms, created_by) "
    "VALUES (x'00', 'x', 999, 'x', 1, 1, 'x')"
)
DAMAGE: dict[str, tuple[Damage, str, str, str]] = {
    "database missing": (lambda at: (at / "gateway.db").unlink(), "database", "is missing", "gateway restore"),
    "database empty": (lambda at: os.truncate(at / "gateway.db", 0), "database", "is empty", "gateway restore"),
    "database cut": (lambda at: os.truncate(at / "gateway.db", 9 * 4096), "database", "", "gateway restore"),
    "header of zeros": (lambda at: write(at / "gateway.db", 0, bytes(100)), "database", "", "gateway restore"),
    "a page of zeros": (lambda at: write(at / "gateway.db", 3 * 4096, bytes(4096)), "database", "", "gateway restore"),
    "a row of nothing": (lambda at: execute(at, ORPHAN), "database", "Rows of links", "gateway restore"),
    "another program's": (lambda at: execute(at, "DROP TABLE requests"), "database", "of another program", "store.url"),
    "newer schema": (
        lambda at: execute(at, "UPDATE alembic_version SET version_num = '9999'", "PRAGMA user_version = 7008009"),
        "schema",
        "Install version 7.8.9 or newer",
        "Install",
    ),
    "channel not opened": (break_sealed, "secrets", "'up' of channels", "from one backup"),
    "journal torn": (lambda at: (at / JOURNAL).write_bytes(b'{"fie\n[1,2]\n[0'), "journal", "is damaged", "restore"),
    "journal cut in its head": (lambda at: os.truncate(at / JOURNAL, 20), "journal", "is damaged", "restore"),
    "folder open": (lambda at: at.chmod(0o755), "folder", "can look into", "chmod 700"),
    "secret open": (lambda at: (at / "pepper").chmod(0o644), "folder", "can read", "chmod 600"),
    **{
        f"{name} missing": (lambda at, n=name: (at / n).unlink(), "secrets", "is missing", "Restore")  # type: ignore[misc]
        for name in SECRETS
    },
    **{
        f"{name} of zeros": (lambda at, n=name: (at / n).write_bytes(bytes(32)), "secrets", "must hold 32", "Restore")  # type: ignore[misc]
        for name in SECRETS
    },
    **{
        f"another {name}": (
            lambda at, n=name: other_secrets(at, n),  # type: ignore[misc]
            "secrets",
            f"The secret {name} is not",
            "from one backup",
        )
        for name in SECRETS
    },
}  # a lambda's default has no type


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_with_what_to_do(folder: Path, damage: str) -> None:
    spoil, check, text, fix = DAMAGE[damage]
    spoil(folder)
    before = read_state(folder)
    done = run(folder)
    assert read_state(folder) == before
    assert "Traceback" not in done.output
    (found, *_) = find(folder, check)
    assert text in found["text"]
    assert fix in found["fix"]
    assert done.exit_code == (0 if found["state"] == "warning" else 1)
    assert found["text"].split("\n")[0] in done.stdout


def test_an_older_schema_is_a_warning(folder: Path) -> None:
    execute(folder, "UPDATE alembic_version SET version_num = '0001'")
    (found,) = find(folder, "schema")
    assert (found["state"], "gateway backup" in found["fix"]) == ("warning", True)
    assert f"to {REVISION}" in found["text"]


def test_every_problem_of_the_settings_is_listed(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "broken.toml"
    config.write_text("[server]\nprot = 1\nhost = 5\n")
    done = run(folder, "--config", str(config))
    assert done.exit_code == 1
    assert done.stdout.count("PROBLEM  settings") == 2


def test_a_stored_setting_that_is_ignored_is_a_warning(folder: Path) -> None:
    execute(folder, "INSERT INTO settings VALUES ('routing.retry_ratio', '\"much\"', 1)")
    (found,) = find(folder, "settings")
    assert "routing.retry_ratio" in found["text"]


@contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_a_port_in_use_is_named(folder: Path) -> None:
    with listening() as port:
        (found,) = find(folder, "port", env={"GATEWAY_SERVER__PORT": str(port)})
    assert f":{port}" in found["text"]
    assert "--port" in found["fix"]
    assert not find(folder, "port", env={"GATEWAY_SERVER__PORT": str(port)})


async def test_a_running_gateway_is_asked_and_not_disturbed(tmp_path: Path) -> None:
    gateway = await start_gateway(tmp_path / "data", tmp_path / "none", {}, furnished=False)
    (tmp_path / "data").chmod(0o700)
    gateway.folder.announce(gateway.url)
    found = await asyncio.to_thread(find, tmp_path / "data", "port")
    assert found == []
    done = await asyncio.to_thread(run, tmp_path / "data")
    assert (done.exit_code, gateway.url in done.stdout) == (0, True), done.output
    await gateway.close()


@pytest.fixture
async def ask_at() -> AsyncIterator[Callable[[float], Any]]:
    """Servers whose clock is some seconds ahead."""
    runners = []

    async def start(ahead_s: float) -> str:
        async def answer(_request: web.Request) -> web.Response:
            return web.Response(status=404, headers={"Date": formatdate(time.time() + ahead_s, usegmt=True)})

        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize(("ahead_s", "words"), [(0, None), (600, "s behind"), (-600, "s ahead of")])
async def test_the_clock_is_compared_with_a_providers(
    folder: Path, tmp_path: Path, ask_at: Callable[[float], Any], ahead_s: float, words: str | None
) -> None:
    config = tmp_path / "x.toml"
    url = await ask_at(ahead_s)
    config.write_text(f'[[channel]]\nname = "a"\nprovider = "custom"\nbase_url = "{url}"\nmodels = ["m"]\n')
    done = await asyncio.to_thread(run, folder, "--config", str(config))
    assert done.exit_code == (0 if words is None else 1), done.output
    assert ("The clock agrees" if words is None else words) in done.stdout


@pytest.mark.parametrize("proxy", [None, "http://127.0.0.1:9"])
async def test_a_stored_channel_is_asked_unless_it_has_a_proxy(
    folder: Path, ask_at: Callable[[float], Any], proxy: str | None
) -> None:
    box = SecretBox((folder / MASTER_KEY_NAME).read_bytes()).derive(PURPOSE)
    with closing(sqlite3.connect(folder / "gateway.db")) as database:
        ((channel_id,),) = database.execute("SELECT id FROM channels")
        sealed = box.seal(orjson.dumps({"api_keys": ["sk"], "proxy": proxy}), context=build_associated_data(channel_id))
        database.execute("UPDATE channels SET base_url = ?, sealed = ?", (await ask_at(600), sealed))
        database.commit()
    (found,) = await asyncio.to_thread(find, folder, "clock")
    assert found["state"] == ("skipped" if proxy else "problem")


@pytest.mark.parametrize(
    ("days", "state", "text"), [(90, None, ""), (5, "warning", "expires in 4 days"), (-1, "problem", "has expired")]
)
def test_the_end_of_the_certificate_is_found(
    folder: Path, tmp_path: Path, days: float, state: str | None, text: str
) -> None:
    write_certificate(tmp_path, days=days)
    env = {"GATEWAY_SERVER__TLS_CERTIFICATE": f"{tmp_path}/cert.pem", "GATEWAY_SERVER__TLS_KEY": f"{tmp_path}/key.pem"}
    findings = find(folder, "tls", env=env)
    assert [finding["state"] for finding in findings] == ([state] if state else [])
    assert all(text in finding["text"] for finding in findings)
    (tmp_path / "key.pem").chmod(0o604)
    assert "chmod 600" in find(folder, "tls", env=env)[0]["fix"]
    (tmp_path / "key.pem").unlink()
    assert "key.pem cannot be read" in find(folder, "tls", env=env)[0]["text"]
