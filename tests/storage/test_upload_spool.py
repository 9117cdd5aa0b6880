"""The spool: the bytes that came are read by anybody, and often; and nothing of them is ever left."""

import asyncio
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Overloaded, RateLimited, StoreUnavailable
from gateway.storage.upload_spool import MAX_UPLOADS, MEMORY_BYTES, SpooledFile, SpooledSlice, UploadSpool

LIMIT = 64 * 2**20

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.storage.upload_spool import UploadSpool
async def main():
    file = UploadSpool(Path(sys.argv[1]), limit_bytes=2**30).find_share(1).open()
    await file.write(bytes(2**20))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
"""Is killed while a file of its spool is open."""


def data_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 - bytes that differ, not secrets


def open_files(folder: Path) -> int:
    """Descriptors of this process on files that have, or had, a place in ``folder``."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(descriptor.readlink()).startswith(f"{folder}/")
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(3):
        while not condition():  # noqa: ASYNC110 - a thread has no event to tend
            await asyncio.sleep(0.002)


@pytest.fixture
def spool(tmp_path: Path) -> UploadSpool:
    return UploadSpool(tmp_path / "uploads", limit_bytes=LIMIT)


async def fill(spool: UploadSpool, data: bytes, step: int = 256 * 1024, *, account: int = 1) -> SpooledFile:
    file = spool.find_share(account).open()
    for offset in range(0, len(data), step):
        await file.write(data[offset : offset + step])
    return file


@pytest.mark.parametrize("size", [0, 1, MEMORY_BYTES, MEMORY_BYTES + 1, 3 * MEMORY_BYTES + 7])
async def test_what_was_written_is_read_in_whatever_pieces(spool: UploadSpool, size: int) -> None:
    data = data_of(size)
    for step in (7919, MEMORY_BYTES, 2 * MEMORY_BYTES):
        file = await fill(spool, data, step)
        assert file.size == size
        assert await file.read(0, size) == data
        assert await file.read(size // 3, 1000) == data[size // 3 : size // 3 + 1000]
        assert await file.read(max(size - 5, 0), 100) == data[max(size - 5, 0) :]
        assert await file.read(size + 10, 10) == b""
        file.close()


@given(st.lists(st.integers(0, 50_000), max_size=6), st.integers(0, 200_000), st.integers(0, 100_000))
def test_a_file_is_the_bytes_it_was_given_at_any_cut(cuts: list[int], offset: int, size: int) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            spool = UploadSpool(Path(folder), limit_bytes=LIMIT)
            whole, file = data_of(sum(cuts)), spool.find_share(1).open()
            at = 0
            for cut in cuts:
                await file.write(whole[at : at + cut])
                at += cut
            assert await file.read(offset, size) == whole[offset : offset + size]
            file.close()
            assert spool.held_bytes == 0

    asyncio.run(check())


async def test_several_read_the_same_file_at_once(spool: UploadSpool) -> None:
    data = data_of(1_000_000)
    file = await fill(spool, data)

    async def read_all(step: int) -> bytes:
        return b"".join([await file.read(offset, step) for offset in range(0, len(data), step)])

    found = await asyncio.gather(*(read_all(step) for step in (30_000, 65_536, 99_999, 131_072)))
    assert found == [data] * 4
    file.close()


async def test_nothing_with_a_name_is_ever_in_the_folder_and_only_its_owner_enters_it(
    spool: UploadSpool, tmp_path: Path
) -> None:
    folder = tmp_path / "uploads"
    assert not folder.exists()
    small = await fill(spool, data_of(MEMORY_BYTES))
    assert not folder.exists(), "what is small needs no disk"
    large = await fill(spool, data_of(MEMORY_BYTES + 1))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert open_files(folder) == 1
    assert list(folder.iterdir()) == []
    small.close()
    large.close()
    await until(lambda: open_files(folder) == 0)
    assert list(folder.iterdir()) == []


def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


async def test_what_a_file_system_without_nameless_files_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "upload-abc").write_bytes(b"half")
    (tmp_path / "theirs").write_bytes(b"whole")
    file = await fill(UploadSpool(tmp_path, limit_bytes=LIMIT), data_of(100_000))
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    file.close()


async def test_an_account_holds_no_more_than_it_leaves_to_others_and_has_it_again(tmp_path: Path) -> None:
    spool = UploadSpool(tmp_path, limit_bytes=400_000)
    first = await fill(spool, data_of(150_000))
    second = await fill(spool, data_of(50_000))
    with pytest.raises(RateLimited) as caught:
        await second.write(b"x")
    assert (caught.value.status, caught.value.retry_after_s) == (429, 5)
    other = await fill(spool, data_of(100_000), account=2)
    with pytest.raises(RateLimited):
        await other.write(b"x")
    assert spool.held_bytes == 300_000
    first.close()
    first.close()
    assert spool.held_bytes == 150_000
    await other.write(bytes(75_000))
    second.close()
    other.close()
    assert spool.held_bytes == 0
    again = await fill(spool, data_of(200_000))
    again.close()


async def test_a_sixteenth_is_anybodys_while_there_is_room_at_all(tmp_path: Path) -> None:
    spool = UploadSpool(tmp_path, limit_bytes=160_000)
    files = [await fill(spool, bytes(size), account=size) for size in (80_000, 40_000, 20_000)]
    files += [await fill(spool, bytes(10_000), account=account) for account in (4, 5)]
    assert spool.held_bytes == 160_000
    with pytest.raises(Overloaded) as caught:
        await fill(spool, b"x", account=6)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 5)
    for file in files:
        file.close()
    assert spool.held_bytes == 0


async def test_of_one_accounts_uploads_only_so_many_arrive_at_once(spool: UploadSpool) -> None:
    share = spool.find_share(1)
    async with AsyncExitStack() as places:
        leaving = await places.enter_async_context(AsyncExitStack())
        await leaving.enter_async_context(share.hold_slot(0))
        for _ in range(MAX_UPLOADS - 1):
            await places.enter_async_context(spool.find_share(1).hold_slot(0))
        with pytest.raises(RateLimited) as caught:
            await places.enter_async_context(share.hold_slot(0.01))
        assert (caught.value.status, caught.value.retry_after_s) == (429, 5)
        async with spool.find_share(2).hold_slot(0):
            pass
        waiting = asyncio.create_task(places.enter_async_context(share.hold_slot(3)))
        await asyncio.sleep(0)
        assert not waiting.done()
        await leaving.aclose()
        await waiting
    async with share.hold_slot(0):
        pass


@given(
    st.lists(st.binary(max_size=60) | st.just(bytes(MEMORY_BYTES)), max_size=4), st.integers(0, 70), st.integers(0, 70)
)
def test_files_behind_each_other_are_read_each_for_itself(files: list[bytes], offset: int, size: int) -> None:
    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            whole, slices = UploadSpool(Path(folder), limit_bytes=LIMIT).find_share(1).open(), []
            for data in files:
                slices.append(SpooledSlice(whole, whole.size, len(data)))
                await whole.write(data)
            for one, data in zip(slices, files, strict=True):
                assert await one.read(offset, size) == data[offset : offset + size]
                assert await one.read(0, one.size) == data
            whole.close()

    asyncio.run(check())


async def test_a_closed_file_is_neither_read_nor_written(spool: UploadSpool) -> None:
    for size in (10, 100_000):
        file = await fill(spool, data_of(size))
        file.close()
        with pytest.raises(ValueError, match="closed"):
            await file.read(0, 1)
        with pytest.raises(ValueError, match="closed"):
            await file.write(b"x")
    assert spool.held_bytes == 0


async def test_a_disk_that_takes_no_more_is_a_503_and_gives_the_bytes_back(spool: UploadSpool) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, before[1]))
    file = spool.find_share(1).open()
    try:
        await file.write(data_of(100_000))
        with pytest.raises(StoreUnavailable) as caught:
            await file.write(data_of(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert caught.value.status == 503
    file.close()
    assert spool.held_bytes == 0


async def test_a_folder_that_cannot_be_made_is_a_503(tmp_path: Path) -> None:
    (tmp_path / "uploads").write_text("a file")
    file = UploadSpool(tmp_path / "uploads", limit_bytes=LIMIT).find_share(1).open()
    with pytest.raises(StoreUnavailable):
        await file.write(bytes(100_000))
    file.close()


async def test_close_waits_for_nobody_and_takes_no_descriptor_away_from_a_thread(tmp_path: Path) -> None:
    held, go = threading.Event(), threading.Event()

    class Slow(UploadSpool):
        def open_nameless(self) -> int:
            held.set()
            assert go.wait(3)
            return super().open_nameless()

    spool = Slow(tmp_path, limit_bytes=LIMIT)
    file = spool.find_share(1).open()
    writing = asyncio.create_task(file.write(bytes(100_000)))
    await until(held.is_set)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    file.close()
    assert spool.held_bytes == 0
    go.set()
    await until(lambda: threading.active_count() and open_files(tmp_path) == 0)
    again = await fill(UploadSpool(tmp_path, limit_bytes=LIMIT), data_of(100_000))
    assert await again.read(0, 100_000) == data_of(100_000)
    again.close()


async def test_reads_that_are_cancelled_and_a_close_among_them_leave_no_descriptor(
    spool: UploadSpool, tmp_path: Path
) -> None:
    file = await fill(spool, data_of(2_000_000))
    reads = [asyncio.create_task(file.read(offset, 500_000)) for offset in range(0, 2_000_000, 50_000)]
    await asyncio.sleep(0)
    for read in reads[::2]:
        read.cancel()
    file.close()
    for found in await asyncio.gather(*reads, return_exceptions=True):
        assert isinstance(found, bytes | ValueError | asyncio.CancelledError), found
    await until(lambda: open_files(tmp_path / "uploads") == 0)
