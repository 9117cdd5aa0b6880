"""Amazon Bedrock, through its endpoints in OpenAI's and Anthropic's formats.

docs.aws.amazon.com/bedrock/latest/userguide/bedrock-mantle.html and .../inference-chat-completions-mantle.html: a
channel's ``base_url`` is ``https://bedrock-mantle.REGION.api.aws/v1``; some models have ``/openai/v1`` instead and need
a separate channel (.../inference-responses-api.html). Claude is below ``/anthropic`` at the server's root and needs a
version (.../inference-messages-api.html); it accepts images and documents only as data here (pollinations/pollinations,
issue 5862). The model list: .../models-get-info.html.

The key is a Bedrock API key, sent as a Bearer token. For AWS credentials (Signature Version 4) and the Converse API use
provider "bedrock_converse".
"""

from gateway.providers.base import CHAT, MESSAGES, RESPONSES, Endpoint, Provider, sign_bearer
from gateway.providers.priced_fields import BETA_HEADER, COMMON_FIELDS
from gateway.providers.quirks import leave_out_billing_line

_CLAUDE_MODELS = "anthropic.*"
_OTHER_MODELS = ("[!a]*", "a[!n]*")
"""Globs of all models except Claude, which the endpoints in OpenAI's format do not serve."""


def _sign(key: str) -> dict[str, str]:
    return {"anthropic-version": "2023-06-01"} | sign_bearer(key)


BEDROCK = Provider(
    slug="bedrock",
    title="Amazon Bedrock",
    env_key="AWS_BEARER_TOKEN_BEDROCK",
    endpoints=(
        Endpoint("openai_chat", CHAT.path, models=_OTHER_MODELS),
        Endpoint(
            "anthropic_messages",
            f"/anthropic/v1{MESSAGES.path}",
            rooted=True,
            models=(_CLAUDE_MODELS,),
            needs_inline_media=True,
            quirks=(leave_out_billing_line,),
        ),
        Endpoint("openai_responses", RESPONSES.path, models=_OTHER_MODELS),
    ),
    sign=_sign,
    priced_fields=COMMON_FIELDS | {"speed", "inference_geo", BETA_HEADER},
)
