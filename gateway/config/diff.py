"""Describes the changes of a reloaded configuration to the operator. Values may be secret and are not shown."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from gateway.domain.channel import Channel
from gateway.routing.channels import find_changes


def describe_channels(before: Iterable[Channel], after: Iterable[Channel]) -> list[str]:
    """List the channels that are added, removed and changed, with the names of the changed fields.

    Another order of the channels is listed only if nothing else has changed.
    """
    old_channels, new_channels = (
        {channel.name: channel for channel in before},
        {channel.name: channel for channel in after},
    )
    lines = [f"channel {name!r} removed" for name in old_channels if name not in new_channels]
    for name, channel in new_channels.items():
        old_channel = old_channels.get(name)
        if old_channel is None:
            lines.append(f"channel {name!r} added")
        elif old_channel != channel:
            lines.append(f"channel {name!r} changed: {', '.join(find_changes(old_channel, channel))}")
    if not lines and list(old_channels) != list(new_channels):
        lines.append("channel order changed")
    return lines


def describe_items(kind: str, before: Sequence[Any], after: Sequence[Any]) -> list[str]:
    """List the items of one kind that are added, removed and changed, with the names of the changed fields.

    Items are identified by their names.
    """
    old_items, new_items = {item.name: item for item in before}, {item.name: item for item in after}
    lines = [f"{kind} {name!r} removed" for name in old_items if name not in new_items]
    for name, item in new_items.items():
        if name not in old_items:
            lines.append(f"{kind} {name!r} added")
        elif old_items[name] != item:
            lines.append(f"{kind} {name!r} changed: {', '.join(_list_differences(old_items[name], item))}")
    return lines


def describe_section(name: str, before: Any, after: Any) -> list[str]:
    """List the keys of a section whose values differ."""
    return [f"{name}.{key}" for key in _list_differences(before, after)]


def _list_differences(before: Any, after: Any) -> list[str]:
    return [
        field.name for field in attrs.fields(type(before)) if getattr(before, field.name) != getattr(after, field.name)
    ]
