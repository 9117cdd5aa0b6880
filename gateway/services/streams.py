"""Opens the registry of resumable streams, hands streams to the next process, and takes over those of the last one."""

from base64 import urlsafe_b64decode
from contextlib import closing
from importlib import import_module
from pathlib import Path

import orjson
import structlog

from gateway.errors import StoreUnavailable
from gateway.large_work import run_in_thread
from gateway.proxy.resumable_streams import (
    STREAMS_FORGOTTEN,
    ResumableStream,
    ResumableStreams,
    StreamBounds,
    StreamOrigin,
)
from gateway.proxy.stream_recorder import MIB, EventMemory, EventsLost
from gateway.server.context import Services
from gateway.services.base import BaseServices
from gateway.storage.encryption import SecretBox
from gateway.storage.handed_over_streams import HandedOverStream, StreamFileReader, StreamFileWriter

FOLDER = "streams"
_DRAIN_MODULE = "gateway.server.reader_drain"
_EVENTS_AT_ONCE = 100
_ORIGIN_FIELDS = ("request_id", "account_id", "key_id", "operation", "model", "started_ms")

log = structlog.stdlib.get_logger(__name__)


def open_streams(base: BaseServices) -> ResumableStreams:
    """Open the registry. Events that do not fit into memory are in nameless files below the data folder."""
    import_module(_DRAIN_MODULE)  # at the end of this process, the files on disk may be those of the next version

    def find_bounds() -> StreamBounds:
        section = base.live_config.config.streams
        return StreamBounds(section.keep_s, section.max_mb * MIB)

    node = base.storage.node
    memory = EventMemory(base.options.folder.path / FOLDER)
    streams = ResumableStreams(memory, find_bounds, "" if node is None else node.id)
    if node is not None:
        node.notifications.subscribe(STREAMS_FORGOTTEN, lambda name: _forget_streams(streams, name))
    return streams


def _forget_streams(streams: ResumableStreams, name: str) -> None:
    """Delete the streams of the account and end users in ``name``, which another node has published."""
    account_id, end_users = orjson.loads(urlsafe_b64decode(name))
    streams.forget_streams(account_id, end_users)


async def hand_over(data_folder: Path, secret_box: SecretBox, streams: ResumableStreams) -> None:
    """Write the streams for the next process in ``data_folder``, the newest ones first, and delete them here.

    No more than fits into the memory for streams is written. If the disk fails, they are lost.
    """
    if streams.streams:
        try:
            await _write(data_folder / FOLDER, secret_box, streams)
        except OSError as error:
            log.warning("streams_not_handed_over", error=str(error))
    streams.close()


async def _write(folder: Path, secret_box: SecretBox, streams: ResumableStreams) -> None:
    writer, room = await run_in_thread(StreamFileWriter, folder, secret_box), streams.memory.max_bytes
    try:
        for stream in reversed(list(streams.streams.values())):  # timers still delete streams that ended
            part = await _collect(stream)
            if stream.id not in streams.streams:
                continue
            room -= sum(map(len, part.events))
            if room < 0:
                break
            await run_in_thread(writer.add, part)
        await run_in_thread(writer.commit)
    finally:
        await run_in_thread(writer.discard)  # no-op after the commit


async def _collect(stream: ResumableStream) -> HandedOverStream:
    events, is_complete = list[bytes](), stream.recorder.is_complete
    try:
        while len(events) < stream.recorder.count:
            events += await stream.recorder.load(len(events))
    except EventsLost:  # the disk has failed: the events before are whole
        is_complete = False
    facts = {name: getattr(stream.origin, name) for name in _ORIGIN_FIELDS}
    facts |= {
        "id": stream.id,
        "response_id": stream.response_id,
        "end_user": stream.end_user,
        "is_background": stream.is_background,
        "is_complete": is_complete,
    }
    return HandedOverStream(facts, events)


async def take_over(services: Services, base: BaseServices, secret_box: SecretBox) -> None:
    """Keep the streams that the former process in this data folder has handed over, for the rest of their time.

    A stream is left out if its request has no row, or if its end user was forgotten meanwhile.
    """
    try:
        reader = await run_in_thread(StreamFileReader, base.options.folder.path / FOLDER, secret_box)
        with closing(reader):
            parts = list[HandedOverStream]()
            while (part := await run_in_thread(reader.read)) is not None:
                parts.append(part)
        for part in reversed(parts):  # the oldest first
            await _restore(services, part)
    except (OSError, StoreUnavailable, KeyError, TypeError) as error:  # also a file of another version
        log.warning("streams_not_taken_over", error=str(error) or type(error).__name__)


async def _restore(services: Services, part: HandedOverStream) -> None:
    facts, streams = part.facts, services.open_streams()
    origin = StreamOrigin(**{name: facts[name] for name in (*_ORIGIN_FIELDS, "response_id")})
    stored = await services.admin.request_log.find_request(origin.request_id)
    if stored is None or stored.row.end_user != facts["end_user"] or stored.row.key_id != origin.key_id:
        return
    keep_s = services.live_config.config.streams.keep_s - (services.clock() - stored.row.settled_ms / 1000)
    if keep_s <= 0 or facts["id"] != streams.make_id(origin.request_id):
        return
    stream = streams.restore(facts["id"], origin, stored.row, keep_s, is_background=facts["is_background"])
    for start in range(0, len(part.events), _EVENTS_AT_ONCE):  # in blocks that can be moved to a file
        stream.recorder.append_events(part.events[start : start + _EVENTS_AT_ONCE])
    stream.recorder.end(complete=facts["is_complete"])
