"""Claude, Gemini and others in Google's and Amazon's clouds, through a running gateway."""

from base64 import b64encode
from datetime import datetime
from typing import Any

import orjson
import pytest

from gateway.providers.sigv4 import AwsCredentials, sign_request
from tests.support import anthropic_cassettes, gemini_cassettes
from tests.support import converse_cassettes as bedrock
from tests.support.admin_calls import ask_office
from tests.support.gateway import HELLO, channel
from tests.support.openai_videos import write_clip
from tests.support.scripted_upstream import COMPLETION, LAST_CHUNK, SSE_HEAD, Received, ScriptedUpstream, answer, chunk
from tests.support.sdk_clients import MakeClient
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


async def test_vertex_is_asked_for_each_model_in_its_format(standing_with: StartGateway) -> None:
    body = orjson.loads(
        gemini_cassettes.stream(gemini_cassettes.chunk({"text": "hi"}, reason="STOP")).split(b"data: ")[1]
    )
    async with ScriptedUpstream([answer(MESSAGE)], [answer(body)], [answer(COMPLETION)]) as up:
        gateway = await standing_with({"channel": [vertex(up)]})
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


async def test_vertex_streams_claude(standing_with: StartGateway) -> None:
    pieces = [
        anthropic_cassettes.begin("msg_1"), anthropic_cassettes.start(0, "text", text=""),
        anthropic_cassettes.text(0, "good"), anthropic_cassettes.stop(0),
        anthropic_cassettes.finish("end_turn", output_tokens=7), anthropic_cassettes.event("message_stop"),
    ]  # fmt: skip
    async with ScriptedUpstream([SSE_HEAD, *map(chunk, pieces), LAST_CHUNK]) as up:
        gateway = await standing_with({"channel": [vertex(up)]})
        async with gateway.post({**HELLO, "model": "c", "stream": True}) as response:
            text = await response.text()
        assert '"content":"good"' in text
        assert text.endswith("data: [DONE]\n\n")
        (sent,) = up.received
        assert sent.path == f"{CLAUDE}:streamRawPredict"
        assert sent.json["stream"] is True
        assert "model" not in sent.json


async def test_vertex_with_a_broken_key_file_is_not_asked(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(MESSAGE)]) as up:
        gateway = await standing_with({"channel": [vertex(up, pack({"private_key": "secret-part-of-it"}))]})
        async with gateway.post(ASK, path=MESSAGES) as response:
            assert response.status >= 500
            assert "secret-part-of-it" not in await response.text()
        assert not up.received


async def test_an_error_of_google_is_the_clients_in_its_own_format(standing_with: StartGateway) -> None:
    refused = {"error": {"code": 400, "message": "max_tokens: too large", "status": "INVALID_ARGUMENT"}}
    async with ScriptedUpstream([answer(refused, 400)]) as up:
        gateway = await standing_with({"channel": [vertex(up)]})
        async with gateway.post(ASK, path=MESSAGES) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith("max_tokens: too large")


async def test_bedrock_is_asked_for_claude_at_its_root_and_for_others_below_its_address(
    standing_with: StartGateway,
) -> None:
    names = {"c": "anthropic.claude-x", "o": "openai.gpt-oss-120b"}
    async with ScriptedUpstream([answer(MESSAGE)], [answer(MESSAGE)], [answer(COMPLETION)]) as up:
        more: dict[str, Any] = {"provider": "bedrock", "models": list(names), "model_map": names}
        gateway = await standing_with({"channel": [channel(up.base_url, **more)]})
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


CLIENT_ID = "11111111-2222-3333-4444-555555555555"


def azure(up: ScriptedUpstream, server: ScriptedUpstream) -> dict[str, Any]:
    key = f"http://127.0.0.1:{server.port}/contoso.onmicrosoft.com:{CLIENT_ID}:the-client-secret"
    return channel(up.base_url, provider="azure_openai", api_key=key, models=["m"])


async def test_azure_gets_a_token_of_entra_id_which_is_fetched_once(standing_with: StartGateway) -> None:
    issued = answer({"token_type": "Bearer", "expires_in": 3_599, "access_token": "entra-token"})
    async with ScriptedUpstream([issued]) as server, ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with({"channel": [azure(up, server)]})
        for _ in range(2):
            async with gateway.post(HELLO) as response:
                assert response.status == 200, await response.text()
        assert [sent.headers["authorization"] for sent in up.received] == ["Bearer entra-token"] * 2
        assert all("api-key" not in sent.headers for sent in up.received)
        assert [sent.path for sent in server.received] == ["/contoso.onmicrosoft.com/oauth2/v2.0/token"]


