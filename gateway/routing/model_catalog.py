"""The model catalog: the channels, and the models that each of them offers."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from gateway.domain.account import Caller
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo, merge
from gateway.domain.model_name import is_glob
from gateway.errors import ModelNotFound
from gateway.wording import did_you_mean


@attrs.define
class SyncStatus:
    """What the last listings of a channel's models have brought.

    ``at_s`` is when the models were last listed, and ``changed_s`` when the ``added`` and ``removed`` ones were, in
    Unix seconds. ``error`` is why the last attempt failed; None if it succeeded.
    """

    at_s: int | None = None
    error: str | None = None
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed_s: int | None = None


class ModelCatalog:
    """The channels, in order, and their models.

    The creation time of a declared model is when it was first offered. For an alias of an unlisted model, it is when
    the channel was first offered. ``state`` is replaced by another object whenever the catalog changes.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._channels: tuple[Channel, ...] = ()
        self._models_by_channel: dict[str, dict[str, ModelInfo] | None] = {}
        self._sync_statuses: dict[str, SyncStatus] = {}
        self._since_s: dict[str, int] = {}
        self.state = object()
        self._indexed_state: object | None = None
        self._positions: dict[str, list[int]] = {}
        self._open_positions: list[int] = []

    @property
    def channels(self) -> tuple[Channel, ...]:
        return self._channels

    def set_channels(self, channels: Iterable[Channel]) -> None:
        """Replace the channels. A known channel keeps its model list unless its server or declared models changed."""
        self.state = object()
        before = {channel.name: channel for channel in self._channels}
        offered, sync_statuses = self._models_by_channel, self._sync_statuses
        self._channels, self._models_by_channel, self._sync_statuses = tuple(channels), {}, {}
        now_s = int(self._clock())
        self._since_s = {channel.name: self._since_s.get(channel.name, now_s) for channel in self._channels}
        for channel in self._channels:
            earlier_channel = before.get(channel.name)
            if earlier_channel is None or not _have_same_models(earlier_channel, channel):
                self._models_by_channel[channel.name] = self._declare(channel)
                self._sync_statuses[channel.name] = SyncStatus()
                continue
            models = offered[channel.name]
            kept_models = models and {
                name: attrs.evolve(model_info, owned_by=channel.owner)
                for name, model_info in models.items()
                if channel.keeps(name)
            }
            self._models_by_channel[channel.name] = kept_models
            self._sync_statuses[channel.name] = sync_statuses[channel.name]

    def _declare(self, channel: Channel) -> dict[str, ModelInfo] | None:
        if channel.sync:
            return None
        now_s = int(self._clock())
        return {name: ModelInfo(name, now_s, channel.owner) for name in channel.models if not is_glob(name)}

    def find_channel(self, name: str) -> Channel | None:
        return next((channel for channel in self._channels if channel.name == name), None)

    def apply_listing(self, channel: Channel, listing: Sequence[ModelInfo]) -> tuple[set[str], set[str]]:
        """Update a channel's models from its provider's listing. Return the ids of the added and the removed ones.

        Does nothing if the channel was changed or removed during the listing.
        """
        if self.find_channel(channel.name) != channel:
            return set(), set()  # the channel was changed or removed during the listing
        earlier_models = self._models_by_channel.get(channel.name)
        before = earlier_models or {}
        after = merge(before, [model_info for model_info in listing if channel.keeps(model_info.id)])
        if after != earlier_models:  # else what was derived from the models, such as their descriptions, still holds
            self._models_by_channel[channel.name] = after
            self.state = object()
        added_models, removed_models = after.keys() - before.keys(), before.keys() - after.keys()
        sync_status = self._sync_statuses[channel.name]
        sync_status.at_s, sync_status.error = int(self._clock()), None
        if added_models or removed_models:
            sync_status.added, sync_status.removed, sync_status.changed_s = (
                tuple(sorted(added_models)),
                tuple(sorted(removed_models)),
                sync_status.at_s,
            )
        return added_models, removed_models

    def note_failure(self, channel: Channel, error: str) -> None:
        if self.find_channel(channel.name) == channel:
            sync_status = self._sync_statuses[channel.name]
            if sync_status.error is None:
                self.state = object()  # ``_may_serve`` now answers differently
            sync_status.error = error

    def find_sync_status(self, channel: Channel) -> SyncStatus:
        return self._sync_statuses.get(channel.name) or SyncStatus()

    def find_offer(self, channel: Channel) -> Sequence[ModelInfo] | None:
        """Return a channel's models, sorted by id. None if a synchronized channel has never listed any."""
        models = self._models_by_channel.get(channel.name)
        return None if models is None else sorted(models.values(), key=lambda model_info: model_info.id)

    def find_listed_model(self, channel: Channel, upstream_model: str) -> ModelInfo | None:
        """Return a channel's model by its provider's name; None if the channel lists none of that name."""
        return (self._models_by_channel.get(channel.name) or {}).get(upstream_model)

    def list_serving_channels(self, model: str, caller: Caller | None = None) -> list[tuple[Channel, bool]]:
        """List the channels for ``model`` and ``caller``, if any, each with whether it certainly serves the model."""
        if self._indexed_state is not self.state:
            self._index_channels()
        positions = self._positions.get(model, [])
        if self._open_positions:
            positions = sorted({*positions, *self._open_positions})
        serving_channels = []
        for position in positions:
            channel = self._channels[position]
            if caller is not None and not channel.serves(caller.key.group):
                continue
            offered = self._models_by_channel.get(channel.name)
            if offered is None:
                if self._may_serve(channel, model):
                    serving_channels.append((channel, False))
            elif channel.find_alias(model) is not None or model in offered or channel.matches(model):
                serving_channels.append((channel, True))
        return serving_channels

    def _index_channels(self) -> None:
        """Index the serving channels by the models and aliases that they list.

        Channels that may serve a model without listing it are kept apart: by a pattern, or because their models are
        unknown. Without the index, a list of all models would try each of them with each channel.
        """
        self._indexed_state, self._positions, self._open_positions = self.state, {}, []
        for position, channel in enumerate(self._channels):
            if not channel.serving:
                continue
            models = self._models_by_channel.get(channel.name)
            if models is None or (channel.patterns and not channel.sync):
                self._open_positions.append(position)
            for name in dict.fromkeys((*(models or ()), *(alias for alias, _ in channel.model_map))):
                self._positions.setdefault(name, []).append(position)

    def _may_serve(self, channel: Channel, model: str) -> bool:
        """Return whether a synchronized channel whose model list is unknown may serve ``model``.

        Before the first listing, it may have any model that passes the filter. If the listing failed, only aliases and
        models that pass a filter set by the operator count.
        """
        if channel.find_alias(model) is not None:
            return True
        was_requested = self._sync_statuses[channel.name].error is not None
        return channel.keeps(model) and (bool(channel.models) or not was_requested)

    @property
    def serves_anything(self) -> bool:
        """Whether at least one model is certain to be served, even if it cannot be listed (an alias or a glob)."""
        return any(
            self._models_by_channel.get(channel.name) or channel.model_map or (channel.patterns and not channel.sync)
            for channel in self._list_open_channels(None)
        )

    def list_models(self, caller: Caller | None = None) -> list[ModelInfo]:
        """Return every model and alias, sorted by id, or only those that ``caller`` may use."""
        model_by_name: dict[str, ModelInfo] = {}
        for channel in self._list_open_channels(caller):
            models = self._models_by_channel.get(channel.name) or {}
            for model_info in models.values():
                model_by_name.setdefault(model_info.id, model_info)
            for alias, upstream_model in channel.model_map:
                target = models.get(upstream_model)
                created_s = target.created_s if target else self._since_s[channel.name]
                model_by_name.setdefault(alias, ModelInfo(alias, created_s, channel.owner))
        return [model_by_name[name] for name in sorted(model_by_name) if caller is None or caller.may_use(name)]

    def _list_open_channels(self, caller: Caller | None) -> Iterator[Channel]:
        for channel in self._channels:
            if channel.serving and (caller is None or channel.serves(caller.key.group)):
                yield channel


def _have_same_models(earlier_channel: Channel, later_channel: Channel) -> bool:
    """Return whether two versions of a channel have the same model list: same server, same declared models."""
    same_server = (earlier_channel.provider, earlier_channel.base_url, earlier_channel.sync) == (
        later_channel.provider,
        later_channel.base_url,
        later_channel.sync,
    )
    return same_server and (earlier_channel.sync or earlier_channel.models == later_channel.models)


def make_model_not_found(model: str, models: Iterable[ModelInfo]) -> ModelNotFound:
    """Return the error for a model that no channel serves. ``models`` are the models that the caller may see."""
    names = [model_info.id for model_info in models]
    if model.startswith("demo-") and not any(name.startswith("demo-") for name in names):
        hint = (
            ": the built-in demo is off. To offer its models alongside those of your channels, run "
            "`gateway channels add demo`"
        )
    else:
        hint = did_you_mean(model, names) or "; GET /v1/models lists the models that are"
    return ModelNotFound(f"The model {model!r} is not available{hint}", param="model", should_retry=False)
