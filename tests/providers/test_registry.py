"""The registry: complete, and consistent with its own rules."""

import importlib
import inspect
import pkgutil
import re

import pytest

import gateway.providers
from gateway.domain.operation import OPERATIONS
from gateway.providers.base import Provider, find_url_problem
from gateway.providers.registry import PROVIDERS
from tests.support.table_rows import table_rows

NOT_VENDORS = {"base", "efforts", "hosted_tools", "message_order", "priced_fields", "quirks", "registry", "sigv4"}
MODULES = [module.name for module in pkgutil.iter_modules(gateway.providers.__path__)]
PAGE = re.compile(r"\b([a-z0-9-]+\.)+(ai|cn|co|com|dev|io)(/[\w.-]+)+")
"""An address of a documentation, without its scheme."""


def find_declared() -> dict[str, Provider]:
    """Module -> the provider that it defines."""
    declared = {}
    for name in sorted(set(MODULES) - NOT_VENDORS):
        values = vars(importlib.import_module(f"gateway.providers.{name}")).values()
        (declared[name],) = [value for value in values if isinstance(value, Provider)]
    return declared


def test_every_vendors_file_defines_one_provider_that_is_registered_under_its_name() -> None:
    declared = find_declared()
    assert len(declared) >= 22
    assert dict(PROVIDERS) == declared
    assert all(slug == provider.slug for slug, provider in PROVIDERS.items())


def test_what_is_no_vendor_is_not_registered() -> None:
    assert set(MODULES) >= NOT_VENDORS
    assert NOT_VENDORS.isdisjoint(PROVIDERS)


def test_the_order_is_that_of_the_best_known_then_by_name_then_what_is_no_vendor() -> None:
    slugs = list(PROVIDERS)
    assert slugs[:4] == ["openai", "anthropic", "gemini", "openrouter"]
    assert slugs[-2:] == ["custom", "demo"]
    assert slugs[4:-2] == sorted(slugs[4:-2])


def test_the_registry_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        PROVIDERS["x"] = PROVIDERS["demo"]  # type: ignore[index]


def test_every_vendor_has_a_title_and_no_two_share_one_or_a_variable_or_a_port_or_an_address() -> None:
    found = PROVIDERS.values()
    assert all(provider.title for provider in found)
    for values in (
        [provider.title for provider in found],
        [provider.env_key for provider in found if provider.env_key],
        [provider.local_port for provider in found if provider.local_port],
        [provider.base_url for provider in found if provider.base_url],
    ):
        assert len(values) == len(set(values))


def test_remote_vendors_are_reached_by_tls_and_local_ones_on_their_port() -> None:
    for provider in PROVIDERS.values():
        if provider.local_port:
            assert provider.base_url == f"http://127.0.0.1:{provider.local_port}/v1"
            assert provider.env_key is None
        elif provider.base_url:
            assert provider.base_url.startswith("https://")
            assert provider.env_key or provider.models_path is None  # what lists nothing cannot be found
        assert provider.base_url is None or find_url_problem(provider.base_url) is None
        assert provider.base_url is None or not provider.base_url.endswith("/")


def test_those_without_an_address_are_the_ones_whose_channels_say_it() -> None:
    assert {slug for slug, provider in PROVIDERS.items() if not provider.base_url} == {
        "azure_openai", "bedrock", "bedrock_converse", "vertex", "model_gateway", "custom", "demo",
    }  # fmt: skip


@table_rows("provider", PROVIDERS.values(), ids=lambda provider: provider.slug)
def test_a_vendor_speaks_known_languages_each_at_one_place(provider: Provider) -> None:
    wires = [endpoint.wire for endpoint in provider.endpoints]
    assert wires
    assert len(wires) == len(set(wires))
    assert set(wires) <= {wire for facts in OPERATIONS.values() for wire in facts.formats} | {"openai_compact"}
    for endpoint in provider.endpoints:
        for path in (endpoint.path, endpoint.stream_path or endpoint.path):
            assert re.fullmatch(r"(/[\w-]+|/\{model\}(:\w+)?)+(\?(alt=sse|api-version=preview|model=\{model\}))?", path)
    assert provider.models_path is None or provider.models_path.startswith(("/models", "/v1/models"))


ONLY_IMAGES = {"bfl", "fal", "replicate", "stability"}
ONLY_SPEECH = {"deepgram", "elevenlabs"}
ONLY_SEARCH = {"jina", "voyage"}
"""Embeddings and rerank."""
ONLY_VIDEOS = {"fal_queue", "kling", "luma", "minimax", "runway"}
SOME_MODEL = {"demo": "demo-chat", "vertex": "gemini-3-flash"}


def test_every_vendor_can_be_chatted_with_from_both_chat_languages() -> None:
    for provider in PROVIDERS.values():
        if provider.slug in ONLY_IMAGES | ONLY_SEARCH | ONLY_SPEECH | ONLY_VIDEOS:
            continue
        model = SOME_MODEL.get(provider.slug, "m")
        assert provider.find_endpoint(OPERATIONS["chat"].formats, model), provider.slug
        assert provider.find_endpoint(OPERATIONS["messages"].formats, model), provider.slug