async def test_refused_credentials_of_entra_id_are_the_channels_cause(standing_with: StartGateway) -> None:
    refused = {"error": "invalid_client", "error_description": "AADSTS7000222: The client secret keys are expired."}
    async with ScriptedUpstream([answer(refused, 401)]) as server, ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with({"channel": [azure(up, server)]})
        async with gateway.post(HELLO) as response:
            assert response.status >= 500
            text = await response.text()
        assert not up.received
        assert "the-client-secret" not in text
        _, listed = await ask_office(gateway, "GET", "/channels")
        assert "AADSTS7000222" in str(listed)
        assert "the-client-secret" not in str(listed)


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
async def test_azure_makes_videos_as_openai_does_with_its_own_header(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    task, film = {"id": "video_theirs", "object": "video", "status": "queued", "progress": 0}, write_clip("a boat")
    scripts = [answer(task)], [answer({**task, "status": "completed"})], [answer(film, Content_Type="video/mp4")]
    async with ScriptedUpstream(*scripts) as up:
        named = channel(up.base_url, provider="azure_openai", api_key="azure-key", models=["sora-2-azure"])
        client = sdk(await standing_with({"channel": [named]}))
        asked: Any = {"model": "sora-2-azure", "prompt": "a boat", "poll_interval_ms": 20}
        video = await client.videos.create_and_poll(**asked)
        assert (video.status, video.error) == ("completed", None)
        assert await (await client.videos.download_content(video.id)).aread() == film
        assert [(sent.method, sent.path) for sent in up.received] == [
            ("POST", "/v1/videos"), ("GET", "/v1/videos/video_theirs"), ("GET", "/v1/videos/video_theirs/content"),
        ]  # fmt: skip
        assert {sent.headers["api-key"] for sent in up.received} == {"azure-key"}


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
async def test_vertex_makes_videos_that_are_in_its_last_answer(standing_with: StartGateway, sdk: MakeClient) -> None:
    model = f"{PROJECT}/publishers/google/models/veo-3.1-fast-generate-001"
    name = {"name": f"{model.removeprefix('/')}/operations/a1b07c8e-7b5a"}
    film = write_clip("a boat").ljust(600_000, b"\0")  # larger than other answers may be
    videos = [{"bytesBase64Encoded": b64encode(film).decode(), "mimeType": "video/mp4"}]
    done = answer({**name, "done": True, "response": {"videos": videos}})
    async with ScriptedUpstream([answer(name)], [answer(name)], [done], [done]) as up:
        named: dict[str, Any] = {
            "provider": "vertex",
            "api_key": KEY,
            "models": ["veo"],
            "model_map": {"veo": model.rsplit("/", maxsplit=1)[-1]},
        }
        client = sdk(await standing_with({"channel": [channel(f"{up.base_url}{PROJECT}", **named)]}))
        asked: Any = {"model": "veo", "prompt": "a boat", "seconds": "4", "poll_interval_ms": 20}
        video = await client.videos.create_and_poll(**asked)
        assert (video.status, video.error) == ("completed", None)
        assert await (await client.videos.download_content(video.id)).aread() == film
        begun, *polls = up.received
        assert (begun.method, begun.path) == ("POST", f"/v1{model}:predictLongRunning")
        assert begun.json["parameters"]["generateAudio"] is True
        assert begun.json["parameters"]["durationSeconds"] == 4
        assert {(sent.method, sent.path) for sent in polls} == {("POST", f"/v1{model}:fetchPredictOperation")}
        assert all(sent.json == {"operationName": name["name"]} for sent in polls)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
NOVA = "us.amazon.nova-2-lite-v1:0"


def converse(up: ScriptedUpstream, key: str = "AKID:the/secret+key:the-session-token") -> dict[str, Any]:
    address = up.base_url.removesuffix("/v1")
    return channel(address, provider="bedrock_converse", api_key=key, models=["m"], model_map={"m": NOVA})


def sign_again(sent: Received) -> str:
    """The signature of what has arrived, at the time that it names."""
    then = datetime.strptime(sent.headers["x-amz-date"], "%Y%m%dT%H%M%S%z")
    signed = sign_request(
        sent.method,
        f"http://{sent.headers['host']}{sent.path}",
        {"content-type": sent.headers["content-type"]},
        sent.body,
        credentials=AwsCredentials("AKID", "the/secret+key", "the-session-token"),
        region="us-east-1",
        service="bedrock",
        now_s=int(then.timestamp()),
    )
    return signed["Authorization"]


async def test_converse_is_signed_and_answers_in_every_format(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(bedrock.ANSWER)]) as up:
        gateway = await standing_with({"channel": [converse(up)]})
        async with gateway.post(HELLO) as response:
            (choice,) = (await response.json())["choices"]
        assert choice["message"]["tool_calls"][0]["id"] == "tooluse_1"
        async with gateway.post({**ASK, "model": "m"}, path=MESSAGES) as response:
            assert (await response.json())["stop_reason"] == "tool_use"
        for sent in up.received:
            assert sent.path == "/model/us.amazon.nova-2-lite-v1%3A0/converse"
            assert sent.headers["authorization"] == sign_again(sent)
            assert sent.json["messages"] == [{"role": "user", "content": [{"text": "hi"}]}]
            assert "the/secret+key" not in str(sent.headers)


