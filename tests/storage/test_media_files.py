"""Media in a folder: whole or not there, found by their ids alone, and swept."""

import asyncio
import itertools
import os
import resource
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.domain.media import CleanupResult, UnknownMedia
from gateway.errors import StoreUnavailable
from gateway.storage.media_files import STALE_DRAFT_S, MediaFiles, OldestFiles
from tests.support.image_providers import draw

NOW = 1_750_000_000.0
MUCH = 2**40
IMAGE = draw(16, 16)
WAV = b"RIFF\x24\0\0\0WAVEfmt " + b"\0" * 100


@attrs.define
class Clock:
    now_s: float = NOW

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "media"


@pytest.fixture
def store(folder: Path) -> MediaFiles:
    return MediaFiles(folder)


@contextmanager
def full_disk(size: int) -> Iterator[Sequence[Any]]:
    """No file of this process grows beyond ``size`` bytes. What is logged goes into the list that it gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs() as reported:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield reported
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())


def count_open(folder: Path) -> int:
    """Descriptors that this process has of files in the folder, removed ones too."""
    links = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
        except FileNotFoundError:
            continue
    return sum(link.startswith(str(folder)) for link in links)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def finish_threads() -> None:
    """Wait for every thread that still works for somebody who has left."""
    await asyncio.get_running_loop().shutdown_default_executor()


# ---- put and find


async def test_what_is_put_is_found_by_its_id(store: MediaFiles, folder: Path) -> None:
    media = await store.put(IMAGE)
    assert media == await store.find(media.id)
    assert (media.media_type, media.size, media.path.read_bytes()) == ("image/png", len(IMAGE), IMAGE)
    assert media.path == folder / media.id[:2] / media.id
    assert media.path.name.endswith(".png")
    assert abs(media.stored_s - media.path.stat().st_mtime) < 0.001


async def test_only_the_owner_reads_it(store: MediaFiles, folder: Path) -> None:
    media = await store.put(IMAGE)
    assert (mode(folder), mode(media.path.parent), mode(media.path)) == (0o700, 0o700, 0o600)


async def test_the_kind_is_told_by_the_bytes(store: MediaFiles) -> None:
    kinds = [(await store.put(data)).media_type for data in (IMAGE, WAV, b"<svg/>", b"GIF89a")]
    assert kinds == ["image/png", "audio/wav", "image/svg+xml", "image/gif"]


async def test_the_same_bytes_get_another_id_each_time(store: MediaFiles, folder: Path) -> None:
    kept = await asyncio.gather(*(store.put(IMAGE) for _ in range(20)))
    assert len({media.id for media in kept}) == 20
    assert list_files(folder) == sorted(media.path for media in kept)


async def test_another_process_finds_it(store: MediaFiles, folder: Path) -> None:
    media = await store.put(IMAGE)
    assert await MediaFiles(folder).find(media.id) == media


@pytest.mark.parametrize("data", [b"", b"<html>", b"\0" * 100_000], ids=["nothing", "HTML", "zeros"])
async def test_what_is_of_no_known_kind_is_not_kept(store: MediaFiles, folder: Path, data: bytes) -> None:
    with pytest.raises(UnknownMedia):
        await store.put(data)
    assert list_files(folder) == []
    assert count_open(folder) == 0


async def test_what_is_no_id_is_not_found(store: MediaFiles, folder: Path) -> None:
    media = await store.put(IMAGE)
    name, digits = media.id, media.id[:32]
    folder.with_name("secret.png").write_bytes(IMAGE)
    texts = [
        "", ".", "..", "/", name[:2], digits, f"{digits}.gif", f"{digits}.PNG", f"{name} ", f"{name}\n", f"{name}\0",
        f"./{name}", f"{name[:2]}/{name}", f"../{name[:2]}/{name}", f"{name[:2]}/../{name}", "../secret.png",
        "../../etc/passwd", str(media.path), f"{name}/.", f"\udcff{name[1:]}", f"{'٣' * 32}.png", "a" * 100_000,
        f"{'0' * 32}.png", name.upper(),
    ]  # fmt: skip
    assert [text for text in texts if await store.find(text) is not None] == []


async def test_a_link_in_the_folder_leads_nowhere(store: MediaFiles, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{'a' * 32}.png").write_bytes(IMAGE)
    (outside / f"{'b' * 32}.png").write_bytes(IMAGE)
    (folder / "aa").symlink_to(outside)
    (folder / "bb").mkdir()
    (folder / "bb" / f"{'b' * 32}.png").symlink_to(outside / f"{'b' * 32}.png")
    (folder / "cc").mkdir()
    (folder / "cc" / f"{'c' * 32}.png").symlink_to(f"{'c' * 32}.png")
    (folder / "dd" / f"{'d' * 32}.png").mkdir(parents=True)
    os.mkfifo(folder / "dd" / f"{'d' * 31}e.png")
    (folder / "ee").write_bytes(IMAGE)
    (folder / "ff").symlink_to("ff")
    for media_id in ("a" * 32, "b" * 32, "c" * 32, "d" * 32, f"{'d' * 31}e", "e" * 32, "f" * 32):
        assert await store.find(f"{media_id}.png") is None


# ---- drafts


@given(st.lists(st.integers(0, len(IMAGE)), max_size=6))
def test_a_file_may_come_in_any_pieces(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(IMAGE)]

    async def keep(store: MediaFiles) -> None:
        draft = store.open_draft()
        for start, end in itertools.pairwise(edges):
            await draft.write(IMAGE[start:end])
        media = await draft.keep()
        assert media == await store.find(media.id)
        assert (media.media_type, media.path.read_bytes()) == ("image/png", IMAGE)
        assert mode(media.path) == 0o600

    with TemporaryDirectory() as path:
        asyncio.run(keep(MediaFiles(Path(path))))
        assert len(list_files(Path(path))) == 1


async def test_a_draft_is_no_file_of_the_store_until_it_is_kept(store: MediaFiles, folder: Path) -> None:
    draft = store.open_draft()
    assert list_files(folder) == []
    await draft.write(IMAGE)
    (path,) = list_files(folder)
    assert path.parent == folder
    assert mode(path) == 0o600
    assert await store.find(path.name) is None
    assert await store.sweep(before_s=MUCH, max_bytes=0) == CleanupResult()
    media = await draft.keep()
    assert list_files(folder) == [media.path]
    assert count_open(folder) == 0


async def test_a_discarded_draft_leaves_nothing(store: MediaFiles, folder: Path) -> None:
    draft = store.open_draft()
    await draft.write(IMAGE)
    assert count_open(folder) == 1
    draft.discard()
    draft.discard()
    await draft.write(IMAGE)  # a thread that comes late
    with pytest.raises(UnknownMedia):
        await draft.keep()
    assert list_files(folder) == []
    assert count_open(folder) == 0


async def test_what_is_kept_is_not_discarded_any_more(store: MediaFiles) -> None:
    draft = store.open_draft()
    await draft.write(IMAGE)
    media = await draft.keep()
    draft.discard()
    await draft.write(IMAGE)
    assert media.path.read_bytes() == IMAGE


@pytest.mark.parametrize("pieces", [[], [b""], [b"<ht", b"ml>"]], ids=["none", "an empty one", "HTML"])
async def test_a_draft_of_no_known_kind_is_not_kept(store: MediaFiles, folder: Path, pieces: list[bytes]) -> None:
    draft = store.open_draft()
    for piece in pieces:
        await draft.write(piece)
    with pytest.raises(UnknownMedia):
        await draft.keep()
    assert list_files(folder) == []
    assert count_open(folder) == 0


@pytest.mark.parametrize("turns", range(4))
async def test_who_leaves_in_the_middle_of_a_piece_leaves_nothing(store: MediaFiles, folder: Path, turns: int) -> None:
    draft = store.open_draft()
    await draft.write(IMAGE)

    async def write() -> None:
        try:
            await draft.write(b"\0" * 4_000_000)
            await asyncio.Event().wait()
        finally:
            draft.discard()

    task = asyncio.create_task(write())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if not turns:
        draft.discard()  # it never began
    await finish_threads()
    assert list_files(folder) == []
    assert count_open(folder) == 0


# ---- a disk that is full, or gone


async def test_a_full_disk_is_a_fault_and_leaves_nothing(store: MediaFiles, folder: Path) -> None:
    with full_disk(len(IMAGE) - 1) as reported, pytest.raises(StoreUnavailable) as caught:
        await store.put(IMAGE)
    assert caught.value.retry_after_s
    assert "media" in caught.value.message
    assert str(folder) not in caught.value.message
    assert [(line["event"], line["error"]) for line in reported] == [("media_write_failed", "File too large")]
    assert list_files(folder) == []
    assert count_open(folder) == 0
    assert (await store.put(IMAGE)).size == len(IMAGE)


async def test_a_disk_that_fills_up_ends_a_draft(store: MediaFiles, folder: Path) -> None:
    draft = store.open_draft()
    await draft.write(IMAGE)
    with full_disk(len(IMAGE) + 10), pytest.raises(StoreUnavailable):
        await draft.write(b"\0" * 20)
    assert list_files(folder) == []
    assert count_open(folder) == 0
    with pytest.raises(UnknownMedia):
        await draft.keep()


async def test_a_folder_that_is_gone_is_a_fault(store: MediaFiles, folder: Path) -> None:
    media = await store.put(IMAGE)
    draft = store.open_draft()
    await draft.write(IMAGE)
    shutil.rmtree(folder)
    with capture_logs() as reported:
        for failing in (store.put(IMAGE), draft.keep(), store.open_draft().write(IMAGE)):
            with pytest.raises(StoreUnavailable):
                await failing
        assert await store.find(media.id) is None
        assert await store.sweep(before_s=0, max_bytes=0) == CleanupResult()
    assert {line["event"] for line in reported} == {"media_write_failed"}
    assert count_open(folder) == 0


async def test_a_name_that_cannot_be_made_durable_is_not_given_out(store: MediaFiles, folder: Path) -> None:
    """Every subfolder's place is taken by a file: the draft cannot be moved there."""
    for number in range(256):
        (folder / f"{number:02x}").touch()
    with pytest.raises(StoreUnavailable):
        await store.put(IMAGE)
    assert all(path.stat().st_size == 0 for path in list_files(folder))
    assert len(list_files(folder)) == 256


