"""The demo's voice and ears as the real SDK, and a plain client, have them."""

import io
import time
import wave
from base64 import b64decode
from typing import Any

import aiohttp
import openai
import orjson
import pytest
from openai.types.audio import Transcription, TranscriptionTextDeltaEvent, TranscriptionVerbose, TranslationVerbose

from gateway.demo.server import DemoUpstream

TEXT = "Good morning. How are you today?"
SAY: Any = {"model": "demo-speech", "voice": "alloy", "input": TEXT}
HEAR: Any = {"model": "demo-transcribe"}
DEPRECATED = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the SDK's word on translations
FORMATS = ["json", "text", "verbose_json"]


@pytest.fixture
async def recording(sdk: openai.AsyncOpenAI) -> tuple[str, bytes]:
    return "good.wav", await (await sdk.audio.speech.create(**SAY)).aread()


def seconds_of(data: bytes) -> float:
    with wave.open(io.BytesIO(data)) as sound:
        return float(sound.getnframes() / sound.getframerate())


async def events(response: aiohttp.ClientResponse) -> list[Any]:
    assert (response.status, response.content_type) == (200, "text/event-stream")
    *events, rest = (await response.text()).split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: {") for event in events)
    return [orjson.loads(event.removeprefix("data: ")) for event in events]


@pytest.fixture
async def speech_url(demo: DemoUpstream) -> str:
    return f"{demo.base_url}/audio/speech"


async def test_a_text_is_spoken_as_wav_unless_something_else_is_asked_for(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.audio.speech.create(**SAY)
    assert reply.response.headers["Content-Type"] == "audio/wav"
    assert reply.response.headers["Transfer-Encoding"] == "chunked"
    wav = await reply.aread()
    assert 1.5 < seconds_of(wav) < 4
    raw = await sdk.audio.speech.create(**SAY, response_format="pcm")
    assert raw.response.headers["Content-Type"] == "audio/pcm"
    assert wav.endswith(await raw.aread())
    assert len(wav) - len(raw.content) == wav.index(b"data") + 8


async def test_a_text_can_be_streamed_to_a_file(sdk: openai.AsyncOpenAI) -> None:
    whole = await (await sdk.audio.speech.create(**SAY)).aread()
    async with sdk.audio.speech.with_streaming_response.create(**SAY, speed=1.0, instructions="Calmly") as reply:
        assert b"".join([piece async for piece in reply.iter_bytes()]) == whole


async def test_speech_can_come_in_events(plain: aiohttp.ClientSession, speech_url: str) -> None:
    async with plain.post(speech_url, json=SAY) as response:
        whole = await response.read()
    async with plain.post(speech_url, json={**SAY, "stream_format": "sse", "response_format": "wav"}) as response:
        *deltas, done = await events(response)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert len(deltas) == len(TEXT.split())
    assert b"".join(b64decode(event["audio"]) for event in deltas) == whole
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert usage == {
        "input_tokens": 6,
        "output_tokens": usage["output_tokens"],
        "total_tokens": 6 + usage["output_tokens"],
    }
    assert usage["output_tokens"] == pytest.approx(20 * seconds_of(whole), abs=1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "  "}, "input"),
        ({"input": ["a"]}, "input"),
        ({"input": "x" * 4_097}, "input"),
        ({"voice": None}, "voice"),
        ({"voice": {}}, "voice"),
        ({"voice": 3}, "voice"),
        ({"speed": 0.2}, "speed"),
        ({"speed": 4.1}, "speed"),
        ({"speed": True}, "speed"),
        ({"speed": "fast"}, "speed"),
        ({"instructions": 1}, "instructions"),
        ({"response_format": "ogg"}, "response_format"),
        ({"response_format": 1}, "response_format"),
        ({"stream_format": "raw"}, "stream_format"),
        *(({"response_format": other}, "response_format") for other in ("mp3", "opus", "aac", "flac")),
    ],
)
async def test_a_bad_field_is_named(
    plain: aiohttp.ClientSession, speech_url: str, fields: dict[str, Any], param: str
) -> None:
    async with plain.post(speech_url, json={**SAY, **fields}) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, param)


