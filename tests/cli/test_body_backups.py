"""Kept bodies in a backup: what comes back, what is checked, and what an older backup tells of deleted ones."""

import asyncio
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.exceptions import InvalidTag

from gateway.cli.main import main
from gateway.storage.bodies.data_keys import DataKeys
from gateway.storage.bodies.framing import HEAD_BYTES
from gateway.storage.encryption import DecryptionFailed, SecretBox
from tests.support.admin_calls import AdminApi
from tests.support.cli_operator import Operator, log, sit_down
from tests.support.gateway import KEY, channel
from tests.support.kept_requests import ask, say
from tests.support.started_gateways import StartGateway
from tests.support.text_provider import open_text_provider

__all__ = ["log"]
"""A fixture of every test here, too."""
GUEST = "sk-test-key-of-a-guest"
MARKER, OTHER_MARKER = "marker of the deleted account", "marker of the other account"


def unseal(folder: Path, master: SecretBox, request_ids: Sequence[str]) -> Iterator[bytes]:
    """Everything in the segments of ``folder`` that the master key and its data keys open."""
    keys = DataKeys(folder / "keys", master)
    boxes = [box for account_id in keys.list_accounts() if (box := keys.find_box(account_id)) is not None]
    for path in folder.glob("*.segment"):
        content, start = path.read_bytes(), 0
        yield content
        while (start := content.find(b"GWB1", start)) >= 0:
            length = int.from_bytes(content[start + 4 : start + 8], "big")
            sealed = content[start + HEAD_BYTES : start + HEAD_BYTES + length]
            for box in (master, *boxes):
                for request_id in request_ids:
                    with suppress(DecryptionFailed, InvalidTag, zlib.error):
                        yield zlib.decompress(box.open(sealed, context=request_id))
            start += 1


def find(folder: Path, marker: str, master: SecretBox, request_ids: Sequence[str]) -> bool:
    return any(marker.encode() in piece for piece in unseal(folder, master, request_ids))


@pytest.fixture
async def operator(gateway_with: StartGateway) -> Any:
    async with open_text_provider([]) as base_url:
        config = {
            "channel": [channel(base_url)],
            "account": [{"name": "acme"}, {"name": "guests"}],
            "key": [
                {"name": "test", "account": "acme", "secret": KEY},
                {"name": "guest", "account": "guests", "secret": GUEST},
            ],
            "requests": {"keep_bodies": "all"},
        }
        yield await sit_down(gateway_with, config)


@pytest.mark.usefixtures("log")
async def test_an_older_backup_tells_nothing_of_a_deleted_account(operator: Operator, tmp_path: Path) -> None:
    gateway, office = operator.gateway, AdminApi(operator.gateway)
    deleted_id = await ask(gateway, say(MARKER))
    other_id = await ask(gateway, say(OTHER_MARKER), authorization=f"Bearer {GUEST}")
    ids, bodies = [deleted_id, other_id], gateway.folder.path / "bodies"
    await office("GET", f"/requests/{other_id}/body")  # both are written
    master = SecretBox(gateway.folder.secret("master.key"))
    assert all(find(bodies, marker, master, ids) for marker in (MARKER, OTHER_MARKER))
    backup, target = tmp_path / "b.gwb", tmp_path / "restored"
    written = await operator.type("backup", str(backup), "--bodies")
    assert "bodies/keys" in written.stderr
    accounts = {row["name"]: row["id"] for row in (await office("GET", "/accounts"))["data"]}
    assert (await office("POST", "/bodies/delete", {"account": "acme"}))["requests"] == 1
    assert not find(bodies, MARKER, master, ids)
    operator_copy = tmp_path / "copy"  # of the folder that the hint names, after the deletion
    shutil.copytree(bodies / "keys", operator_copy)
    assert [path.name for path in operator_copy.iterdir()] == [f"{accounts['guests']}.key"]
    words = ["restore", str(backup), "--data", str(target)]
    restored = await asyncio.to_thread(lambda: CliRunner().invoke(main, words))
    assert "of 2 requests. They need" in restored.stdout, restored.output
    assert not any(find(target / "bodies", marker, master, ids) for marker in (MARKER, OTHER_MARKER))
    shutil.copytree(operator_copy, target / "bodies" / "keys")
    assert find(target / "bodies", OTHER_MARKER, master, ids)
    assert not find(target / "bodies", MARKER, master, ids)


@pytest.mark.usefixtures("log")
async def test_the_doctor_tells_how_much_is_kept_and_what_cannot_be_read(operator: Operator) -> None:
    gateway, office = operator.gateway, AdminApi(operator.gateway)
    bodies = gateway.folder.path / "bodies"

    async def examine() -> str:
        findings = (await operator.type("doctor", "--json")).stdout
        return next(line for line in findings.splitlines() if "odies of" in line or "ept bodies" in line)

    for number in range(2):
        await office("GET", f"/requests/{await ask(gateway, say(f'text {number}'))}/body")
    assert "Bodies of 2 requests are kept" in await examine()
    segment = next(bodies.glob("*.segment"))
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    assert "Those of 1 are damaged or missing" in await examine()
    segment.rename(bodies / "away")
    assert "Those of 2 are damaged or missing" in await examine()
    (bodies / "away").rename(segment)
    content[-1] ^= 1
    segment.write_bytes(content)
    (bodies / "keys").rename(bodies / "no-keys")
    assert "Those of 2 have no data key here" in await examine()
    (bodies / "no-keys").rename(bodies / "keys")


@pytest.mark.usefixtures("log")
async def test_without_the_option_nothing_of_bodies_is_in_a_backup(operator: Operator, tmp_path: Path) -> None:
    request_id = await ask(operator.gateway, say(MARKER))
    await AdminApi(operator.gateway)("GET", f"/requests/{request_id}/body")
    manifest = await operator.ask("backup", str(tmp_path / "b.gwb"))
    assert not any(name.startswith("bodies") for name in manifest["members"])
    with_bodies = await operator.ask("backup", str(tmp_path / "c.gwb"), "--bodies")
    assert [name for name in with_bodies["members"] if name.startswith("bodies")] == ["bodies/00000001.segment"]
