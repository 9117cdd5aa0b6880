"""Amazon Bedrock's own API, Converse: Claude, Nova, Llama, Mistral, DeepSeek, Cohere and the other chat models.

docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html and ..._ConverseStream.html: a channel's
``base_url`` is ``https://bedrock-runtime.REGION.amazonaws.com``. A model is an id, an inference profile
(``us.anthropic.claude-sonnet-4-5-20250929-v1:0``) or an ARN. Embeddings and images, which only InvokeModel serves, are
not supported.

The key is ``ACCESS_KEY_ID:SECRET_ACCESS_KEY``, or with ``:SESSION_TOKEN`` at its end if the credentials are temporary;
requests are signed for the region in the address, for ``us-east-1`` if it names none. Any other key is a Bedrock API
key, sent as a Bearer token (docs.aws.amazon.com/bedrock/latest/userguide/api-keys-use.html).
"""

import re
from urllib.parse import urlsplit

from gateway.domain.http_request import HttpRequest
from gateway.errors import UnsupportedByProvider
from gateway.providers.base import Endpoint, Provider, sign_bearer
from gateway.providers.sigv4 import AwsCredentials, sign_request

_REGION_PATTERN = re.compile(r"(?:^|\.)bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
_DEFAULT_REGION = "us-east-1"
_SERVICE = "bedrock"


def find_region(base_url: str) -> str:
    """Return the region that the address of an endpoint names; us-east-1 if it names none."""
    match = _REGION_PATTERN.search(urlsplit(base_url).hostname or "")
    return match[1] if match else _DEFAULT_REGION


def _parse_credentials(key: str) -> AwsCredentials | None:
    access, _, rest = key.partition(":")
    secret, _, token = rest.partition(":")
    return AwsCredentials(access, secret, token) if access and secret else None


def _sign(key: str) -> dict[str, str]:
    return {} if _parse_credentials(key) else sign_bearer(key)


def sign_http_request(http_request: HttpRequest, key: str, now_s: int) -> dict[str, str]:
    """Return the headers that sign a request at ``now_s`` (Unix seconds); none for an API key.

    Raises ``UnsupportedByProvider`` if the request's body is not in memory.
    """
    credentials = _parse_credentials(key)
    if credentials is None:
        return {}
    body = http_request.body or b""
    if not isinstance(body, bytes):
        raise UnsupportedByProvider("A request with uploaded files cannot be signed for this provider")
    return sign_request(
        http_request.method,
        http_request.url,
        http_request.headers,
        body,
        credentials=credentials,
        region=find_region(http_request.url),
        service=_SERVICE,
        now_s=now_s,
    )


BEDROCK_CONVERSE = Provider(
    slug="bedrock_converse",
    title="Amazon Bedrock (Converse)",
    endpoints=(
        Endpoint(
            "bedrock_converse",
            "/model/{model}/converse",
            stream_path="/model/{model}/converse-stream",
            needs_inline_media=True,
        ),
    ),
    sign=_sign,
    sign_request=sign_http_request,
    models_path=None,
)