async def test_what_it_speaks_instead_is_told(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="speaks 'wav' and 'pcm', not 'mp3'"):
        await sdk.audio.speech.create(**SAY, response_format="mp3")


async def test_a_voice_may_be_one_of_somebodys_own(sdk: openai.AsyncOpenAI) -> None:
    own = await (await sdk.audio.speech.create(**{**SAY, "voice": {"id": "voice_1"}})).aread()
    assert own != await (await sdk.audio.speech.create(**SAY)).aread()


@DEPRECATED
async def test_other_models_neither_speak_nor_hear(sdk: openai.AsyncOpenAI, recording: Any) -> None:
    for attempt in (
        sdk.audio.speech.create(**{**SAY, "model": "demo-chat"}),
        sdk.audio.transcriptions.create(model="demo-speech", file=recording),
        sdk.audio.translations.create(model="whisper-1", file=recording),
    ):
        with pytest.raises(openai.NotFoundError):
            await attempt


async def test_the_demo_hears_what_it_said(sdk: openai.AsyncOpenAI, recording: Any) -> None:
    heard = await sdk.audio.transcriptions.create(**HEAR, file=recording)
    assert Transcription.model_validate(heard.model_dump()) == heard
    assert heard.text == TEXT
    assert heard.usage is not None
    assert heard.usage.type == "duration"
    assert seconds_of(recording[1]) <= heard.usage.seconds < seconds_of(recording[1]) + 1


async def test_of_another_sound_it_tells_what_it_can(sdk: openai.AsyncOpenAI) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8_000)
        sound.writeframes(b"\x80" * 18_000)
    heard = await sdk.audio.transcriptions.create(**HEAR, file=("a.wav", file.getvalue()))
    assert "2.2 seconds" in heard.text
    assert heard.usage is not None
    assert heard.usage.model_dump() == {"seconds": 3, "type": "duration"}
    heard = await sdk.audio.transcriptions.create(**HEAR, file=("a.mp3", b"ID3" + bytes(31_997)))
    assert "32000 bytes" in heard.text
    assert heard.usage is not None
    assert heard.usage.model_dump() == {"seconds": 2, "type": "duration"}


async def test_every_sentence_has_its_time(sdk: openai.AsyncOpenAI, recording: Any) -> None:
    heard = await sdk.audio.transcriptions.create(**HEAR, file=recording, response_format="verbose_json", language="en")
    assert TranscriptionVerbose.model_validate(heard.model_dump()) == heard
    assert (heard.text, heard.language, heard.duration) == (TEXT, "en", seconds_of(recording[1]))
    assert [segment.text for segment in heard.segments or []] == ["Good morning.", "How are you today?"]
    times = [time for one in heard.segments or [] for time in (one.start, one.end)]
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] == pytest.approx(heard.duration, abs=0.01)


async def test_a_transcript_can_be_streamed(sdk: openai.AsyncOpenAI, recording: Any) -> None:
    whole = await sdk.audio.transcriptions.create(**HEAR, file=recording)
    *deltas, done = [
        event async for event in await sdk.audio.transcriptions.create(**HEAR, file=recording, stream=True)
    ]
    assert [TranscriptionTextDeltaEvent.model_validate(event.model_dump()) for event in deltas] == deltas
    assert len(deltas) == 6
    assert "".join(getattr(event, "delta", "") for event in deltas) == TEXT
    assert done.type == "transcript.text.done"
    assert done.text == TEXT
    assert done.model_dump()["usage"].items() >= whole.model_dump()["usage"].items()


