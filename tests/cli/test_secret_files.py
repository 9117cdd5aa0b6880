"""``gateway secrets show`` prints what another gateway on the same database has to be given, and creates nothing."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main

KEY = "0f" * 32


def show(*words: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["secrets", "show", *words], env={"GATEWAY_DISCOVER": "0", **(environ or {})})


def test_the_file_of_the_folder_is_shown(tmp_path: Path) -> None:
    (tmp_path / "master.key").write_bytes(bytes.fromhex(KEY))
    shown = show("--data", str(tmp_path))
    assert (shown.exit_code, shown.output) == (0, f"GATEWAY_STORE__MASTER_KEY={KEY}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["master.key"]


def test_the_setting_comes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "master.key").write_bytes(bytes(32))
    monkeypatch.setenv("GATEWAY_STORE__MASTER_KEY", KEY)
    assert f"MASTER_KEY={KEY}" in show("--data", str(tmp_path)).output
    assert show("--data", str(tmp_path), "--json").output.split() == ["{", '"master_key":', f'"{KEY}"', "}"]


def test_a_folder_without_one_is_an_error(tmp_path: Path) -> None:
    shown = show("--data", str(tmp_path / "none"))
    assert shown.exit_code != 0
    assert "master.key cannot be read: No such file or directory" in shown.output
    assert not (tmp_path / "none").exists()
