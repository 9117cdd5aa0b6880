"""Describes models for callers: what they can do, and what they cost the group of a key.

A property is taken from the configuration (``[[model]]``), else from the list of the channel's provider, else from the
gateway's own tables. Servers on the operator's own machines set the context window themselves, so no table contains it.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gateway.domain.account import Caller
from gateway.domain.channel import Channel
from gateway.domain.known_models import describe_kind, describe_known_model, describe_without_limits
from gateway.domain.model_description import (
    ModelDescription,
    ModelKind,
    NamedDescription,
    find_common,
    find_configured_description,
)
from gateway.domain.model_info import ModelInfo
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.price import ONE_PPM, Price
from gateway.domain.route import Route
from gateway.domain.unit_prices import build_prices, build_pricing, find_highest_prices
from gateway.formats.model_lists.openai import build_described_model
from gateway.frozen import quick_frozen
from gateway.providers.registry import PROVIDERS
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy

_MAX_GROUPS = 64
"""Maximum number of groups whose described models are remembered."""
_BATCH_MODELS = 64
"""Models that are described at once. The first time takes up to 150 us for each: its price is parsed then."""
_KINDS_BY_OPERATION: Mapping[Operation, ModelKind] = {
    "embeddings": "embedding",
    "embed_contents": "embedding",
    "completions": "completion",
    "moderations": "moderation",
    "rerank": "rerank",
    "images": "image",
    "image_edits": "image",
    "transcriptions": "transcription",
    "translations": "transcription",
    "speech": "speech",
    "videos": "video",
    "video_remixes": "video",
    "realtime": "realtime",
}
"""The kinds of models by operation; every other operation is a chat."""
ServedModel = tuple[Channel, str]
"""A channel and its provider's name for the model."""


@quick_frozen
class DescribedModel:
    """A model as a caller sees it. ``pricing`` is None without a price.

    ``body`` is the model's object in OpenAI's format, as JSON, and ``digest`` a hash of it.
    """

    listed: ModelInfo
    description: ModelDescription
    pricing: Mapping[str, Any] | None
    body: bytes
    digest: bytes


class DescriptionSource(NamedTuple):
    """What descriptions depend on besides the models of the channels. Objects are replaced, never changed."""

    pricing: PricingPolicy
    routes: Mapping[str, Route]
    configured: Sequence[NamedDescription]


