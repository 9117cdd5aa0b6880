"""The model list as Anthropic's client libraries read it. Models API: platform.claude.com/docs/en/api/models-list."""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.domain.account_spec import build_time
from gateway.domain.model_info import ModelInfo


def _model(listed: ModelInfo) -> dict[str, Any]:
    return {
        "type": "model",
        "id": listed.id,
        "display_name": listed.id,
        "created_at": build_time(listed.created_s),
        "lifecycle": "active",
    }


def build_model(listed: ModelInfo) -> bytes:
    """One model object."""
    return orjson.dumps(_model(listed))


def build_models(models: Sequence[ModelInfo]) -> bytes:
    """The list, whole on one page."""
    return orjson.dumps(
        {
            "data": [_model(listed) for listed in models],
            "has_more": False,
            "first_id": models[0].id if models else None,
            "last_id": models[-1].id if models else None,
        },
    )
