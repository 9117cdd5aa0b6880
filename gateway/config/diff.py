"""What a new configuration changes, said in words: for the operator who has just asked for it."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from gateway.domain.channel import Channel
from gateway.routing.channels import find_changes


def describe_channels(before: Iterable[Channel], after: Iterable[Channel]) -> list[str]:
    """Which channels come, go and change, and in what; never what is in a field."""
    old, new = {channel.name: channel for channel in before}, {channel.name: channel for channel in after}
    lines = [f"channel {name!r} removed" for name in old if name not in new]
    for name, channel in new.items():
        known = old.get(name)
        if known is None:
            lines.append(f"channel {name!r} added")
        elif known != channel:
            lines.append(f"channel {name!r} changed: {', '.join(find_changes(known, channel))}")
    if not lines and list(old) != list(new):
        lines.append("channels in another order")
    return lines


def describe_items(what: str, before: Sequence[Any], after: Sequence[Any]) -> list[str]:
    """The same for declared things of a kind, told apart by their names."""
    old, new = {item.name: item for item in before}, {item.name: item for item in after}
    lines = [f"{what} {name!r} removed" for name in old if name not in new]
    for name, item in new.items():
        if name not in old:
            lines.append(f"{what} {name!r} added")
        elif old[name] != item:
            lines.append(f"{what} {name!r} changed: {', '.join(_differences(old[name], item))}")
    return lines


def describe_section(name: str, before: Any, after: Any) -> list[str]:
    """The keys of a section that have another value; the values themselves may be secret."""
    return [f"{name}.{key}" for key in _differences(before, after)]


def _differences(one: Any, other: Any) -> list[str]:
    return [field.name for field in attrs.fields(type(one)) if getattr(one, field.name) != getattr(other, field.name)]
