"""OpenAI's models, and others, in Microsoft's cloud, through the v1 API.

learn.microsoft.com/azure/foundry/openai/api-version-lifecycle and .../openai/latest: no ``api-version``, the key in an
``api-key`` header, or a token of Microsoft Entra ID. A model is the name of a deployment. ``/models`` lists what could
be deployed, not what is: a channel lists its models itself. A deployment may have any name, and any vendor's model. The
requirements of OpenAI's reasoning models (.../openai/how-to/reasoning) and the capabilities of its image models
(.../openai/how-to/dall-e) apply to deployments that are named like one. Videos (.../openai/concepts/video-generation):
the v1 API has OpenAI's ``/videos``.

For Entra ID the channel's key is ``TENANT:CLIENT_ID:CLIENT_SECRET`` of an app registration that has the role "Cognitive
Services OpenAI User" for the resource (learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow).
The address of the sign-in service follows from the base URL (.../identity-platform/authentication-national-cloud);
``TENANT`` may also be the whole authority, such as ``https://login.microsoftonline.com/contoso.onmicrosoft.com``.
"""

import re
from urllib.parse import urlsplit

import attrs

from gateway.domain.http_request import TokenGrant
from gateway.providers import base
from gateway.providers.openai import (
    FIT_CHAT,
    FIT_RESPONSES,
    GPT_IMAGES,
    SORA_CAPABILITIES,
    SPEECH_CAPABILITIES,
    hash_long_user,
    may_think,
)
from gateway.providers.quirks import DROP_EXTENSIONS, limit_as_max_completion_tokens

_PREVIEW_QUERY = "?api-version=preview"
"""For endpoints that the v1 API has not released: audio (.../openai/reference-preview-latest)."""

_CREDENTIALS_PATTERN = re.compile(
    r"(?P<authority>https?://[^/\s]+/)?(?P<tenant>[\w.-]+):(?P<client>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4,12}){4})"
    r":(?P<secret>\S+)"
)
_CLOUDS = (
    (".azure.us", "https://login.microsoftonline.us/", "https://cognitiveservices.azure.us/.default"),
    (".azure.cn", "https://login.partner.microsoftonline.cn/", "https://cognitiveservices.azure.cn/.default"),
)
_AUTHORITY, _SCOPE = "https://login.microsoftonline.com/", "https://cognitiveservices.azure.com/.default"


def _sign(key: str) -> dict[str, str]:
    return {"api-key": key} if key and not _CREDENTIALS_PATTERN.fullmatch(key) else {}


def find_grant(key: str, base_url: str) -> TokenGrant | None:
    """Return the credentials of an app registration in ``key``; None if it is an API key."""
    credentials = _CREDENTIALS_PATTERN.fullmatch(key)
    if credentials is None:
        return None
    host = urlsplit(base_url).hostname or ""
    clouds = ((authority, scope) for end, authority, scope in _CLOUDS if host.endswith(end))
    authority, scope = next(clouds, (_AUTHORITY, _SCOPE))
    url = f"{credentials['authority'] or authority}{credentials['tenant']}/oauth2/v2.0/token"
    return TokenGrant(url, credentials["client"], credentials["secret"], scope)


def _rename_limit(body: base.Body, model: str) -> None:
    if may_think(model):
        limit_as_max_completion_tokens(body, model)


_CHAT_QUIRKS = (_rename_limit, *FIT_CHAT, *DROP_EXTENSIONS)

AZURE_OPENAI = base.Provider(
    slug="azure_openai",
    title="Azure OpenAI",
    env_key="AZURE_OPENAI_API_KEY",
    endpoints=(
        base.Endpoint("openai_chat", base.CHAT.path, quirks=_CHAT_QUIRKS, custom_tools=True),
        *(
            attrs.evolve(endpoint, quirks=(hash_long_user,))
            for endpoint in (base.EMBEDDINGS, base.COMPLETIONS, base.IMAGES, base.EDITS)
        ),
        attrs.evolve(base.RESPONSES, quirks=FIT_RESPONSES),
        base.COMPACT,
        *(
            base.Endpoint(endpoint.wire, f"{endpoint.path}{_PREVIEW_QUERY}")
            for endpoint in (base.TRANSCRIPTIONS, base.TRANSLATIONS, base.SPEECH)
        ),
        base.VIDEOS,
        base.REALTIME,
    ),
    capabilities=(*GPT_IMAGES, *SORA_CAPABILITIES, *SPEECH_CAPABILITIES),
    sign=_sign,
    find_grant=find_grant,
    models_path=None,
)