def test_a_store_where_no_folder_can_be_does_not_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        MediaFiles(tmp_path / "file" / "media")


async def test_a_disk_that_is_nearly_full_takes_nothing_new(folder: Path) -> None:
    tight = MediaFiles(folder, min_free_bytes=2**80)
    with pytest.raises(StoreUnavailable) as caught:
        tight.check_room()
    assert caught.value.retry_after_s
    draft = tight.open_draft()
    with pytest.raises(StoreUnavailable):
        await draft.write(IMAGE)
    assert list_files(folder) == []
    assert (await tight.put(IMAGE)).size == len(IMAGE), "what was begun before is finished"


async def test_a_draft_ends_where_there_is_no_room_for_its_next_piece(folder: Path) -> None:
    clock = Clock()
    draft = MediaFiles(folder, clock=clock).open_draft()
    await draft.write(IMAGE)
    shutil.rmtree(folder)  # the disk cannot be asked any more
    clock.now_s += 1
    with pytest.raises(StoreUnavailable):
        await draft.write(IMAGE)
    assert count_open(folder) == 0


def test_that_there_is_room_is_believed_for_a_second(folder: Path) -> None:
    clock = Clock()
    store = MediaFiles(folder, clock=clock)
    store.check_room()
    shutil.rmtree(folder)
    clock.now_s += 0.9
    store.check_room()
    clock.now_s += 0.1
    with pytest.raises(StoreUnavailable):
        store.check_room()
    clock.now_s -= 1_000
    with pytest.raises(StoreUnavailable):
        store.check_room()


