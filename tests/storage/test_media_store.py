"""Stores of media and clients' files: a folder and a bucket keep the same promises, to every node that uses them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.media import UnknownMedia
from gateway.errors import NotFound
from gateway.storage.file_draft import FileDraft
from gateway.storage.file_folder import make_client_id
from gateway.storage.media_reading import read_all, read_pieces
from gateway.storage.media_store import FileStore, MediaStore
from tests.support.image_providers import draw
from tests.support.media_stores import KINDS, open_two_file_stores, open_two_media_stores

IMAGE = draw(16, 16)
VIDEO = b"\0\0\0\x10ftypmp42\0\0\0\0" + bytes(range(256)) * 10 * 1024
"""2.5 MB: more than one read of a bucket."""
MUCH = 2**40


@pytest.fixture(params=KINDS)
async def media(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[MediaStore, MediaStore]]:
    async with open_two_media_stores(request.param, tmp_path) as stores:
        yield stores


@pytest.fixture(params=KINDS)
async def files(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[FileStore, FileStore]]:
    async with open_two_file_stores(request.param, tmp_path) as stores:
        yield stores


async def read(store: MediaStore, media_id: str) -> bytes | None:
    found = await store.find(media_id)
    return None if found is None else await read_all(found)


async def make_draft(store: FileStore, data: bytes) -> FileDraft:
    draft = store.open_draft()
    await draft.write(data)
    return draft


# ---- images and videos


async def test_what_one_node_stores_the_other_reads_and_deletes(media: tuple[MediaStore, MediaStore]) -> None:
    here, there = media
    kept = await here.put(IMAGE)
    assert (kept.media_type, kept.size, kept.id.endswith(".png")) == ("image/png", len(IMAGE), True)
    found = await there.find(kept.id)
    assert found is not None
    assert (found.id, found.media_type, found.size) == (kept.id, "image/png", len(IMAGE))
    assert abs(found.stored_s - kept.stored_s) < 60
    assert await read_all(found) == IMAGE
    assert await there.remove(kept.id)
    assert await here.find(kept.id) is None
    assert not await here.remove(kept.id)


async def test_a_large_file_arrives_in_pieces_and_is_read_in_pieces(media: tuple[MediaStore, MediaStore]) -> None:
    here, there = media
    draft = here.open_draft()
    for start in range(0, len(VIDEO), 1_000_000):
        await draft.write(VIDEO[start : start + 1_000_000])
    kept = await draft.keep()
    assert (kept.media_type, kept.size) == ("video/mp4", len(VIDEO))
    found = await there.find(kept.id)
    assert found is not None
    async with aclosing(read_pieces(found, 700_000)) as reading:
        pieces = [piece async for piece in reading]
    assert max(map(len, pieces)) <= 700_000
    assert b"".join(pieces) == VIDEO


async def test_a_draft_is_no_file(media: tuple[MediaStore, MediaStore], tmp_path: Path) -> None:
    here, _ = media
    draft = here.open_draft()
    await draft.write(IMAGE)
    draft.discard()
    draft.discard()
    await here.sweep(before_s=0, max_bytes=MUCH)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("data", [b"", b"GIF", b"<html>", b"PK\3\4" * 99])
async def test_what_is_no_media_is_not_kept(media: tuple[MediaStore, MediaStore], data: bytes, tmp_path: Path) -> None:
    here, _ = media
    with pytest.raises(UnknownMedia):
        await here.put(data)
    draft = here.open_draft()
    await draft.write(data)
    with pytest.raises(UnknownMedia):
        await draft.keep()
    assert (await here.sweep(before_s=0, max_bytes=MUCH)).left_bytes == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["", "x", "../../etc/passwd", f"{'0' * 32}.png", f"{'0' * 32}.exe", "\udcff" * 36])
async def test_an_id_that_is_none_is_not_found(media: tuple[MediaStore, MediaStore], name: str) -> None:
    here, _ = media
    assert await here.find(name) is None
    assert not await here.remove(name)


async def test_a_sweep_deletes_what_is_too_old_and_then_the_oldest_of_what_is_too_much(
    media: tuple[MediaStore, MediaStore],
) -> None:
    here, there = media
    kept = [await here.put(IMAGE) for _ in range(7)]
    size, last = len(IMAGE), max(one.stored_s for one in kept)  # a bucket's clock is another one
    whole = await there.sweep(before_s=0, max_bytes=7 * size)
    assert (whole.files, whole.left_bytes) == (0, 7 * size)
    part = await there.sweep(before_s=0, max_bytes=3 * size + 1)
    assert (part.files, part.freed_bytes, part.left_bytes) == (4, 4 * size, 3 * size)
    found = [await here.find(one.id) for one in kept]
    assert sum(one is not None for one in found) == 3
    rest = await here.sweep(before_s=last + 60, max_bytes=MUCH)
    assert (rest.files, rest.left_bytes) == (3, 0)
    assert [await there.find(one.id) for one in kept] == [None] * 7


async def test_two_nodes_store_at_once(media: tuple[MediaStore, MediaStore]) -> None:
    here, there = media
    kept = await asyncio.gather(*((here, there)[number % 2].put(IMAGE) for number in range(20)))
    assert len({one.id for one in kept}) == 20
    assert {await read(there, one.id) for one in kept} == {IMAGE}


# ---- clients' files


async def test_a_file_of_one_node_is_read_and_deleted_by_the_other(files: tuple[FileStore, FileStore]) -> None:
    here, there = files
    file_id = make_client_id("file-")
    assert await here.keep(await make_draft(here, b"a\nb\n"), file_id) == 4
    found = await there.find(file_id)
    assert (found.id, found.size, await read_all(found)) == (file_id, 4, b"a\nb\n")
    async with there.open_local(file_id) as path:
        assert path.read_bytes() == b"a\nb\n"
    await there.remove(file_id)
    await there.remove(file_id)
    with pytest.raises(NotFound):
        await here.find(file_id)
    with pytest.raises(NotFound):
        async with here.open_local(file_id):
            pass


async def test_an_empty_file_is_a_file(files: tuple[FileStore, FileStore]) -> None:
    here, there = files
    file_id = make_client_id("part_")
    assert await here.keep(here.open_draft(), file_id) == 0
    assert await read_all(await there.find(file_id)) == b""


async def test_the_later_of_two_writers_of_a_name_wins(files: tuple[FileStore, FileStore]) -> None:
    here, there = files
    file_id = make_client_id("file-")
    drafts = [await make_draft(store, data) for store, data in ((here, b"1" * 99), (there, b"2" * 99))]
    await asyncio.gather(here.keep(drafts[0], file_id), there.keep(drafts[1], file_id))
    assert await read_all(await here.find(file_id)) in {b"1" * 99, b"2" * 99}


def parse(line: bytes) -> int | None:
    return int(line) if line.endswith(b"\n") else None


async def run(work: Any, *given: Any) -> Any:
    return await asyncio.to_thread(work, *given)


async def test_results_that_one_node_has_begun_are_continued_by_the_other(files: tuple[FileStore, FileStore]) -> None:
    here, there = files
    name, file_id = f"batch-{'a' * 32}.output", make_client_id("file-")
    first = here.open_lines(name, parse)
    assert (first.name, await run(first.recover)) == (name, [])
    for lines in ([b"1\n", b"2\n"], [], [b"3\n"]):
        await run(first.append, lines)
        await run(first.make_permanent)
    await run(first.append, [b"9\n"])
    await run(first.append, [b"4\n"])  # the same again, after an error
    await run(first.make_permanent)
    second = there.open_lines(name, parse)
    assert await run(second.recover) == [1, 2, 3, 4]
    await run(second.append, [b"5\n"])
    await run(second.make_permanent)
    assert await run(there.adopt, name, file_id) == 10
    assert await read_all(await here.find(file_id)) == b"1\n2\n3\n4\n5\n"
    assert await run(here.adopt, name, file_id) == 10  # a call that was interrupted after its last step but one
    assert await run(here.open_lines(name, parse).recover) == []
    assert await read_all(await here.find(file_id)) == b"1\n2\n3\n4\n5\n"


async def test_a_node_that_takes_over_goes_on_in_a_copy(files: tuple[FileStore, FileStore]) -> None:
    here, there = files
    names = [f"batch-{'d' * 32}{moves}.output" for moves in ("", ".1", ".2")]
    await run(there.copy_lines, names[:1], names[1])  # there is nothing to copy
    first = here.open_lines(names[0], parse)
    for number in (b"1\n", b"2\n"):
        await run(first.append, [number])
        await run(first.make_permanent)
    await run(there.copy_lines, names[1::-1], names[2])
    second = there.open_lines(names[2], parse)
    assert await run(second.recover) == [1, 2]
    await run(first.append, [b"3\n"])  # the node before is not dead
    await run(first.make_permanent)
    await run(second.append, [b"4\n"])
    await run(second.make_permanent)
    await run(there.copy_lines, names[1::-1], names[2])  # a call that is repeated
    assert await run(there.open_lines(names[2], parse).recover) == [1, 2, 4]
    assert await run(here.open_lines(names[0], parse).recover) == [1, 2, 3]


async def test_results_that_are_lost_are_missed(files: tuple[FileStore, FileStore]) -> None:
    here, _ = files
    name = f"batch-{'a' * 32}.errors"
    with pytest.raises(FileNotFoundError):
        await run(here.adopt, name, make_client_id("file-"))
    lines = here.open_lines(name, parse)
    await run(lines.append, [b"1\n"])
    await run(lines.remove)
    await run(lines.remove)
    with pytest.raises(FileNotFoundError):
        await run(here.adopt, name, make_client_id("file-"))


async def test_a_sweep_leaves_what_is_young(files: tuple[FileStore, FileStore]) -> None:
    here, there = files
    await here.keep(await make_draft(here, b"abc"), make_client_id("file-"))
    await run(here.open_lines(f"batch-{'b' * 32}.output", parse).append, [b"1\n"])
    swept = await there.sweep(set())
    assert (swept.files, swept.left_bytes) == (0, 5)
