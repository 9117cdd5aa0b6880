"""Files and uploads by the ``openai`` library."""

import hashlib
import os
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.server.context import SERVICES
from tests.support.gateway import KEY
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

OTHER = "sk-test-key-of-another-account"
ACCOUNTS: dict[str, Any] = {
    "account": [{"name": "ours"}, {"name": "theirs"}],
    "key": [
        {"name": "ours", "account": "ours", "secret": KEY},
        {"name": "theirs", "account": "theirs", "secret": OTHER},
    ],
}
MIB = 1024 * 1024
LINES = b'{"custom_id": "1"}\n' * 10


def list_stored(folder: Path) -> list[Path]:
    return [path for path in folder.glob("**/files/**/*") if path.is_file()]


async def test_a_file_is_kept_listed_read_and_deleted(
    gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path
) -> None:
    client = sdk(await gateway_with(ACCOUNTS))
    made = [
        await client.files.create(file=(f"{number}.jsonl", LINES), purpose=purpose)  # type: ignore[arg-type]
        for number, purpose in ((1, "batch"), (2, "user_data"), (3, "batch"))
    ]
    first = made[0]
    assert (first.filename, first.bytes, first.purpose, first.status) == ("1.jsonl", len(LINES), "batch", "processed")
    assert first.expires_at == first.created_at + 30 * 86_400
    assert await client.files.retrieve(first.id) == first
    assert (await client.files.content(first.id)).content == LINES
    assert [file.id async for file in await client.files.list()] == [file.id for file in reversed(made)]
    assert [file.id async for file in await client.files.list(limit=1, order="asc")] == [file.id for file in made]
    assert [file.id async for file in await client.files.list(purpose="user_data")] == [made[1].id]
    deleted = await client.files.delete(first.id)
    assert deleted.deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.content(first.id)
    assert len(list_stored(tmp_path)) == 2


