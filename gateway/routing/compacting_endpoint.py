"""Finds a channel's endpoint for compacting a conversation; see ``formats/chat/responses/compaction.py``."""

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.providers.registry import PROVIDERS
from gateway.routing.target import Target


def find_compacting_target(target: Target, inference: InferenceRequest) -> Target | None:
    """Return ``target`` with its endpoint for compaction, else with one that can ask for a summary, else None."""
    provider, (responses_wire, *other_wires) = (
        PROVIDERS[target.channel.provider],
        OPERATIONS[inference.operation].formats,
    )
    if provider.find_endpoint(("openai_compact",), target.model) is not None:
        other_wires = ["openai_compact" if inference.compaction == "response" else responses_wire, *other_wires]
    wires = tuple(wire for wire in other_wires if wire not in target.state.missing)
    endpoint = provider.find_endpoint(wires, target.model)
    return None if endpoint is None else attrs.evolve(target, endpoint=endpoint)
