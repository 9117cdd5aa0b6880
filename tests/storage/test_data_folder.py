"""The data folder: one process at a time, and secrets that only its owner reads."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.storage.data_folder import PEPPER_BYTES, DataFolder, DataFolderDamaged, DataFolderLocked, find_holder

HOLD = """
import sys
from pathlib import Path
from gateway.storage.data_folder import DataFolder
folder = DataFolder(Path(sys.argv[1]))
folder.announce("http://127.0.0.1:8080")
print("held", flush=True)
sys.stdin.read()
"""
"""Takes the folder and keeps it until its input ends."""

TRY = """
import sys
from pathlib import Path
from gateway.storage.data_folder import DataFolder, DataFolderLocked, DataFolderDamaged
try:
    DataFolder(Path(sys.argv[1])).close()
except DataFolderLocked as busy:
    print(busy)
else:
    print("opened")
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process has the folder."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    opened = DataFolder(tmp_path / "data")
    yield opened
    opened.close()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_second_process_is_kept_out_and_told_who_is_in(folder: DataFolder) -> None:
    folder.announce("http://127.0.0.1:9999")
    answer = subprocess.run([sys.executable, "-c", TRY, str(folder.path)], capture_output=True, text=True, check=True)
    assert f"process {os.getpid()}" in answer.stdout
    assert "http://127.0.0.1:9999" in answer.stdout
    assert str(folder.path) in answer.stdout


def test_the_same_process_is_kept_out_too(folder: DataFolder) -> None:
    with pytest.raises(DataFolderLocked) as caught:
        DataFolder(folder.path)
    assert caught.value.holder == {"pid": os.getpid()}


def test_a_process_that_was_killed_leaves_the_folder_free(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with holder(path) as process:
        assert find_holder(path) == {"pid": process.pid, "url": "http://127.0.0.1:8080"}
        with pytest.raises(DataFolderLocked, match="8080"):
            DataFolder(path)
    assert find_holder(path) is None
    folder = DataFolder(path)
    assert find_holder(path) == {"pid": os.getpid()}
    folder.close()


def test_a_folder_that_was_closed_may_be_opened_again(tmp_path: Path) -> None:
    for _ in range(3):
        folder = DataFolder(tmp_path)
        assert find_holder(tmp_path) == {"pid": os.getpid()}
        folder.close()
        assert find_holder(tmp_path) is None


def test_nobody_holds_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert find_holder(tmp_path / "nowhere") is None
    assert not (tmp_path / "nowhere").exists()


def test_a_lock_file_full_of_garbage_is_no_failure(folder: DataFolder) -> None:
    for garbage in (b"", b"\xff\x00", b"[1]", b'{"pid":'):
        (folder.path / "gateway.lock").write_bytes(garbage)
        assert find_holder(folder.path) == {}
        with pytest.raises(DataFolderLocked, match="unknown"):
            DataFolder(folder.path)


def test_an_announcement_replaces_the_one_before(folder: DataFolder) -> None:
    folder.announce("http://a-long-name.example.com:12345")
    folder.announce("http://x")
    assert find_holder(folder.path) == {"pid": os.getpid(), "url": "http://x"}


def test_everything_secret_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = DataFolder(tmp_path / "data")
        folder.make_secret("pepper")
        folder.admin_token()
        database = folder.private_file("gateway.db")
        folder.close()
    finally:
        os.umask(before)
    assert mode(folder.path) == 0o700
    for name in ("pepper", "admin.token", "gateway.lock", database.name):
        assert mode(folder.path / name) == 0o600


def test_secrets_are_made_once_and_stay(tmp_path: Path) -> None:
    seen = set()
    for number in range(3):
        folder = DataFolder(tmp_path)
        if not number:
            folder.make_secret("pepper")
        seen.add((folder.secret("pepper"), folder.secret("pepper"), folder.admin_token()))
        folder.close()
    ((pepper, again, token),) = seen
    assert len(pepper) == PEPPER_BYTES
    assert pepper == again
    assert len(token) >= 40


def test_two_folders_and_two_secrets_are_not_alike(folder: DataFolder, tmp_path: Path) -> None:
    other = DataFolder(tmp_path / "other")
    for where in (folder, other):
        for name in ("a", "b"):
            where.make_secret(name)
    secrets = {folder.secret("a"), folder.secret("b"), other.secret("a"), other.secret("b")}
    assert len(secrets) == 4
    assert folder.admin_token() != other.admin_token()
    other.close()


@pytest.mark.parametrize("size", [0, 1, PEPPER_BYTES - 1, PEPPER_BYTES + 1])
def test_a_pepper_of_the_wrong_length_is_refused_and_left_as_it_is(folder: DataFolder, size: int) -> None:
    path = folder.path / "pepper"
    path.write_bytes(b"x" * size)
    with pytest.raises(DataFolderDamaged, match="backup"):
        folder.secret("pepper")
    assert path.read_bytes() == b"x" * size


def test_an_empty_admin_token_is_never_given_out(folder: DataFolder) -> None:
    # Whoever sends no token must not match one that is empty.
    (folder.path / "admin.token").write_bytes(b"")
    assert len(folder.admin_token()) >= 40


def test_a_secret_that_is_missing_or_of_zeros_is_never_made_up(folder: DataFolder) -> None:
    with pytest.raises(DataFolderDamaged, match=r"pepper is missing.*--renew-secret pepper"):
        folder.secret("pepper")
    assert not (folder.path / "pepper").exists()
    (folder.path / "pepper").write_bytes(bytes(PEPPER_BYTES))
    with pytest.raises(DataFolderDamaged, match="random"):
        folder.secret("pepper")


def test_a_folder_knows_that_its_last_gateway_was_killed(tmp_path: Path) -> None:
    for left, killed in ((b"", False), (b'{"pid": 1}', False), (b'{"pid": 1, "url": "http://127.0.0.1:8080"}', True)):
        (tmp_path / "gateway.lock").write_bytes(left)
        folder = DataFolder(tmp_path)
        assert folder.was_killed == killed
        folder.close()


def test_making_a_secret_leaves_no_draft_behind(folder: DataFolder) -> None:
    folder.make_secret("pepper")
    folder.admin_token()
    assert {path.name for path in folder.path.iterdir()} == {"gateway.lock", "pepper", "admin.token"}


def test_a_private_file_is_made_empty_and_then_left_alone(folder: DataFolder) -> None:
    path = folder.private_file("gateway.db")
    assert path.read_bytes() == b""
    path.write_bytes(b"content")
    assert folder.private_file("gateway.db").read_bytes() == b"content"
