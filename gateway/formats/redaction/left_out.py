"""Fields of JSON that are not kept: paths of names, such as ``metadata.patient`` or ``messages.*.name``."""

from collections.abc import Iterable, Sequence
from typing import Any

MAX_PATHS = 100
MAX_PATH_CHARS = 200
NOTE = "[left out]"
_ANY = "*"


def are_paths(paths: Sequence[str]) -> bool:
    """Return whether every text is a path, and there are not too many."""
    return len(paths) <= MAX_PATHS and all(len(path) <= MAX_PATH_CHARS and all(path.split(".")) for path in paths)


def leave_out(value: Any, paths: Iterable[str]) -> None:
    """Replace the fields at ``paths`` of a JSON value by a note, in place. ``*`` is any name or position in a list."""
    for path in paths:
        *way, last = path.split(".")
        holders = [value]
        for name in way:
            holders = [item for holder in holders for item in _list_items(holder, name)]
        for holder in holders:
            for key in _list_keys(holder, last):
                holder[key] = NOTE


def _list_items(holder: Any, name: str) -> list[Any]:
    return [holder[key] for key in _list_keys(holder, name)]


def _list_keys(holder: Any, name: str) -> list[Any]:
    if isinstance(holder, dict):
        return list(holder) if name == _ANY else [name] if name in holder else []
    if isinstance(holder, list):
        if name == _ANY:
            return list(range(len(holder)))
        return [int(name)] if name.isdecimal() and int(name) < len(holder) else []
    return []
