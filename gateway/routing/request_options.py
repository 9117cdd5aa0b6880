"""What requests for a model can ask for, as far as the gateway knows: values of media, and parameters of chats.

No table says which parameters a provider's chat endpoint ignores for a model: a request with each of them is written as
it would be sent, and compared with the same request without it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs

from gateway.domain.capability import UNKNOWN_CAPABILITY, Capability, build_union
from gateway.domain.channel import Channel
from gateway.domain.operation import OPERATIONS
from gateway.errors import InvalidRequest
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.frozen import frozen
from gateway.providers.base import Endpoint
from gateway.providers.registry import PROVIDERS
from gateway.routing.router import Router

PARAMETERS: Mapping[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.97,  # of lower values Anthropic takes none while a model reasons
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "seed": 7,
    "stop": ["END"],
    "reasoning_effort": "high",
}
"""The parameters of a chat that a provider may ignore, each with a value that it takes if it takes any."""

ModelOffer = tuple[str, Sequence[Channel]]
"""A model, not a route, and the channels that serve it."""


@frozen
class RequestOptions:
    """What requests for a model can ask for.

    Attributes:
        capability: what at least one of the model's channels can do.
        ignored: the parameters of a chat that no channel passes on.
        ignored_while_reasoning: further ones that no channel passes on together with a reasoning effort.
    """

    capability: Capability
    ignored: Sequence[str]
    ignored_while_reasoning: Sequence[str]


def find_request_options(router: Router, offers: Sequence[ModelOffer]) -> RequestOptions:
    """Return what requests for a model or a route can ask for; a route has one offer for each of its models."""
    capabilities: list[Capability] = []
    always_ignored: list[frozenset[str]] = []
    ignored_while_reasoning: list[frozenset[str]] = []
    for model, channels in offers:
        for channel in channels:
            upstream_model = channel.upstream_model(model)
            capability = router.find_capability(model, upstream_model, PROVIDERS[channel.provider])
            capabilities.append(attrs.evolve(capability, max_n=None) if channel.fan_out else capability)
            for names, name_sets in zip(
                _find_ignored(channel.provider, upstream_model), (always_ignored, ignored_while_reasoning), strict=True
            ):
                name_sets.append(names)
    always = _intersect(always_ignored)
    while_reasoning = _intersect(ignored_while_reasoning) - always
    return RequestOptions(
        build_union(capabilities) if capabilities else UNKNOWN_CAPABILITY,
        [name for name in PARAMETERS if name in always],
        [name for name in PARAMETERS if name in while_reasoning],
    )


def _intersect(sets: Sequence[frozenset[str]]) -> frozenset[str]:
    return frozenset.intersection(*sets) if sets else frozenset()


@lru_cache(1_024)
def _find_ignored(provider: str, model: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the parameters that ``provider`` never gets for ``model``, and those that go with no reasoning effort.

    Both are empty if the provider has no chat endpoint for the model.
    """
    endpoint = PROVIDERS[provider].find_endpoint(OPERATIONS["chat"].formats, model)
    if endpoint is None:
        return frozenset(), frozenset()
    return _list_ignored(endpoint, model, {}), _list_ignored(
        endpoint, model, {"reasoning_effort": PARAMETERS["reasoning_effort"]}
    )


def _list_ignored(endpoint: Endpoint, model: str, fields: Mapping[str, Any]) -> frozenset[str]:
    """Return the parameters that change nothing in a request with ``fields``. Those of ``fields`` are left out."""
    plain_body = _write_body(endpoint, model, fields)
    return frozenset(
        name
        for name, value in PARAMETERS.items()
        if name not in fields and plain_body == _write_body(endpoint, model, {**fields, name: value})
    )


def _write_body(endpoint: Endpoint, model: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a chat with ``fields`` as it would be sent; ``fields`` themselves if it would be refused."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], **fields}
    try:
        translator = make_translator(parse_chat_inference(body), endpoint.wire, ResponseIdentity("", model, 0))
        written_body = dict(translator.write_body())  # type: ignore[arg-type]  # a chat is neither a form nor a file
        endpoint.apply_quirks(written_body, model)
    except InvalidRequest:
        return fields
    return written_body
