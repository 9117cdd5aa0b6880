"""Uploads move through a gateway in a process of its own: its memory, its descriptors and its folder are looked at."""

import asyncio
import base64
import resource
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.domain.request_log import RequestRecord
from gateway.storage.media_files import MIN_FREE_BYTES
from tests.support.fault_scene import until
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.multipart_bodies import count_open, watch_memory
from tests.support.small_disk import small_disk
from tests.support.uploads import (
    BLOCK,
    MB,
    PNG,
    Mode,
    UploadProvider,
    dial,
    edit,
    hear,
    lead,
    list_named,
    name_file,
    send,
    site,
    watch_names,
    write_form,
    write_head,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(), reason="only Linux says what memory was at its most"
    ),
]

MANY = 20
WARM = 3
MAX_OF_MANY_MB = 60
MAX_OF_ONE_MB = 8
GEMINI = "gemini-2.5-flash-image"


async def warm_up(gateway: GatewayProcess, up: UploadProvider, *, model: str = "m") -> None:
    """What a first upload needs for ever is none of the next one's."""
    for number in range(WARM):
        answer = await edit(gateway.url, number, BLOCK[: MB // 4], model=model)
        assert answer.status == 200, answer
    up.taken.clear()
    await settle(gateway)


async def settle(gateway: GatewayProcess) -> None:
    """Until no connection and no upload is open, but those that are kept for the next."""
    folder = gateway.data / "uploads"

    async def is_at_rest() -> bool:
        return count_open(folder, gateway.pid) == 0 and (await gateway.ask("audit"))["open_holds"] == 0

    await eventually(is_at_rest, 5)


def count_files(process: psutil.Process) -> int:
    """Open descriptors but those of connections, which are kept for a while, and of the database's readers."""
    of_database = sum("gateway.db" in opened.path for opened in process.open_files())
    found: int = process.num_fds() - len(process.net_connections("tcp")) - of_database
    return found


async def read_rows(gateway: GatewayProcess, count: int) -> list[RequestRecord]:
    """The rows after those of the warming up, once there are so many; fails where there are more."""
    rows: list[RequestRecord] = []

    async def is_stored() -> bool:
        nonlocal rows
        rows = (await gateway.read_rows())[0][WARM:]
        return len(rows) >= count

    await eventually(is_stored, 5)
    assert len(rows) == count, rows
    return rows


async def check_nothing_is_left(gateway: GatewayProcess, process: psutil.Process, files: int) -> None:
    await settle(gateway)

    async def is_given_back() -> bool:
        return count_files(process) <= files

    await eventually(is_given_back, 5)
    assert list_named(gateway.data) == set()
    await gateway.check_books()


async def test_20_edits_of_20_mb_at_once_are_all_whole_and_never_in_memory(tmp_path: Path) -> None:
    async with UploadProvider() as up, GatewayProcess(tmp_path / "data", site(lead(up))) as gateway:
        process = psutil.Process(gateway.pid)
        await warm_up(gateway, up)
        files = count_files(process)
        with watch_memory(process) as risen:
            async with watch_names(gateway.data) as named:
                answers = await asyncio.gather(*(edit(gateway.url, number, BLOCK) for number in range(MANY)))
        print(f"{MANY} edits of 20 MB at once: resident memory up by {risen[0]:.1f} MB")  # noqa: T201
        assert [answer.status for answer in answers] == [200] * MANY
        by_name = {taken.head[taken.head.index(PNG) :][:16]: taken for taken in up.taken}
        assert all(by_name[name_file(number)].holds(name_file(number), BLOCK) for number in range(MANY))
        assert risen[0] < MAX_OF_MANY_MB
        assert named == set()
        await check_nothing_is_left(gateway, process, files)
        rows = await read_rows(gateway, MANY)
        assert {row.outcome for row in rows} == {"completed"}


@pytest.mark.parametrize("way", ["form", "json"])
async def test_an_edit_of_50_mb_raises_memory_by_less_than_8_mb(tmp_path: Path, way: str) -> None:
    data = BLOCK + BLOCK + BLOCK[: 10 * MB]
    async with UploadProvider() as up:
        gemini = {"provider": "gemini", "base_url": f"{up.origin}/v1beta", "model_map": {"m": GEMINI}}
        fields: dict[str, Any] = gemini if way == "json" else {}
        tables = site(lead(up, **fields))
        async with GatewayProcess(tmp_path / "data", tables) as gateway:
            await warm_up(gateway, up)
            with watch_memory(psutil.Process(gateway.pid)) as risen:
                async with watch_names(gateway.data) as named:
                    answer = await edit(gateway.url, 1, data)
            print(f"an edit of 50 MB as {way}: resident memory up by {risen[0]:.1f} MB")  # noqa: T201
            assert answer.status == 200
            (taken,) = up.taken
            sent = (name_file(1), data) if way == "form" else (base64.b64encode(name_file(1) + data),)
            assert taken.holds(*sent)
            assert risen[0] < MAX_OF_ONE_MB
            assert named == set()
            await settle(gateway)


async def leave(url: str, number: int, *, after: int, how: str) -> None:
    """Begin an edit, and vanish in the middle of its body."""
    pieces = write_form(number, BLOCK)
    async with dial(url) as sock:
        await send(sock, [write_head(sum(map(len, pieces))), *pieces], most=after)
        if how == "rst":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_of_callers_who_vanish_half_way_nothing_is_left_and_the_others_are_served(tmp_path: Path) -> None:
    """Ten leave in the middle of their bodies, five while the provider works; ten stay."""
    async with UploadProvider() as up, GatewayProcess(tmp_path / "data", site(lead(up))) as gateway:
        process = psutil.Process(gateway.pid)
        await warm_up(gateway, up)
        files = count_files(process)
        up.held = []
        with watch_memory(process) as risen:
            leaving = [
                leave(gateway.url, number, after=(2 * number + 1) * MB, how="rst" if number % 2 else "fin")
                for number in range(10)
            ]
            staying = [asyncio.create_task(edit(gateway.url, number, BLOCK)) for number in range(10, 20)]
            impatient = [asyncio.create_task(edit(gateway.url, number, BLOCK)) for number in range(20, 25)]
            await asyncio.gather(*leaving)
            await until(lambda: len(up.held or ()) == 15)
            for task in impatient:
                task.cancel()
            await until(lambda: count_open(gateway.data / "uploads", gateway.pid) == 10)
            await until(lambda: sum(not held[0].is_closing() for held in up.held or ()) == 10)
            up.release()
            assert [answer.status for answer in await asyncio.gather(*staying)] == [200] * 10
        print(f"25 edits of 20 MB at once, 15 callers leave: resident memory up by {risen[0]:.1f} MB")  # noqa: T201
        assert risen[0] < MAX_OF_MANY_MB
        await check_nothing_is_left(gateway, process, files)
        rows = await read_rows(gateway, 25)
        gone = [row for row in rows if row.outcome == "client_closed"]
        assert len(gone) == 15
        assert {row.status for row in gone} == {499}
        assert all((row.cost_nanos > 0) == (row.attempts > 0) for row in gone), "what was sent on is paid for"
        assert sorted(row.attempts for row in gone) == [0] * 10 + [1] * 5
        assert {row.cost_nanos for row in rows if row.outcome == "completed"} == {19_000}


@pytest.mark.parametrize(
    "mode", [Mode(reads=MB, then="stall"), Mode(pace=64 * 1024)], ids=["stops reading", "reads 64 KB/s"]
)
async def test_a_provider_that_hardly_reads_is_timed_out_alone_and_in_bounded_memory(
    tmp_path: Path, mode: Mode
) -> None:
    async with UploadProvider(mode) as slow, UploadProvider() as good:
        tables = site(lead(slow, "slow", total_timeout_s=1), lead(good, "good", models=["other"]))
        async with GatewayProcess(tmp_path / "data", tables) as gateway:
            process = psutil.Process(gateway.pid)
            await warm_up(gateway, good, model="other")
            files = count_files(process)
            with watch_memory(process) as risen:
                waiting = [asyncio.create_task(edit(gateway.url, number, BLOCK)) for number in range(8)]
                await until(lambda: len(slow.taken) == 8)
                others = [edit(gateway.url, number, BLOCK[:MB], model="other") for number in range(20)]
                assert [answer.status for answer in await asyncio.gather(*others)] == [200] * 20
                answers = await asyncio.gather(*waiting)
            print(f"8 edits of 20 MB to one that hardly reads: resident memory up by {risen[0]:.1f} MB")  # noqa: T201
            assert [(answer.status, answer.error["code"]) for answer in answers] == [(504, "upstream_timeout")] * 8
            assert risen[0] < MAX_OF_MANY_MB
            await until(
                lambda: (
                    not [one for one in process.net_connections("tcp") if getattr(one.raddr, "port", None) == slow.port]
                )
            )
            await check_nothing_is_left(gateway, process, files)
            failed = [row for row in await read_rows(gateway, 28) if row.channel == "slow"]
            assert {(row.outcome, row.cost_nanos) for row in failed} == {("failed", 0)}


def limit_files(pid: int, size: int) -> None:
    """No file of the process may be longer than that: what is beyond it fails to be written."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def test_an_upload_for_which_the_disk_has_no_room_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    async with UploadProvider() as up, GatewayProcess(tmp_path / "data", site(lead(up))) as gateway:
        process = psutil.Process(gateway.pid)
        await warm_up(gateway, up)
        files = count_files(process)
        limit_files(gateway.pid, 8 * MB)
        answers = await asyncio.gather(*(edit(gateway.url, number, BLOCK) for number in range(5)))
        for answer in answers:
            check_no_room(answer, "no room for the upload")
        assert (await edit(gateway.url, 9, BLOCK[:MB])).status == 200
        assert len(up.taken) == 1
        await check_nothing_is_left(gateway, process, files)
        limit_files(gateway.pid, resource.RLIM_INFINITY)
        assert (await edit(gateway.url, 10, BLOCK)).status == 200
        refused = [row for row in await read_rows(gateway, 7) if row.outcome == "refused"]
        assert [(row.error_code, row.cost_nanos, row.attempts) for row in refused] == [("overloaded", 0, 0)] * 5
        await gateway.check_books()
        assert "Traceback" not in gateway.err.read_text()


def check_no_room(answer: Any, message: str) -> None:
    assert (answer.status, answer.error["code"]) == (503, "overloaded")
    assert message in answer.error["message"]
    assert int(answer.headers["retry-after"]) >= 1


def resize(disk: Path, size_mb: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size_mb}m", str(disk)], timeout=10, check=True)


async def test_a_disk_that_an_upload_fills_has_its_room_back_at_once(tmp_path: Path) -> None:
    """The database lies on the same disk. No further upload is begun while there is too little room."""
    roomy_mb = MIN_FREE_BYTES // MB + 64
    with small_disk(tmp_path / "data", roomy_mb) as disk:
        async with UploadProvider() as up, GatewayProcess(disk, site(lead(up))) as gateway:
            await warm_up(gateway, up)
            pieces = write_form(1, BLOCK)
            async with dial(gateway.url) as sock:
                await send(sock, [write_head(sum(map(len, pieces))), *pieces], most=MB)
                await until(lambda: count_open(disk / "uploads", gateway.pid))
                resize(disk, 16)
                await send(sock, [b"".join(pieces)[MB - len(write_head(sum(map(len, pieces)))) :]])
                check_no_room(await hear(sock), "no room for the upload")
            await settle(gateway)
            await asyncio.sleep(1)  # for so long the gateway believes that there is room
            check_no_room(await edit(gateway.url, 2, BLOCK[:MB]), "no room")
            assert not up.taken
            resize(disk, roomy_mb)
            assert (await edit(gateway.url, 3, BLOCK)).status == 200
            assert (await gateway.probe())[0] == 200
            await settle(gateway)
            rows = await read_rows(gateway, 3)
            assert [(row.outcome, row.cost_nanos) for row in rows] == [("refused", 0)] * 2 + [("completed", 19_000)]
            await gateway.check_books()
            assert "Traceback" not in gateway.err.read_text()


async def test_uploads_beyond_what_may_wait_are_asked_to_come_again(tmp_path: Path) -> None:
    """Half of 16 times what one request may upload: of 20 that hold as much some are refused, and then of 7 none."""
    limits = {"server": {"log_format": "json", "max_upload_mb": 2, "max_file_mb": 2}}
    async with UploadProvider() as up, GatewayProcess(tmp_path / "data", site(lead(up), **limits)) as gateway:
        up.held = []
        most = BLOCK[: 2 * MB - 1024]
        asking = [asyncio.create_task(edit(gateway.url, number, most)) for number in range(20)]
        await until(lambda: sum(task.done() for task in asking) + len(up.held or ()) == 20)
        up.release()
        answers = await asyncio.gather(*asking)
        refused = [answer for answer in answers if answer.status != 200]
        assert 12 <= len(refused) < 20
        assert {(answer.status, answer.error["code"], answer.headers["retry-after"]) for answer in refused} == {
            (429, "rate_limit_exceeded", "5")
        }
        await settle(gateway)
        again = await asyncio.gather(*(edit(gateway.url, number, most) for number in range(7)))
        assert [answer.status for answer in again] == [200] * 7
        await gateway.check_books()
