"""Finds an id that no tool call of a chat has yet."""

from collections.abc import Container


def find_unused_id(name: str, used: Container[str]) -> str:
    """Return ``name``, or ``name`` with the first number that makes it new."""
    found, number = name, 1
    while found in used:
        number += 1
        found = f"{name}_{number}"
    return found
