"""Checks what a channel must allow: fields and model variants that affect the price, and ids made elsewhere.

The caller must have the right to use the models that such fields name.
"""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial

import attrs

from gateway.domain.account import Caller
from gateway.domain.channel import Channel
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import Price
from gateway.errors import GatewayError, InvalidRequest, ModelNotAllowed
from gateway.formats.chat.translation import is_translated
from gateway.providers.base import Provider
from gateway.providers.hosted_tools import TOOLS, must_call
from gateway.providers.priced_fields import BETA_HEADER, list_betas, list_named_models, list_priced_fields
from gateway.providers.registry import PROVIDERS
from gateway.routing.model_catalog import ModelCatalog, make_model_not_found
from gateway.routing.pricing_policy import PricingPolicy, pays_for
from gateway.routing.response_owners import make_not_found
from gateway.routing.target import Target

_THREADS_PREFIX = "message-threads-"
"""Prefix of the Anthropic features that store a conversation at Anthropic. A client can continue without them by
sending all messages."""
_REBUILT_BODY_PREFIXES = frozenset(
    {"gemini", "chat", "dashscope", "replicate", "kling", "minimax", "runway", "volcengine", "luma"}
)
"""API formats, by prefix, whose bodies the gateway builds itself, so unknown fields are not sent."""

_IMPLIED_BY: Mapping[str, tuple[str, ...]] = {
    "file_id": (f"{BETA_HEADER}.files-api-2025-04-14",),
    "skill_id": (f"{BETA_HEADER}.skills-2025-10-02",),
    "vector_store_ids": ("tools.file_search",),
}
"""Id fields that a channel accepts if it allows another field that would be useless without them."""


def allows(channel: Channel, name: str) -> bool:
    """Return whether the channel lets clients send the field ``name``."""
    return any(fnmatchcase(name, glob) for glob in channel.allow_fields)


def keep_allowing(targets: list[Target], foreign: Iterable[tuple[str, str]]) -> list[Target]:
    """Keep the channels that accept ids of objects not made through the gateway. Raises ``NotFound`` if none does.

    ``foreign`` has the field of each id, as in ``allow_fields``, and its place in the request.
    """
    for field, param in foreign:
        names = (field, *_IMPLIED_BY.get(field, ()))
        allowing_targets = [target for target in targets if any(allows(target.channel, name) for name in names)]
        if targets and not allowing_targets:
            raise make_not_found(param, field)
        targets = allowing_targets
    return targets


def find_refused_variant(channel: Channel, provider: Provider, upstream_model: str) -> str | None:
    """Return the variant in a model's name that changes the price; None if there is none, or the channel allows it.

    A channel that declares the model by this name allows the variant.
    """
    variant = provider.find_variant(upstream_model)
    if (
        variant is None
        or upstream_model in channel.models
        or any(upstream_model == mapped_model for _, mapped_model in channel.model_map)
    ):
        return None
    return None if allows(channel, f"model{variant}") else variant


def refuse_variant(model: str, variant: str) -> InvalidRequest:
    """Return the error for a model variant that no channel allows."""
    return InvalidRequest(
        f"The variant {variant!r} of the model {model!r} changes what is billed, and no channel allows it "
        f"(allow_fields = ['model{variant}'])",
        param="model",
    )


def keep_allowed_targets(
    targets: list[Target], caller: Caller, inference: InferenceRequest, *, catalog: ModelCatalog, pricing: PricingPolicy
) -> list[Target]:
    """Return the targets that allow the request's priced fields, with the prices of the models that it names.

    If no channel allows a tool that the provider runs, and the model need not call the tool, the tool is left out. Each
    step of a route is judged by itself: an earlier step does not give way to a later one because of such a tool.

    Raises ``InvalidRequest`` naming a field that no channel allows, or the error for a model the caller may not use.
    """
    if OPERATIONS[inference.operation].counts_only:  # nothing is bought
        return targets
    allowed_targets: list[Target] = []
    reduced_targets: list[Target] = []
    problem = None
    for target in targets:
        try:
            checked = _check_target(target, caller, inference, catalog=catalog, pricing=pricing)
            (reduced_targets if checked.left_out_tools else allowed_targets).append(checked)
        except GatewayError as error:
            problem = problem or error
    if problem is not None and not allowed_targets and not reduced_targets:
        raise problem
    if not reduced_targets:
        return allowed_targets
    complete_steps = {_find_step(target) for target in allowed_targets}
    return [*allowed_targets, *(target for target in reduced_targets if _find_step(target) not in complete_steps)]


