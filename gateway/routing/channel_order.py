"""Converts an order of channels, as an operator arranges it in the console, into priorities."""

from collections.abc import Sequence
from itertools import pairwise

import attrs

from gateway.domain.channel import Channel
from gateway.errors import Conflict, InvalidRequest
from gateway.frozen import frozen


@frozen
class ChannelOrder:
    """The names of all channels: each is asked only where those before it cannot serve a call."""

    names: tuple[str, ...]


def pick_channels(channels: Sequence[Channel], names: Sequence[str]) -> list[Channel]:
    """Return the channels in the order of ``names``. Raises ``InvalidRequest`` unless each is named exactly once."""
    channel_by_name = {channel.name: channel for channel in channels}
    if sorted(names) != sorted(channel_by_name):
        raise InvalidRequest(f"'names' must name every channel once: {', '.join(channel_by_name)}", param="names")
    return [channel_by_name[name] for name in names]


def set_priorities(ordered_channels: Sequence[Channel]) -> list[Channel]:
    """Return the stored channels whose priority has to change, each with its new priority.

    Raises ``Conflict`` if channels that are not stored prevent the order.
    """
    if all(
        higher_channel.priority > lower_channel.priority for higher_channel, lower_channel in pairwise(ordered_channels)
    ):
        return []
    try:
        priorities = assign_priorities(
            [None if channel.origin == "stored" else channel.priority for channel in ordered_channels]
        )
    except NoCapacity as error:
        raise _make_conflict([ordered_channels[place] for place in error.places]) from None
    pairs = zip(ordered_channels, priorities, strict=True)
    return [attrs.evolve(channel, priority=priority) for channel, priority in pairs if channel.priority != priority]


def _make_conflict(fixed_channels: Sequence[Channel]) -> Conflict:
    names = " and ".join(f"{channel.name!r} ({channel.priority})" for channel in fixed_channels)
    return Conflict(
        f"The order cannot be set: the priority of {names} is not to be changed here; it is the configuration file's,"
        " or that of a channel that was found",
        param="names",
    )


MAX_PRIORITY, MIN_PRIORITY = 1_000_000, -1_000_000
"""The bounds of a priority."""


class NoCapacity(Exception):
    """The fixed priorities make an order impossible. ``places`` are the conflicting positions in the order."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(places)
        self.places = places


def assign_priorities(priorities: Sequence[int | None]) -> list[int]:
    """Return a priority for every position of an order, each lower than the one before it.

    ``priorities`` has the fixed priorities, and None for the others. Neighbours with fixed priorities may have
    equal ones, because their order cannot be chosen. Raises ``NoCapacity``.
    """
    assigned_priorities: list[int] = []
    unplaced_count = 0
    upper = MAX_PRIORITY + 1
    for place, lower in enumerate(priorities):
        if lower is None:
            unplaced_count += 1
            continue
        first = place - unplaced_count
        if upper - lower <= unplaced_count and not (unplaced_count == 0 and upper == lower):
            raise NoCapacity([*([first - 1] if first else []), place])
        assigned_priorities += [lower + number for number in range(unplaced_count, -1, -1)]
        upper, unplaced_count = lower, 0
    if not assigned_priorities:
        return list(range(unplaced_count - 1, -1, -1))
    if upper - unplaced_count < MIN_PRIORITY:
        raise NoCapacity([len(assigned_priorities) - 1])
    return assigned_priorities + [upper - number for number in range(1, unplaced_count + 1)]
