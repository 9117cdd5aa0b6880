"""ElevenLabs through a gateway: the voice in the address, the audio as it arrives, and transcripts in every format."""

from typing import Any

import aiohttp
import orjson
import pytest

from tests.support.gateway import channel
from tests.support.scripted_upstream import LAST_CHUNK, ScriptedUpstream, answer, chunk
from tests.support.started_gateways import StartGateway

ASK: dict[str, Any] = {"model": "m", "input": "Hello", "voice": "JBFqnCBsd6RMkjVDRZzb"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n"
SOUND = [b"ID3" + b"\x01" * 50, b"\x02" * 50]
SPEECH, TRANSCRIPTIONS = "/v1/audio/speech", "/v1/audio/transcriptions"
HEARD = {
    "language_code": "eng",
    "language_probability": 0.98,
    "text": "Hello world. Bye",
    "words": [
        {"text": "Hello", "start": 0.1, "end": 0.5, "type": "word"},
        {"text": " ", "start": 0.5, "end": 0.6, "type": "spacing"},
        {"text": "world.", "start": 0.6, "end": 1.0, "type": "word"},
        {"text": "Bye", "start": 1.2, "end": 1.5, "type": "word"},
    ],
}


async def start(standing_with: StartGateway, up: ScriptedUpstream, model: str = "eleven_v3") -> Any:
    return await standing_with(
        {"channel": [channel(up.base_url, provider="elevenlabs", model_map={"m": model}, allow_fields=["voice"])]}
    )


@pytest.mark.parametrize(
    ("more", "path", "body"),
    [
        ({}, "/v1/text-to-speech/JBFqnCBsd6RMkjVDRZzb/stream?output_format=mp3_44100_128", {}),
        (
            {"voice": {"id": "a/b"}, "response_format": "pcm", "speed": 1.1, "seed": 7},
            "/v1/text-to-speech/a%2Fb/stream?output_format=pcm_24000",
            {"seed": 7, "voice_settings": {"speed": 1.1}},
        ),
        (
            {"voice_settings": {"stability": 0.5}, "language_code": "de"},
            "/v1/text-to-speech/JBFqnCBsd6RMkjVDRZzb/stream?output_format=mp3_44100_128",
            {"voice_settings": {"stability": 0.5}, "language_code": "de"},
        ),
    ],
)
async def test_speech_names_the_voice_in_the_address(
    standing_with: StartGateway, more: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    async with ScriptedUpstream([HEAD, *map(chunk, SOUND), LAST_CHUNK]) as up:
        gateway = await start(standing_with, up)
        for _ in range(2):
            async with gateway.post({**ASK, **more}, path=SPEECH) as found:
                assert (found.status, await found.read()) == (200, b"".join(SOUND))
        for sent in up.received:
            assert (sent.method, sent.path) == ("POST", path)
            assert sent.json == {"text": "Hello", "model_id": "eleven_v3", **body}
            assert sent.headers["xi-api-key"] == "provider-key"


async def test_each_request_has_its_own_voice(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([HEAD, *map(chunk, SOUND), LAST_CHUNK]) as up:
        gateway = await start(standing_with, up)
        for voice in ("one", "two"):
            async with gateway.post({**ASK, "voice": voice}, path=SPEECH) as found:
                assert found.status == 200
                await found.read()
        assert [sent.path.split("/")[3] for sent in up.received] == ["one", "two"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("response_format", "flac"), ("stream_format", "sse"), ("instructions", "whisper"), ("voice_settings", "loud")],
)
async def test_what_cannot_be_expressed_is_refused_by_name(
    standing_with: StartGateway, field: str, value: object
) -> None:
    async with ScriptedUpstream([answer(b"never")]) as up:
        gateway = await start(standing_with, up)
        async with gateway.post({**ASK, field: value}, path=SPEECH) as found:
            assert (found.status, orjson.loads(await found.read())["error"]["param"]) == (400, field)
        assert up.received == []


async def test_an_error_of_elevenlabs_is_worded(standing_with: StartGateway) -> None:
    refused = {"detail": {"status": "voice_not_found", "message": "A voice for that id was not found."}}
    async with ScriptedUpstream([answer(refused, 400)]) as up:
        gateway = await start(standing_with, up)
        async with gateway.post(ASK, path=SPEECH) as found:
            assert found.status == 400
            assert "A voice for that id was not found." in await found.text()


def build_form(**fields: str) -> aiohttp.FormData:
    form = aiohttp.FormData({"model": "m", **fields})
    form.add_field("file", b"RIFF-and-so-on", filename="a.wav", content_type="audio/wav")
    return form


@pytest.mark.parametrize(
    ("wanted", "answer_text"),
    [
        ("text", "Hello world. Bye\n"),
        ("srt", "1\n00:00:00,100 --> 00:00:01,000\nHello world.\n\n2\n00:00:01,200 --> 00:00:01,500\nBye\n\n"),
    ],
)
async def test_a_transcript_is_written_in_the_format_that_was_asked_for(
    standing_with: StartGateway, wanted: str, answer_text: str
) -> None:
    async with ScriptedUpstream([answer(HEARD)]) as up:
        gateway = await start(standing_with, up, "scribe_v2")
        form = build_form(response_format=wanted, language="en")
        async with gateway.client.post(f"{gateway.url}{TRANSCRIPTIONS}", data=form) as found:
            assert (found.status, (await found.text()).strip()) == (200, answer_text.strip())
        (sent,) = up.received
        assert sent.path == "/v1/speech-to-text"
        for text in (b'name="model_id"\r\n\r\nscribe_v2', b'name="language_code"\r\n\r\nen', b"RIFF-and-so-on"):
            assert text in sent.body


async def test_a_verbose_transcript_has_segments_and_words(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(HEARD)]) as up:
        gateway = await start(standing_with, up, "scribe_v2")
        form = build_form(response_format="verbose_json")
        form.add_field("timestamp_granularities[]", "word")
        async with gateway.client.post(f"{gateway.url}{TRANSCRIPTIONS}", data=form) as found:
            value = await found.json()
        assert (value["text"], value["language"]) == ("Hello world. Bye", "eng")
        assert [segment["text"] for segment in value["segments"]] == ["Hello world.", "Bye"]
        assert value["words"][1] == {"word": "world.", "start": 0.6, "end": 1.0}


async def test_a_stream_of_a_transcript_is_one_event_and_its_end(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(HEARD)]) as up:
        gateway = await start(standing_with, up, "scribe_v2")
        async with gateway.client.post(f"{gateway.url}{TRANSCRIPTIONS}", data=build_form(stream="true")) as found:
            text = await found.text()
        assert "transcript.text.delta" in text
        assert "transcript.text.done" in text