# ---- sweeping


def lay(folder: Path, number: int, age_s: float, size: int, extension: str = "png") -> Path:
    """A file of the store, as an earlier process left it."""
    media_id = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}.{extension}"
    path = folder / media_id[:2] / media_id
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0" * size)
    os.utime(path, (NOW - age_s, NOW - age_s))
    return path


async def test_what_is_too_old_goes(store: MediaFiles, folder: Path) -> None:
    paths = [lay(folder, number, age_s, 10) for number, age_s in enumerate([0, 50, 100, 101, 5000], 1)]
    assert await store.sweep(before_s=NOW - 100, max_bytes=MUCH) == CleanupResult(2, 20, 30)
    assert list_files(folder) == sorted(paths[:3])
    assert await store.sweep(before_s=NOW - 100, max_bytes=MUCH) == CleanupResult(0, 0, 30)


async def test_what_is_too_much_goes_the_oldest_first(store: MediaFiles, folder: Path) -> None:
    paths = [lay(folder, number, age_s, 10) for number, age_s in enumerate([30, 10, 40, 20], 1)]
    assert await store.sweep(before_s=0, max_bytes=25) == CleanupResult(2, 20, 20)
    assert list_files(folder) == sorted([paths[1], paths[3]])
    assert await store.sweep(before_s=0, max_bytes=0) == CleanupResult(2, 20, 0)
    assert list_files(folder) == []


