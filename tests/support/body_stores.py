"""A store of kept bodies over a database, and a search for what must not be found in its files."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
from cryptography.exceptions import InvalidTag
from sqlalchemy import delete, insert

from gateway.domain.keep_rule import BodyBounds
from gateway.domain.kept_body import BodyOwner, BodyPart
from gateway.storage.bodies.body_store import KEYS_FOLDER, BodyStore
from gateway.storage.bodies.data_keys import DataKeys
from gateway.storage.bodies.framing import HEAD_BYTES
from gateway.storage.bodies.index import BodyIndex
from gateway.storage.bodies.open_store import open_segment_store
from gateway.storage.bodies.segment_store import SegmentStore
from gateway.storage.bodies.shared_bodies import SharedBodies
from gateway.storage.bodies.shared_index import SharedIndex
from gateway.storage.database import Database
from gateway.storage.encryption import DecryptionFailed, SecretBox
from gateway.storage.media_location import parse_location
from gateway.storage.schema import accounts

MASTER = SecretBox(bytes(range(32)))
BOUNDS = BodyBounds(max_bytes=10**9, keep_ms=7 * 86_400_000, max_body_bytes=256 * 1024)
NOW_S = 1_800_000_000.0
NUMBERED = tuple(f"req_{number:04}" for number in range(40))
"""The ids of ``make_owner``."""


@attrs.define
class Clock:
    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


def open_bodies(
    database: Database,
    folder: Path,
    *,
    clock: Clock | None = None,
    find_bounds: Callable[[], BodyBounds] | None = None,
    node: str = "",
    max_segment_bytes: int = 64 * 1024 * 1024,
    shared: SharedBodies | None = None,
    former_node: str | None = None,
) -> BodyStore:
    return BodyStore(
        folder,
        BodyIndex(database, node, shares_keys=shared is not None),
        MASTER,
        find_bounds=find_bounds or (lambda: BOUNDS),
        clock=clock or Clock(),
        max_segment_bytes=max_segment_bytes,
        former_node="" if node else former_node,
        shared=shared,
    )


def share(
    database: Database, folder: Path, store: SegmentStore, *, node: str, max_backlog_bytes: int = 10**9
) -> SharedBodies:
    """The shared store as a node uses it, which moves every segment at once."""
    index, keys = SharedIndex(database, node), folder / KEYS_FOLDER
    return SharedBodies(store, index, keys, MASTER, move_after_s=0.0, max_backlog_bytes=max_backlog_bytes)


def open_moving_store(database: Database, folder: Path, location: str) -> BodyStore:
    """The store in ``folder``, which moves its segments to ``location`` as ``store.bodies_url``; empty: to nowhere."""
    shared, parsed = None, parse_location(location)
    if parsed is not None:
        shared = share(database, folder, open_segment_store(parsed), node="")
    return open_bodies(database, folder, max_segment_bytes=100_000, shared=shared)


async def add_accounts(database: Database, *account_ids: int) -> None:
    """The accounts that pay for the requests: bodies of accounts that do not exist are erased."""
    fields = {"status": "active", "quota_period": "none", "groups": [], "declared": False, "created_ms": 0}
    for account_id in account_ids:
        await database.change(delete(accounts).where(accounts.c.id == account_id))
        await database.change(insert(accounts).values(id=account_id, name=f"payer-{account_id}", **fields))


def make_owner(number: int, account_id: int = 1, key_id: int = 1, end_user: str = "", session: str = "") -> BodyOwner:
    return BodyOwner(f"req_{number:04}", account_id, key_id, int(NOW_S * 1000) + number, end_user, session)


def make_parts(text: str) -> list[BodyPart]:
    """A question and its answer."""
    asked, answered = f'{{"ask":"{text}"}}'.encode(), f'{{"say":"{text}"}}'.encode()
    return [
        BodyPart("request", asked, "application/json", len(asked)),
        BodyPart("answer", answered, "text/event-stream", len(answered), event_times_ms=(1, 20)),
    ]


def keep(store: BodyStore, owner: BodyOwner, text: str) -> None:
    """Give the store bodies of a request, as the relay does."""
    parts = make_parts(text)
    size = sum(len(part.content) for part in parts)
    store.memory.used += size
    store.keep(owner, size, lambda: parts)


def find_marker(
    folder: Path,
    marker: bytes,
    data_keys: Path | None = None,
    *,
    master: SecretBox = MASTER,
    request_ids: Sequence[str] = NUMBERED,
) -> list[str]:
    """The files of ``folder`` with ``marker``: raw, inflated, or unsealed with the data keys that are left.

    ``data_keys``: where these are, if not in the folder itself. ``request_ids``: whose frames may be in the files.
    """
    keys = DataKeys(data_keys or folder / "bodies" / KEYS_FOLDER, master)
    boxes = [box for account_id in keys.list_accounts() if (box := keys.find_box(account_id)) is not None]
    found = []
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if any(marker in piece for piece in _list_readings(content, boxes, request_ids)):
            found.append(path.name)
    return found


def _list_readings(content: bytes, boxes: list[SecretBox], request_ids: Sequence[str]) -> Iterator[bytes]:
    yield content
    for start in _find_all(content, b"\x78"):  # a zlib stream begins so
        with suppress(zlib.error):
            yield zlib.decompressobj().decompress(content[start : start + 1_000_000], 1_000_000)
    for start in _find_all(content, b"GWB1"):
        length = int.from_bytes(content[start + 4 : start + 8], "big")
        sealed = content[start + HEAD_BYTES : start + HEAD_BYTES + length]
        for box in boxes:
            for request_id in request_ids:
                with suppress(DecryptionFailed, InvalidTag, zlib.error):
                    yield zlib.decompress(box.open(sealed, context=request_id))


def _find_all(content: bytes, mark: bytes) -> Iterator[int]:
    start = content.find(mark)
    while start >= 0:
        yield start
        start = content.find(mark, start + 1)
