"""What can be called now: the channels, and the models each of them offers."""

import hashlib
from collections.abc import Callable, Iterable, Sequence

import orjson

from gateway.domain.caller import Caller
from gateway.domain.catalog import Listed, merge
from gateway.domain.channel import Channel
from gateway.domain.fault import ModelNotFound
from gateway.domain.selection import rank


class Catalog:
    """Channels in file order and their models.

    Args:
        clock: Unix seconds; a declared model was "created" when it was first offered.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._channels: tuple[Channel, ...] = ()
        self._offered: dict[str, dict[str, Listed] | None] = {}

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Every channel, in file order."""
        return self._channels

    def add_channels(self, channels: Iterable[Channel]) -> None:
        """Offer more channels, after those there are."""
        now_s = int(self._clock())
        for channel in channels:
            self._channels += (channel,)
            self._offered[channel.name] = (
                None if channel.sync else {name: Listed(name, now_s, channel.provider) for name in channel.models}
            )

    def apply_listing(self, channel: Channel, listing: Sequence[Listed]) -> tuple[set[str], set[str]]:
        """Take in a provider's successful listing; returns the models that came and those that went."""
        before = self._offered.get(channel.name) or {}
        after = merge(before, [listed for listed in listing if channel.keeps(listed.id)])
        self._offered[channel.name] = after
        return after.keys() - before.keys(), before.keys() - after.keys()

    def find_offer(self, channel: Channel) -> Sequence[Listed] | None:
        """The models of one channel, sorted; None while a synchronised one has never answered."""
        offered = self._offered.get(channel.name)
        return None if offered is None else sorted(offered.values(), key=lambda listed: listed.id)

    def rank(self, model: str, caller: Caller | None = None) -> list[Channel]:
        """The channels that serve ``model`` to ``caller``, best first. No caller: all of them."""
        return rank(self._open_to(caller), self._offered, model)

    def list_models(self, caller: Caller | None = None) -> list[Listed]:
        """Every model and alias that ``caller`` may use, each once, sorted by id. No caller: all of them."""
        found: dict[str, Listed] = {}
        for channel in self._open_to(caller):
            offered = self._offered.get(channel.name) or {}
            for listed in offered.values():
                found.setdefault(listed.id, listed)
            for alias, theirs in channel.model_map:
                target = offered.get(theirs)
                created_s = target.created_s if target else int(self._clock())
                found.setdefault(alias, Listed(alias, created_s, channel.provider))
        return [found[name] for name in sorted(found) if caller is None or caller.may_use(name)]

    def _open_to(self, caller: Caller | None) -> Sequence[Channel]:
        if caller is None:
            return self._channels
        return [channel for channel in self._channels if channel.serves(caller.key.group)]


def model_not_found(model: str) -> ModelNotFound:
    """The fault of a model that nobody serves."""
    return ModelNotFound(
        f"The model {model!r} is not available; GET /v1/models lists the models that are",
        param="model",
        should_retry=False,
    )


def write_etag(models: Iterable[Listed]) -> str:
    """An entity tag of a list of models, quoted."""
    content = orjson.dumps([(listed.id, listed.created_s, listed.owned_by) for listed in models])
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'
