"""Open the registry of streams that clients can take up again, with the first of them."""

from gateway.proxy.resumable_streams import ResumableStreams, StreamBounds
from gateway.proxy.stream_recorder import MIB, EventMemory
from gateway.services.base import BaseServices

FOLDER = "streams"


def open_streams(base: BaseServices) -> ResumableStreams:
    """Open the registry. Events that do not fit into memory are in nameless files below the data folder."""

    def find_bounds() -> StreamBounds:
        section = base.live_config.config.streams
        return StreamBounds(section.keep_s, section.max_mb * MIB)

    node = base.storage.node
    memory = EventMemory(base.options.folder.path / FOLDER)
    return ResumableStreams(memory, find_bounds, "" if node is None else node.id)
