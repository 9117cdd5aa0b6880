"""The last changes of a node, in memory and in a file of its data folder.

The first line of the file names the database that has all changes before it (``read_generation``). Every other line is
one state: ``[Unix seconds, kind, key, fields]``; the last one of a key counts. A node that is killed reads the file at
its next start.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import orjson
import structlog

from gateway.cluster.journal.kept_journal import KEPT_S
from gateway.errors import StoreUnavailable
from gateway.storage.kept_changes import KeptKind

REWRITE_BYTES = 4 * 1024 * 1024

log = structlog.stdlib.get_logger(__name__)

Change = tuple[KeptKind, str, Mapping[str, Any]]


class ChangeFile:
    """The changes of the last ``KEPT_S`` seconds.

    Args:
        path: the file; None keeps the changes in memory only.
        find_generation: returns the database that has the changes of this node, see ``read_generation``.
        find_timeline: returns the newest timeline of the database's servers, see ``NewestTimeline``.
        now: Unix seconds.
    """

    def __init__(
        self,
        path: Path | None,
        find_generation: Callable[[], str],
        find_timeline: Callable[[], str],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._find_generation = find_generation
        self._find_timeline = find_timeline
        self._now = now
        self._timeline = find_timeline()
        self._states: dict[tuple[KeptKind, str], tuple[float, dict[str, Any]]] = {}
        self._size = 0
        self._failing = False
        self._former = ""
        self.lost = self._read()
        self._rewrite()

    def keep(self, kind: KeptKind, key: str, state: Mapping[str, Any]) -> None:
        _, former = self._states.pop((kind, key), (0.0, {}))
        merged = former | {name: value for name, value in state.items() if value is not None}
        self._states[kind, key] = self._now(), merged
        if self._size > REWRITE_BYTES:
            self._rewrite()
        else:
            self._write("ab", _build_line(self._now(), kind, key, merged))

    def check(self) -> None:
        if self.lost or self._find_timeline() != self._timeline:
            raise StoreUnavailable("The gateway's store was replaced: its last jobs are stored again", retry_after_s=2)

    def list_changes(self) -> Sequence[Change]:
        return [(kind, key, state) for (kind, key), (_, state) in self._states.items()]

    def confirm(self, timeline: str) -> None:
        """Note that the database on this ``timeline`` has all changes."""
        self._timeline, self.lost = timeline, False
        self._rewrite()

    def close(self) -> None:
        self._rewrite()

    def _read(self) -> bool:
        """Read the changes of an earlier process, and return whether the database may lack them."""
        if self._path is None or not self._path.exists():
            return False
        head, *lines = self._path.read_bytes().split(b"\n")
        for line in lines:
            try:
                at_s, kind, key, state = orjson.loads(line)
            except ValueError:  # the end of the file, or of a line that was not written whole
                continue
            self._states[cast("KeptKind", kind), key] = at_s, state
        self._former = head.decode()
        return bool(self._states) and self._former != self._find_generation()

    def _rewrite(self) -> None:
        before_s = self._now() - KEPT_S
        self._states = {key: each for key, each in self._states.items() if self.lost or each[0] >= before_s}
        lines = [_build_line(at_s, kind, key, state) for (kind, key), (at_s, state) in self._states.items()]
        self._size = 0
        generation = self._former if self.lost else self._find_generation()
        self._write("wb", b"".join([generation.encode() + b"\n", *lines]))

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
            self._size += len(content)
            self._failing = False


def _build_line(at_s: float, kind: str, key: str, state: Mapping[str, Any]) -> bytes:
    return orjson.dumps((at_s, kind, key, state), option=orjson.OPT_APPEND_NEWLINE)
