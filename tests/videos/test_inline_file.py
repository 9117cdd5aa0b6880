"""Videos that come inside answers."""

import asyncio

from gateway.videos.inline_file import InlineFile


async def test_an_inline_video_is_read_in_pieces_and_gives_its_place_back_once() -> None:
    place, content = asyncio.Semaphore(1), bytes(range(256)) * 1_000
    await place.acquire()
    file = InlineFile(content, place.release)
    pieces = []
    while piece := await file.read():
        pieces.append(piece)
    assert (file.status, file.length, b"".join(pieces)) == (200, len(content), content)
    assert max(map(len, pieces)) <= 64 * 1024
    assert place.locked()
    file.close()
    file.close()
    await place.acquire()
    assert place.locked(), "a second close gives nothing back"
