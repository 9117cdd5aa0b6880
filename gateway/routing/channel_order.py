"""In which order channels are asked: what an operator drags into place, as priorities."""

from collections.abc import Sequence
from itertools import pairwise

import attrs

from gateway.domain.channel import Channel
from gateway.errors import Conflict, InvalidRequest
from gateway.routing.channel_ranking import NoCapacity, rank


@attrs.frozen
class ChannelOrder:
    """The names of all channels: each is asked only where those before it cannot serve a call."""

    names: tuple[str, ...]


def pick_channels(channels: Sequence[Channel], names: Sequence[str]) -> list[Channel]:
    """The channels in the order of ``names``. Raises ``InvalidRequest`` unless each is named, once."""
    known = {channel.name: channel for channel in channels}
    if sorted(names) != sorted(known):
        raise InvalidRequest(f"'names' must name every channel once: {', '.join(known)}", param="names")
    return [known[name] for name in names]


def set_priorities(ordered: Sequence[Channel]) -> list[Channel]:
    """Those of stored channels that need another priority for the order, with it. Others keep theirs.

    Raises ``Conflict`` where the order cannot be had so.
    """
    if all(one.priority > other.priority for one, other in pairwise(ordered)):
        return []
    try:
        ranked = rank([None if channel.origin == "stored" else channel.priority for channel in ordered])
    except NoCapacity as found:
        raise _make_conflict([ordered[place] for place in found.places]) from None
    pairs = zip(ordered, ranked, strict=True)
    return [attrs.evolve(channel, priority=priority) for channel, priority in pairs if channel.priority != priority]


def _make_conflict(fixed: Sequence[Channel]) -> Conflict:
    told = " and ".join(f"{channel.name!r} ({channel.priority})" for channel in fixed)
    return Conflict(
        f"The order cannot be had: the priority of {told} is not to be changed here; it is the configuration file's,"
        " or that of a channel that was found",
        param="names",
    )