def reckon(files: dict[Path, tuple[float, int]], max_age_s: float, max_bytes: int) -> set[Path]:
    """What is left after a sweep."""
    left = {path: reported for path, reported in files.items() if reported[0] <= max_age_s}
    for path in sorted(left, key=lambda path: -left[path][0]):
        if sum(size for _, size in left.values()) > max_bytes:
            del left[path]
    return set(left)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=12, unique_by=lambda reported: reported[0]),
    st.integers(0, 50),
    st.integers(0, 60),
)
def test_a_sweep_leaves_the_youngest_that_fit(reported: list[tuple[int, int]], max_age_s: int, max_bytes: int) -> None:
    with TemporaryDirectory() as path:
        folder = Path(path)
        files = {lay(folder, number, *each): (float(each[0]), each[1]) for number, each in enumerate(reported, 1)}
        swept = asyncio.run(MediaFiles(folder).sweep(before_s=NOW - max_age_s, max_bytes=max_bytes))
        left = set(list_files(folder))
    assert left == reckon(files, max_age_s, max_bytes)
    sizes = {path: size for path, (_, size) in files.items()}
    gone = files.keys() - left
    assert swept == CleanupResult(len(gone), sum(sizes[path] for path in gone), sum(sizes[path] for path in left))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=20), st.integers(1, 60))
def test_no_more_of_the_oldest_are_remembered_than_have_to_go(reported: list[tuple[int, int]], excess: int) -> None:
    files = [(float(age), size, str(number)) for number, (age, size) in enumerate(reported)]
    oldest = OldestFiles(excess)
    for file in files:
        oldest.add(file)
    going = oldest.list_surplus()
    assert [stored_s for stored_s, _, _ in going] == sorted(stored_s for stored_s, _, _ in files)[: len(going)]
    assert sum(size for _, size, _ in going) >= min(excess, sum(size for _, size in reported))
    if going:
        assert sum(size for _, size, _ in going[:-1]) < excess


