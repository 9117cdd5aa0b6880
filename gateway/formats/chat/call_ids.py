"""Unused ids for tool calls."""

from collections.abc import Container


def find_unused_id(name: str, used: Container[str]) -> str:
    """Return ``name`` if unused, else ``name`` with the lowest numeric suffix, from ``_2``, that is unused."""
    found, number = name, 1
    while found in used:
        number += 1
        found = f"{name}_{number}"
    return found