@DEPRECATED
async def test_a_translation_is_english(sdk: openai.AsyncOpenAI, recording: Any) -> None:
    assert (await sdk.audio.translations.create(**HEAR, file=recording)).text == TEXT
    heard = await sdk.audio.translations.create(**HEAR, file=recording, response_format="verbose_json")
    assert TranslationVerbose.model_validate(heard.model_dump()) == heard
    assert (heard.language, heard.text) == ("english", TEXT)
    with pytest.raises(openai.BadRequestError, match="response_format"):
        await sdk.audio.translations.create(**HEAR, file=recording, response_format="vtt")


@pytest.mark.parametrize(
    ("fields", "files", "param"),
    [
        ({}, [], "file"),
        ({"file": "text"}, [], "file"),
        ({}, [b""], "file"),
        ({}, [b"a", b"b"], "file"),
        ({"response_format": "mp3"}, [b"a"], "response_format"),
        ({"stream": "perhaps"}, [b"a"], "stream"),
        ({"model": ""}, [b"a"], "model"),
    ],
)
async def test_a_bad_recording_is_refused(
    plain: aiohttp.ClientSession, demo: DemoUpstream, fields: dict[str, str], files: list[bytes], param: str
) -> None:
    data = aiohttp.FormData({**HEAR, **fields}, default_to_multipart=True)
    for file in files:
        data.add_field("file", file, filename="a.wav")
    async with plain.post(f"{demo.base_url}/audio/transcriptions", data=data) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "data",
    [
        b"a",
        b"This is a text and no sound.",
        b"\x89PNG\r\n\x1a\n" + bytes(99),
        bytes(5_000),
        b"RIFF\0\0\0\0WAVE" + bytes(99),
    ],
    ids=["a byte", "a text", "an image", "zeros", "a head of WAV alone"],
)
@pytest.mark.parametrize("way", ["transcriptions", pytest.param("translations", marks=DEPRECATED)])
async def test_what_is_no_recording_is_refused_whatever_its_name(
    sdk: openai.AsyncOpenAI, data: bytes, way: str
) -> None:
    with pytest.raises(openai.BadRequestError, match="no recording") as caught:
        await getattr(sdk.audio, way).create(**HEAR, file=("speech.mp3", data, "audio/mpeg"))
    assert caught.value.param == "file"


@pytest.mark.parametrize(
    "head",
    [
        b"ID3\4\0",
        b"\xff\xfb\x90\x64",
        b"OggS",
        b"fLaC",
        b"\0\0\0\x18ftypM4A \0\0\0\0",
        b"\x1a\x45\xdf\xa3\x42\x82\x84webm",
    ],
)
async def test_every_usual_kind_of_recording_is_heard(sdk: openai.AsyncOpenAI, head: bytes) -> None:
    heard = await sdk.audio.transcriptions.create(**HEAR, file=("speech", head + bytes(400)))
    assert "only a real model can hear" in heard.text


@pytest.mark.parametrize("form", FORMATS)
async def test_every_form_has_its_media_type(
    plain: aiohttp.ClientSession, demo: DemoUpstream, recording: tuple[str, bytes], form: str
) -> None:
    data = aiohttp.FormData({**HEAR, "response_format": form})
    data.add_field("file", recording[1], filename="a.wav")
    async with plain.post(f"{demo.base_url}/audio/transcriptions", data=data) as response:
        assert response.content_type == ("application/json" if "json" in form else "text/plain")


async def test_speech_comes_word_by_word() -> None:
    """With a pace, the last of a few words cannot be there with the first."""
    upstream = DemoUpstream(pace_s=0.02)
    await upstream.start()
    async with (
        openai.AsyncOpenAI(base_url=upstream.base_url, api_key=upstream.api_key) as client,
        client.audio.speech.with_streaming_response.create(**SAY) as reply,
    ):
        arrivals = [time.monotonic() async for _ in reply.iter_bytes()]
    await upstream.stop()
    assert arrivals[-1] - arrivals[0] > 0.06
