"""A bucket: names as in a folder, signatures that another implementation verifies, and errors without a loss."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.domain.media import RemoteMedia
from gateway.errors import NotFound, StoreUnavailable
from gateway.storage.bucket.client import PART_BYTES, Bucket
from gateway.storage.bucket.files import BucketFiles
from gateway.storage.bucket.media import BucketMedia
from gateway.storage.file_folder import make_client_id
from gateway.storage.media_files import STALE_DRAFT_S, MediaFiles
from gateway.storage.media_location import BucketAddress, parse_location
from gateway.storage.media_reading import read_all
from tests.support.image_providers import draw
from tests.support.media_stores import make_files, make_media, open_bucket
from tests.support.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server, start_s3_server

IMAGE = draw(16, 16)
MUCH = 2**40


@pytest.fixture
async def server() -> AsyncIterator[S3Server]:
    async with start_s3_server() as started:
        yield started
        assert not started.parts  # no upload is left in parts


@pytest.fixture
def media(server: S3Server, tmp_path: Path) -> BucketMedia:
    return make_media(server, tmp_path)


@pytest.fixture
def files(server: S3Server, tmp_path: Path) -> BucketFiles:
    return make_files(server, tmp_path)


def parse(line: bytes) -> bytes:
    return line


async def test_names_are_those_of_a_folder(media: BucketMedia, files: BucketFiles, server: S3Server) -> None:
    kept, file_id = await media.put(IMAGE), make_client_id("file-")
    await files.keep(files.open_draft(), file_id)
    assert server.list_keys("media") == [f"media/{kept.id[:2]}/{kept.id}"]
    digits = file_id.removeprefix("file-")
    assert server.list_keys("files") == [f"files/{digits[:2]}/{digits}.bin"]
    assert not server.refused


async def test_a_large_file_is_uploaded_in_parts(media: BucketMedia, server: S3Server, tmp_path: Path) -> None:
    data = b"\0\0\0\x10ftypmp42\0\0\0\0".ljust(PART_BYTES + 1, b"x")
    draft = media.open_draft()
    await draft.write(data)
    kept = await draft.keep()
    assert sorted(method for method, _, query in server.requests if "uploads" in query or "partNumber" in query) == [
        "POST", "PUT", "PUT",
    ]  # fmt: skip
    assert await read_all(kept) == data
    assert not list(tmp_path.iterdir())


async def test_a_page_of_a_list_is_not_the_list(media: BucketMedia, server: S3Server) -> None:
    for _ in range(8):
        await media.put(IMAGE)
    assert (await media.sweep(before_s=0, max_bytes=MUCH)).left_bytes == 8 * len(IMAGE)
    swept = await media.sweep(before_s=0, max_bytes=0)
    assert (swept.files, server.objects) == (8, {})


async def test_other_objects_stay(media: BucketMedia, files: BucketFiles, server: S3Server) -> None:
    bucket = open_bucket(server)
    names = ["media/readme.txt", "files/readme.txt", "elsewhere/0.png"]
    for name in names:
        await bucket.put(name, b"x", 1)
    server.age_all(timedelta(days=99))
    await media.sweep(before_s=4e9, max_bytes=0)
    await files.sweep(set())
    assert sorted(key.removeprefix("gw/one/") for key in server.objects) == sorted(names)


async def test_a_sweep_deletes_old_bytes_that_belong_to_no_row(files: BucketFiles, server: S3Server) -> None:
    known, unknown = make_client_id("file-"), make_client_id("part_")
    running, ended = make_client_id("batch_"), make_client_id("batch_")
    for object_id in (known, unknown):
        await files.keep(files.open_draft(), object_id)
    for batch_id in (running, ended):
        lines = files.open_lines(f"batch-{batch_id.removeprefix('batch_')}.output", parse)
        await asyncio.to_thread(lines.append, [b"1\n"])
    assert (await files.sweep(set())).files == 0
    server.age_all(timedelta(seconds=STALE_DRAFT_S + 60))
    swept = await files.sweep({known, running})
    assert (swept.files, swept.freed_bytes, swept.left_bytes) == (2, 2, 2)
    await files.find(known)
    assert len(server.list_keys(f"files/batch-{running.removeprefix('batch_')}.output")) == 1


async def test_while_the_bucket_is_away_nothing_is_begun_and_nothing_lost(
    media: BucketMedia, files: BucketFiles, server: S3Server, tmp_path: Path
) -> None:
    kept = await media.put(IMAGE)
    media.check_room()
    for server.fails, server.cut in ((503, False), (0, True)):
        draft = files.open_draft()
        await draft.write(b"abc")
        with capture_logs() as lines:
            with pytest.raises(StoreUnavailable) as raised:
                await media.put(IMAGE)
            with pytest.raises(StoreUnavailable):
                media.check_room()
            with pytest.raises(StoreUnavailable):
                await media.find(kept.id)
            with pytest.raises(StoreUnavailable):
                await files.keep(draft, make_client_id("file-"))
            assert (await media.sweep(before_s=4e9, max_bytes=0)).files == 0
        assert raised.value.retry_after_s == 5
        assert {line["event"] for line in lines} == {"media_store_failed"}
        assert SECRET_KEY not in str(lines)
    server.cut = False
    found = await media.find(kept.id)
    assert found is not None
    assert await read_all(found) == IMAGE
    media.check_room()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("draft-")]


async def test_a_store_that_is_away_for_a_moment_is_asked_again(server: S3Server, tmp_path: Path) -> None:
    store = BucketMedia(open_bucket(server, retry_for_s=20), "media", MediaFiles(tmp_path))
    server.fails = 503
    storing = asyncio.create_task(store.put(IMAGE))
    while server.failed < 2:  # noqa: ASYNC110 - the server counts
        await asyncio.sleep(0.01)
    server.fails = 0
    assert await read_all(await storing) == IMAGE


async def test_results_are_kept_until_the_file_of_them_exists(files: BucketFiles, server: S3Server) -> None:
    name, file_id = f"batch-{'c' * 32}.output", make_client_id("file-")
    lines = files.open_lines(name, parse)
    await asyncio.to_thread(lines.append, [b"1\n"])
    server.fails = 503
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(files.adopt, name, file_id)
    server.fails = 0
    assert await asyncio.to_thread(files.adopt, name, file_id) == 2
    assert await read_all(await files.find(file_id)) == b"1\n"


async def test_wrong_credentials_and_a_wrong_bucket_are_errors_of_the_operator(server: S3Server) -> None:
    for url in (server.media_url.replace("made", "bad"), server.media_url.replace("gateway-media", "another")):
        address = parse_location(url)
        assert isinstance(address, BucketAddress)
        with pytest.raises(StoreUnavailable):
            await Bucket(address, retry_for_s=0.2).put("media/x", b"x", 1)
    assert server.refused == ["another signature"]


async def test_a_file_that_is_deleted_while_it_is_read_is_not_found(media: BucketMedia) -> None:
    kept = await media.put(IMAGE)
    assert isinstance(kept, RemoteMedia)
    await media.remove(kept.id)
    with pytest.raises(NotFound):
        await kept.read(0, kept.size)


async def test_the_environment_gives_what_the_url_does_not(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)
    address = parse_location(f"s3://{BUCKET}?endpoint={server.url}")
    assert isinstance(address, BucketAddress)
    await Bucket(address).put("x", b"x", 1)
    assert list(server.objects) == ["x"]


def test_the_name_of_a_bucket_may_be_a_part_of_the_host() -> None:
    address = parse_location("s3://bucket/p?endpoint=https://store.example.com:9000&style=virtual")
    assert isinstance(address, BucketAddress)
    config = Bucket(address)._store.config
    assert config["endpoint"] == "https://bucket.store.example.com:9000"
