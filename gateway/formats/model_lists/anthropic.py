"""Model objects and the model list in Anthropic's format; see platform.claude.com/docs/en/api/models-list."""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.domain.account_spec import build_time
from gateway.domain.model_description import ModelDescription
from gateway.domain.model_info import ModelInfo

Described = tuple[ModelInfo, ModelDescription]


def _build_object(model: ModelInfo, description: ModelDescription) -> dict[str, Any]:
    fields = {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": build_time(model.created_s),
        "lifecycle": "active" if description.deprecated_at is None else "deprecated",
    }
    known_fields = {
        "deprecated_at": description.deprecated_at,
        "max_input_tokens": description.context_window,
        "max_tokens": description.max_output_tokens,
    }
    return fields | {name: value for name, value in known_fields.items() if value is not None}


def build_model(model: ModelInfo, description: ModelDescription) -> bytes:
    """Build one model object."""
    return orjson.dumps(_build_object(model, description))


def build_models(models: Sequence[Described]) -> bytes:
    """Build the list of models, as a single page."""
    return orjson.dumps(
        {
            "data": [_build_object(model, description) for model, description in models],
            "has_more": False,
            "first_id": models[0][0].id if models else None,
            "last_id": models[-1][0].id if models else None,
        }
    )
