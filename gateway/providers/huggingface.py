"""Hugging Face Inference Providers: one address for the models of many vendors.

huggingface.co/docs/inference-providers/index (chat, model list), .../guides/responses-api (beta). Embeddings, images
and sound are at each vendor's own path there and are not supported. A channel's header ``X-HF-Bill-To`` names the
organization to bill. A suffix of a model's name selects the vendor, or the fastest or cheapest one (``:fastest``,
``:cheapest``, ``:preferred``, ``:VENDOR``), each with its own price.

The key's variable is not HF_TOKEN: many machines set that only to download models, so it must not create a channel.
"""

import re

from gateway.providers.base import CHAT, RESPONSES, Provider

HUGGINGFACE = Provider(
    slug="huggingface",
    title="Hugging Face",
    base_url="https://router.huggingface.co/v1",
    env_key="HUGGINGFACE_API_KEY",
    endpoints=(CHAT, RESPONSES),
    priced_variant=re.compile(r":[\w-]+$"),
)
