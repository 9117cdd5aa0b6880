"""The real SDK speaks and listens, over a provider that checks what it is sent and over the built-in demo."""

import asyncio
import base64
import struct
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from openai import APIConnectionError, BadRequestError, InternalServerError, PermissionDeniedError

from tests.support.gateway import KEY
from tests.support.openai_audio import SOUND_TYPES, SRT, TEXT, VTT, OpenAiAudio, make_mp3, make_wav, speak
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

FORMATS = ("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
SECOND = 1_000_000_000
"""Of sound, in nano-USD, where a second costs a dollar."""
BY_THE_SECOND = {"price": [{"model": "*", "usd_per_second": 1.0}]}
BY_THE_TOKEN = {"price": [{"model": "*", "input_usd_per_million": 1, "output_usd_per_million": 1}]}
BY_THE_CHARACTER = {"price": [{"model": "*", "usd_per_million_characters": 1}]}
DEPRECATED = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")


def read_text(answer: Any) -> str:
    return answer if isinstance(answer, str) else str(answer.text)


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_transcript_comes_in_every_format(kind: str, standing_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio() as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        answer: Any = await sdk(gateway).audio.transcriptions.create(  # type: ignore[call-overload]
            model="m", file=("speech.wav", make_wav()), response_format=kind
        )
        reported = {"text": TEXT + "\n", "srt": SRT, "vtt": VTT}.get(kind)
        if reported is None:
            assert answer.text == TEXT
        else:
            assert read_text(answer).strip() == reported.strip()
        assert provider.sounds[0].file == make_wav()
        (row,) = await gateway.rows(1)
        assert (row.operation, row.status, row.outcome) == ("transcriptions", 200, "completed")


async def test_everything_that_can_be_said_of_a_transcript_reaches_the_provider(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with OpenAiAudio() as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        await sdk(gateway).audio.transcriptions.create(
            model="m",
            file=("näme.wav", make_wav()),
            language="de",
            prompt="Grüße",
            temperature=0.5,
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
            chunking_strategy={"type": "server_vad", "silence_duration_ms": 300},
        )
        fields = provider.sounds[0].fields
        assert fields["language"] == "de"
        assert fields["prompt"] == "Grüße"
        assert float(fields["temperature"]) == 0.5
        assert fields["timestamp_granularities[]"] == ["word", "segment"]
        assert (fields["chunking_strategy[type]"], fields["chunking_strategy[silence_duration_ms]"]) == (
            "server_vad",
            "300",
        )
        assert provider.sounds[0].filename == "näme.wav"


@pytest.mark.parametrize("streams", [True, False], ids=["streams", "answers whole"])
async def test_a_transcript_is_streamed_by_whoever_can_and_told_in_one_go_by_others(
    streams: bool, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with OpenAiAudio(streams=streams) as provider:
        gateway = await standing_with({"channel": [provider.channel()], **BY_THE_TOKEN})
        stream = await sdk(gateway).audio.transcriptions.create(model="m", file=make_wav(), stream=True)
        events = [event async for event in stream]
        assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == TEXT
        assert events[-1].type == "transcript.text.done"
        assert events[-1].text == TEXT
        (row,) = await gateway.rows(1)
        assert (row.stream, row.outcome, row.prompt_tokens, row.completion_tokens) == (True, "completed", 55, 7)
        assert row.cost_nanos == 62_000


@DEPRECATED
@pytest.mark.parametrize("kind", ["json", "text", "srt", "verbose_json", "vtt"])
async def test_a_translation_comes_in_every_format(kind: Any, standing_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio() as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        answer = await sdk(gateway).audio.translations.create(model="m", file=make_mp3(), response_format=kind)
        assert "Grüße" in read_text(answer)
        (row,) = await gateway.rows(1)
        assert (row.operation, row.outcome) == ("translations", "completed")


@pytest.mark.parametrize("kind", list(SOUND_TYPES))
async def test_speech_comes_in_every_format_as_its_provider_made_it(
    kind: Any, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with OpenAiAudio() as provider:
        gateway = await standing_with({"channel": [provider.channel()], **BY_THE_CHARACTER})
        answer = await sdk(gateway).audio.speech.create(model="m", voice="alloy", input="Hello", response_format=kind)
        assert answer.content == speak(kind)
        assert answer.response.headers["Content-Type"] == SOUND_TYPES[kind]
        (row,) = await gateway.rows(1)
        assert (row.operation, row.outcome, row.characters, row.cost_nanos) == ("speech", "completed", 5, 5_000)


async def test_speech_leaves_as_it_comes(standing_with: StartGateway, sdk: MakeClient, tmp_path: Path) -> None:
    async with OpenAiAudio() as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        async with sdk(gateway).audio.speech.with_streaming_response.create(
            model="m", voice="alloy", input="Hello", response_format="wav"
        ) as answer:
            assert answer.headers["Transfer-Encoding"] == "chunked"
            await answer.stream_to_file(tmp_path / "hello.wav")
        assert (tmp_path / "hello.wav").read_bytes() == speak("wav")


async def test_speech_in_events_ends_with_what_it_used(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio() as provider:
        gateway = await standing_with({"channel": [provider.channel()], **BY_THE_TOKEN})
        answer = await sdk(gateway).audio.speech.create(
            model="m", voice="alloy", input="Hello", response_format="mp3", stream_format="sse"
        )
        assert answer.response.headers["Content-Type"].startswith("text/event-stream")
        events = [orjson.loads(line[6:]) for line in answer.content.splitlines() if line.startswith(b"data: {")]
        sound = b"".join(base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta")
        assert sound == speak("mp3")
        assert events[-1]["type"] == "speech.audio.done"
        (row,) = await gateway.rows(1)
        assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (6, 40, "upstream")


async def test_speech_that_breaks_off_is_seen_to_be_broken(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio(cut=True) as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        with pytest.raises(APIConnectionError):
            await sdk(gateway).audio.speech.create(model="m", voice="alloy", input="Hello")
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.error_code) == ("failed", "upstream_error")


async def test_to_a_reader_of_http_1_0_it_is_reset_for_its_end_is_all_that_ends_an_answer(
    standing_with: StartGateway,
) -> None:
    async with OpenAiAudio(cut=True) as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
        body = b'{"model":"m","voice":"alloy","input":"Hello"}'
        head = f"POST /v1/audio/speech HTTP/1.0\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_another_channel_speaks_where_one_fails(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio("fail") as broken, OpenAiAudio() as well:
        channels = [broken.channel("broken", priority=1), well.channel("well")]
        gateway = await standing_with({"channel": channels})
        client = sdk(gateway)
        answer = await client.audio.speech.create(model="m", voice="alloy", input="Hello", response_format="wav")
        assert answer.content == speak("wav")
        reported = await client.audio.transcriptions.create(model="m", file=make_wav())
        assert reported.text == TEXT
        assert [(row.channel, row.attempts) for row in await gateway.rows(2)] == [("well", 2), ("well", 2)]
        assert well.sounds[1].file == make_wav()


@pytest.mark.parametrize(("reports", "seconds"), [("duration", 4), ("nothing", 3)])
async def test_sound_is_paid_for_by_its_length(
    reports: Any, seconds: int, standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with OpenAiAudio(reports=reports) as provider:
        gateway = await standing_with({"channel": [provider.channel()], **BY_THE_SECOND})
        await sdk(gateway).audio.transcriptions.create(model="m", file=make_wav(3.0))
        (row,) = await gateway.rows(1)
        assert (row.duration_ms, row.cost_nanos) == (seconds * 1_000, seconds * SECOND)
        assert row.reserved_nanos >= 3 * SECOND


async def test_what_sound_may_cost_is_held_before_anybody_is_asked(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 2.5}
    async with OpenAiAudio() as provider:
        config = {"channel": [provider.channel()], "account": [{"name": "acme"}], "key": [key], **BY_THE_SECOND}
        gateway = await standing_with(config)
        with pytest.raises(PermissionDeniedError) as refused:
            await sdk(gateway).audio.transcriptions.create(model="m", file=make_wav(3.0))
        assert refused.value.code == "insufficient_quota"
        assert provider.sounds == []


async def test_no_header_makes_a_hold_smaller_than_what_its_sound_may_cost(standing_with: StartGateway) -> None:
    key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 30}
    webm = b"\x1a\x45\xdf\xa3\x44\x89\x84" + struct.pack(">f", 1.0) + bytes(200_000)
    async with OpenAiAudio() as provider:
        config = {"channel": [provider.channel()], "account": [{"name": "acme"}], "key": [key], **BY_THE_SECOND}
        gateway = await standing_with(config)
        form = aiohttp.FormData({"model": "m"}, default_to_multipart=True)
        form.add_field("file", webm, filename="a.webm")
        async with gateway.client.post(f"{gateway.url}/v1/audio/transcriptions", data=form) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (403, "insufficient_quota")
        assert provider.sounds == []


async def test_sound_that_nobody_could_hear_costs_nothing(standing_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio("fail") as provider:
        gateway = await standing_with({"channel": [provider.channel()], **BY_THE_SECOND})
        with pytest.raises(InternalServerError):
            await sdk(gateway).audio.transcriptions.create(model="m", file=make_wav(3.0))
        (row,) = await gateway.rows(1)
        assert (row.cost_nanos, row.duration_ms, row.status) == (0, 0, 502)


async def test_more_recordings_than_there_are_threads_are_all_heard(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with OpenAiAudio() as provider:
        client = sdk(await standing_with({"channel": [provider.channel()]}))
        files = [make_wav(5.0, 16_000) + bytes([number]) for number in range(30)]
        asked = [client.audio.transcriptions.create(model="m", file=file) for file in files]
        assert [one.text for one in await asyncio.gather(*asked)] == [TEXT] * 30
        assert {sound.file for sound in provider.sounds} == set(files)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "m"}, "file"),
        ({"file": b"", "model": "m"}, "file"),
        ({"file": make_wav()}, "model"),
        ({"file": make_wav(), "model": "m", "response_format": "docx"}, "response_format"),
        ({"file": make_wav(), "model": "m", "temperature": "warm"}, "temperature"),
        ({"file": make_wav(), "model": "m", "temperature": "7"}, "temperature"),
        ({"file": make_wav(), "model": "m", "stream": "perhaps"}, "stream"),
    ],
)
async def test_a_bad_form_is_refused_and_the_field_named(
    fields: dict[str, Any], param: str, standing_with: StartGateway
) -> None:
    async with OpenAiAudio() as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        form = aiohttp.FormData(default_to_multipart=True)
        for name, value in fields.items():
            named = {"filename": "a.wav"} if isinstance(value, bytes) else {}
            form.add_field(name, value, **named)
        async with gateway.client.post(f"{gateway.url}/v1/audio/transcriptions", data=form) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["param"]) == (400, "invalid_request", param), error
        assert provider.sounds == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "m", "voice": "alloy"}, "input"),
        ({"model": "m", "voice": "alloy", "input": ""}, "input"),
        ({"model": "m", "input": "x"}, "voice"),
        ({"voice": "alloy", "input": "x"}, "model"),
        ({"model": "m", "voice": "alloy", "input": "x", "speed": 9}, "speed"),
        ({"model": "m", "voice": "alloy", "input": "x", "response_format": "midi"}, "response_format"),
        ({"model": "m", "voice": "alloy", "input": "x", "stream_format": "tape"}, "stream_format"),
    ],
)
async def test_a_bad_wish_for_speech_is_refused_and_the_field_named(
    body: dict[str, Any], param: str, standing_with: StartGateway
) -> None:
    async with OpenAiAudio() as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        async with gateway.post(body, "/v1/audio/speech") as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["param"]) == (400, "invalid_request", param), error


@DEPRECATED
async def test_the_demo_hears_what_it_said(gateway_with: StartGateway, sdk: MakeClient) -> None:
    client = sdk(await gateway_with({}))
    spoken = await client.audio.speech.create(
        model="demo-speech", voice="alloy", input="Hello there", response_format="wav"
    )
    assert spoken.content.startswith(b"RIFF")
    file = ("hello.wav", spoken.content)
    assert (await client.audio.transcriptions.create(model="demo-transcribe", file=file)).text == "Hello there"
    assert (await client.audio.translations.create(model="demo-transcribe", file=file)).text == "Hello there"
    stream = await client.audio.transcriptions.create(model="demo-transcribe", file=file, stream=True)
    assert [event async for event in stream][-1].text == "Hello there"  # type: ignore[union-attr]
    with pytest.raises(BadRequestError) as refused:
        await client.audio.speech.create(model="demo-speech", voice="alloy", input="x", response_format="mp3")
    assert refused.value.param == "response_format"
