"""The providers as the page of a new channel offers them: in groups, with a hint and only the fields that each needs.

The addresses are those in the modules of ``gateway/providers``, which also name their sources.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from gateway.frozen import frozen
from gateway.server.admin.providers import ProviderView
from gateway.server.console.routes import mark

Group = Literal["local", "chat", "media", "other"]

GROUPS: Mapping[Group, str] = {
    "local": mark("On this machine"),
    "chat": mark("Model providers"),
    "media": mark("Images, audio and video"),
    "other": mark("Any other server"),
}


@frozen
class AddressPart:
    """A part of an address that the operator has to give. ``name`` stands for it in the address, in braces."""

    name: str
    label: str
    example: str


@frozen
class ProviderChoice:
    """A provider to choose, and the fields that it needs.

    Attributes:
        address: the base URL with ``{name}`` for each of ``parts``; empty for the default, or if the operator gives it.
        key_hint: the form of the key if it is not a plain one.
        needs_key: whether a key is asked for.
    """

    view: ProviderView
    title: str
    group: Group
    hint: str
    address: str = ""
    parts: Sequence[AddressPart] = ()
    key_hint: str = ""
    needs_key: bool = True


_REGION = AddressPart("region", mark("Region"), "us-east-1")
_ADDRESSES: Mapping[str, tuple[str, tuple[AddressPart, ...]]] = {
    "azure_openai": (
        "https://{resource}.openai.azure.com/openai/v1",
        (AddressPart("resource", mark("Resource"), "my-resource"),),
    ),
    "bedrock": ("https://bedrock-mantle.{region}.api.aws/v1", (_REGION,)),
    "bedrock_converse": ("https://bedrock-runtime.{region}.amazonaws.com", (_REGION,)),
    "vertex": (
        "https://aiplatform.googleapis.com/v1/projects/{project}/locations/{location}",
        (AddressPart("project", mark("Project"), "my-project"), AddressPart("location", mark("Location"), "global")),
    ),
}
_KEY_HINTS: Mapping[str, str] = {
    "azure_openai": mark("A key, or TENANT:CLIENT_ID:CLIENT_SECRET for an app registration"),
    "bedrock": mark("A Bedrock API key"),
    "bedrock_converse": mark("ACCESS_KEY_ID:SECRET_ACCESS_KEY, or a Bedrock API key"),
    "vertex": mark("The key file (JSON) of a service account, in base64 on one line"),
    "kling": mark("A key, or ACCESS:SECRET"),
}
_HINTS: Mapping[str, str] = {
    "anthropic": "Claude",
    "azure_openai": mark("GPT on Azure"),
    "bedrock": mark("API key; OpenAI and Anthropic formats"),
    "bedrock_converse": mark("AWS credentials, all chat models"),
    "bfl": "FLUX",
    "cerebras": mark("open models, very fast"),
    "cohere": mark("Command, embeddings, rerank"),
    "custom": mark("any address with an OpenAI-compatible API"),
    "dashscope": mark("Qwen, Wan"),
    "deepgram": mark("speech to text"),
    "deepseek": "DeepSeek",
    "elevenlabs": mark("speech to text and text to speech"),
    "fal": mark("image models from many providers"),
    "fal_queue": mark("video models from many providers"),
    "fireworks": mark("open models"),
    "gemini": "Gemini, Imagen, Veo",
    "groq": mark("open models, very fast"),
    "huggingface": mark("open models from many providers"),
    "jina": mark("embeddings, rerank"),
    "kling": mark("videos"),
    "llama_cpp": "127.0.0.1:8081",
    "lm_studio": "127.0.0.1:1234",
    "luma": mark("images and videos"),
    "minimax": mark("Hailuo videos"),
    "mistral": "Mistral, Codestral",
    "model_gateway": mark("a second gateway like this one"),
    "moonshot": "Kimi",
    "nvidia": mark("open models"),
    "ollama": "127.0.0.1:11434",
    "openai": "GPT, Sora",
    "openrouter": mark("models from many providers"),
    "perplexity": mark("models from many providers, with web search"),
    "qianfan": "ERNIE",
    "replicate": mark("images and videos"),
    "runway": mark("images and videos"),
    "siliconflow": mark("open models"),
    "stability": "Stable Diffusion",
    "stepfun": "Step LLM",
    "together": mark("open models"),
    "tokenhub": "Hunyuan",
    "vertex": mark("Gemini and Claude on Google Cloud"),
    "vllm": "127.0.0.1:8000",
    "volcengine": "Doubao, Seedance",
    "voyage": mark("embeddings, rerank"),
    "xai": "Grok",
    "zai": "GLM",
    "zhipu": "GLM",
}
_TITLES: Mapping[str, str] = {
    "custom": mark("Any OpenAI-compatible server"),
    "model_gateway": mark("Another Model Gateway"),
}
"""The titles that are no names of a vendor."""
_MEDIA_SLUGS = frozenset(
    {
        "bfl",
        "deepgram",
        "elevenlabs",
        "fal",
        "fal_queue",
        "kling",
        "luma",
        "minimax",
        "replicate",
        "runway",
        "stability",
    }
)
_OTHER_SLUGS = frozenset({"custom", "model_gateway"})


def list_choices(providers: Sequence[ProviderView]) -> list[ProviderChoice]:
    """Return the choices in the order of ``providers``."""
    return [_build_choice(view) for view in providers]


def _build_choice(view: ProviderView) -> ProviderChoice:
    address, parts = _ADDRESSES.get(view.slug, ("", ()))
    group: Group = "media" if view.slug in _MEDIA_SLUGS else "other" if view.slug in _OTHER_SLUGS else "chat"
    if view.local:
        group = "local"
    return ProviderChoice(
        view=view,
        title=_TITLES.get(view.slug, view.title),
        group=group,
        hint=_HINTS.get(view.slug, ""),
        address=address,
        parts=parts,
        key_hint=_KEY_HINTS.get(view.slug, ""),
        needs_key=not view.local and view.slug != "custom",
    )
