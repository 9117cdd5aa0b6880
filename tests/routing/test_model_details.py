"""Model servers that say more of their models than their list does."""

from typing import Any

import orjson
import pytest

from gateway.domain.channel import Channel
from gateway.domain.model_description import ModelDescription
from gateway.routing.model_details import parse_props, parse_show_answer
from gateway.routing.model_listing import fetch_models
from gateway.upstream.client import PooledHttpClient
from tests.support.scripted_upstream import Script, ScriptedUpstream, answer

NOW = 7
SHOWN = {
    "parameters": 'stop                           "<|eot_id|>"\nnum_ctx                        16384',
    "details": {"family": "qwen3", "parameter_size": "8.2B"},
    "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960, "qwen3.block_count": 36},
    "capabilities": ["completion", "tools", "thinking"],
}
PROPS = {
    "default_generation_settings": {"id": 0, "n_ctx": 8192, "params": {"n_predict": -1}},
    "total_slots": 4,
    "model_path": "/models/gemma.gguf",
    "modalities": {"vision": True, "audio": False},
}


def build_list(*names: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model", "created": 5} for name in names]}


async def fetch(up: ScriptedUpstream, provider: str, **more: Any) -> dict[str, ModelDescription | None]:
    client = PooledHttpClient()
    try:
        channel = Channel("up", provider, up.base_url, ("the-key",), sync=True)
        return {model.id: model.description for model in await fetch_models(client, channel, now_s=NOW, **more)}
    finally:
        await client.close()


def list_calls(up: ScriptedUpstream) -> list[tuple[str, str]]:
    return [(received.method, received.path) for received in up.received]


async def test_ollama_is_asked_for_each_model() -> None:
    async with ScriptedUpstream([answer(build_list("a", "b"))], [answer(SHOWN)]) as up:
        described = await fetch(up, "ollama")
        asked = {orjson.loads(received.body)["model"] for received in up.received[1:]}
        calls = list_calls(up)
    assert (calls, asked) == ([("GET", "/v1/models"), *[("POST", "/api/show")] * 2], {"a", "b"})
    assert set(described.values()) == {
        ModelDescription("chat", 16_384, None, ("text",), ("text",), ("tools", "structured_output", "reasoning"))
    }


@pytest.mark.parametrize(
    ("shown", "description"),
    [
        ({**SHOWN, "parameters": ""}, ModelDescription(
            "chat", 40_960, None, ("text",), ("text",), ("tools", "structured_output", "reasoning"))),
        ({**SHOWN, "capabilities": ["completion", "vision"]}, ModelDescription(
            "chat", 16_384, None, ("text", "image"), ("text",), ("structured_output",))),
        ({"model_info": {"general.architecture": "bert", "bert.context_length": 512}, "capabilities": ["embedding"]},
         ModelDescription("embedding", 512)),
        ({"model_info": SHOWN["model_info"]}, ModelDescription(context_window=40_960)),
        ({"model_info": [], "parameters": 5, "capabilities": {}}, ModelDescription()),
        ({}, ModelDescription()),
    ],
)  # fmt: skip
def test_what_ollama_shows_is_understood(shown: dict[str, Any], description: ModelDescription) -> None:
    assert parse_show_answer(shown) == description


async def test_lm_studio_is_asked_for_its_own_list() -> None:
    own = {"data": [{"id": "a", "type": "vlm", "max_context_length": 32768}, {"id": "x", "type": "llm"}, {"id": 5}, 6]}
    async with ScriptedUpstream([answer(build_list("a", "b"))], [answer(own)]) as up:
        described = await fetch(up, "lm_studio")
        assert list_calls(up) == [("GET", "/v1/models"), ("GET", "/api/v0/models")]
        assert up.received[1].headers["authorization"] == "Bearer the-key"
    assert described == {"a": ModelDescription("chat", 32_768, None, ("text", "image")), "b": None}


async def test_llama_cpp_is_asked_only_about_its_single_model() -> None:
    async with ScriptedUpstream([answer(build_list("gemma"))], [answer(PROPS)]) as up:
        assert await fetch(up, "llama_cpp") == {"gemma": ModelDescription(None, 8_192, None, ("text", "image"))}
        assert list_calls(up) == [("GET", "/v1/models"), ("GET", "/props")]
    async with ScriptedUpstream([answer(build_list("gemma", "qwen"))]) as up:
        assert await fetch(up, "llama_cpp") == {"gemma": None, "qwen": None}
        assert list_calls(up) == [("GET", "/v1/models")]  # a question about a model would load it
    assert parse_props({"default_generation_settings": 5, "modalities": []}) == ModelDescription()


@pytest.mark.parametrize("script", [[answer({"error": "no"}, 404)], [answer([])], [b"HTTP/1.1 200 OK\r\n\r\n{"]])
async def test_a_server_that_says_no_more_is_listed_nevertheless(script: Script) -> None:
    async with ScriptedUpstream([answer(build_list("a"))], script) as up:
        assert await fetch(up, "ollama") == {"a": None}


async def test_other_servers_are_asked_for_nothing_more() -> None:
    listed = {"data": [{"id": "a", "max_model_len": 4096}]}
    async with ScriptedUpstream([answer(listed)]) as up:
        assert await fetch(up, "vllm") == {"a": ModelDescription(context_window=4_096)}
        assert list_calls(up) == [("GET", "/v1/models")]


async def test_a_model_list_of_google_says_the_limits() -> None:
    items = [
        {"name": "models/gemini-x", "inputTokenLimit": 1048576, "outputTokenLimit": 65536,
         "supportedGenerationMethods": ["generateContent"]},
        {"name": "models/embedding-x", "inputTokenLimit": 2048, "outputTokenLimit": 1,
         "supportedGenerationMethods": ["embedContent"]},
    ]  # fmt: skip
    async with ScriptedUpstream([answer({"models": items})]) as up:
        assert await fetch(up, "gemini") == {
            "gemini-x": ModelDescription(None, 1_048_576, 65_536),
            "embedding-x": ModelDescription("embedding", 2_048),
        }