async def test_what_a_crash_left_of_a_draft_goes(folder: Path) -> None:
    clock = Clock()
    store = MediaFiles(folder, clock=clock)
    stale, fresh = folder / f"draft-{'1' * 32}", folder / f"draft-{'2' * 32}"
    for path, age_s in ((stale, STALE_DRAFT_S + 1), (fresh, STALE_DRAFT_S - 1)):
        path.write_bytes(b"12345")
        os.utime(path, (NOW - age_s, NOW - age_s))
    assert await store.sweep(before_s=0, max_bytes=MUCH) == CleanupResult(1, 5, 0)
    assert list_files(folder) == [fresh]
    clock.now_s += 2
    assert await store.sweep(before_s=0, max_bytes=MUCH) == CleanupResult(1, 5, 0)


async def test_what_is_not_the_stores_is_left_alone(store: MediaFiles, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.png"
    outside.write_bytes(IMAGE)
    (folder / "aa").mkdir()
    (folder / "aa" / f"{'a' * 32}.png").symlink_to(outside)
    (folder / "aa" / f"{'a' * 31}b.png").mkdir()
    (folder / "draft-of-a-poem").mkdir()
    for path in (folder / "README", folder / "aa" / "notes.txt", folder / "gg"):
        path.touch()
        os.utime(path, (0, 0))
    before = list_files(folder)
    assert await store.sweep(before_s=MUCH, max_bytes=0) == CleanupResult()
    assert list_files(folder) == before
    assert (folder / "aa" / f"{'a' * 31}b.png").is_dir()
    assert outside.read_bytes() == IMAGE


async def test_a_folder_that_cannot_be_read_does_not_keep_the_rest_from_being_swept(
    store: MediaFiles, folder: Path
) -> None:
    for number in range(1, 20):
        lay(folder, number, 10, 1)
    (folder / "00").write_bytes(b"no folder")
    (folder / "ff").write_bytes(b"no folder")
    with capture_logs() as reported:
        assert await store.sweep(before_s=NOW, max_bytes=MUCH) == CleanupResult(19, 19, 0)
    assert reported == [{"event": "media_sweep_failed", "log_level": "warning", "error": "Not a directory"}]


async def test_two_sweeps_at_once_do_not_both_make_room(store: MediaFiles, folder: Path) -> None:
    for number in range(1, 301):
        lay(folder, number, number, 1)
    swept = await asyncio.gather(*(store.sweep(before_s=0, max_bytes=100) for _ in range(4)))
    assert len(list_files(folder)) == 100
    assert sorted(one.files for one in swept) == [0, 0, 0, 200]
    assert {one.left_bytes for one in swept} == {100}


async def test_files_may_vanish_under_a_sweep(store: MediaFiles, folder: Path) -> None:
    """Somebody else makes room at the same time, with less patience."""
    for number in range(1, 301):
        lay(folder, number, number, 1)
    swept = await asyncio.gather(*(MediaFiles(folder).sweep(before_s=NOW, max_bytes=0) for _ in range(4)))
    assert list_files(folder) == []
    assert sum(one.files for one in swept) == sum(one.freed_bytes for one in swept) == 300
    assert {one.left_bytes for one in swept} == {0}


async def test_everything_else_goes_on_under_a_sweep(store: MediaFiles, folder: Path) -> None:
    """A step is a subfolder, or some files that go: the loop turns between any two."""
    for number in range(1, 501):
        lay(folder, number, number, 1)
    shards = len(list(folder.iterdir()))
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.create_task(turn())
    assert (await store.sweep(before_s=0, max_bytes=0)).files == 500
    turning.cancel()
    assert shards > 100
    assert turns > 2 * shards


async def test_what_is_put_meanwhile_is_whole(store: MediaFiles, folder: Path) -> None:
    async def sweep() -> None:
        for _ in range(5):
            await store.sweep(before_s=0, max_bytes=3 * len(IMAGE))

    sweeping = asyncio.create_task(sweep())
    kept = [await store.put(IMAGE) for _ in range(40)]
    await sweeping
    await store.sweep(before_s=0, max_bytes=3 * len(IMAGE))
    left = list_files(folder)
    assert len(left) == 3
    assert {path.read_bytes() for path in left} == {IMAGE}
    assert set(left) <= {media.path for media in kept}
