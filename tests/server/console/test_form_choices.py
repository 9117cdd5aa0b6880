"""What pages that make calls offer: models told apart by their names, keys that can pay."""

from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from gateway.server.admin.models import ModelView
from gateway.server.console import form_choices
from tests.support.table_rows import table_rows

KINDS: dict[form_choices.ModelKind, tuple[str, ...]] = {
    "chat": (
        "demo-chat", "gpt-5-mini", "gpt-4o-2024-08-06", "claude-haiku-4-5", "gemini-2.5-flash", "llama-3.3-70b",
        "deepseek/deepseek-r1", "qwen2.5-vl-72b-instruct", "mistral-large-latest", "o3", "grok-4", "kimi-k2",
        "meta-llama/Llama-3.1-8B-Instruct", "command-r-plus", "MiniMax-M2", "glm-4.6",
    ),
    "images": (
        "demo-image", "gpt-image-1", "dall-e-3", "imagen-4.0-generate-001", "gemini-2.5-flash-image", "flux-1.1-pro",
        "black-forest-labs/FLUX.1-schnell", "stable-diffusion-xl", "Kwai-Kolors/Kolors", "doubao-seedream-4-0",
        "wan2.5-t2i-preview", "cogview-4", "qwen-image-edit", "grok-2-image", "ideogram-v3", "recraft-v3",
    ),
    "video": (
        "demo-video", "sora-2-pro", "veo-3.1-generate-preview", "kling-v2-5-turbo", "MiniMax-Hailuo-02", "gen4_turbo",
        "doubao-seedance-1-0-pro", "wan2.5-t2v-preview", "wan2.2-i2v-plus", "cogvideox-3",
    ),
    "speech": ("demo-speech", "tts-1-hd", "gpt-4o-mini-tts", "cosyvoice-v2", "gemini-2.5-flash-preview-tts"),
    "transcription": ("demo-transcribe", "whisper-1", "gpt-4o-transcribe", "qwen3-asr-flash"),
    "audio": ("gpt-4o-audio-preview", "gpt-realtime", "demo-realtime"),
    "other": (
        "demo-embedding",
        "text-embedding-3-small", "BAAI/bge-m3", "omni-moderation-latest", "babbage-002",
        "gpt-3.5-turbo-instruct", "rerank-v3.5", "davinci-002",
    ),
}  # fmt: skip


NO_ROUTES = form_choices.group_models(())


def make_model(name: str, **fields: Any) -> ModelView:
    return ModelView(id=name, owned_by="us", created=0, channels=(), price=None, **fields)


@table_rows("kind", KINDS)
def test_a_models_name_says_what_it_does(kind: form_choices.ModelKind) -> None:
    assert {name: form_choices.find_kind(name) for name in KINDS[kind]} == dict.fromkeys(KINDS[kind], kind)


def test_where_a_name_says_nothing_its_price_may() -> None:
    assert form_choices.find_kind("nano-banana", 0.04) == "images"
    assert form_choices.find_kind("nano-banana") == "chat"


@given(st.lists(st.text(min_size=1, max_size=40), unique=True))
def test_every_model_is_offered_once_whatever_its_name(names: list[str]) -> None:
    choices = form_choices.Choices([], frozenset(), form_choices.group_models(map(make_model, names)), NO_ROUTES)
    for kind in ("chat", "images", "video", "speech", "transcription"):
        reported = form_choices.format_choices(choices, kind)
        assert sorted(reported["all_models"]) == sorted(name for name in names if form_choices.find_kind(name) == kind)
        assert reported["model"] in {*names, ""}
    assert {form_choices.find_kind(name) for name in names} <= set(get_args(form_choices.ModelKind))


def test_what_is_tried_first_answers_fast_and_costs_little() -> None:
    assert form_choices.find_preferred_model(["claude-opus-4-5", "gpt-5", "gpt-5-mini"]) == "gpt-5-mini"
    assert form_choices.find_preferred_model(["demo-chat", "demo-mini", "gpt-5"]) == "gpt-5"
    assert form_choices.find_preferred_model(["demo-chat"]) == "demo-chat"
    assert form_choices.find_preferred_model(["gemini-2.5-flash", "gemini-2.5-pro"]) == "gemini-2.5-flash"
    assert form_choices.find_preferred_model(["b", "a"]) == "b"
    assert form_choices.find_preferred_model([]) is None


@given(st.sets(st.sampled_from(["connect", "connect 2", "connect 3", "first"])))
def test_a_name_for_a_new_key_is_free(taken: set[str]) -> None:
    name = form_choices.find_free_name("connect", taken)
    assert name not in taken
    assert name.startswith("connect")


def test_a_form_lists_only_the_models_of_its_kind() -> None:
    named = map(make_model, ("demo-chat", "demo-image", "gpt-5", "whisper-1"))
    routes = [make_model("quick-image", kind="chat", route=True), make_model("any", kind="embedding", route=True)]
    choices = form_choices.Choices([], frozenset(), form_choices.group_models(named), form_choices.group_models(routes))
    assert choices.list_groups("chat") == [("Chat models", ["gpt-5", "demo-chat"]), ("Routes", ["quick-image"])]
    assert choices.list_groups("images") == [("Image models", ["demo-image"]), ("Routes", [])]
    assert choices.list_groups("video") == [("Video models", []), ("Routes", [])]
