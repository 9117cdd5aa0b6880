"""Sound: how long it is or may be, told from what is known of it, and how many tokens a model makes of it.

Lengths are milliseconds, rounded up, and never more than ``MAX_DURATION_MS``.

What a recording's headers say is its sender's word, and the sender pays by it: it is believed within what its bytes
can hold, and where they can be looked at, within what its frames say. Money is held for the longer of all of them.
"""

import math
import re
import struct

import attrs

from gateway.domain.usage import MAX_DURATION_MS

UNKNOWN_BITRATE = 16_000
"""Bits a second of a recording that nobody can read: the least at which Opus keeps speech in wideband (RFC 6716, 2.1.1:
16 to 20 kbit/s). What callers record is of a higher rate, and so it is hardly longer."""
LEAST_BITRATE = 1_000
"""Of any recording; silence takes as little. It is no longer, whoever says so."""
MOST_BITRATE = 10_000_000
"""Nor is it shorter than at this rate: 24 bits of two channels, 192,000 times a second."""
LOSSY_BITRATE = 512_000
"""What sound that is compressed with loss does not exceed: Opus has 510 kbit/s (RFC 6716, 2.1.1), AAC 576 at 48,000
samples a second, of which encoders use 320."""
MP3_BITRATE = 320_000
"""The highest of MPEG-1's layer III (ISO/IEC 11172-3, 2.4.2.3)."""
USUAL_BITRATE = 128_000
"""What a recording of sound alone hardly exceeds, as telephones and browsers make them."""
TRUST = 2
"""So many times as long as told may the frames that were looked at sound: they are a sample."""

HEARD_TOKENS_A_MINUTE = 1_000
"""Of a recording: gpt-4o-transcribe is said to cost $0.006 a minute, at $6 per million tokens of sound
(developers.openai.com/api/docs/pricing, "Transcription and speech generation")."""
SPOKEN_TOKENS_A_MINUTE = 1_250
"""Of speech: gpt-4o-mini-tts is said to cost $0.015 a minute, at $12 per million tokens of sound (the same page)."""
SPOKEN_CHARACTERS_A_SECOND = 15
"""Of English, at its usual speed: 900 a minute, as speech is read out."""
SPEECH_SLACK = 16
"""Speech is no longer than so many times its estimate: four times for a script that has a syllable in each letter, and
four for a speaker who is as slow as can be asked for."""
SHORT_SPEECH_MS = 10_000
"""Nor is it any longer than this, for a text that is short: nobody counts its pauses."""
SPOKEN_TOKENS_A_BYTE = 2
"""What a text hardly exceeds when it is spoken. English takes 1.4; a letter that says more has more bytes."""

_MINUTE_MS = 60_000
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?\Z", re.ASCII)
_TIMESTAMP = re.compile(r"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.,](\d{3})", re.ASCII)
_CUE = re.compile(rf"{_TIMESTAMP.pattern}[ \t]*-->[ \t]*{_TIMESTAMP.pattern}", re.ASCII)

