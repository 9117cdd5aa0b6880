"""The recorder of a stream: every reader gets every event once, in order, wherever it lies and whoever else reads."""

import asyncio
import random
from pathlib import Path

import pytest

from gateway.proxy.stream_recorder import EventMemory, EventsLost, MemoryShare, StreamReader, StreamRecorder
from tests.support.fault_scene import until

MIB = 1024 * 1024


def find_no_room(_: MemoryShare) -> bool:
    """Find no other stream to delete."""
    return False


def make_events(count: int, size: int = 100) -> list[bytes]:
    return [b"data: %d %b\n\n" % (number, b"x" * size) for number in range(count)]


async def read_all(reader: StreamReader, pause_s: float = 0.0) -> list[bytes]:
    events = list[bytes]()
    while batch := await reader.read():
        events += batch
        await asyncio.sleep(pause_s)
    return events


@pytest.mark.parametrize("max_bytes", [64 * MIB, 200_000], ids=["in memory", "in a file"])
async def test_readers_get_every_event_from_where_they_begin(tmp_path: Path, max_bytes: int) -> None:
    memory = EventMemory(tmp_path / "streams", max_bytes)
    recorder, events, rng = StreamRecorder(memory, 64 * MIB, find_no_room), make_events(20_000), random.Random(1)  # noqa: S311 - cuts
    readings = [asyncio.create_task(read_all(recorder.open_reader(0)))]
    starts = [0]
    position = 0
    while position < len(events):
        end = position + rng.randint(1, 5)
        recorder.append(b": a comment\n\n".join(events[position:end]))
        position = end
        if position % 50 == 0:
            await asyncio.sleep(0)
        if memory.used_bytes > 1.5 * max_bytes:
            await until(lambda: memory.used_bytes <= 1.5 * max_bytes)
        if rng.random() < 0.002:
            starts.append(rng.randint(0, recorder.count))
            readings.append(asyncio.create_task(read_all(recorder.open_reader(starts[-1]))))
    recorder.end(complete=True)
    for start, reading in zip(starts, readings, strict=True):
        assert await reading == events[start:]
    for start in (0, 1, 777, len(events) - 1, len(events)):
        assert await read_all(recorder.open_reader(start)) == events[start:]
    assert (memory.spilled_bytes > 0) == (max_bytes < MIB)
    recorder.discard()
    assert (memory.used_bytes, memory.spilled_bytes) == (0, 0)
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "streams"])


async def test_a_reader_waits_and_is_told_of_a_break(tmp_path: Path) -> None:
    recorder = StreamRecorder(EventMemory(tmp_path), MIB, find_no_room)
    first, second = make_events(2)
    reader = recorder.open_reader(0)
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    recorder.append(b": only a comment\n\n")
    await asyncio.sleep(0)
    assert not reading.done()
    recorder.append(first)
    assert await reading == [first]
    reading.cancel()
    waiting = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    recorder.append(second)
    recorder.end(complete=False)
    assert await reader.read() == [second]
    with pytest.raises(EventsLost):
        await reader.read()
    assert reader.position == 2


async def test_a_full_recorder_keeps_the_event_that_filled_it_and_no_other(tmp_path: Path) -> None:
    recorder = StreamRecorder(EventMemory(tmp_path), 250, find_no_room)
    events = make_events(4)
    for event in events[:2]:
        assert not recorder.is_full
        recorder.append(event)
    assert recorder.is_full
    reader = recorder.open_reader(0)
    assert await reader.read() == events[:2]
    recorder.append(events[2])
    assert recorder.ended
    with pytest.raises(EventsLost):
        await reader.read()
    recorder.append(events[3])
    recorder.end(complete=True)
    assert (recorder.count, recorder.is_complete) == (2, False)


async def test_events_that_are_deleted_are_lost_to_a_reader_that_has_not_read_them(tmp_path: Path) -> None:
    memory = EventMemory(tmp_path, 150_000)
    recorder = StreamRecorder(memory, MIB, find_no_room)
    for event in make_events(1_500):
        recorder.append(event)
    reader = recorder.open_reader(10)
    recorder.discard()
    with pytest.raises(EventsLost):
        await reader.read()
    assert (memory.used_bytes, memory.spilled_bytes) == (0, 0)


async def test_a_full_disk_ends_the_keeping_and_not_the_stream(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    recorder = StreamRecorder(EventMemory(blocked, 150_000), 16 * MIB, find_no_room)
    events = make_events(1_500)
    for event in events:
        recorder.append(event)
    await until(lambda: recorder.is_full)
    reader = recorder.open_reader(0)
    count = recorder.count
    seen = list[bytes]()
    while reader.has_next:
        seen += await reader.read()
    assert seen == events[:count]
    recorder.append(events[0])
    with pytest.raises(EventsLost):
        await reader.read()


async def test_old_streams_make_room_before_a_running_one_is_full(tmp_path: Path) -> None:
    memory = EventMemory(tmp_path, 10_000)
    old = StreamRecorder(memory, MIB, find_no_room)
    old.append(b"".join(make_events(90)))
    olds = [old]

    def make_room(_: MemoryShare) -> bool:
        if not olds:
            return False
        olds.pop().discard()
        return True

    running = StreamRecorder(memory, MIB, make_room)
    running.append(b"".join(make_events(90)))
    assert (olds, running.is_full) == ([], False)
    running.append(b"".join(make_events(90)))
    assert running.is_full
