"""Rates what channels would leave out of a request, so that those that support all of it are preferred.

Log probabilities, a required schema, a tool that the provider runs and similar features are left out at a provider that
lacks them, so that the request works there. A channel that has them is preferred, whatever its priority.
"""

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.formats.chat.translation import count_losses, is_translated
from gateway.formats.wire.json_values import list_objects
from gateway.routing.target import Target

_FEATURE_FIELDS = frozenset(
    {"logprobs", "top_logprobs", "response_format", "output_config", "output_format", "text", "include",
     "generationConfig"}
)  # fmt: skip
_ASKING_FIELDS = _FEATURE_FIELDS | {"tools"}
"""Fields that may request a feature some providers lack."""
_CLIENT_TOOL_TYPES = frozenset({None, "function", "custom"})


def rate_losses(targets: list[Target], inference: InferenceRequest) -> tuple[list[Target], bool]:
    """Return the targets with their losses, and whether these differ. Only a translated request can lose anything."""
    body = inference.body
    if _ASKING_FIELDS.isdisjoint(body) or not OPERATIONS[inference.operation].conversation:
        return targets, False
    wishes_features = not _FEATURE_FIELDS.isdisjoint(body) or any(
        tool.get("type") not in _CLIENT_TOOL_TYPES for tool in list_objects(body.get("tools"))
    )
    if not wishes_features or not any(is_translated(inference.operation, target.endpoint.wire) for target in targets):
        return targets, False
    losses = count_losses(inference, [(target.endpoint.wire, target.model) for target in targets])
    graded_targets = [attrs.evolve(target, losses=loss) for target, loss in zip(targets, losses, strict=True)]
    return graded_targets, len(set(losses)) > 1