PCM_BYTES_A_SECOND = 48_000
"""Raw samples as the convention has them: 24,000 a second, 16 bits each, one channel
(developers.openai.com/api/docs/guides/text-to-speech, "Supported output formats")."""
_MP3_BITRATES = {
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Kilobits a second of layer III, by the version of MPEG (ISO/IEC 11172-3 and 13818-3)."""
_WAV_HEADER_BYTES = 44
_LEAST_WAV_RATE = 1_000
"""Bytes a second of speech as WAV. Telephones have 8,000: a header that says less says nothing."""
_MP3_HEADER_BYTES = 4
_FIRST_VERSION = 0b11
_LAYER_THREE = 0b01


def parse_length_ms(seconds: object) -> int | None:
    """Seconds as a provider said them, a number or one as text; None where they cannot be believed."""
    if isinstance(seconds, str):
        seconds = float(seconds) if _NUMBER.match(seconds) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not 0 <= seconds <= MAX_DURATION_MS / 1_000:  # of what is no number this is not true either
        return None
    return math.ceil(round(seconds * 1_000, 3))


def parse_last_cue_ms(subtitles: str) -> int | None:
    """When the last of subtitles (SubRip or WebVTT) ends; None where they have none."""
    ends = [_parse_clock(found.groups()[4:]) for found in _CUE.finditer(subtitles)]
    return min(max(ends), MAX_DURATION_MS) if ends else None


def _parse_clock(parts: tuple[str | None, ...]) -> int:
    hours, minutes, seconds, millis = (int(part or 0) for part in parts)
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000 + millis


def bound_length_ms(size: int) -> int:
    """What a recording of ``size`` bytes hardly exceeds, where nobody can say how long it is."""
    return _time(size, UNKNOWN_BITRATE)


@attrs.frozen
class Length:
    """How long a recording is, as far as anybody can tell before it has been heard.

    Attributes:
        believed_ms: for what it is taken where its provider does not say; None: nobody can tell.
        bound_ms: what it hardly exceeds, which money is held for; not below the other.
    """

    believed_ms: int | None
    bound_ms: int


@attrs.frozen
class Ceiling:
    """Bits a second that a format does not exceed, and those that its recordings hardly exceed."""

    highest: int
    usual: int


def weigh_length(told_s: float | None, seen_s: float | None, size: int, ceiling: Ceiling) -> Length:
    """How long ``size`` bytes are of which a header tells ``told_s`` and the frames that were seen ``seen_s``.

    None: it does not tell, or nobody looked. Where somebody looked and saw none, what it tells is not believed.
    """
    if told_s is None or not told_s > 0 or not math.isfinite(told_s) or seen_s == 0:
        return Length(None, bound_length_ms(size))
    seen_s = seen_s or 0.0
    longest_ms = limit_length_ms(size)
    told_ms, seen_ms = _parse_seconds(told_s), _parse_seconds(seen_s)
    believed_ms = max(told_ms if seen_ms <= told_ms * TRUST else seen_ms, _time(size, ceiling.highest))
    bound_ms = max(believed_ms, seen_ms, _time(size, ceiling.usual))
    return Length(min(believed_ms, longest_ms), min(bound_ms, longest_ms))


def _parse_seconds(seconds: float) -> int:
    return math.ceil(min(seconds, MAX_DURATION_MS) * 1_000)


def limit_length_ms(size: int) -> int:
    """What ``size`` bytes of sound cannot exceed, whoever says so."""
    return _time(size, LEAST_BITRATE)


def floor_length_ms(size: int) -> int:
    """What a recording of ``size`` bytes hardly falls below, where nobody can read it."""
    return _time(size, LOSSY_BITRATE)


def _time(size: int, bitrate: int) -> int:
    return min(-(-size * 8_000 // bitrate), MAX_DURATION_MS)


def count_heard_tokens(length_ms: int) -> int:
    """Tokens of a recording, rounded up."""
    return -(-length_ms * HEARD_TOKENS_A_MINUTE // _MINUTE_MS)


def count_spoken_tokens(length_ms: int) -> int:
    """Tokens of speech, rounded up."""
    return -(-length_ms * SPOKEN_TOKENS_A_MINUTE // _MINUTE_MS)


def bound_spoken_tokens(text_bytes: int, speed: float) -> int:
    """Tokens that a text of that many bytes (UTF-8) hardly exceeds, spoken; slowed down it has more."""
    return math.ceil(text_bytes * SPOKEN_TOKENS_A_BYTE / min(max(speed, 0.25), 1.0))


def estimate_speech_ms(characters: int, speed: float) -> int:
    """How long a text takes to be said."""
    return min(math.ceil(characters * 1_000 / SPOKEN_CHARACTERS_A_SECOND / max(speed, 0.25)), MAX_DURATION_MS)


def bound_speech_ms(estimate_ms: int) -> int:
    """What speech does not exceed, whatever its header says, by ``estimate_speech_ms`` of its text."""
    return min(max(estimate_ms * SPEECH_SLACK, SHORT_SPEECH_MS), MAX_DURATION_MS)


def find_speech_ms(head: bytes, size: int, kind: str) -> int | None:
    """How long ``size`` bytes of speech in the format ``kind`` sound, by the first of them; None: they do not tell."""
    if kind == "pcm":
        rate = PCM_BYTES_A_SECOND
    elif head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        # Streamed, its sizes are not known when its header is written: they are no number of bytes.
        told, size = int.from_bytes(head[28:32], "little"), max(size - _WAV_HEADER_BYTES, 0)
        rate = max(told, _LEAST_WAV_RATE) if told else 0
    else:
        rate = _parse_mp3_rate(head)
    return min(-(-size * 1_000 // rate), MAX_DURATION_MS) if rate else None


def _parse_mp3_rate(head: bytes) -> int:
    """Bytes a second of an MP3 by its first frame; 0 where it is none."""
    if len(head) < _MP3_HEADER_BYTES or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:  # noqa: PLR2004 - eleven ones
        return 0
    version, layer, index = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4
    rates = _MP3_BITRATES[1 if version == _FIRST_VERSION else 2]
    return rates[index] * 125 if layer == _LAYER_THREE and index < len(rates) else 0


_WAV_STARTS = (b"RIFF", b"RF64", b"BW64")
_WAV_PLAIN = (1, 3, 6, 7)
_WAV_EXTENSIBLE = 0xFFFE
_WAV_FORMAT_BYTES = 16


def is_wav(head: bytes) -> bool:
    """Whether a file is WAV, or of its successors for long recordings (EBU Tech 3306, ITU-R BS.2088)."""
    return head[:4] in _WAV_STARTS and head[8:12] == b"WAVE"


def find_wav_seconds(head: bytes, size: int) -> float | None:
    """How long a WAV file of ``size`` bytes is by the rate of its samples, at which it is played; None: no idea.

    What its header says of bytes is not looked at: decoders go on behind the end that it tells. Plain samples only:
    integers, floats, A-law and mu-law (RFC 2361).
    """
    at, rate = 12, 0
    while at + 8 <= len(head):
        kind, length = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
        at += 8
        if kind == b"data":
            break
        if kind == b"fmt " and not rate:
            rate = _parse_wav_rate(head[at : at + length])
        at += length + length % 2
    return max(size - at, 0) / rate if rate else None


def _parse_wav_rate(told: bytes) -> int:
    """Bytes a second; 0 where they are not plain samples."""
    if len(told) < _WAV_FORMAT_BYTES:
        return 0
    tag, channels, samples, _, block, bits = struct.unpack("<HHIIHH", told[:_WAV_FORMAT_BYTES])
    if tag == _WAV_EXTENSIBLE:
        tag = int.from_bytes(told[24:26], "little")
    width = channels * -(-bits // 8)
    return samples * min(width, block or width) if tag in _WAV_PLAIN else 0


OGG_MARK = b"OggS"
"""What a page of Ogg begins with (RFC 3533, 6)."""
OGG_PAGE_BYTES = 27
_OPUS_RATE = 48_000
_NO_PACKET_ENDS = 2**64 - 1


def parse_ogg_page(page: bytes) -> tuple[int, int] | None:
    """Where the sound of a page's stream ends (samples), and which stream it is; None where it says nothing of it."""
    if len(page) < OGG_PAGE_BYTES or not page.startswith(OGG_MARK) or page[4]:
        return None
    position = int.from_bytes(page[6:14], "little")
    return None if position == _NO_PACKET_ENDS else (position, int.from_bytes(page[14:18], "little"))


def find_ogg_rate(head: bytes) -> tuple[int, int] | None:
    """Samples a second of a file in Ogg by its first page, and how many of them come before the sound; None: no idea.

    Opus (RFC 7845, 5.1) and Vorbis (Vorbis I, 4.2.2).
    """
    if len(head) <= OGG_PAGE_BYTES:
        return None
    packet = head[OGG_PAGE_BYTES + head[26] :][:30]
    if packet.startswith(b"OpusHead"):
        return _OPUS_RATE, int.from_bytes(packet[10:12], "little")
    rate = int.from_bytes(packet[12:16], "little") if packet.startswith(b"\x01vorbis") else 0
    return (rate, 0) if rate else None


WEBM_HEAD = b"\x1a\x45\xdf\xa3"
"""What Matroska and WebM begin with: an EBML header (RFC 8794, 8.1)."""
WEBM_MARK = b"\x1f\x43\xb6\x75"
"""What a cluster of theirs begins with (RFC 9559, 5.1.3)."""
_INFO_BYTES = 1_024
_DURATION = re.compile(rb"\x44\x89(?:\x84(.{4})|\x88(.{8}))", re.DOTALL)
_SCALE = re.compile(rb"\x2a\xd7\xb1\x83(.{3})", re.DOTALL)
_CLUSTER = re.compile(rb"\x1f\x43\xb6\x75(?:[\x80-\xff]|[\x40-\x7f].|[\x20-\x3f].{2}|[\x10-\x1f].{3}|\x01.{7})"
                      rb"\xe7(?:\x81(.)|\x82(.{2})|\x83(.{3})|\x84(.{4}))", re.DOTALL)  # fmt: skip
_USUAL_SCALE = 1_000_000
CLUSTER_BYTES = 32
"""More than a cluster's beginning takes, up to its time."""


def find_webm_seconds(head: bytes) -> float | None:
    """What a WebM file says of its length; None for a recording that was written as it was made."""
    found = _DURATION.search(head[:_INFO_BYTES])
    if found is None:
        return None
    (ticks,) = struct.unpack(">f", found[1]) if found[1] else struct.unpack(">d", found[2])
    return float(ticks) * _parse_scale(head)


def parse_cluster_seconds(head: bytes, cluster: bytes) -> float | None:
    """When a cluster of a WebM file begins; None where it is none."""
    found = _CLUSTER.match(cluster)
    if found is None:
        return None
    return int.from_bytes(next(filter(None, found.groups()), b""), "big") * _parse_scale(head)


def _parse_scale(head: bytes) -> float:
    """Seconds in one tick of a WebM file."""
    found = _SCALE.search(head[:_INFO_BYTES])
    return (int.from_bytes(found[1], "big") if found else _USUAL_SCALE) / 1e9
