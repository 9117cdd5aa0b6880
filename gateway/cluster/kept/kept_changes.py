"""The last changes of a node, in memory and in a file of its data folder.

The first line of the file names the database that has all changes before it (``read_generation``). Every other line is
one state: ``[Unix seconds, kind, key, fields]``; the last one of a key counts. A node that is killed reads the file at
its next start. Every ``KEPT_S`` seconds a new file is begun, and the former one stays for as long.

A state does not end early when standbys have replayed it. ``pg_stat_replication`` shows their positions to members of
``pg_read_all_stats`` only, and it does not show a standby that is cut off, which is the one that will lack most.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import orjson
import structlog

from gateway.cluster.journal.kept_journal import KEPT_S
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.storage.kept_changes import KeptKind

MOST_BYTES = 64 * 1024 * 1024
"""Maximum bytes of all states; beyond it the oldest are dropped."""
LARGEST_BYTES = 8 * 1024 * 1024
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
    """The changes of the last ``KEPT_S`` seconds.

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
        self._bytes = self._number = 0
        self._begun_s = now()
        self._failing = self._full = False
        self._former = ""
        self.lost = self._read()
        self._rewrite()

    def keep(self, kind: KeptKind, key: str, state: Mapping[str, Any]) -> None:
        found = self._lines.get((kind, key))
        former = {} if found is None else orjson.loads(found[2])[3]
        merged = former | {name: value for name, value in state.items() if value is not None}
        line = orjson.dumps((self._now(), kind, key, merged), option=orjson.OPT_APPEND_NEWLINE)
        if len(line) > LARGEST_BYTES:
            log.warning("change_not_kept", job=f"{kind} {key}", bytes=len(line))
            return
        self._put((kind, key), self._now(), line)
        self._drop()
        if not self.lost and self._now() - self._begun_s >= KEPT_S:
            self._rotate()
        self._write("ab", line)

    def check(self) -> None:
        if self.lost or self._find_timeline() != self._timeline or self._find_restoring():
            raise StoreUnavailable("The gateway's store was replaced: its last jobs are stored again", retry_after_s=2)

    def list_changes(self, after: int = 0) -> Iterator[Change]:
        """Yield the present states with a number above ``after``, oldest first."""
        for (kind, key), (_, number, line) in list(self._lines.items()):
            if number > after:
                yield Change(kind, key, orjson.loads(line)[3], number)

    def confirm(self, timeline: str) -> None:
        """Note that the database on this ``timeline`` has all changes."""
        self._timeline, self.lost = timeline, False
        self._rewrite()

    def close(self) -> None:
        self._rewrite()

    def _put(self, name: tuple[KeptKind, str], at_s: float, line: bytes) -> None:
        former = self._lines.pop(name, None)
        self._number += 1
        self._lines[name] = at_s, self._number, line
        self._bytes += len(line) - (0 if former is None else len(former[2]))

    def _drop(self) -> None:
        before_s = float("-inf") if self.lost else self._now() - KEPT_S
        while self._lines:
            name, (at_s, _, line) = next(iter(self._lines.items()))
            if at_s >= before_s and self._bytes <= MOST_BYTES:
                break
            if at_s >= before_s and not self._full:
                log.warning("changes_not_kept", error=f"the last {KEPT_S:.0f} seconds have too many", bytes=self._bytes)
                self._full = True
            del self._lines[name]
            self._bytes -= len(line)

    def _read(self) -> bool:
        """Read the changes of an earlier process, and return whether the database may lack them."""
        lost, generation = False, self._find_generation()
        for path in (self._name_former(), self._path):
            if path is None or not path.exists():
                continue
            head, *lines = path.read_bytes().split(b"\n")
            before = self._number
            for line in lines:
                try:
                    at_s, kind, key, _ = orjson.loads(line)
                except ValueError:  # the end of the file, or of a line that was not written whole
                    continue
                self._put((cast("KeptKind", kind), key), at_s, line + b"\n")
            if self._number > before and head.decode() != generation:
                self._former, lost = self._former or head.decode(), True
        return lost

    def _name_former(self) -> Path | None:
        return None if self._path is None else self._path.with_name(f"{self._path.name}.former")

    def _rotate(self) -> None:
        """Begin a new file. What it lacks is in the former one."""
        former = self._name_former()
        if self._path is None or former is None:
            return
        try:
            self._path.replace(former)
        except OSError:
            return  # ``_write`` logs what is wrong with the folder
        self._begin(b"")

    def _rewrite(self) -> None:
        self._drop()
        self._begin(b"".join(line for _, _, line in self._lines.values()))
        if not self._failing and (former := self._name_former()) is not None:
            former.unlink(missing_ok=True)

    def _begin(self, content: bytes) -> None:
        self._begun_s, self._full = self._now(), False
        head = self._former if self.lost else self._find_generation()
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
            if not self._failing:
                log.warning("changes_not_kept", error=str(error))
            self._failing = True
        else:
            self._failing = False