class ModelDescriber:
    """Describes models, and remembers them by group until the channels' models, prices or settings change."""

    def __init__(self, catalog: ModelCatalog, source: DescriptionSource) -> None:
        self._catalog = catalog
        self._source = source
        self._state = catalog.state
        self._models_by_group: dict[str | None, dict[str, DescribedModel]] = {}
        self._described_count = 0
        self._pricing: dict[tuple[int, int], tuple[Price, Mapping[str, Any]]] = {}

    def use(self, source: DescriptionSource) -> None:
        """Describe from ``source`` from now on."""
        if any(new_part is not old_part for new_part, old_part in zip(source, self._source, strict=True)):
            if source.pricing is not self._source.pricing:
                self._pricing.clear()
            self._models_by_group.clear()
            self._source = source

    async def describe_all(self, caller: Caller, models: Sequence[ModelInfo]) -> list[DescribedModel]:
        """Like ``describe``, for many models: other requests may run in between."""
        described_models: list[DescribedModel] = []
        for start in range(0, len(models), _BATCH_MODELS):
            before = self._described_count
            described_models += self.describe(caller, models[start : start + _BATCH_MODELS])
            if self._described_count - before > _BATCH_MODELS // 2:
                await asyncio.sleep(0)
        return described_models

    def describe(self, caller: Caller, models: Sequence[ModelInfo]) -> list[DescribedModel]:
        """Return ``models``, which ``caller`` may use, with their descriptions, in their order."""
        group = caller.key.group
        if self._state is not self._catalog.state:
            self._state = self._catalog.state
            self._models_by_group.clear()
        if group not in self._models_by_group and len(self._models_by_group) >= _MAX_GROUPS:
            self._models_by_group.clear()
        known_models = self._models_by_group.setdefault(group, {})
        described_models = []
        for model_info in models:
            described_model = known_models.get(model_info.id)
            # A route is as old as its newest model, which differs between keys.
            if described_model is None or described_model.listed.created_s != model_info.created_s:
                described_model = known_models[model_info.id] = self._describe(model_info, caller)
            described_models.append(described_model)
        return described_models

    def describe_offer(self, model: str, channels: Sequence[Channel]) -> ModelDescription:
        """Describe ``model``, not a route, by what holds on each of ``channels``, which serve it."""
        return self._describe_served(model, [(channel, channel.upstream_model(model)) for channel in channels])

    def _describe(self, model_info: ModelInfo, caller: Caller) -> DescribedModel:
        self._described_count += 1
        route = self._source.routes.get(model_info.id)
        if route is not None:
            description, pricing = self._describe_route(route, caller)
        else:
            served_models = [
                (channel, channel.upstream_model(model_info.id))
                for channel, _ in self._catalog.list_serving_channels(model_info.id, caller)
            ]
            served_models.sort(key=lambda served_pair: -served_pair[0].priority)
            description = self._describe_served(model_info.id, served_models)
            price = next(self._list_prices(model_info.id, served_models, caller), None)
            pricing = None if price is None else self._build_pricing(*price)
        body = build_described_model(model_info, description, pricing)
        return DescribedModel(model_info, description, pricing, body, hashlib.sha256(body).digest()[:16])

    def _describe_route(self, route: Route, caller: Caller) -> tuple[ModelDescription, Mapping[str, Any] | None]:
        """Describe a route by what holds for each of its models: the capabilities of all, the highest costs of any.

        The costs are None if no model has a price.
        """
        descriptions: list[ModelDescription] = []
        prices: list[tuple[Price, int]] = []
        for step in route.steps:
            for share in step.models:
                served_models = [
                    (channel, channel.upstream_model(share.model))
                    for channel, _ in self._catalog.list_serving_channels(share.model, caller)
                    if step.uses(channel.name)
                ]
                if served_models:
                    descriptions.append(self._describe_served(share.model, served_models))
                    prices += self._list_prices(share.model, served_models, caller)
        pricing = build_prices(find_highest_prices(prices)) if prices else None
        return find_common(descriptions, complete=True), pricing

    def _describe_served(self, model: str, served_models: Sequence[ServedModel]) -> ModelDescription:
        """Describe ``model`` by what holds on each channel that serves it."""
        descriptions = dict.fromkeys(
            self._describe_at(channel, model, upstream_model) for channel, upstream_model in served_models
        )
        return find_common(list(descriptions), complete=False)

    def _describe_at(self, channel: Channel, model: str, upstream_model: str) -> ModelDescription:
        provider = PROVIDERS[channel.provider]
        model_info = self._catalog.find_listed_model(channel, upstream_model)
        describe = describe_known_model if provider.local_port is None else describe_without_limits
        known = (
            describe(upstream_model) if upstream_model == model else describe(upstream_model).fill_from(describe(model))
        )
        description = find_configured_description(self._source.configured, model, upstream_model)
        if model_info is not None and model_info.description is not None:
            description = description.fill_from(model_info.description)
        description = description.fill_from(known)
        if description.kind is not None:
            return description if description.kind == known.kind else describe_kind(description)
        kind = _find_only_kind(channel.provider, upstream_model) or self._find_billed_kind(
            channel, model, upstream_model
        )
        return describe_kind(description.fill_from(ModelDescription(kind))) if kind else description

    def _find_billed_kind(self, channel: Channel, model: str, upstream_model: str) -> ModelKind | None:
        """Return a model's kind by its price: an image model has one per image, a chat model one for output tokens.

        None without either.
        """
        price = self._source.pricing.find_price(model, upstream_model, channel.provider)
        if price is None:
            return None
        if price.image_nanos:
            return "image"
        return "chat" if price.output_nanos_per_million else None

    def _list_prices(
        self, model: str, served_models: Sequence[ServedModel], caller: Caller
    ) -> Iterator[tuple[Price, int]]:
        """Yield the price on each channel that has one, with the multiplier that ``caller`` pays."""
        pricing = self._source.pricing
        group_ppm = pricing.find_multiplier(caller.key.group)
        for channel, upstream_model in served_models:
            price = pricing.find_price(model, upstream_model, channel.provider)
            if price is not None:
                yield price, -(-channel.multiplier_ppm * group_ppm // ONE_PPM)

    def _build_pricing(self, price: Price, multiplier_ppm: int) -> Mapping[str, Any]:
        key = id(price), multiplier_ppm
        remembered = self._pricing.get(key)
        if remembered is None or remembered[0] is not price:
            remembered = self._pricing[key] = price, build_pricing(price, multiplier_ppm)
        return remembered[1]


@lru_cache(4_096)
def _find_only_kind(provider: str, model: str) -> ModelKind | None:
    """Return the kind of all requests that a provider takes for ``model``; None if they are of several kinds."""
    wires = {endpoint.wire for endpoint in PROVIDERS[provider].endpoints if endpoint.serves(model)}
    kinds = {
        _KINDS_BY_OPERATION.get(operation, "chat")
        for operation, facts in OPERATIONS.items()
        if not facts.counts_only and not wires.isdisjoint(facts.formats)
    }
    return kinds.pop() if len(kinds) == 1 else None


def build_list_tag(models: Sequence[DescribedModel]) -> str:
    """Return a quoted entity tag for a list of models."""
    return f'"{hashlib.sha256(b"".join([model.digest for model in models])).hexdigest()[:32]}"'
