"""NVIDIA NIM: the models of build.nvidia.com, and containers of one's own (``http://HOST:8000/v1``).

docs.nvidia.com/nim/large-language-models/latest/reference/api-reference.html. Embedding models for retrieval
require the field ``input_type`` (docs.litellm.ai/docs/providers/nvidia_nim). The hosted rerank is not supported.
"""

import attrs

from gateway.providers.base import CHAT, COMPLETIONS, EMBEDDINGS, Provider
from gateway.providers.efforts import ORDINARY_EFFORTS, disable_template_thinking, fit_effort
from gateway.providers.message_order import fit_turns
from gateway.providers.quirks import DROP_UNKNOWN_FIELDS

NVIDIA = Provider(
    slug="nvidia",
    title="NVIDIA NIM",
    base_url="https://integrate.api.nvidia.com/v1",
    env_key="NVIDIA_API_KEY",
    endpoints=(
        attrs.evolve(
            CHAT,
            quirks=(disable_template_thinking, fit_effort((r".*", ORDINARY_EFFORTS)), fit_turns, *DROP_UNKNOWN_FIELDS),
        ),
        COMPLETIONS,
        EMBEDDINGS,
    ),
)
