"""Describes the changes of a reloaded configuration to the operator. Values may be secret and are not shown."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from gateway.domain.channel import Channel
from gateway.routing.channels import find_changes


def describe_channels(before: Iterable[Channel], after: Iterable[Channel]) -> list[str]:
    """List the channels that are added, removed and changed, with the names of the changed fields."""
    old, new = {channel.name: channel for channel in before}, {channel.name: channel for channel in after}
    lines = [f"channel {name!r} removed" for name in old if name not in new]
    for name, channel in new.items():
        known = old.get(name)
        if known is None:
            lines.append(f"channel {name!r} added")
        elif known != channel:
            lines.append(f"channel {name!r} changed: {', '.join(find_changes(known, channel))}")
    if not lines and list(old) != list(new):
        lines.append("channel order changed")
    return lines


def describe_items(what: str, before: Sequence[Any], after: Sequence[Any]) -> list[str]:
    """List the items of one kind that are added, removed and changed. Items are identified by their names."""
    old, new = {item.name: item for item in before}, {item.name: item for item in after}
    lines = [f"{what} {name!r} removed" for name in old if name not in new]
    for name, item in new.items():
        if name not in old:
            lines.append(f"{what} {name!r} added")
        elif old[name] != item:
            lines.append(f"{what} {name!r} changed: {', '.join(_list_differences(old[name], item))}")
    return lines


def describe_section(name: str, before: Any, after: Any) -> list[str]:
    """List the keys of a section whose values differ."""
    return [f"{name}.{key}" for key in _list_differences(before, after)]


def _list_differences(one: Any, other: Any) -> list[str]:
    return [field.name for field in attrs.fields(type(one)) if getattr(one, field.name) != getattr(other, field.name)]
