"""What the gateway knows of models by itself."""

from gateway.domain.known_models import describe_known_model, describe_without_limits, find_kind_by_name
from gateway.domain.model_description import UNDESCRIBED, ModelDescription, ModelKind
from tests.support.table_rows import table_rows

KINDS: dict[ModelKind, tuple[str, ...]] = {
    "embedding": ("text-embedding-3-small", "BAAI/bge-m3", "demo-embedding"),
    "rerank": ("rerank-v3.5", "bge-reranker-v2-m3"),
    "moderation": ("omni-moderation-latest",),
    "completion": ("gpt-3.5-turbo-instruct", "davinci-002"),
    "image": ("gpt-image-1", "dall-e-3", "flux-1.1-pro", "wan2.5-t2i-preview"),
    "video": ("sora-2-pro", "veo-3.1-generate-preview"),
    "speech": ("tts-1-hd", "gpt-4o-mini-tts"),
    "transcription": ("whisper-1", "gpt-4o-transcribe"),
    "realtime": ("gpt-realtime", "gpt-4o-mini-realtime-preview"),
    "audio": ("gpt-4o-audio-preview", "lyria-3-pro-preview"),
}


@table_rows("kind", KINDS)
def test_some_names_tell_the_kind(kind: ModelKind) -> None:
    assert {name: find_kind_by_name(name) for name in KINDS[kind]} == dict.fromkeys(KINDS[kind], kind)
    assert {describe_known_model(name).kind for name in KINDS[kind]} == {kind}


def test_a_well_known_model_is_described_however_it_is_spelled() -> None:
    sonnet = describe_known_model("claude-sonnet-4-5-20250929")
    assert sonnet == describe_known_model("anthropic/claude-sonnet-4.5") == describe_known_model("claude-sonnet-4-5")
    assert (sonnet.kind, sonnet.max_output_tokens) == ("chat", 64_000)
    assert sonnet.input_modalities == ("text", "image", "file")
    assert sonnet.features == ("tools", "structured_output", "reasoning", "caching")


def test_the_demo_is_described_as_well() -> None:
    demo = describe_known_model("demo-chat")
    assert (demo.kind, demo.input_modalities, demo.features) == ("chat", ("text", "image"), ("tools",))


def test_of_an_unknown_model_nothing_is_said() -> None:
    assert describe_known_model("my-finetune") == UNDESCRIBED


def test_a_relative_with_other_abilities_gets_none_of_the_family() -> None:
    for name in ("gemini-2.5-flash-image", "gemini-2.5-flash-preview-tts", "gpt-4o-audio-preview", "o3-deep-research"):
        assert describe_known_model(name).features is None, name


def test_a_kind_says_what_goes_in_and_comes_out() -> None:
    assert describe_known_model("whisper-1") == ModelDescription(
        "transcription", input_modalities=("audio",), output_modalities=("text",)
    )
    assert describe_known_model("flux-dev") == ModelDescription("image", output_modalities=("image",))


def test_a_servers_own_limits_are_not_those_of_the_model() -> None:
    assert describe_known_model("qwen3-8b").context_window
    assert describe_without_limits("qwen3-8b") == UNDESCRIBED
    assert describe_without_limits("flux-dev") == describe_known_model("flux-dev")
