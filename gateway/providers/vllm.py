"""vLLM's server. docs.vllm.ai/en/stable/serving/online_serving: a Bearer key only with ``--api-key``.

Images come from vLLM-Omni (docs.vllm.ai/projects/vllm-omni, "Image Generation API" and "Image Edit API"), in base64.
Transcripts stream in another format, so they are requested unstreamed.
"""

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import MAX_IMAGES
from gateway.providers import base
from gateway.providers.efforts import ORDINARY_EFFORTS, disable_template_thinking, fit_effort
from gateway.providers.quirks import drop, request_timestamps

VLLM = base.Provider(
    slug="vllm",
    title="vLLM",
    base_url="http://127.0.0.1:8000/v1",
    local_port=8000,
    endpoints=(
        attrs.evolve(base.CHAT, quirks=(disable_template_thinking, fit_effort((r".*", ORDINARY_EFFORTS)))),
        base.MESSAGES,
        base.COUNT_TOKENS,
        base.EMBEDDINGS,
        base.COMPLETIONS,
        base.RESPONSES,
        base.RERANK,
        base.IMAGES,
        base.EDITS,
        base.Endpoint("openai_transcriptions", base.TRANSCRIPTIONS.path, quirks=(drop("stream"), request_timestamps)),
        base.Endpoint("openai_translations", base.TRANSLATIONS.path, quirks=(request_timestamps,)),
    ),
    capabilities=(Capability("*", max_n=MAX_IMAGES, response_formats=("b64_json",)),),
    priced_fields=frozenset(),
)
