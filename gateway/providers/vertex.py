"""Google Vertex AI: Gemini, Claude, and the open models that Google serves, each in its own format.

A channel's ``base_url`` is ``https://aiplatform.googleapis.com/v1/projects/PROJECT/locations/global``, or that of a
region (``https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION``).

Gemini: docs.cloud.google.com/vertex-ai/generative-ai/docs/model-reference/inference. Claude:
cloud.google.com/vertex-ai/generative-ai/docs/partner-models/claude/use-claude; the model is in the path instead of the
body, which has an ``anthropic_version``; images and documents are data (langchain-ai/langchain-google, issue 1088).
Others, named ``owner/model``, in OpenAI's format:
docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/call-vertex-using-openai-library. Images:
.../docs/multimodal/image-generation. Embeddings: .../docs/model-reference/text-embeddings-api, and Gemini Embedding 2,
whose options are in an object of their own
(cloud.google.com/vertex-ai/generative-ai/docs/reference/rest/v1/projects.locations.publishers.models/embedContent).
Videos: .../docs/model-reference/veo-video-generation.

The key is a service account's key file (JSON), in base64 on one line. Requests carry a token that the gateway signs
with this file (google.aip.dev/auth/4111, with a scope) and uses for half an hour. Any other key is sent unchanged as an
access token.
"""

from base64 import b64decode
from functools import lru_cache

import orjson

from gateway.errors import ProviderAuthError
from gateway.formats.wire.json_values import list_objects
from gateway.providers.base import Body, Endpoint, Provider, sign_bearer
from gateway.providers.gemini import IMAGE_MODELS, IMAGES, VIDEO_MODELS, VIDEOS
from gateway.providers.priced_fields import BETA_HEADER, COMMON_FIELDS

LIFETIME_S = 3_600
"""Lifetime of a token: the longest that google.aip.dev/auth/4111 allows."""
PERIOD_S = 1_800
"""Tokens are signed as of the start of a period of this length, and so remain valid for at least another half hour."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_EMBEDDING_OPTIONS = ("taskType", "title", "outputDimensionality", "autoTruncate")
VERSION = "vertex-2023-10-16"
"""The API version in the body of requests to Claude. Other versions are rejected."""


def _move_model_to_path(body: Body, _model: str) -> None:
    body.pop("model", None)
    body["anthropic_version"] = VERSION


def _move_options(body: Body, _model: str) -> None:
    """Remove the model of each request, which is in the path, and move options to ``embedContentConfig``."""
    if "requests" in body:
        body["requests"] = [_build_embed_request(request) for request in list_objects(body["requests"])]


def _build_embed_request(request: Body) -> Body:
    options = {name: request[name] for name in _EMBEDDING_OPTIONS if name in request}
    content_fields = {name: value for name, value in request.items() if name not in {"model", *_EMBEDDING_OPTIONS}}
    return content_fields | {"embedContentConfig": options} if options else content_fields


@lru_cache(maxsize=64)
def _sign_token(key: str, issued_s: int) -> str:
    """Return a token (RFC 7519, RS256) signed with the key file in ``key``, or ``key`` itself if it is not a key file.

    Raises ``ProviderAuthError`` for an invalid key file, which must not be sent.
    """
    file = _decode(key)
    if not file.startswith(b"{"):
        return key
    from jwt import PyJWTError, encode  # noqa: PLC0415 - loads cryptography, which most gateways do not need

    try:
        account = orjson.loads(file)
        email = account["client_email"]
        claims = {"iss": email, "sub": email, "scope": SCOPE, "iat": issued_s, "exp": issued_s + LIFETIME_S}
        return encode(claims, account["private_key"], "RS256", headers={"kid": account["private_key_id"]})
    except (ValueError, KeyError, TypeError, PyJWTError):
        raise ProviderAuthError("The channel's key is not the key file of a service account") from None


def _decode(key: str) -> bytes:
    try:
        return b64decode(key, validate=True).lstrip()
    except ValueError:
        return b""


def sign_at(key: str, now_s: int) -> dict[str, str]:
    """Return headers with a service account's token, or with ``key`` as the token. Raises ``ProviderAuthError``."""
    return sign_bearer(_sign_token(key, now_s - now_s % PERIOD_S))


_GEMINI_PATH = "/publishers/google/models/{model}"
_CLAUDE_PATH = "/publishers/anthropic/models/{model}"

VERTEX = Provider(
    slug="vertex",
    title="Google Vertex AI",
    endpoints=(
        Endpoint("openai_chat", "/endpoints/openapi/chat/completions", models=("*/*",)),
        Endpoint(
            "anthropic_messages",
            f"{_CLAUDE_PATH}:rawPredict",
            stream_path=f"{_CLAUDE_PATH}:streamRawPredict",
            quirks=(_move_model_to_path,),
            models=("claude-*",),
            needs_inline_media=True,
        ),
        Endpoint("vertex_embeddings", f"{_GEMINI_PATH}:predict", models=("text-*embedding-*", "gemini-embedding-001")),
        Endpoint(
            "gemini_embeddings",
            f"{_GEMINI_PATH}:batchEmbedContents",
            quirks=(_move_options,),
            models=("gemini-embedding-2*",),
        ),
        Endpoint("gemini_images", f"{_GEMINI_PATH}:generateContent", models=IMAGE_MODELS),
        Endpoint("vertex_videos", f"{_GEMINI_PATH}:predictLongRunning", models=VIDEO_MODELS),
        Endpoint(
            "gemini_generate",
            f"{_GEMINI_PATH}:generateContent",
            stream_path=f"{_GEMINI_PATH}:streamGenerateContent?alt=sse",
            models=("gemini-*",),
        ),
    ),
    sign_at=sign_at,
    models_path=None,
    capabilities=(*IMAGES, *VIDEOS),
    priced_fields=COMMON_FIELDS | {"speed", "inference_geo", BETA_HEADER},
)
