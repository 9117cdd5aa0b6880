"""What is kept is found by its link, and by nothing else."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import pytest

from gateway.domain.media import Media, UnknownMedia, build_link
from gateway.errors import NotFound, StoreUnavailable
from gateway.media.signed_links import SignedLinks
from gateway.storage.media_files import MediaFiles
from tests.support.image_providers import draw

KEY = b"k" * 32
NOW = 1_750_000_000.25
TTL_S = 60.0


@attrs.define
class Clock:
    now_s: float = NOW

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store(tmp_path: Path) -> MediaFiles:
    return MediaFiles(tmp_path)


def make(store: MediaFiles, clock: Clock, ttl_s: Any = TTL_S, key: bytes = KEY) -> SignedLinks:
    return SignedLinks(store, key, ttl_s=ttl_s, clock=clock)


def read(link: str) -> tuple[str, str, str]:
    """Id, time and signature of a link."""
    parts = urlsplit(link)
    query = parse_qs(parts.query, strict_parsing=True)
    assert (parts.scheme, parts.netloc, set(query)) == ("", "", {"expires", "signature"})
    return parts.path.removeprefix("/media/"), query["expires"][0], query["signature"][0]


async def test_what_is_kept_is_found_by_its_link(store: MediaFiles) -> None:
    keeper, image = make(store, Clock()), draw()
    found = await keeper.find(*read(await keeper.create_link(image)))
    assert found.media_type == "image/png"
    assert isinstance(found, Media)
    assert found.path.read_bytes() == image


async def test_a_link_works_for_as_long_as_it_says(store: MediaFiles) -> None:
    clock = Clock()
    keeper = make(store, clock)
    link = read(await keeper.create_link(draw()))
    assert link[1] == str(int(NOW) + 61)
    assert keeper.count_seconds_left(link[1]) == 60
    clock.now_s += TTL_S
    assert (await keeper.find(*link)).id == link[0]
    assert keeper.count_seconds_left(link[1]) == 0
    clock.now_s += 1
    with pytest.raises(NotFound):
        await keeper.find(*link)
    assert keeper.count_seconds_left(link[1]) == 0


async def test_how_long_a_link_works_is_asked_anew(store: MediaFiles) -> None:
    times = iter([10.0, 1000.0])
    keeper = make(store, Clock(1_000.0), lambda: next(times))
    assert read(await keeper.create_link(draw()))[1] == "1010"
    assert read(await keeper.create_link(draw()))[1] == "2000"


async def test_two_files_of_the_same_bytes_have_nothing_in_common(store: MediaFiles) -> None:
    keeper = make(store, Clock())
    one, other = read(await keeper.create_link(draw())), read(await keeper.create_link(draw()))
    assert one[0] != other[0]
    assert one[2] != other[2]


async def test_a_link_can_be_given_out_again(store: MediaFiles) -> None:
    keeper = make(store, Clock())
    media_id, _, _ = read(await keeper.create_link(draw()))
    assert (await keeper.find(*read(keeper.build_link(media_id)))).id == media_id


async def test_every_bad_link_is_answered_alike(store: MediaFiles) -> None:
    """Nobody learns whether there is such a file."""
    clock = Clock()
    keeper, stranger = make(store, clock), make(store, clock, key=b"x" * 32)
    media_id, expires, signature = read(await keeper.create_link(draw()))
    other_id, _, _ = read(await keeper.create_link(draw()))
    late = read(build_link(KEY, media_id, int(NOW)))
    unknown = read(keeper.build_link(f"{'0' * 32}.png"))
    outside = read(keeper.build_link("..%2F..%2Fetc%2Fpasswd"))
    bad = [
        (other_id, expires, signature),
        (media_id, str(int(expires) + 1), signature),
        (media_id, expires, signature[::-1]),
        (media_id, expires, ""),
        (media_id, "", ""),
        ("\udc80\0", expires, "\udc80"),
        late,
        unknown,
        outside,
        read(stranger.build_link(media_id)),
    ]
    answers = set()
    for link in bad:
        with pytest.raises(NotFound) as caught:
            await keeper.find(*link)
        answers.add((caught.value.message, caught.value.status, caught.value.should_retry))
    assert answers == {("There is no such file, or its link has expired", 404, False)}


async def test_what_was_swept_is_not_found(store: MediaFiles) -> None:
    keeper = make(store, Clock())
    link = read(await keeper.create_link(draw()))
    await store.sweep(before_s=0, max_bytes=0)
    with pytest.raises(NotFound):
        await keeper.find(*link)


async def test_what_is_no_media_is_not_kept(store: MediaFiles, tmp_path: Path) -> None:
    with pytest.raises(UnknownMedia):
        await make(store, Clock()).create_link(b"<html>")
    assert list(tmp_path.iterdir()) == []


def test_whether_there_is_room_is_the_stores_answer(tmp_path: Path) -> None:
    make(MediaFiles(tmp_path, min_free_bytes=0), Clock()).check_room()
    with pytest.raises(StoreUnavailable):
        make(MediaFiles(tmp_path, min_free_bytes=2**80), Clock()).check_room()