async def test_converse_streams(standing_with: StartGateway) -> None:
    raw = bedrock.STREAMS["text"]
    pieces = [chunk(raw[at : at + 50]) for at in range(0, len(raw), 50)]
    async with ScriptedUpstream([STREAM_HEAD, *pieces, LAST_CHUNK]) as up:
        gateway = await standing_with({"channel": [converse(up)]})
        async with gateway.post({**HELLO, "stream": True}) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            text = await response.text()
        assert '"content":"Hel"' in text
        assert text.endswith("data: [DONE]\n\n")
        (sent,) = up.received
        assert sent.path.endswith("/converse-stream")
        assert sent.headers["accept"] == "application/vnd.amazon.eventstream"
        assert sent.headers["authorization"] == sign_again(sent)
        (record,) = await gateway.rows(1)
        assert (record.prompt_tokens, record.completion_tokens) == (5, 7)


async def test_an_exception_before_the_first_word_goes_to_the_next_channel(standing_with: StartGateway) -> None:
    broken = bedrock.BEGIN + bedrock.exception("throttlingException", "Too many tokens")
    async with (
        ScriptedUpstream([STREAM_HEAD, chunk(broken), LAST_CHUNK]) as first,
        ScriptedUpstream([STREAM_HEAD, chunk(bedrock.STREAMS["text"]), LAST_CHUNK]) as second,
    ):
        one = converse(first) | {"priority": 1}
        two = converse(second) | {"name": "second"}
        gateway = await standing_with({"channel": [one, two]})
        async with gateway.post({**HELLO, "stream": True}) as response:
            assert '"content":"lo"' in await response.text()
        assert (len(first.received), len(second.received)) == (1, 1)


@pytest.mark.parametrize(
    "broken",
    [
        bedrock.exception("modelStreamErrorException", "The model broke"),
        bedrock.words("lost")[:-1] + b"\x00",
        bedrock.stop(),
    ],
    ids=["exception", "wrong checksum", "cut"],
)
async def test_a_stream_that_breaks_ends_with_an_error(standing_with: StartGateway, broken: bytes) -> None:
    raw = bedrock.BEGIN + bedrock.words("Hel")
    async with ScriptedUpstream([STREAM_HEAD, chunk(raw), 0.01, chunk(broken), LAST_CHUNK]) as up:
        gateway = await standing_with({"channel": [converse(up)]})
        async with gateway.post({**HELLO, "stream": True}) as response:
            text = await response.text()
        assert '"content":"Hel"' in text
        assert '"error"' in text
        assert "[DONE]" not in text


async def test_an_error_of_bedrock_is_worded_and_of_its_kind(standing_with: StartGateway) -> None:
    refused = {"message": "The provided model identifier is invalid."}
    async with ScriptedUpstream([answer(refused, 400, x_amzn_errortype="ValidationException")]) as up:
        gateway = await standing_with({"channel": [converse(up)]})
        async with gateway.post(HELLO) as response:
            assert response.status == 400
            assert "model identifier is invalid" in await response.text()
