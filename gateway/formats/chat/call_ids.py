"""Unused ids for tool calls."""

from collections.abc import Container


def find_unused_id(call_id: str, used_ids: Container[str]) -> str:
    """Return ``call_id`` if unused, else ``call_id`` with the lowest unused numeric suffix, beginning with ``_2``."""
    candidate, suffix = call_id, 1
    while candidate in used_ids:
        suffix += 1
        candidate = f"{call_id}_{suffix}"
    return candidate
