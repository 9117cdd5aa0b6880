"""Claude, Gemini and others in Google's and Amazon's clouds, through a running gateway."""

from typing import Any

import orjson

from tests.support import anthropic_cassettes, gemini_cassettes
from tests.support.gateway import HELLO, channel
from tests.support.scripted_upstream import COMPLETION, LAST_CHUNK, SSE_HEAD, ScriptedUpstream, answer, chunk
from tests.support.service_account import ACCOUNT, KEY, pack, read_token
from tests.support.started_gateways import StartGateway

MESSAGES = "/v1/messages"
MESSAGE = {**anthropic_cassettes.MESSAGE, "usage": {"input_tokens": 5, "output_tokens": 7}}
ASK = {"model": "c", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
PROJECT = "/projects/p/locations/global"
CLAUDE = f"/v1{PROJECT}/publishers/anthropic/models/claude-x"
GEMINI = f"/v1{PROJECT}/publishers/google/models/gemini-x"
NAMES = {"c": "claude-x", "g": "gemini-x", "o": "meta/llama-x"}


def vertex(up: ScriptedUpstream, key: str = KEY) -> dict[str, Any]:
    return channel(f"{up.base_url}{PROJECT}", provider="vertex", api_key=key, models=list(NAMES), model_map=NAMES)


async def test_vertex_is_asked_for_each_model_in_its_format(gateway_with: StartGateway) -> None:
    said = orjson.loads(
        gemini_cassettes.stream(gemini_cassettes.chunk({"text": "hi"}, reason="STOP")).split(b"data: ")[1]
    )
    async with ScriptedUpstream([answer(MESSAGE)], [answer(said)], [answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [vertex(up)]})
        async with gateway.post(ASK, path=MESSAGES) as response:
            assert await response.json() == MESSAGE
        for model in ("g", "o"):
            async with gateway.post({**HELLO, "model": model}) as response:
                assert response.status == 200, await response.text()
                assert (await response.json())["choices"][0]["finish_reason"] == "stop"
        assert [sent.path for sent in up.received] == [
            f"{CLAUDE}:rawPredict", f"{GEMINI}:generateContent", f"/v1{PROJECT}/endpoints/openapi/chat/completions",
        ]  # fmt: skip
        first, *_ = up.received
        assert first.json == {name: value for name, value in ASK.items() if name != "model"} | {
            "anthropic_version": "vertex-2023-10-16"
        }
        assert up.received[2].json["model"] == "meta/llama-x"
        for sent in up.received:
            assert read_token({"Authorization": sent.headers["authorization"]}).count(".") == 2
            assert ACCOUNT["private_key"] not in str(sent.headers)


async def test_vertex_streams_claude(gateway_with: StartGateway) -> None:
    pieces = [
        anthropic_cassettes.begin("msg_1"), anthropic_cassettes.start(0, "text", text=""),
        anthropic_cassettes.text(0, "good"), anthropic_cassettes.stop(0),
        anthropic_cassettes.finish("end_turn", output_tokens=7), anthropic_cassettes.event("message_stop"),
    ]  # fmt: skip
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, pieces), LAST_CHUNK]) as up:
        gateway = await gateway_with({"channel": [vertex(up)]})
        async with gateway.post({**HELLO, "model": "c", "stream": True}) as response:
            text = await response.text()
        assert '"content":"good"' in text
        assert text.endswith("data: [DONE]\n\n")
        (sent,) = up.received
        assert sent.path == f"{CLAUDE}:streamRawPredict"
        assert sent.json["stream"] is True
        assert "model" not in sent.json


async def test_vertex_with_a_broken_key_file_is_not_asked(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(MESSAGE)]) as up:
        gateway = await gateway_with({"channel": [vertex(up, pack({"private_key": "secret-part-of-it"}))]})
        async with gateway.post(ASK, path=MESSAGES) as response:
            assert response.status >= 500
            assert "secret-part-of-it" not in await response.text()
        assert not up.received


async def test_an_error_of_google_is_the_clients_in_its_own_format(gateway_with: StartGateway) -> None:
    refused = {"error": {"code": 400, "message": "max_tokens: too large", "status": "INVALID_ARGUMENT"}}
    async with ScriptedUpstream([answer(refused, 400)]) as up:
        gateway = await gateway_with({"channel": [vertex(up)]})
        async with gateway.post(ASK, path=MESSAGES) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith("max_tokens: too large")


async def test_bedrock_is_asked_for_claude_at_its_root_and_for_others_below_its_address(
    gateway_with: StartGateway,
) -> None:
    names = {"c": "anthropic.claude-x", "o": "openai.gpt-oss-120b"}
    async with ScriptedUpstream([answer(MESSAGE)], [answer(MESSAGE)], [answer(COMPLETION)]) as up:
        more: dict[str, Any] = {"provider": "bedrock", "models": list(names), "model_map": names}
        gateway = await gateway_with({"channel": [channel(up.base_url, **more)]})
        async with gateway.post(ASK, path=MESSAGES) as response:
            assert await response.json() == MESSAGE
        for model in names:
            async with gateway.post({**HELLO, "model": model}) as response:
                assert response.status == 200, await response.text()
        assert [(sent.path, sent.json["model"]) for sent in up.received] == [
            ("/anthropic/v1/messages", "anthropic.claude-x"),
            ("/anthropic/v1/messages", "anthropic.claude-x"),
            ("/v1/chat/completions", "openai.gpt-oss-120b"),
        ]
        for sent in up.received:
            assert sent.headers["authorization"] == "Bearer provider-key"
            assert sent.headers["anthropic-version"] == "2023-06-01"


async def test_bedrocks_models_are_listed_as_openais(gateway_with: StartGateway) -> None:
    listed = {
        "object": "list",
        "data": [{"id": "anthropic.claude-x", "object": "model"}, {"id": "openai.gpt-oss-120b"}],
    }
    async with ScriptedUpstream([answer(listed)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, provider="bedrock", sync=True, models=[])]})
        async with gateway.client.get(f"{gateway.url}/v1/models") as response:
            found = {model["id"] for model in (await response.json())["data"]}
        assert found == {"anthropic.claude-x", "openai.gpt-oss-120b"}
        assert up.received[0].path == "/v1/models"
