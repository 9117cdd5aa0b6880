"""The file with streams for the next process: whole, sealed, read once."""

from pathlib import Path

import pytest

from gateway.storage.encryption import SecretBox
from gateway.storage.handed_over_streams import (
    FILE_NAME,
    HandedOverStream,
    StreamFileReader,
    StreamFileWriter,
    delete_streams,
)

BOX = SecretBox(b"k" * 32)
STREAMS = [
    HandedOverStream({"id": f"st_{number}", "text": "ä"}, [b"data: secret %d\n\n" % event for event in range(number)])
    for number in range(4)
]


def write(folder: Path) -> Path:
    writer = StreamFileWriter(folder, BOX)
    for stream in STREAMS:
        writer.add(stream)
    assert not (folder / FILE_NAME).exists()
    writer.commit()
    writer.discard()
    return folder / FILE_NAME


def read(folder: Path, box: SecretBox = BOX) -> list[HandedOverStream]:
    reader, streams = StreamFileReader(folder, box), list[HandedOverStream]()
    while (stream := reader.read()) is not None:
        streams.append(stream)
    reader.close()
    return streams


def test_streams_are_read_once_and_nobody_else_reads_them(tmp_path: Path) -> None:
    file = write(tmp_path / "streams")
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"secret" not in file.read_bytes()
    assert read(file.parent) == STREAMS
    assert list(file.parent.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        read(file.parent)


@pytest.mark.parametrize(("cut", "count"), [(1, 3), (200, 2), (10_000, 0)])
def test_what_is_damaged_is_left_out_and_gone(tmp_path: Path, cut: int, count: int) -> None:
    file = write(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[: max(2, len(data) - cut)])
    assert read(tmp_path) == STREAMS[:count]
    assert not file.exists()


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    assert read(tmp_path, SecretBox(b"x" * 32)) == []


def test_a_writer_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    writer = StreamFileWriter(tmp_path, BOX)
    writer.add(STREAMS[1])
    writer.discard()
    assert list(tmp_path.iterdir()) == []
    delete_streams(tmp_path)
    write(tmp_path)
    delete_streams(tmp_path)
    assert list(tmp_path.iterdir()) == []
