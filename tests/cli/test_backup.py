"""``gateway backup`` and ``gateway restore``, as an operator runs them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main

pytestmark = pytest.mark.usefixtures("cheap_passphrases")
PASSPHRASE = "GATEWAY_BACKUP_PASSPHRASE"


def run(*words: object, given: str | None = None, passphrase: str | None = None) -> Result:
    env = {"GATEWAY_DISCOVER": "0", PASSPHRASE: passphrase}
    return CliRunner().invoke(main, [str(word) for word in words], input=given, env=env)


def test_a_folder_comes_back_with_its_accounts(data: Path, tmp_path: Path) -> None:
    assert run("accounts", "add", "team", "--quota-usd", "5", "--data", data).exit_code == 0
    backup, target = tmp_path / "b.gwb", tmp_path / "new"
    written = run("backup", backup, "--data", data)
    assert written.exit_code == 0, written.output
    assert "files of" in written.stdout
    restored = run("restore", backup, "--data", target)
    assert restored.exit_code == 0, restored.output
    assert f"gateway verify --data {target}" in restored.stdout
    shown = json.loads(run("accounts", "show", "team", "--data", target, "--json").stdout)
    assert shown["quota_usd"] == 5
    verified = run("verify", "--data", target)
    assert verified.exit_code == 0, verified.output


def test_a_passphrase_is_asked_for_twice_and_then_once(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "b.gwb"
    words = ("backup", backup, "--encrypt", "--data", data)
    assert run(*words, given="one\ntwo\n").exit_code == 1
    assert not backup.exists()
    assert run(*words, given="one\none\n").exit_code == 0
    wrong = run("restore", backup, "--data", tmp_path / "new", given="two\n")
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "passphrase is wrong" in wrong.stderr
    assert run("restore", backup, "--data", tmp_path / "new", given="one\n").exit_code == 0


def test_a_passphrase_of_the_environment_is_taken(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "b.gwb"
    written = run("backup", backup, "--encrypt", "--data", data, "--json", passphrase="one")
    assert written.exit_code == 0
    assert "gateway.db" in json.loads(written.stdout)["members"]
    done = run("restore", backup, "--data", tmp_path / "new", "--json", passphrase="one")
    assert json.loads(done.stdout) == json.loads(written.stdout)


def test_the_configuration_and_its_database_are_backed_up(data: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (data / "gateway.db").rename(tmp_path / "elsewhere" / "x.db")
    config = tmp_path / "my.toml"
    config.write_text(f'[store]\nurl = "sqlite:///{tmp_path}/elsewhere/x.db"\nmaster_key = "{"5a" * 31}a7"\n')
    backup, target = tmp_path / "b.gwb", tmp_path / "new"
    written = run("backup", backup, "--data", data, "--config", config)
    assert written.exit_code == 0, written.output
    assert "store.master_key" in written.stderr
    restored = run("restore", backup, "--data", target)
    assert f"{target}/gateway.toml (--config)" in restored.stdout
    assert "store.url" in restored.stdout
    assert (target / "gateway.toml").read_text() == config.read_text()
    assert (target / "gateway.db").exists()


@pytest.mark.parametrize("content", ["", "no backup at all", "\x1f\x8b\x08\x00"])
def test_what_is_no_backup_is_refused_plainly(tmp_path: Path, content: str) -> None:
    (tmp_path / "b").write_text(content, encoding="latin-1")
    done = run("restore", tmp_path / "b", "--data", tmp_path / "new")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot be read" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_backup_that_cannot_be_written_is_refused_plainly(data: Path, tmp_path: Path) -> None:
    done = run("backup", tmp_path / "no" / "b.gwb", "--data", data)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "No backup was written" in done.stderr
