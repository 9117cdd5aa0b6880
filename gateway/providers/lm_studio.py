"""LM Studio's local server (lmstudio.ai/docs/developer/openai-compat, .../anthropic-compat).

Images are accepted only as data. A Bearer key is needed only if one was set.
"""

from gateway.providers.base import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, Endpoint, Provider
from gateway.providers.quirks import limit_as_max_tokens

LM_STUDIO = Provider(
    slug="lm_studio",
    title="LM Studio",
    base_url="http://127.0.0.1:1234/v1",
    local_port=1234,
    endpoints=(
        Endpoint("openai_chat", CHAT.path, quirks=(limit_as_max_tokens,), needs_inline_media=True),
        MESSAGES,
        EMBEDDINGS,
        COMPLETIONS,
        RESPONSES,
    ),
    priced_fields=frozenset(),
)
