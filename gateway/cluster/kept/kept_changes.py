"""The last changes of a node, in memory and in a file of its data folder.

The first line of the file names the database that has all changes before it (``read_generation``). Every other line is
one state: ``[Unix seconds, kind, key, fields]``; the last one of a key counts. A node that is killed reads the file at
its next start. Every ``RETENTION_S`` seconds a new file is begun, and the former one stays for as long.

A state does not end early when standbys have replayed it. ``pg_stat_replication`` shows their positions to members of
``pg_read_all_stats`` only, and it does not show a standby that is cut off, which is the one that will lack most.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import orjson
import structlog

from gateway.cluster.journal.kept_journal import RETENTION_S
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.storage.kept_changes import KeptKind

MAX_TOTAL_BYTES = 64 * 1024 * 1024
"""Maximum bytes of all states; beyond it the oldest are dropped."""
MAX_STATE_BYTES = 8 * 1024 * 1024
"""Maximum bytes of one state. Writing a larger one would delay requests."""

log = structlog.stdlib.get_logger(__name__)


@frozen
class Change:
    """The last state of one object. ``number``: higher than those of all earlier states of the node."""

    kind: KeptKind
    key: str
    state: Mapping[str, Any]
    number: int


class ChangeFile:
    """The changes of the last ``RETENTION_S`` seconds.

    Args:
        path: the file; None keeps the changes in memory only.
        find_generation: returns the database that has the changes of this node, see ``read_generation``.
        find_timeline: returns the newest timeline of the database's servers, see ``NewestTimeline``.
        find_restoring: returns whether other nodes may still bring back their changes.
        now: Unix seconds.
    """

    def __init__(
        self,
        path: Path | None,
        find_generation: Callable[[], str],
        find_timeline: Callable[[], str],
        *,
        find_restoring: Callable[[], bool],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._find_generation = find_generation
        self._find_timeline = find_timeline
        self._find_restoring = find_restoring
        self._now = now
        self._timeline = find_timeline()
        self._lines: dict[tuple[KeptKind, str], tuple[float, int, bytes]] = {}
        """By object, oldest first: Unix seconds, number, and the line of the file."""
        self._bytes = self._last_number = 0
        self._started_s = now()
        self._is_failing = self._is_full = False
        self._former_generation = ""
        self.database_lacks_changes = self._read()
        self._rewrite()

    def keep(self, kind: KeptKind, key: str, state: Mapping[str, Any]) -> None:
        stored_line = self._lines.get((kind, key))
        former_state = {} if stored_line is None else orjson.loads(stored_line[2])[3]
        merged_state = former_state | {name: value for name, value in state.items() if value is not None}
        line = orjson.dumps((self._now(), kind, key, merged_state)) + b"\n"  # a copy, as in the journal
        if len(line) > MAX_STATE_BYTES:
            log.warning("change_not_kept", job=f"{kind} {key}", bytes=len(line))
            return
        self._put((kind, key), self._now(), line)
        self._drop_old()
        if not self.database_lacks_changes and self._now() - self._started_s >= RETENTION_S:
            self._rotate()
        self._write("ab", line)

    def check(self) -> None:
        if self.database_lacks_changes or self._find_timeline() != self._timeline or self._find_restoring():
            raise StoreUnavailable("The gateway's store was replaced: its last jobs are stored again", retry_after_s=2)

    def list_changes(self, after_number: int = 0) -> Iterator[Change]:
        """Yield the present states with a number above ``after_number``, oldest first."""
        for (kind, key), (_, number, line) in list(self._lines.items()):
            if number > after_number:
                yield Change(kind, key, orjson.loads(line)[3], number)

    def renew(self, changes: Iterable[Change]) -> None:
        """Keep states that were brought back for as long as new ones: their database may be lost, too."""
        for change in changes:
            _, number, line = self._lines.get((change.kind, change.key), (0.0, 0, b""))
            if number == change.number:
                del self._lines[change.kind, change.key]
                new_line = orjson.dumps((self._now(), *orjson.loads(line)[1:])) + b"\n"
                self._bytes += len(new_line) - len(line)
                self._lines[change.kind, change.key] = self._now(), number, new_line

    def confirm(self, timeline: str) -> None:
        """Note that the database on this ``timeline`` has all changes."""
        self._timeline, self.database_lacks_changes = timeline, False
        self._rewrite()

    def close(self) -> None:
        self._rewrite()

    def _put(self, key: tuple[KeptKind, str], at_s: float, line: bytes) -> None:
        former_line = self._lines.pop(key, None)
        self._last_number += 1
        self._lines[key] = at_s, self._last_number, line
        self._bytes += len(line) - (0 if former_line is None else len(former_line[2]))

    def _drop_old(self) -> None:
        before_s = float("-inf") if self.database_lacks_changes else self._now() - RETENTION_S
        while self._lines:
            key, (at_s, _, line) = next(iter(self._lines.items()))
            if at_s >= before_s and self._bytes <= MAX_TOTAL_BYTES:
                break
            if at_s >= before_s and not self._is_full:
                log.warning(
                    "changes_not_kept", error=f"the last {RETENTION_S:.0f} seconds have too many", bytes=self._bytes
                )
                self._is_full = True
            del self._lines[key]
            self._bytes -= len(line)

    def _read(self) -> bool:
        """Read the changes of an earlier process, and return whether the database may lack them."""
        lacks_changes, generation = False, self._find_generation()
        for path in (self._name_former(), self._path):
            if path is None or not path.exists():
                continue
            head, *lines = path.read_bytes().split(b"\n")
            former_number = self._last_number
            for line in lines:
                try:
                    at_s, kind, key, _ = orjson.loads(line)
                except ValueError:  # the end of the file, or of a line that was not written whole
                    continue
                self._put((cast("KeptKind", kind), key), at_s, line + b"\n")
            if self._last_number > former_number and head.decode() != generation:
                self._former_generation, lacks_changes = self._former_generation or head.decode(), True
        return lacks_changes

    def _name_former(self) -> Path | None:
        return None if self._path is None else self._path.with_name(f"{self._path.name}.former")

    def _rotate(self) -> None:
        """Begin a new file. The changes before it are in the former file."""
        former_path = self._name_former()
        if self._path is None or former_path is None:
            return
        try:
            self._path.replace(former_path)
        except OSError:
            return  # ``_write`` logs what is wrong with the folder
        self._write_new_file(b"")

    def _rewrite(self) -> None:
        self._drop_old()
        self._write_new_file(b"".join(line for _, _, line in self._lines.values()))
        if not self._is_failing and (former_path := self._name_former()) is not None:
            former_path.unlink(missing_ok=True)

    def _write_new_file(self, content: bytes) -> None:
        self._started_s, self._is_full = self._now(), False
        head = self._former_generation if self.database_lacks_changes else self._find_generation()
        self._write("wb", head.encode() + b"\n" + content)

    def _write(self, mode: str, content: bytes) -> None:
        if self._path is None:
            return
        try:
            if mode == "wb":
                draft = self._path.with_name(f"{self._path.name}.new")
                draft.touch(mode=0o600)
                draft.write_bytes(content)
                draft.replace(self._path)
            else:
                with self._path.open(mode) as file:
                    file.write(content)
        except OSError as error:
            if not self._is_failing:
                log.warning("changes_not_kept", error=str(error))
            self._is_failing = True
        else:
            self._is_failing = False
