"""Model objects and the model list in Anthropic's format; see platform.claude.com/docs/en/api/models-list."""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.domain.account_spec import build_time
from gateway.domain.model_info import ModelInfo


def _build_object(model: ModelInfo) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": build_time(model.created_s),
        "lifecycle": "active",
    }


def build_model(model: ModelInfo) -> bytes:
    """Build one model object."""
    return orjson.dumps(_build_object(model))


def build_models(models: Sequence[ModelInfo]) -> bytes:
    """Build the list of models, as a single page."""
    return orjson.dumps(
        {
            "data": [_build_object(model) for model in models],
            "has_more": False,
            "first_id": models[0].id if models else None,
            "last_id": models[-1].id if models else None,
        }
    )
