"""Unused ids for tool calls."""

from collections.abc import Container


def find_unused_id(name: str, used_ids: Container[str]) -> str:
    """Return ``name`` if unused, else ``name`` with the lowest numeric suffix, from ``_2``, that is unused."""
    candidate, number = name, 1
    while candidate in used_ids:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
