"""llama.cpp's server (github.com/ggml-org/llama.cpp, tools/server/README.md), on port 8081: 8080 is the gateway's."""

import attrs

from gateway.providers.base import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RERANK, RESPONSES, Provider
from gateway.providers.efforts import disable_template_thinking

LLAMA_CPP = Provider(
    slug="llama_cpp",
    title="llama.cpp",
    base_url="http://127.0.0.1:8081/v1",
    local_port=8081,
    endpoints=(
        attrs.evolve(CHAT, quirks=(disable_template_thinking,)),
        MESSAGES,
        COUNT_TOKENS,
        EMBEDDINGS,
        COMPLETIONS,
        RESPONSES,
        RERANK,
    ),
    priced_fields=frozenset(),
)