def _find_step(target: Target) -> int | None:
    """Return the step of a route's target; None for a target of a plain model."""
    return None if target.place is None else target.place.step


def _check_target(
    target: Target, caller: Caller, inference: InferenceRequest, *, catalog: ModelCatalog, pricing: PricingPolicy
) -> Target:
    wire, fields = target.endpoint.wire, PROVIDERS[target.channel.provider].priced_fields
    is_passed_on = inference.operation == "generate_content" and wire == "gemini_generate"
    if is_translated(inference.operation, wire) or (
        wire.partition("_")[0] in _REBUILT_BODY_PREFIXES and not is_passed_on
    ):
        return target
    if inference.features and BETA_HEADER in fields:
        _check_betas(target.channel, inference.features, inference.model)
    priced_fields = list_priced_fields(inference.body, fields)
    if not priced_fields:
        return target
    refused_fields = [name for name in priced_fields if not allows(target.channel, name)]
    hosted = tuple([name for name in refused_fields if name.startswith(f"{TOOLS}.")])
    may_drop = not must_call(inference.body, hosted)
    for name in refused_fields:
        if name not in hosted or not may_drop:
            raise InvalidRequest(
                f"'{name}' changes what is billed, and no channel of the model {inference.model!r} allows it "
                "(allow_fields)",
                param=name,
            )
    if hosted:
        target = attrs.evolve(target, left_out_tools=hosted)
    price_by_model = dict(_list_prices(target, caller, inference, catalog=catalog, pricing=pricing))
    if not price_by_model:
        return target
    return attrs.evolve(
        target, named=price_by_model, find_price=partial(pricing.prices.find, provider=target.channel.provider)
    )


def _check_betas(channel: Channel, features: str, model: str) -> None:
    """Raise ``InvalidRequest`` for a feature in Anthropic's beta header that may cost money and is not allowed."""
    for name in list_betas(features):
        if not allows(channel, f"{BETA_HEADER}.{name}"):
            if name.startswith(_THREADS_PREFIX):
                raise InvalidRequest(
                    f"No channel of the model {model!r} keeps threads: send all messages", param="thread"
                )
            raise InvalidRequest(
                f"The feature {name!r} of the header '{BETA_HEADER}' may change the price or use what the provider "
                f"keeps for others, and no channel of the model {model!r} allows it "
                f"(allow_fields = ['{BETA_HEADER}.{name}'])",
                param=BETA_HEADER,
            )


def _list_prices(
    target: Target, caller: Caller, inference: InferenceRequest, *, catalog: ModelCatalog, pricing: PricingPolicy
) -> Iterator[tuple[str, Price | None]]:
    """Yield the models named in the body, each with its price; None without a price.

    Raises ``ModelNotAllowed``, ``ModelNotFound``, ``ModelNotPriced``, or the error for a variant that is not allowed.
    """
    fields = PROVIDERS[target.channel.provider].priced_fields
    for model, place in list_named_models(inference.body, fields):
        names = [model, *(name for name, upstream_model in target.channel.model_map if upstream_model == model)]
        allowed_names = [name for name in names if caller.may_use(name)]
        if not allowed_names:
            raise ModelNotAllowed(f"This API key may not use the model {model!r}", param=place, should_retry=False)
        offered_names = [name for name in allowed_names if _offers(catalog, caller, target.channel, name)]
        refused_variant = find_refused_variant(target.channel, PROVIDERS[target.channel.provider], model)
        if not offered_names or refused_variant is not None:
            if refused_variant is None:
                error: GatewayError = make_model_not_found(model, catalog.list_models(caller))
            else:
                error = refuse_variant(model, refused_variant)
            error.param = place
            raise error
        price = pricing.find_price(offered_names[0], model, target.channel.provider)
        if not pays_for(price, inference.operation):
            pricing.check_priced(caller, model, param=place)
        yield model, price


def _offers(catalog: ModelCatalog, caller: Caller, channel: Channel, model: str) -> bool:
    return any(serving.name == channel.name for serving, _ in catalog.list_serving_channels(model, caller))
