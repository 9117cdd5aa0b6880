"""vLLM's server. docs.vllm.ai/en/stable/serving/online_serving: a Bearer key only where ``--api-key`` was given."""

from gateway.providers.base import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    Provider,
)

VLLM = Provider(
    slug="vllm",
    title="vLLM",
    base_url="http://127.0.0.1:8000/v1",
    local_port=8000,
    endpoints=(CHAT, MESSAGES, COUNT_TOKENS, EMBEDDINGS, COMPLETIONS, RESPONSES, RERANK),
)
