"""Which channels may serve a call, best first. Pure: the catalogue and the call in, a ranking out."""

from collections.abc import Mapping, Sequence

from gateway.domain.channel import Channel

MAX_ATTEMPTS = 3
"""Channels tried for one request before the last fault becomes the answer."""


def rank(channels: Sequence[Channel], offered: Mapping[str, Mapping[str, object] | None], model: str) -> list[Channel]:
    """The channels that serve ``model``, in file order; those whose list is not known yet come last.

    Args:
        channels: every channel, in file order.
        offered: channel name -> its models, or None while a synchronised channel has never answered.
        model: what the caller asked for; an alias of a channel counts as a model of it.
    """
    sure: list[Channel] = []
    unknown: list[Channel] = []
    for channel in channels:
        models = offered.get(channel.name, {})
        if channel.find_alias(model) is not None or (models is not None and model in models):
            sure.append(channel)
        elif models is None and channel.keeps(model):
            unknown.append(channel)
    return sure + unknown
