"""SiliconFlow. docs.siliconflow.com/en/api-reference; the limit of an answer is ``max_tokens``.

Keys of siliconflow.cn (China) are for ``https://api.siliconflow.cn/v1``. Anthropic's messages
(docs.siliconflow.cn/docs/api/messages-post) take the same Bearer key. Images
(.../api-reference/images/images-generations): the size is the field ``image_size``, which all but editing models
require; the number is ``batch_size``, which only Kolors accepts; the answer has addresses. Edits take JSON and
are not supported. Audio: .../audio/create-audio-transcriptions and .../audio/create-speech.
"""

from gateway.domain.capability import Capability
from gateway.providers import base
from gateway.providers.efforts import enable_thinking_false
from gateway.providers.message_order import four_stops
from gateway.providers.quirks import drop, limit_as_max_tokens, replace


def _shape_images(body: base.Body, model: str) -> None:
    replace("size", "image_size")(body, model)
    replace("n", "batch_size")(body, model)
    drop("response_format")(body, model)
    if body.get("batch_size") == 1:
        del body["batch_size"]
    if "edit" not in model.lower():
        body.setdefault("image_size", "1328x1328" if "qwen-image" in model.lower() else "1024x1024")


SILICONFLOW = base.Provider(
    slug="siliconflow",
    title="SiliconFlow",
    base_url="https://api.siliconflow.com/v1",
    env_key="SILICONFLOW_API_KEY",
    endpoints=(
        base.Endpoint("openai_chat", base.CHAT.path, quirks=(enable_thinking_false, limit_as_max_tokens, four_stops)),
        base.MESSAGES,
        base.EMBEDDINGS,
        base.RERANK,
        base.Endpoint("openai_images", base.IMAGES.path, quirks=(_shape_images,)),
        base.Endpoint("openai_transcriptions", base.TRANSCRIPTIONS.path, quirks=(drop("stream"),)),
        base.SPEECH,
    ),
    capabilities=(
        Capability("*", max_n=1, response_formats=(), streams=False),
        Capability("*Kolors*", max_n=4, response_formats=(), streams=False),
    ),
)
