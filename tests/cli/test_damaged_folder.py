"""Every command over a damaged data folder names the damage and what to do, without a stack trace."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.storage.data_folder import JOURNAL
from tests.support.command_line import run_many

COMMANDS = (
    ("serve", "--port", "0"),
    ("accounts",),
    ("keys", "create"),
    ("channels",),
    ("models",),
    ("requests",),
    ("usage",),
    ("verify",),
    ("audit-log",),
    ("settings",),
    ("members",),
    ("videos",),
)
DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "database cut": (lambda at: os.truncate(at / "gateway.db", 9 * 4096), "is damaged", "gateway restore"),
    "header of zeros": (lambda at: zero(at / "gateway.db", 100), "is damaged", "gateway doctor"),
    "database missing": (lambda at: (at / "gateway.db").unlink(), "gateway.db is missing", "gateway restore"),
    "secret missing": (lambda at: (at / "master.key").unlink(), "master.key is missing", "gateway restore"),
    "secret cut": (lambda at: os.truncate(at / "pepper", 31), "must hold 32 random bytes", "gateway restore"),
}


def zero(path: Path, count: int) -> None:
    with path.open("r+b") as file:
        file.write(bytes(count))


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_damage_and_the_remedy_are_named(data: Path, tmp_path: Path, damage: str) -> None:
    spoil, text, remedy = DAMAGE[damage]
    with_identity = run_many(tmp_path, ["accounts", "--data", str(data)])
    assert with_identity[0][0] == 0, with_identity
    spoil(data)
    damaged = {
        path.name: path.read_bytes() for path in data.iterdir() if path.is_file() and path.name != "gateway.lock"
    }
    for words, (code, out, err) in zip(
        COMMANDS, run_many(tmp_path, *([*words, "--data", str(data)] for words in COMMANDS)), strict=True
    ):
        assert code == 2, (words, out, err)
        assert text in err, (words, err)
        assert remedy in err, (words, err)
        assert "Traceback" not in out + err, (words, err)
    left = {path.name: path.read_bytes() for path in data.iterdir() if path.is_file() and path.name != "gateway.lock"}
    assert left == damaged


@pytest.mark.parametrize("size", [20, 0])
def test_a_journal_that_was_cut_stops_no_command_and_is_kept(data: Path, tmp_path: Path, size: int) -> None:
    assert run_many(tmp_path, ["accounts", "--data", str(data)])[0][0] == 0
    os.truncate(data / JOURNAL, size)
    torn = (data / JOURNAL).read_bytes()
    ((code, out, err),) = run_many(tmp_path, ["accounts", "--data", str(data)])
    assert code == 0, (out, err)
    assert "Traceback" not in out + err
    kept = data / f"{JOURNAL}.unread-1"
    assert kept.exists() == bool(size)
    if size:
        assert kept.read_bytes() == torn
        assert "journal_lines_skipped" in out + err
        assert "A backup may have them" in out + err
