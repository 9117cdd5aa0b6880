"""What the demo says is a sound whose length is known before it is made."""

import io
import struct
import wave

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.demo.sound import MAX_SECONDS, SAMPLE_RATE, Voice, plan_speech
from gateway.demo.wav import Recording, find_recording, write_head

HELLO = "Hello there, how are you today?"


def spoken(text: str, voice: str = "alloy", speed: float = 1.0) -> tuple[int, ...]:
    """The samples of a text."""
    speaker = Voice()
    data = b"".join(speaker.say(word) for word in plan_speech(text, voice, speed).words)
    return struct.unpack(f"<{len(data) // 2}h", data)


def recorded(text: str) -> bytes:
    speech, speaker = plan_speech(text, "alloy"), Voice()
    return write_head(speech.samples, speech.text) + b"".join(speaker.say(word) for word in speech.words)


def found(data: bytes) -> Recording | None:
    return find_recording(io.BytesIO(data), len(data))


def test_the_same_words_sound_the_same_and_others_do_not() -> None:
    sounds = [spoken(HELLO), spoken(HELLO, "echo"), spoken("Goodbye"), spoken("Goodbyes"), spoken(HELLO, speed=2)]
    assert spoken(HELLO) == sounds[0]
    assert len(set(sounds)) == len(sounds)


def test_it_can_be_heard_and_is_not_clipped() -> None:
    samples = spoken(HELLO)
    loudness = (sum(value * value for value in samples) / len(samples)) ** 0.5
    assert 500 < loudness < 9_000
    assert 4_000 < max(map(abs, samples)) < 20_000
    assert abs(sum(samples) / len(samples)) < 0.1 * loudness


def test_more_words_take_longer_and_more_speed_less() -> None:
    once, twice = plan_speech(HELLO, "alloy"), plan_speech(f"{HELLO} {HELLO}", "alloy")
    assert 1.8 < twice.samples / once.samples < 2.2
    assert 1.5 < once.samples / SAMPLE_RATE < 3.5
    for speed in (0.25, 0.5, 2.0, 4.0):
        assert plan_speech(HELLO, "alloy", speed).samples * speed == pytest.approx(once.samples, rel=0.12)


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=60), st.text(max_size=5), st.sampled_from([0.25, 1.0, 4.0]))
def test_any_text_is_as_long_as_planned(text: str, voice: str, speed: float) -> None:
    speech, speaker = plan_speech(text, voice, speed), Voice()
    assert all(len(speaker.say(word)) == 2 * word.samples for word in speech.words)
    assert speech.samples <= MAX_SECONDS * SAMPLE_RATE
    assert speech.text == text.strip()[: len(speech.text)]
    assert bool(speech.words) == bool(text.strip())


@pytest.mark.parametrize(
    "text", ["word " * 800, "\u8a71" * 4_000, "a" * 4_000], ids=["words", "no spaces", "one letter"]
)
def test_what_is_too_long_is_said_as_far_as_time_allows(text: str) -> None:
    speech = plan_speech(text, "alloy", 0.25)
    assert MAX_SECONDS - 12 < speech.samples / SAMPLE_RATE <= MAX_SECONDS
    assert text.startswith(speech.text)
    assert 0 < len(speech.text) < len(text) - 100


def test_a_recording_opens_in_any_player() -> None:
    data = recorded(HELLO)
    with wave.open(io.BytesIO(data)) as sound:
        assert sound.getparams()[:3] == (1, 2, SAMPLE_RATE)
        assert struct.unpack(f"<{sound.getnframes()}h", sound.readframes(1 << 30)) == spoken(HELLO)
    assert struct.unpack("<I", data[4:8])[0] == len(data) - 8


@pytest.mark.parametrize("text", [HELLO, "odd", "even", "Grüße, 世界!", "a\nb"])
def test_the_demo_hears_its_own_words(text: str) -> None:
    seconds = plan_speech(text, "alloy").samples / SAMPLE_RATE
    assert found(recorded(text)) == Recording(seconds, text)


def test_of_another_recording_it_hears_the_length() -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(44_100)
        sound.writeframes(bytes(4 * 66_150))
    assert found(file.getvalue()) == Recording(1.5)


def test_a_comment_of_somebody_else_is_not_what_was_said() -> None:
    assert found(recorded(HELLO).replace(b"demo-speech", b"some-editor")) == Recording(
        plan_speech(HELLO, "alloy").samples / SAMPLE_RATE
    )


def test_a_length_that_is_claimed_is_not_believed() -> None:
    """Encoders that stream do not know it, and write the largest there is."""
    head, rest = recorded(HELLO).split(b"data", 1)
    heard = found(head + b"data\xff\xff\xff\xff" + rest[4:])
    assert heard == found(recorded(HELLO))


def layout(*values: int) -> bytes:
    data = b"fmt " + struct.pack("<I", 16) + struct.pack("<HHIIHH", *values)
    return b"RIFF\0\0\0\0WAVE" + data + b"data" + struct.pack("<I", 8) + bytes(8)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF",
        b"ID3\4" + bytes(40),
        b"RIFF\0\0\0\0WAVE",
        b"RIFF\0\0\0\0WAVEdata\x04\0\0\0\0\0\0\0",
        b"RIFF\0\0\0\0WAVEfmt \x04\0\0\0\0\0\0\0data\0\0\0\0",
        b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 2_000,
        layout(1, 1, 1, 1, 1, 8),
        layout(1, 1, 8_000, 0, 1, 8),
        layout(1, 0, 8_000, 8_000, 1, 8),
        layout(1, 1, 8_000, 8_000, 0, 8),
        layout(1, 1, 0xFFFFFFFF, 1, 1, 8),
    ],
)
def test_what_is_no_recording_is_none(data: bytes) -> None:
    assert found(data) is None


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_are_a_recording_or_none(data: bytes, begun: bool) -> None:
    heard = found((b"RIFF\0\0\0\0WAVE" if begun else b"") + data)
    assert heard is None or 0 <= heard.seconds < 1


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_recording_is_heard_or_not(at: int, value: int) -> None:
    data = bytearray(recorded("Hi."))
    data[at] = value
    heard = found(bytes(data))
    assert heard is None or 0 <= heard.seconds <= len(data) / 1_000
