"""What can be called now: the channels, and the models each of them offers."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import orjson

from gateway.domain.account import Caller
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo, merge
from gateway.domain.model_name import is_glob
from gateway.errors import ModelNotFound
from gateway.wording import did_you_mean


@attrs.define
class SyncStatus:
    """What is known of a channel's own list: when it was last asked, and what came of it. Times are Unix seconds.

    Attributes:
        at_s: the last listing that succeeded.
        error: why the last one failed; None where it did not.
        added: models that came with the last listing that changed anything.
        removed: those that went with it.
        changed_s: when that was.
    """

    at_s: int | None = None
    error: str | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed_s: int | None = None


class ModelCatalog:
    """Channels in order and their models.

    ``clock``: Unix seconds; a declared model was "created" when it was first offered, and an alias of what is not
    listed when its channel was. ``state``: another object whenever what is offered has changed.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._channels: tuple[Channel, ...] = ()
        self._offered: dict[str, dict[str, ModelInfo] | None] = {}
        self._synced: dict[str, SyncStatus] = {}
        self._since_s: dict[str, int] = {}
        self.state = object()

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Every channel, in order, disabled ones too."""
        return self._channels

    def use(self, channels: Iterable[Channel]) -> None:
        """Offer exactly these. What is known of one that was there before stays known, unless it leads elsewhere."""
        self.state = object()
        before = {channel.name: channel for channel in self._channels}
        offered, synced = self._offered, self._synced
        self._channels, self._offered, self._synced = tuple(channels), {}, {}
        now_s = int(self._clock())
        self._since_s = {channel.name: self._since_s.get(channel.name, now_s) for channel in self._channels}
        for channel in self._channels:
            known = before.get(channel.name)
            if known is None or not _lists_alike(known, channel):
                self._offered[channel.name] = self._declare(channel)
                self._synced[channel.name] = SyncStatus()
                continue
            models = offered[channel.name]
            kept = models and {
                name: attrs.evolve(listed, owned_by=channel.owner)
                for name, listed in models.items()
                if channel.keeps(name)
            }
            self._offered[channel.name] = kept
            self._synced[channel.name] = synced[channel.name]

    def _declare(self, channel: Channel) -> dict[str, ModelInfo] | None:
        if channel.sync:
            return None
        now_s = int(self._clock())
        return {name: ModelInfo(name, now_s, channel.owner) for name in channel.models if not is_glob(name)}

    def find_channel(self, name: str) -> Channel | None:
        """A channel by its name."""
        return next((channel for channel in self._channels if channel.name == name), None)

    def apply_listing(self, channel: Channel, listing: Sequence[ModelInfo]) -> tuple[set[str], set[str]]:
        """Take in a provider's successful listing; returns the models that came and those that went."""
        if self.find_channel(channel.name) != channel:
            return set(), set()  # it was changed or removed while its provider was asked
        before = self._offered.get(channel.name) or {}
        after = merge(before, [listed for listed in listing if channel.keeps(listed.id)])
        self._offered[channel.name] = after
        self.state = object()
        added, removed = after.keys() - before.keys(), before.keys() - after.keys()
        synced = self._synced[channel.name]
        synced.at_s, synced.error = int(self._clock()), None
        if added or removed:
            synced.added, synced.removed, synced.changed_s = tuple(sorted(added)), tuple(sorted(removed)), synced.at_s
        return added, removed

    def note_failure(self, channel: Channel, error: str) -> None:
        """A provider's listing failed: nothing changes but that it is known."""
        if self.find_channel(channel.name) == channel:
            synced = self._synced[channel.name]
            if synced.error is None:
                self.state = object()  # what it may serve has changed
            synced.error = error

    def find_synced(self, channel: Channel) -> SyncStatus:
        """What is known of a channel's listings."""
        return self._synced.get(channel.name) or SyncStatus()

    def find_offer(self, channel: Channel) -> Sequence[ModelInfo] | None:
        """The models of one channel, sorted; None while a synchronised one has never answered."""
        offered = self._offered.get(channel.name)
        return None if offered is None else sorted(offered.values(), key=lambda listed: listed.id)

    def list_serving(self, model: str, caller: Caller | None = None) -> list[tuple[Channel, bool]]:
        """List the channels that serve ``model`` to ``caller``; None: to any caller.

        Each comes with whether that is sure: it is not while the provider's list of models is not known.
        """
        serving = []
        for channel in self._open_to(caller):
            offered = self._offered.get(channel.name)
            if offered is None:
                if self._may_serve(channel, model):
                    serving.append((channel, False))
            elif channel.find_alias(model) is not None or model in offered or channel.matches(model):
                serving.append((channel, True))
        return serving

    def _may_serve(self, channel: Channel, model: str) -> bool:
        """Return whether a synchronised channel without a list may serve ``model``.

        Until the provider is asked for its list, it may have any model that passes the filter; if it has not answered,
        only those that an operator names.
        """
        if channel.find_alias(model) is not None:
            return True
        requested = self._synced[channel.name].error is not None
        return channel.keeps(model) and (bool(channel.models) or not requested)

    @property
    def serves_anything(self) -> bool:
        """Whether there is a model that is sure to be served, be it one that cannot be listed."""
        return any(
            self._offered.get(channel.name) or channel.model_map or (channel.patterns and not channel.sync)
            for channel in self._open_to(None)
        )

    def list_models(self, caller: Caller | None = None) -> list[ModelInfo]:
        """Every model and alias that ``caller`` may use, each once, sorted by id. No caller: all of them."""
        found: dict[str, ModelInfo] = {}
        for channel in self._open_to(caller):
            offered = self._offered.get(channel.name) or {}
            for listed in offered.values():
                found.setdefault(listed.id, listed)
            for alias, theirs in channel.model_map:
                target = offered.get(theirs)
                created_s = target.created_s if target else self._since_s[channel.name]
                found.setdefault(alias, ModelInfo(alias, created_s, channel.owner))
        return [found[name] for name in sorted(found) if caller is None or caller.may_use(name)]

    def _open_to(self, caller: Caller | None) -> Iterator[Channel]:
        for channel in self._channels:
            if channel.serving and (caller is None or channel.serves(caller.key.group)):
                yield channel


def _lists_alike(one: Channel, other: Channel) -> bool:
    """Whether two channels of a name ask the same server for the same list."""
    same_server = (one.provider, one.base_url, one.sync) == (other.provider, other.base_url, other.sync)
    return same_server and (one.sync or one.models == other.models)


def model_not_found(model: str, listed: Iterable[ModelInfo]) -> ModelNotFound:
    """Return the error for a model that no channel serves; ``listed``: the models that the caller may know."""
    names = [known.id for known in listed]
    if model.startswith("demo-") and not any(name.startswith("demo-") for name in names):
        hint = ": the built-in demo is off. `gateway channels add demo` offers its models beside those of your channels"
    else:
        hint = did_you_mean(model, names) or "; GET /v1/models lists the models that are"
    return ModelNotFound(f"The model {model!r} is not available{hint}", param="model", should_retry=False)


def build_etag(models: Iterable[ModelInfo]) -> str:
    """An entity tag of a list of models, quoted."""
    content = orjson.dumps([(listed.id, listed.created_s, listed.owned_by) for listed in models])
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'
