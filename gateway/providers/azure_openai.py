"""OpenAI's models, and others, in Microsoft's cloud, through the v1 API.

learn.microsoft.com/azure/foundry/openai/api-version-lifecycle and .../openai/latest: no ``api-version``, the key in an
``api-key`` header. A channel's ``base_url`` is ``https://RESOURCE.openai.azure.com/openai/v1``, and a model is the name
of a deployment. ``/models`` lists what could be deployed, not what is: a channel lists its models itself.

A deployment may have any name, and any vendor's model. The requirements of OpenAI's reasoning models
(.../openai/how-to/reasoning) and the capabilities of its image models (.../openai/how-to/dall-e) apply to deployments
that are named like one.
"""

import attrs

from gateway.providers import base
from gateway.providers.openai import GPT_IMAGES, drop_sampling, hash_long_user, may_think
from gateway.providers.quirks import DROP_EXTENSIONS, limit_as_max_completion_tokens

_PREVIEW = "?api-version=preview"
"""For endpoints that the v1 API has not released: audio (.../openai/reference-preview-latest)."""


def _sign(key: str) -> dict[str, str]:
    return {"api-key": key} if key else {}


def _rename_limit(body: base.Body, model: str) -> None:
    if may_think(model):
        limit_as_max_completion_tokens(body, model)


_CHAT_QUIRKS = (_rename_limit, drop_sampling, hash_long_user, *DROP_EXTENSIONS)

AZURE_OPENAI = base.Provider(
    slug="azure_openai",
    title="Azure OpenAI",
    env_key="AZURE_OPENAI_API_KEY",
    endpoints=(
        base.Endpoint("openai_chat", base.CHAT.path, quirks=_CHAT_QUIRKS),
        *(
            attrs.evolve(one, quirks=(hash_long_user,))
            for one in (base.EMBEDDINGS, base.COMPLETIONS, base.RESPONSES, base.IMAGES, base.EDITS)
        ),
        *(
            base.Endpoint(one.wire, f"{one.path}{_PREVIEW}")
            for one in (base.TRANSCRIPTIONS, base.TRANSLATIONS, base.SPEECH)
        ),
    ),
    capabilities=GPT_IMAGES,
    sign=_sign,
    models_path=None,
)
