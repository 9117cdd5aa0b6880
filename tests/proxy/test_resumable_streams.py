"""The room for kept streams: who uses much of it makes room for the others, and never the other way round."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.inference_request import InferenceRequest
from gateway.proxy import resumable_streams
from gateway.proxy.resumable_streams import ResumableStream, ResumableStreams, StreamBounds
from gateway.proxy.stream_recorder import EventMemory, StreamRecorder
from gateway.request_context import RequestContext
from gateway.services.streams import FOLDER, hand_over
from gateway.storage.encryption import SecretBox
from gateway.storage.handed_over_streams import StreamFileReader
from tests.support.billing_services import option_of
from tests.support.contexts import make_attempt, make_context

EVENT = b"data: " + b"x" * 994 + b"\n\n"
MAX_BYTES = 50_000
BOUNDS = StreamBounds(keep_s=600, max_bytes=16_000_000)


@attrs.define
class Request:
    """A request that makes a stream."""

    context: RequestContext

    def cancel(self) -> bool:
        return True

    def give_up(self) -> None:
        raise AssertionError("nobody waits that long")


class Site:
    """Streams of some callers: ``key`` is ``account * 10`` and the number of the key in the account."""

    def __init__(self, folder: Path) -> None:
        self.streams = ResumableStreams(EventMemory(folder, MAX_BYTES), lambda: BOUNDS)
        self._count = 0

    def try_open(self, key: int, *, may_stay_unread: bool = False) -> ResumableStream | None:
        self._count += 1
        account = Account(key // 10, f"account{key // 10}")
        caller = Caller(account, ApiKey(key, account.id, f"key{key}", b"", ""))
        ctx = make_context(caller, InferenceRequest("chat", "m", {}), request_id=f"req_{self._count:024x}")
        return self.streams.open(Request(ctx), may_stay_unread=may_stay_unread)

    def open(self, key: int, count: int = 0) -> ResumableStream:
        """A running stream with ``count`` events."""
        stream = self.try_open(key)
        assert stream is not None
        for _ in range(count):
            stream.recorder.append(EVENT)
        return stream

    def keep(self, key: int, count: int) -> ResumableStream:
        """A stream that has ended with ``count`` events, fewer than are moved to a file."""
        stream = self.open(key, count)
        self.streams.end(stream, None)
        return stream

    def list_keys(self) -> list[int]:
        return [stream.key_id for stream in self.streams.streams.values()]


async def test_the_ended_streams_of_the_largest_user_go_first(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.keep(11, 20)
    for _ in range(3):
        site.keep(21, 20)
    running = site.open(31, 40)
    assert site.list_keys() == [11, 21, 31]
    assert not running.recorder.is_full
    site.streams.close()


async def test_a_large_user_evicts_none_but_itself(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.keep(11, 20)
    running = site.open(21, 40)
    small = site.open(31, 1)
    for _ in range(50):
        running.recorder.append(EVENT)
    assert running.recorder.is_full
    assert running.recorder.ended
    assert site.list_keys() == [11, 21, 31]
    for _ in range(20):  # beyond all the room, within its share
        small.recorder.append(EVENT)
    assert (small.recorder.is_full, small.recorder.count) == (False, 21)
    assert site.try_open(21) is None
    assert site.try_open(41) is not None
    site.streams.close()


async def test_the_keys_of_an_account_share_what_is_the_accounts(tmp_path: Path) -> None:
    site = Site(tmp_path)
    kept = site.keep(12, 10)
    large, other = site.open(11, 45), site.open(21, 30)
    for _ in range(30):
        large.recorder.append(EVENT)
    assert large.recorder.is_full
    assert kept.id in site.streams.streams
    assert not other.recorder.is_full
    own = site.open(12, 10)
    assert not own.recorder.is_full
    site.streams.close()
    assert site.streams.memory.used_bytes == 0


async def test_one_key_cannot_use_up_the_number_of_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_streams, "MAX_STREAMS", 10)
    site = Site(tmp_path)
    site.keep(21, 1)
    for _ in range(9):
        site.open(11)
    assert site.try_open(11) is None
    assert site.try_open(21) is not None
    assert site.list_keys().count(21) == 1  # it made room for itself
    assert site.try_open(22) is not None
    assert site.try_open(31) is not None
    assert site.try_open(11) is None
    assert site.list_keys().count(11) == 9
    site.streams.close()


async def test_streams_that_timers_delete_during_the_hand_over_are_left_out(tmp_path: Path) -> None:
    site, secret_box, load = Site(tmp_path), SecretBox(bytes(32)), StreamRecorder.load
    oldest, forgotten, read, newest = [site.keep(11, 2) for _ in range(4)]

    async def load_late(recorder: StreamRecorder, after: int) -> Sequence[bytes]:
        if recorder is read.recorder:
            for stream in (forgotten, read):
                site.streams.forget(stream)  # as their timers do
        return await load(recorder, after)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamRecorder, "load", load_late)
        await hand_over(tmp_path, secret_box, site.streams)
    with closing(StreamFileReader(tmp_path / FOLDER, secret_box)) as reader:
        written = [reader.read() for _ in range(3)]
    assert [None if part is None else part.facts["id"] for part in written] == [newest.id, oldest.id, None]


async def test_a_response_is_found_by_the_id_of_its_provider_in_its_account_alone(tmp_path: Path) -> None:
    site, name = Site(tmp_path), "resp_of_provider"
    streams: list[ResumableStream] = []
    for key, is_background in ((11, False), (11, True), (21, True)):
        stream = site.try_open(key, may_stay_unread=is_background)
        assert stream is not None
        assert stream.request is not None
        stream.request.context.attempts.append(make_attempt(option_of(), response_id=name))
        streams.append(stream)
    expected = [*streams[1:], None]
    assert [site.streams.find_response(name, account) for account in (1, 2, 3)] == expected
    for stream in streams:
        site.streams.end(stream, None)
    assert [site.streams.find_response(name, account) for account in (1, 2, 3)] == expected
    site.streams.forget(streams[1])
    assert [site.streams.find_response(name, account) for account in (1, 2)] == [None, streams[2]]
