"""Commands that know where media are: ``gateway doctor`` tries the store, a backup says what it does not have."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main
from tests.support.s3_server import start_s3_server

NAME = "ab/ab0123456789abcdef0123456789abcd.png"


def run(*words: object, media_url: str = "") -> Result:
    env = {"GATEWAY_DISCOVER": "0", "GATEWAY_SERVER__PORT": "0", "GATEWAY_STORE__MEDIA_URL": media_url}
    return CliRunner().invoke(main, [str(word) for word in words], env=env)


def find(data: Path, media_url: str) -> list[tuple[str, str]]:
    """State and text of what doctor finds about media."""
    findings = json.loads(run("doctor", "--data", data, "--json", media_url=media_url).stdout)["findings"]
    return [(one["state"], one["text"]) for one in findings if one["check"] == "media"]


def test_doctor_looks_at_a_folder_of_media(data: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    assert find(data, "") == []
    assert find(data, f"{tmp_path}/shared") == [("ok", f"Media are kept in {tmp_path}/shared")]
    assert find(data, f"{tmp_path}/other") == [("problem", f"The folder {tmp_path}/other does not exist")]


async def test_doctor_tries_a_bucket_and_leaves_nothing(data: Path) -> None:
    async with start_s3_server() as server:
        assert [state for state, _ in await asyncio.to_thread(find, data, server.media_url)] == ["ok"]
        assert {method for method, _, _ in server.requests} >= {"PUT", "GET", "POST"}
        assert server.objects == {}
        [(state, text)] = await asyncio.to_thread(find, data, server.media_url.replace("made", "other"))
        assert state == "problem"
        assert "s3://gateway-media/gw/one" in text
        assert "secret" not in text


@pytest.mark.parametrize("kept", ["media", "videos", "files"])
def test_a_backup_has_the_media_of_a_shared_folder(data: Path, tmp_path: Path, kept: str) -> None:
    stored = tmp_path / "shared" / kept / NAME
    stored.parent.mkdir(parents=True)
    stored.write_bytes(b"an image")
    shared, backup, target = str(tmp_path / "shared"), tmp_path / "b.gwb", tmp_path / "new"
    assert run("backup", backup, "--data", data, "--media", media_url=shared).exit_code == 0
    restored = run("restore", backup, "--data", target, media_url=shared)
    assert f"were in {shared} and are in {target} now: move them there" in restored.stdout
    assert (target / kept / NAME).read_bytes() == b"an image"


def test_a_backup_names_the_bucket_that_it_does_not_have(data: Path, tmp_path: Path) -> None:
    backup: Any = tmp_path / "b.gwb"
    written = run("backup", backup, "--data", data, "--media", media_url="s3://key:secret@bucket/p")
    assert written.exit_code == 0, written.output
    assert "are in s3://bucket/p and not in the backup" in written.stderr
    restored = run("restore", backup, "--data", tmp_path / "new")
    assert "were in s3://bucket/p and are not in the backup" in restored.stdout
    assert "secret" not in written.output + restored.output