async def test_a_file_belongs_to_its_account(gateway_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await gateway_with(ACCOUNTS)
    ours, theirs = sdk(gateway), sdk(gateway, api_key=OTHER)
    file = await ours.files.create(file=("a.txt", b"secret"), purpose="user_data")
    upload = await ours.uploads.create(filename="a", purpose="batch", bytes=3, mime_type="text/plain")
    for call in (
        theirs.files.retrieve(file.id),
        theirs.files.content(file.id),
        theirs.files.delete(file.id),
        theirs.uploads.parts.create(upload.id, data=b"abc"),
        theirs.uploads.cancel(upload.id),
        theirs.uploads.complete(upload.id, part_ids=["part_" + "0" * 32]),
    ):
        with pytest.raises(openai.NotFoundError):
            await call
    assert (await theirs.files.list()).data == []
    assert (await ours.files.content(file.id)).content == b"secret"


async def test_limits_of_size_are_kept(gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path) -> None:
    files = {"max_mb": 2, "max_total_mb_per_account": 3}
    client = sdk(await gateway_with({**ACCOUNTS, "files": files}))
    with pytest.raises(openai.APIStatusError, match="larger than 2 MB"):
        await client.files.create(file=("big", bytes(2 * MIB + 1)), purpose="user_data")
    kept = await client.files.create(file=("two", bytes(2 * MIB)), purpose="user_data")
    with pytest.raises(openai.APIStatusError, match="3 MB together"):
        await client.files.create(file=("two", bytes(2 * MIB)), purpose="user_data")
    with pytest.raises(openai.APIStatusError, match="3 MB together"):
        await client.uploads.create(filename="a", purpose="batch", bytes=MIB + 1, mime_type="text/plain")
    declared = MIB - 4096  # one empty file fits beside what the upload declares
    upload = await client.uploads.create(filename="a", purpose="batch", bytes=declared, mime_type="text/plain")
    await client.uploads.parts.create(upload.id, data=bytes(1))
    await client.files.create(file=("empty", b""), purpose="user_data")
    with pytest.raises(openai.APIStatusError, match="3 MB together"):
        await client.files.create(file=("empty", b""), purpose="user_data")
    with pytest.raises(openai.APIStatusError, match="2 MB at most"):
        await client.uploads.create(filename="a", purpose="batch", bytes=2 * MIB + 1, mime_type="text/plain")
    await client.files.delete(kept.id)
    await client.files.create(file=("two", bytes(MIB)), purpose="user_data")
    assert len(list_stored(tmp_path)) == 3
    await client.uploads.cancel(upload.id)
    await client.files.create(file=("rest", bytes(2 * MIB - 4096)), purpose="user_data")


async def test_what_is_wrong_with_a_file_is_named(gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path) -> None:
    client = sdk(await gateway_with(ACCOUNTS))
    create: Any = client.files.create
    for wrong, param in (
        ({"purpose": "nonsense"}, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3599}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "expires_after.anchor"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await create(**{"file": ("a", b"x"), "purpose": "batch", **wrong})
        assert caught.value.param == param
    assert list_stored(tmp_path) == []


async def test_an_expired_file_is_gone(gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    gateway = await gateway_with(ACCOUNTS, clock=lambda: now[0])
    client = sdk(gateway)
    file = await client.files.create(
        file=("a", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600
    now[0] += 3601
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    assert (await client.files.list()).data == []
    upload = await client.uploads.create(filename="a", purpose="batch", bytes=3, mime_type="text/plain")
    now[0] += 3601
    with pytest.raises(openai.ConflictError, match="expired"):
        await client.uploads.parts.create(upload.id, data=b"abc")
    files = gateway.app[SERVICES].files.files
    await files.store.delete_expired(int(now[0] * 1000), 0)
    await files.sweep()
    assert len(list_stored(tmp_path)) == 1  # its row may have been about to be written
    for path in list_stored(tmp_path):
        os.utime(path, (0, 0))
    await files.sweep()
    assert list_stored(tmp_path) == []


async def test_a_file_is_uploaded_in_parts(gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path) -> None:
    client = sdk(await gateway_with(ACCOUNTS))
    data = bytes(range(256)) * 1000
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    upload = await client.uploads.upload_file_chunked(
        file=data,
        filename="all.bin",
        bytes=len(data),
        mime_type="text/plain",
        purpose="batch",
        part_size=100_000,
        md5=md5,
    )
    assert (upload.status, upload.bytes) == ("completed", len(data))
    assert upload.file is not None
    assert (upload.file.filename, upload.file.bytes, upload.file.purpose) == ("all.bin", len(data), "batch")
    assert (await client.files.content(upload.file.id)).content == data
    assert len(list_stored(tmp_path)) == 1  # the parts are gone
    with pytest.raises(openai.ConflictError, match="completed"):
        await client.uploads.cancel(upload.id)


async def test_parts_are_joined_in_the_order_that_is_asked(
    gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path
) -> None:
    client = sdk(await gateway_with(ACCOUNTS))
    upload = await client.uploads.create(filename="a", purpose="batch", bytes=6, mime_type="text/plain")
    one = await client.uploads.parts.create(upload.id, data=b"one")
    two = await client.uploads.parts.create(upload.id, data=b"two")
    complete: Any = client.uploads.complete
    for wrong, param in (
        ({"part_ids": [one.id]}, "part_ids"),
        ({"part_ids": [one.id, one.id]}, "part_ids"),
        ({"part_ids": ["part_" + "0" * 32]}, "part_ids"),
        ({"part_ids": [one.id, two.id], "md5": "0" * 32}, "md5"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await complete(upload.id, **wrong)
        assert caught.value.param == param
    with pytest.raises(openai.APIStatusError, match="more than the 6 bytes"):
        await client.uploads.parts.create(upload.id, data=b"!")
    done = await client.uploads.complete(upload.id, part_ids=[two.id, one.id])
    assert done.file is not None
    assert (await client.files.content(done.file.id)).content == b"twoone"
    other = await client.uploads.create(filename="a", purpose="batch", bytes=6, mime_type="text/plain")
    await client.uploads.parts.create(other.id, data=b"one")
    assert (await client.uploads.cancel(other.id)).status == "cancelled"
    with pytest.raises(openai.ConflictError, match="cancelled"):
        await client.uploads.parts.create(other.id, data=b"one")
    assert len(list_stored(tmp_path)) == 1
