"""xAI: the Grok models, in OpenAI's API formats; it has no embeddings.

docs.x.ai/developers/rest-api-reference/inference; the Anthropic compatibility is "fully deprecated" and not supported
here. docs.x.ai/docs/guides/reasoning: reasoning models reject the penalties and ``stop``, and some of them
``reasoning_effort``. Images (docs.x.ai/docs/guides/image-generations): an ``aspect_ratio`` instead of a size, which
is forwarded if a client sets it; edits take JSON instead of a form and are not supported. Searches are billed per
source (docs.x.ai/docs/guides/live-search).
"""

import re

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import MAX_IMAGES
from gateway.providers.base import CHAT, COMPLETIONS, IMAGES, RESPONSES, Body, Endpoint, Provider
from gateway.providers.efforts import fit_effort
from gateway.providers.message_order import four_stops
from gateway.providers.priced_fields import COMMON_FIELDS
from gateway.providers.quirks import drop, drop_empty

_NON_REASONING_MODELS = re.compile(r"grok-2.*|grok-3(?!-mini).*|.*non-reasoning.*")
_FIXED_EFFORT_MODELS = re.compile(r"grok-3(?!-mini).*|grok-4(-.*)?|grok-4\.20(?!-multi-agent).*")

_IMAGE_MODELS = ("grok-*image*",)

_drop_penalties = drop("presence_penalty", "frequency_penalty")
_drop_idle_stop = drop_empty("stop")


_fit_effort = fit_effort((r"grok-3-mini.*", ("low", "high")))


def _shape_for_reasoning(body: Body, model: str) -> None:
    if not _NON_REASONING_MODELS.fullmatch(model):
        _drop_penalties(body, model)
        _drop_idle_stop(body, model)
    if _FIXED_EFFORT_MODELS.fullmatch(model):
        body.pop("reasoning_effort", None)
    _fit_effort(body, model)


XAI = Provider(
    slug="xai",
    title="xAI",
    base_url="https://api.x.ai/v1",
    env_key="XAI_API_KEY",
    endpoints=(
        Endpoint("openai_chat", CHAT.path, quirks=(_shape_for_reasoning, four_stops)),
        COMPLETIONS,
        RESPONSES,
        attrs.evolve(IMAGES, models=_IMAGE_MODELS),
    ),
    capabilities=tuple(
        Capability(name, sizes=(), max_n=MAX_IMAGES, response_formats=("url", "b64_json"), streams=False)
        for name in _IMAGE_MODELS
    ),
    priced_fields=COMMON_FIELDS | {"search_parameters"},
    reports_cost=True,
)
