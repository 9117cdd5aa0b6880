"""Changes of the order, the weights and the keys of stored channels, and a check of a channel before it is added."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from gateway.domain.audit_log import OPERATOR, Actor, AuditRow, build_change
from gateway.domain.channel import Channel
from gateway.frozen import frozen
from gateway.parsing import must, parse_spec
from gateway.routing.channel_order import ChannelOrder, pick_channels, set_priorities
from gateway.routing.channel_spec import ChannelSpec
from gateway.routing.channel_tester import Answer, format_last4
from gateway.routing.channels import ChannelService

Fields = dict[str, Any]
_MIN_WEIGHT, _MAX_WEIGHT = 1, 10_000
_WEIGHTS = must(
    f"a table of weights from {_MIN_WEIGHT} to {_MAX_WEIGHT}",
    lambda value: bool(value) and all(_MIN_WEIGHT <= weight <= _MAX_WEIGHT for weight in value.values()),
)


@frozen
class ChannelWeights:
    """The weights of some channels, by name: the shares of requests among channels of equal priority."""

    weights: dict[str, int] = attrs.field(metadata=_WEIGHTS)


async def check_draft(channels: ChannelService, fields: Fields) -> tuple[Channel, Answer]:
    """Return the channel that ``fields`` describe, and its provider's answer about models; nothing is stored.

    Raises ``InvalidRequest``.
    """
    spec = parse_spec(fields, ChannelSpec)
    draft = spec.apply(Channel(spec.name, "", "", origin="stored"))
    return draft, await channels.tester.ask(draft)


async def order_channels(channels: ChannelService, fields: Fields, by: Actor = OPERATOR) -> None:
    """Set priorities to match the given order (``ChannelOrder``). Raises ``InvalidRequest``, ``Conflict``."""
    names = parse_spec(fields, ChannelOrder).names

    def change(originals: Sequence[Channel]) -> tuple[Sequence[Channel], AuditRow]:
        ordered_channels = pick_channels(originals, names)
        changed_channels = set_priorities(ordered_channels)
        before = {channel.name: channel.priority for channel in ordered_channels}
        after = before | {channel.name: channel.priority for channel in changed_channels}
        detail = build_change(before, after)
        return changed_channels, channels.build_audit("channel.ordered", ", ".join(names), by, detail)

    await channels.change_stored(change)


async def set_weights(channels: ChannelService, fields: Fields, by: Actor = OPERATOR) -> None:
    """Set the weights of several channels together (``ChannelWeights``).

    Raises ``NotFound``, ``InvalidRequest``, and ``Conflict`` for a channel that is not stored.
    """
    weights = parse_spec(fields, ChannelWeights).weights

    def change(_originals: Sequence[Channel]) -> tuple[Sequence[Channel], AuditRow]:
        named_channels = [channels.get_editable(name) for name in weights]
        changed_channels = [
            attrs.evolve(channel, weight=weights[channel.name])
            for channel in named_channels
            if channel.weight != weights[channel.name]
        ]
        detail = build_change({channel.name: channel.weight for channel in named_channels}, weights)
        return changed_channels, channels.build_audit("channel.weighted", ", ".join(weights), by, detail)

    await channels.change_stored(change)


async def change_keys(
    channels: ChannelService,
    name: str,
    change: Callable[[Channel], tuple[Channel, str]],
    action: str,
    by: Actor = OPERATOR,
) -> Channel:
    """Change a channel's keys; return the channel. ``change`` returns the new channel and the key that it concerns.

    That key is tested if requests may use it; if the channel is held, all its keys are tested. Raises ``NotFound``,
    ``Conflict``, and the errors of ``change``.
    """
    changed_key = ""

    def change_one(_originals: Sequence[Channel]) -> tuple[Sequence[Channel], AuditRow]:
        nonlocal changed_key
        channel = channels.get_editable(name)
        new_channel, changed_key = change(channel)
        detail = build_change({}, {"key": format_last4(changed_key) or None})
        audit = channels.build_audit(action, name, by, detail)
        return ([] if new_channel == channel else [new_channel]), audit

    await channels.change_stored(change_one)
    channel = channels.get(name)
    if channel.status == "active" and channel.held:
        await channels.test(channel)
    elif channel.status == "active" and changed_key in channel.usable_keys:
        await _test_key(channels, channel, changed_key)
    return channels.get(name)


async def _test_key(channels: ChannelService, channel: Channel, key: str) -> None:
    """List the models with one key of a channel, and record the result for this key only."""
    tester = channels.tester
    answer = await tester.ask(attrs.evolve(channel, api_keys=(key,), disabled_keys=()))
    state = tester.load_balancer.channels.get(channel.name)
    key_states = () if state is None else state.keys
    key_state = next((key_state for key_state in key_states if key_state.key == key), None)
    if answer.requested and key_state is not None:
        tester.record_key(key_state, answer)
