"""Rows that the database refuses: each is set aside in a file of the data folder, so that it blocks no other row.

No such row is known so far. Without this file, a permanently refused row would block all rows behind it, and with them
the gateway.
"""

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import attrs
import structlog

from gateway.domain.request_log import RequestRecord
from gateway.errors import StoreUnavailable
from gateway.storage.database import RowRefused

_OWNER_ONLY_MODE = 0o600

log = structlog.stdlib.get_logger(__name__)


class UnstorableFile:
    """The file ``path``: one JSON object with a row and the reason for its refusal in each line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0

    def add(self, row: RequestRecord, reason: str) -> None:
        # Unlike orjson, json serializes any number and any text.
        line = json.dumps({"reason": reason, "row": attrs.asdict(row)}, default=repr) + "\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _OWNER_ONLY_MODE)
            with os.fdopen(descriptor, "ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            log.error("record_not_set_aside", path=str(self._path), error=str(error))  # noqa: TRY400
            raise StoreUnavailable("The gateway cannot record requests at the moment", retry_after_s=5) from error
        self.count += 1
        log.error("record_set_aside", request_id=row.id, path=str(self._path), reason=reason)


def count_unstorable(path: Path) -> int:
    """Return how many rows are set aside, without duplicates. Raises ``OSError``."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return 0
    return len({_find_id(line) for line in lines if line})


def _find_id(line: bytes) -> str | bytes:
    try:
        return str(json.loads(line)["row"]["id"])
    except (ValueError, KeyError, TypeError):
        return line


async def post_separately(
    rows: Sequence[RequestRecord],
    reason: RowRefused,
    post: Callable[[Sequence[RequestRecord]], Awaitable[None]],
    set_aside: Callable[[RequestRecord, str], Awaitable[None]],
) -> None:
    """Store rows that were refused together, for ``reason``.

    The rows are halved until each refused one is alone; ``set_aside`` is called with that row.
    """
    if len(rows) == 1:
        await set_aside(rows[0], reason.reason)
        return
    middle = len(rows) // 2
    for half_rows in (rows[:middle], rows[middle:]):
        try:
            await post(half_rows)
        except RowRefused as error:
            await post_separately(half_rows, error, post, set_aside)
