"""Changes of a channel's keys one by one: names and states stay with their key, and some key is always usable."""

from collections.abc import Callable

import pytest

from gateway.domain.channel import Channel
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.routing.channel_keys import ChannelKeySpec, add_key, drop_former_keys, edit_key, find_key, remove_key

FIRST, SECOND, THIRD = "the-first-provider-key-0001", "the-second-provider-key-0002", "the-third-provider-key-0003"
CHANNEL = Channel("up", "custom", "http://127.0.0.1:9/v1", api_keys=(FIRST, SECOND))


def change(channel: Channel, former_key: str, /, **fields: str | None) -> Channel:
    return edit_key(channel, former_key, ChannelKeySpec(**fields), frozenset(fields))  # type: ignore[arg-type]


def test_a_name_and_a_state_stay_with_their_key_when_others_come_and_go() -> None:
    channel = change(CHANNEL, SECOND, name="the shop", status="disabled")
    channel = add_key(channel, ChannelKeySpec(THIRD, "the team"))
    channel = remove_key(channel, FIRST)
    assert (channel.api_keys, channel.usable_keys) == ((SECOND, THIRD), (THIRD,))
    assert [channel.find_key_name(key) for key in channel.api_keys] == ["the shop", "the team"]
    replaced = change(channel, SECOND, key=FIRST)
    assert (replaced.api_keys, replaced.usable_keys) == ((FIRST, THIRD), (THIRD,))
    assert replaced.find_key_name(FIRST) == "the shop"
    assert change(replaced, FIRST, name=None).find_key_name(FIRST) is None


def test_the_last_usable_key_is_neither_disabled_nor_removed() -> None:
    channel = change(CHANNEL, SECOND, status="disabled")
    changes: tuple[Callable[[], object], ...] = (
        lambda: change(channel, FIRST, status="disabled"),
        lambda: remove_key(channel, FIRST),
        lambda: drop_former_keys(Channel("up", "custom", "", api_keys=(SECOND,), disabled_keys=(FIRST, SECOND))),
    )
    for take_away in changes:
        with pytest.raises(Conflict, match="no usable key"):
            take_away()
    assert drop_former_keys(Channel("up", "custom", "", disabled_keys=(FIRST,), key_names=((FIRST, "n"),))) == Channel(
        "up", "custom", ""
    )


def test_a_key_that_is_no_longer_there_is_not_taken_for_its_neighbour() -> None:
    assert find_key(CHANNEL, 2, "0002") == find_key(CHANNEL, 2, None) == SECOND
    with pytest.raises(Conflict, match="key 1 is another one"):
        find_key(remove_key(CHANNEL, FIRST), 1, "0001")
    for number in (0, 3):
        with pytest.raises(NotFound):
            find_key(CHANNEL, number, None)


def test_a_key_is_there_once() -> None:
    changes: tuple[Callable[[], object], ...] = (
        lambda: add_key(CHANNEL, ChannelKeySpec(FIRST)),
        lambda: add_key(CHANNEL, ChannelKeySpec()),
        lambda: change(CHANNEL, FIRST, key=SECOND),
        lambda: change(CHANNEL, FIRST, key=None),
    )
    for add in changes:
        with pytest.raises(InvalidRequest):
            add()
    assert change(CHANNEL, FIRST, key=FIRST) == CHANNEL
