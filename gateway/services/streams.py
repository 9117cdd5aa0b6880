"""Open the registry of streams that clients can take up again, with the first of them; hand it on at the end."""

from base64 import urlsafe_b64decode

import orjson
import structlog

from gateway.deferred import load
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
from gateway.storage.handed_over_streams import HandedOverStream, take_streams, write_streams

FOLDER = "streams"
_DRAIN = "server.reader_drain:await_streams"
_ORIGIN_FIELDS = ("request_id", "account_id", "key_id", "operation", "model", "started_ms")

log = structlog.stdlib.get_logger(__name__)


def open_streams(base: BaseServices) -> ResumableStreams:
    """Open the registry. Events that do not fit into memory are in nameless files below the data folder."""
    load(_DRAIN)  # at the end of this process, the files on disk may be those of the next version

    def find_bounds() -> StreamBounds:
        section = base.live_config.config.streams
        return StreamBounds(section.keep_s, section.max_mb * MIB)

    node = base.storage.node
    memory = EventMemory(base.options.folder.path / FOLDER)
    streams = ResumableStreams(memory, find_bounds, "" if node is None else node.id)
    if node is not None:
        node.notifications.subscribe(STREAMS_FORGOTTEN, lambda name: _forget_of(streams, name))
    return streams


def _forget_of(streams: ResumableStreams, name: str) -> None:
    """Delete what another node has published."""
    account_id, end_users = orjson.loads(urlsafe_b64decode(name))
    streams.forget_of(account_id, end_users)


async def hand_over(base: BaseServices, secret_box: SecretBox, streams: ResumableStreams) -> None:
    """Write the streams for the next process in this data folder, the newest ones first, and delete them here.

    No more than fits into the memory for streams is written. If the disk fails, they are lost.
    """
    parts, room = list[HandedOverStream](), streams.memory.max_bytes
    for stream in reversed(streams.streams.values()):
        part = await _collect(stream)
        room -= sum(map(len, part.events))
        if room < 0:
            break
        parts.append(part)
    try:
        await run_in_thread(write_streams, base.options.folder.path / FOLDER, secret_box, parts[::-1])
    except OSError as error:
        log.warning("streams_not_handed_over", error=str(error))
    streams.close()


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
        parts = await run_in_thread(take_streams, base.options.folder.path / FOLDER, secret_box)
        for part in parts:
            await _restore(services, part)
    except (OSError, StoreUnavailable) as error:
        log.warning("streams_not_taken_over", error=str(error))


async def _restore(services: Services, part: HandedOverStream) -> None:
    facts, streams = part.facts, services.open_streams()
    origin = StreamOrigin(*(facts[name] for name in _ORIGIN_FIELDS), response_id=facts["response_id"])
    stored = await services.admin.request_log.find_request(origin.request_id)
    if stored is None or stored.row.end_user != facts["end_user"] or stored.row.key_id != origin.key_id:
        return
    keep_s = services.live_config.config.streams.keep_s - (services.clock() - stored.row.settled_ms / 1000)
    if keep_s <= 0 or facts["id"] != streams.make_id(origin.request_id):
        return
    stream = streams.restore(facts["id"], origin, stored.row, keep_s, is_background=facts["is_background"])
    stream.recorder.append_events(part.events)
    stream.recorder.end(complete=facts["is_complete"])
