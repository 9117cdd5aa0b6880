"""Finds a channel's endpoint for compacting a conversation; see ``formats/chat/responses/compaction.py``."""

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.providers.registry import PROVIDERS
from gateway.routing.target import Target


def find_compacting(target: Target, inference: InferenceRequest) -> Target | None:
    """Return ``target`` with the endpoint for compaction, if necessary by asking its model for a summary; or None."""
    provider, (responses, *others) = PROVIDERS[target.channel.provider], OPERATIONS[inference.operation].formats
    if provider.find_endpoint(("openai_compact",), target.model) is not None:
        others = ["openai_compact" if inference.compaction == "response" else responses, *others]
    wires = tuple(wire for wire in others if wire not in target.state.missing)
    endpoint = provider.find_endpoint(wires, target.model)
    return None if endpoint is None else attrs.evolve(target, endpoint=endpoint)
