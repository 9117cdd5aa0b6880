"""The real SDK speaks and is heard through the gateway."""

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, InternalServerError

from gateway.domain.request import RequestRow
from tests.conftest import StartGateway
from tests.e2e.conftest import MakeClient
from tests.fakes.gateway import RunningGateway
from tests.fakes.openai_audio import SEGMENTS, SOUND_TYPES, SRT, TEXT, VTT, OpenAiAudio, make_wav, speak

pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
"""What the library says of calls that its vendor will end one day."""
WAV = make_wav(5.0)
PRICES = [{"model": "m", "usd_per_second": 0.001, "usd_per_million_characters": 15, "output_usd_per_million": 12}]


async def begin(gateway_with: StartGateway, *providers: OpenAiAudio, **more: Any) -> RunningGateway:
    """A gateway in front of ``providers``, tried in their order."""
    declared = [one.channel(f"up{number}", priority=-number, **more) for number, one in enumerate(providers)]
    return await gateway_with({"channel": declared, "price": PRICES})


async def only_row(gateway: RunningGateway) -> RequestRow:
    (row,) = await gateway.rows(1)
    return row


async def test_a_recording_becomes_text(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio() as up:
        gateway = await begin(gateway_with, up)
        made = await sdk(gateway).audio.transcriptions.create(
            model="m", file=WAV, language="en", temperature=0, include=["logprobs"], chunking_strategy="auto"
        )
        assert (made.text, made.usage and made.usage.type) == (TEXT, "tokens")
        (heard,) = up.sounds
        assert (heard.file, heard.media_type) == (WAV, "audio/wav")
        assert heard.fields == {
            "model": up.model, "language": "en", "temperature": "0.0", "include[]": ["logprobs"],
            "chunking_strategy": "auto",
        }  # fmt: skip
        row = await only_row(gateway)
    assert (row.operation, row.prompt_tokens, row.completion_tokens, row.duration_ms) == (
        "transcriptions",
        55,
        7,
        5_000,
    )
    assert (row.usage_source, row.cost_nanos) == ("upstream", 5_000_000 + 7 * 12_000)


@pytest.mark.parametrize(("kind", "text"), [("text", f"{TEXT}\n"), ("srt", SRT), ("vtt", VTT)])
async def test_every_format_of_text_is_text(gateway_with: StartGateway, sdk: MakeClient, kind: Any, text: str) -> None:
    async with OpenAiAudio(reports="nothing") as up:
        gateway = await begin(gateway_with, up)
        for audio in (sdk(gateway).audio.transcriptions, sdk(gateway).audio.translations):
            raw = await audio.with_raw_response.create(model="m", file=("a.wav", WAV), response_format=kind)
            assert raw.headers["content-type"] == "text/plain; charset=utf-8"
            assert raw.parse() == text
        rows = await gateway.rows(2)
    assert [(row.operation, row.duration_ms) for row in rows] == [("transcriptions", 5_000), ("translations", 5_000)]
    assert {row.usage_source for row in rows} == {"estimate"}


async def test_words_segments_and_speakers_arrive(gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(WAV)
    async with OpenAiAudio(reports="duration") as up:
        client = sdk(await begin(gateway_with, up))
        verbose = await client.audio.transcriptions.create(
            model="m", file=path, response_format="verbose_json", timestamp_granularities=["word", "segment"]
        )
        assert (verbose.text, verbose.duration, len(verbose.segments or ())) == (TEXT, 3.25, len(SEGMENTS))
        assert up.sounds[0].fields["timestamp_granularities[]"] == ["word", "segment"]
        assert up.sounds[0].filename == "a.wav"
        told = await client.audio.transcriptions.create(
            model="m",
            file=io.BytesIO(WAV),
            response_format="diarized_json",
            known_speaker_names=["A"],
            known_speaker_references=["data:audio/wav;base64,AAAA"],
            chunking_strategy={"type": "server_vad", "prefix_padding_ms": 300},
        )
        assert [segment.speaker for segment in told.segments] == ["A", "A"]
        assert up.sounds[1].fields["chunking_strategy[prefix_padding_ms]"] == "300"
        translated = await client.audio.translations.create(model="m", file=path, response_format="verbose_json")
        assert translated.language == "english"


@pytest.mark.parametrize("streams", [True, False])
async def test_a_transcript_streams_whether_or_not_its_provider_does(
    gateway_with: StartGateway, sdk: MakeClient, *, streams: bool
) -> None:
    async with OpenAiAudio(streams=streams) as up:
        gateway = await begin(gateway_with, up)
        stream = await sdk(gateway).audio.transcriptions.create(
            model="m", file=WAV, response_format="text", stream=True
        )
        events = [event async for event in stream]
        row = await only_row(gateway)
    assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (3 if streams else 1)
    last = events[-1]
    assert last.type == "transcript.text.done"
    assert last.text == TEXT == "".join(event.delta for event in events[:-1] if event.type == "transcript.text.delta")
    assert last.usage is not None
    assert (row.stream, row.prompt_tokens, row.duration_ms, row.ending) == (True, 55, 5_000, "completed")


@pytest.mark.parametrize("kind", SOUND_TYPES)
async def test_speech_leaves_byte_for_byte(gateway_with: StartGateway, sdk: MakeClient, kind: Any) -> None:
    async with OpenAiAudio() as up:
        gateway = await begin(gateway_with, up)
        made = await sdk(gateway).audio.speech.create(
            model="m", voice="alloy", input="Guten Tag.", response_format=kind, speed=1.5
        )
        assert made.content == speak(kind)
        assert made.response.headers["content-type"] == SOUND_TYPES[kind]
        assert up.sounds[0].fields["speed"] == 1.5
        row = await only_row(gateway)
    assert (row.operation, row.characters, row.ending) == ("speech", 10, "completed")
    assert row.cost_nanos >= 10 * 15_000


async def test_speech_is_heard_while_it_is_made(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio() as up:
        client: AsyncOpenAI = sdk(await begin(gateway_with, up))
        asked = client.audio.speech.with_streaming_response.create(model="m", voice={"id": "v"}, input="hi")
        async with asked as response:
            pieces = [piece async for piece in response.iter_bytes(1_024)]
        assert b"".join(pieces) == speak("mp3")


async def test_speech_in_events_is_passed_on(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio() as up:
        gateway = await begin(gateway_with, up)
        made = await sdk(gateway).audio.speech.create(
            model="m", voice="alloy", input="hi", response_format="wav", stream_format="sse"
        )
        events = [orjson.loads(event.removeprefix(b"data: ")) for event in made.content.split(b"\n\n") if event]
        assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == speak("wav")
        assert events[-1]["type"] == "speech.audio.done"
        row = await only_row(gateway)
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (6, 40, "upstream")


async def test_a_provider_that_fails_is_not_heard_of_where_another_answers(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    """The file is sent again, whole."""
    async with OpenAiAudio("fail") as bad, OpenAiAudio() as good:
        gateway = await begin(gateway_with, bad, good)
        client = sdk(gateway)
        assert (await client.audio.transcriptions.create(model="m", file=WAV)).text == TEXT
        assert (await client.audio.speech.create(model="m", voice="a", input="hi")).content == speak("mp3")
        assert good.sounds[0].file == WAV
        assert {row.attempts for row in await gateway.rows(2)} == {2}


async def test_what_fails_costs_nothing(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio("fail") as up:
        gateway = await begin(gateway_with, up)
        client = sdk(gateway)
        with pytest.raises(InternalServerError):
            await client.audio.transcriptions.create(model="m", file=WAV)
        with pytest.raises(InternalServerError):
            await client.audio.speech.create(model="m", voice="a", input="hi")
        assert {row.cost_nanos for row in await gateway.rows(2)} == {0}


async def test_speech_that_breaks_off_breaks_off_for_the_caller(gateway_with: StartGateway, sdk: MakeClient) -> None:
    """There is no place for an error in sound: what ended cleanly would pass for whole."""
    async with OpenAiAudio(cut=True) as up:
        gateway = await begin(gateway_with, up)
        with pytest.raises(Exception, match=r"(?i)peer closed|incomplete|disconnect|connection"):
            await sdk(gateway).audio.speech.create(model="m", voice="a", input="hi", response_format="wav")
        row = await only_row(gateway)
    assert row.ending == "upstream_failed"


@pytest.mark.parametrize(
    ("change", "param"),
    [({"file": b""}, "file"), ({"response_format": "xml"}, "response_format"), ({"temperature": 2}, "temperature")],
)
async def test_what_nobody_takes_is_refused_before_anything_is_spent(
    gateway_with: StartGateway, sdk: MakeClient, change: dict[str, Any], param: str
) -> None:
    async with OpenAiAudio() as up:
        gateway = await begin(gateway_with, up)
        with pytest.raises(BadRequestError) as caught:
            await sdk(gateway).audio.transcriptions.create(**{"model": "m", "file": WAV, **change})
        assert caught.value.param == param
        assert up.requests == []


async def test_a_quota_is_held_for_the_length_of_a_recording(gateway_with: StartGateway, sdk: MakeClient) -> None:
    async with OpenAiAudio() as up:
        declared = {"channel": [up.channel()], "price": PRICES, "account": [{"name": "acme", "quota_usd": 0.06}]}
        gateway = await gateway_with(declared)
        client = sdk(gateway)
        with pytest.raises(APIStatusError) as caught:
            await client.audio.transcriptions.create(model="m", file=make_wav(60.0))
        assert caught.value.code == "insufficient_quota"
        assert up.requests == []
        assert (await client.audio.transcriptions.create(model="m", file=WAV)).text == TEXT


async def test_many_at_once_are_all_heard(gateway_with: StartGateway, sdk: MakeClient) -> None:
    """More than there are threads to listen in."""
    async with OpenAiAudio() as up:
        client = sdk(await begin(gateway_with, up))
        asked = [client.audio.transcriptions.create(model="m", file=WAV + bytes([n])) for n in range(30)]
        assert [one.text for one in await asyncio.gather(*asked)] == [TEXT] * 30
        assert {sound.file for sound in up.sounds} == {WAV + bytes([n]) for n in range(30)}
