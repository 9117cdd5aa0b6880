"""Cerebras; it has no embeddings.

inference-docs.cerebras.ai/resources/openai, .../api-reference/completions. Cerebras rejects the penalties and
``logit_bias``, which are dropped because they only tune an answer. It also rejects ``parallel_tool_calls`` and
``service_tier``, which are dropped only if they have their default values.
"""

from gateway.providers.base import CHAT, COMPLETIONS, Body, Endpoint, Provider
from gateway.providers.efforts import ORDINARY_EFFORTS, EffortsByModel, fit_effort
from gateway.providers.message_order import four_stops
from gateway.providers.quirks import DROP_UNKNOWN_FIELDS, developer_as_system, drop

_drop_penalties = drop("frequency_penalty", "presence_penalty", "logit_bias")


def _drop_defaults(body: Body, _model: str) -> None:
    if body.get("parallel_tool_calls") in (None, True):
        body.pop("parallel_tool_calls", None)
    if body.get("service_tier") in (None, "auto", "default"):
        body.pop("service_tier", None)


_EFFORTS: EffortsByModel = ((r"gpt-oss.*", ORDINARY_EFFORTS), (r".*glm.*", ("none",)), (r".*", ()))
"""inference-docs.cerebras.ai/capabilities/reasoning."""

CEREBRAS = Provider(
    slug="cerebras",
    title="Cerebras",
    base_url="https://api.cerebras.ai/v1",
    env_key="CEREBRAS_API_KEY",
    endpoints=(
        Endpoint(
            "openai_chat",
            CHAT.path,
            quirks=(
                _drop_penalties,
                _drop_defaults,
                developer_as_system,
                fit_effort(*_EFFORTS),
                four_stops,
                *DROP_UNKNOWN_FIELDS,
            ),
        ),
        Endpoint("openai_completions", COMPLETIONS.path, quirks=(_drop_penalties,)),
    ),
)
