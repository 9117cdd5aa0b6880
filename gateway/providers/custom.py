"""Any server of the convention: the channel says its ``base_url``. What it has not it answers with its own error.

The convention's reference: developers.openai.com/api/reference; it knows no rerank, which is Jina's and Cohere's, as in
docs.vllm.ai/en/stable/serving/online_serving.
"""

from gateway.providers.base import (
    CHAT,
    COMPLETIONS,
    EDITS,
    EMBEDDINGS,
    IMAGES,
    MODERATIONS,
    RERANK,
    RESPONSES,
    SPEECH,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    VIDEOS,
    Provider,
)

CUSTOM = Provider(
    slug="custom",
    title="Any OpenAI-compatible server",
    endpoints=(
        CHAT,
        EMBEDDINGS,
        COMPLETIONS,
        MODERATIONS,
        RESPONSES,
        RERANK,
        IMAGES,
        EDITS,
        TRANSCRIPTIONS,
        TRANSLATIONS,
        SPEECH,
        VIDEOS,
    ),
)
