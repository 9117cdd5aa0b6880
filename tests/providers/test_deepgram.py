"""Deepgram's speech through a gateway: the request as documented, the audio as it arrives, and what is refused."""

from typing import Any
from urllib.parse import parse_qs

import aiohttp
import orjson
import pytest

from tests.support.fault_scene import PRICE
from tests.support.gateway import channel
from tests.support.scripted_upstream import LAST_CHUNK, ScriptedUpstream, answer, chunk
from tests.support.started_gateways import StartGateway

ASK: dict[str, Any] = {"model": "m", "input": "Hello", "voice": "alloy"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
SOUND = [b"ID3" + b"\x01" * 50, b"\x02" * 50]


async def start(standing_with: StartGateway, up: ScriptedUpstream, model: str = "aura-2-thalia-en") -> Any:
    one = channel(up.base_url, provider="deepgram", model_map={"m": model})
    return await standing_with({"channel": [one], "price": [PRICE]})


@pytest.mark.parametrize("more", [{}, {"response_format": "mp3", "speed": 1.0, "stream_format": "audio"}])
async def test_speech_is_sent_as_documented_and_passes_as_it_arrives(
    standing_with: StartGateway, more: dict[str, Any]
) -> None:
    async with ScriptedUpstream([HEAD, *map(chunk, SOUND), LAST_CHUNK]) as up:
        gateway = await start(standing_with, up)
        for _ in range(2):  # the second one from the key's template
            async with gateway.post({**ASK, **more}, path="/v1/audio/speech") as found:
                assert (found.status, await found.read()) == (200, b"".join(SOUND))
                assert found.headers["Content-Type"] == "audio/mpeg"
        for sent in up.received:
            assert (sent.method, sent.path) == ("POST", "/v1/speak?model=aura-2-thalia-en")
            assert (sent.json, sent.headers["authorization"]) == ({"text": "Hello"}, "Token provider-key")
        first, second = await gateway.rows(2)
        assert first.outcome == second.outcome == "completed"


@pytest.mark.parametrize("model", ["a&callback=https://x.example", "a#b", "a b+c", "a/b?c=d;e=f", "a%26b=c"])
async def test_a_models_name_adds_nothing_to_the_address(standing_with: StartGateway, model: str) -> None:
    async with ScriptedUpstream([HEAD, *map(chunk, SOUND), LAST_CHUNK]) as up:
        gateway = await start(standing_with, up, model)
        async with gateway.post(ASK, path="/v1/audio/speech") as found:
            assert (found.status, await found.read()) == (200, b"".join(SOUND))
        path, _, query = up.received[0].path.partition("?")
        assert (path, parse_qs(query, separator="&")) == ("/v1/speak", {"model": [model]})


@pytest.mark.parametrize(
    ("field", "value"),
    [("response_format", "wav"), ("speed", 2.0), ("stream_format", "sse"), ("instructions", "whisper")],
)
async def test_what_cannot_be_said_is_refused_by_name(standing_with: StartGateway, field: str, value: object) -> None:
    async with ScriptedUpstream([answer(b"never")]) as up:
        gateway = await start(standing_with, up)
        async with gateway.post({**ASK, field: value}, path="/v1/audio/speech") as found:
            error = orjson.loads(await found.read())["error"]
            assert (found.status, error["param"]) == (400, field)
        assert up.received == []


async def test_an_error_of_deepgram_is_the_clients(standing_with: StartGateway) -> None:
    body = {"err_code": "INVALID_REQUEST", "err_msg": "No such model", "request_id": "r"}
    async with ScriptedUpstream([answer(body, status=400)]) as up:
        gateway = await start(standing_with, up)
        async with gateway.post(ASK, path="/v1/audio/speech") as found:
            assert found.status == 400


HEARD = {
    "metadata": {"duration": 1.5, "channels": 1},
    "results": {
        "channels": [
            {
                "detected_language": "en",
                "alternatives": [
                    {
                        "transcript": "Hello world.",
                        "confidence": 0.99,
                        "words": [
                            {"word": "hello", "punctuated_word": "Hello", "start": 0.1, "end": 0.5},
                            {"word": "world", "punctuated_word": "world.", "start": 0.6, "end": 1.0},
                        ],
                    }
                ],
            }
        ]
    },
}


@pytest.mark.parametrize(
    ("fields", "query"),
    [
        ({}, {"model": ["nova-3"], "smart_format": ["true"], "detect_language": ["true"]}),
        ({"language": "de"}, {"model": ["nova-3"], "smart_format": ["true"], "language": ["de"]}),
    ],
)
async def test_a_file_is_sent_as_it_is_and_its_length_is_charged(
    standing_with: StartGateway, fields: dict[str, str], query: dict[str, list[str]]
) -> None:
    async with ScriptedUpstream([answer(HEARD)]) as up:
        gateway = await start(standing_with, up, "nova-3")
        form = aiohttp.FormData({"model": "m", "response_format": "verbose_json", **fields})
        form.add_field("file", b"RIFF-and-so-on", filename="a.wav", content_type="audio/wav")
        async with gateway.client.post(f"{gateway.url}/v1/audio/transcriptions", data=form) as found:
            value = await found.json()
        assert (value["text"], value["duration"]) == ("Hello world.", 1.5)
        assert value["segments"] == [{"id": 0, "start": 0.1, "end": 1.0, "text": "Hello world."}]
        assert value["usage"] == {"type": "duration", "seconds": 1.5}
        (sent,) = up.received
        path, _, asked = sent.path.partition("?")
        assert (path, parse_qs(asked)) == ("/v1/listen", query)
        assert (sent.body, sent.headers["content-type"]) == (b"RIFF-and-so-on", "audio/wav")
        assert sent.headers["authorization"] == "Token provider-key"