SPEAKS = {
    "anthropic_messages": {
        "anthropic", "openrouter", "deepseek", "fireworks", "llama_cpp", "lm_studio", "ollama", "siliconflow", "vllm",
        "stepfun", "tokenhub", "bedrock", "vertex", "model_gateway",
    },
    "anthropic_count_tokens": {"anthropic", "llama_cpp", "vllm", "model_gateway"},
    "openai_responses": {
        "openai", "azure_openai", "openrouter", "dashscope", "deepseek", "fireworks", "groq", "llama_cpp", "lm_studio",
        "moonshot", "ollama", "vllm", "xai", "huggingface", "perplexity", "stepfun", "tokenhub", "bedrock",
        "model_gateway", "custom",
    },
    "openai_compact": {"openai", "azure_openai"},
    "openai_completions": {
        "openai", "azure_openai", "openrouter", "deepseek", "fireworks", "llama_cpp", "lm_studio", "ollama", "together",
        "vllm", "xai", "cerebras", "nvidia", "model_gateway", "custom", "demo",
    },
    "openai_moderations": {"openai", "mistral", "model_gateway", "custom"},
    "rerank": {
        "openrouter", "cohere", "jina", "llama_cpp", "siliconflow", "together", "vllm", "zhipu", "model_gateway",
        "custom",
    },
    "rerank_data": {"voyage"},
    "vertex_embeddings": {"vertex"},
    "bedrock_converse": {"bedrock_converse"},
    "fal_images": {"fal"},
    "stability_images": {"stability"},
    "bfl_images": {"bfl"},
    "luma_images": {"luma"},
    "deepgram_speech": {"deepgram"},
    "deepgram_transcriptions": {"deepgram"},
    "elevenlabs_speech": {"elevenlabs"},
    "elevenlabs_transcriptions": {"elevenlabs"},
    "openai_videos": {"openai", "azure_openai", "model_gateway", "custom", "demo"},
    "gemini_videos": {"gemini"},
    "vertex_videos": {"vertex"},
    "kling_videos": {"kling"},
    "minimax_videos": {"minimax"},
    "runway_videos": {"runway"},
    "dashscope_videos": {"dashscope"},
    "volcengine_videos": {"volcengine"},
    "luma_videos": {"luma"},
    "fal_videos": {"fal_queue"},
}  # fmt: skip
WITHOUT_EMBEDDINGS = ONLY_IMAGES | ONLY_SPEECH | ONLY_VIDEOS | {
    "anthropic", "bedrock", "bedrock_converse", "cerebras", "deepseek", "groq", "huggingface", "moonshot", "perplexity",
    "replicate", "stepfun", "tokenhub", "vertex", "xai", "zai",
}  # fmt: skip
NOT_THE_CONVENTION = (
    {"anthropic", "bedrock_converse", "gemini", "vertex"} | ONLY_IMAGES | ONLY_SEARCH | ONLY_SPEECH | ONLY_VIDEOS
)


@table_rows("wire", SPEAKS)
def test_who_speaks_what_beside_chat(wire: str) -> None:
    assert {slug for slug, found in PROVIDERS.items() if any(one.wire == wire for one in found.endpoints)} == SPEAKS[
        wire
    ]


def test_who_has_embeddings_and_who_does_not_speak_the_convention() -> None:
    others = {slug: found for slug, found in PROVIDERS.items() if slug != "demo"}  # whose models have one use each
    assert {
        slug for slug, found in others.items() if not found.find_endpoint(OPERATIONS["embeddings"].formats, "m")
    } == WITHOUT_EMBEDDINGS
    assert {
        slug for slug, found in others.items() if not found.find_endpoint(("openai_chat",), "m")
    } == NOT_THE_CONVENTION


@table_rows("slug", [slug for slug in PROVIDERS if slug != "demo"])
def test_a_vendors_file_names_the_documentation_it_is_from(slug: str) -> None:
    assert PAGE.search(inspect.getdoc(importlib.import_module(f"gateway.providers.{slug}")) or "")


def test_the_variables_are_those_people_have_set_already() -> None:
    assert {slug: found.env_key for slug, found in PROVIDERS.items() if found.env_key} == {
        "openai": "OPENAI_API_KEY",
        "anthropic": "ANTHROPIC_API_KEY",
        "gemini": "GEMINI_API_KEY",
        "openrouter": "OPENROUTER_API_KEY",
        "azure_openai": "AZURE_OPENAI_API_KEY",
        "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
        "cerebras": "CEREBRAS_API_KEY",
        "cohere": "COHERE_API_KEY",
        "dashscope": "DASHSCOPE_API_KEY",
        "deepseek": "DEEPSEEK_API_KEY",
        "fireworks": "FIREWORKS_API_KEY",
        "groq": "GROQ_API_KEY",
        "huggingface": "HUGGINGFACE_API_KEY",
        "jina": "JINA_API_KEY",
        "mistral": "MISTRAL_API_KEY",
        "moonshot": "MOONSHOT_API_KEY",
        "nvidia": "NVIDIA_API_KEY",
        "perplexity": "PERPLEXITY_API_KEY",
        "siliconflow": "SILICONFLOW_API_KEY",
        "stepfun": "STEP_API_KEY",
        "together": "TOGETHER_API_KEY",
        "tokenhub": "TOKENHUB_API_KEY",
        "xai": "XAI_API_KEY",
        "zai": "ZAI_API_KEY",
        "zhipu": "ZHIPUAI_API_KEY",
    }
