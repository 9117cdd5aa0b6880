"""Sound: how long it is or may be, told from what is known of it, and how many tokens a model makes of it.

Lengths are milliseconds, rounded up, and never more than ``MAX_DURATION_MS``.
"""

import math
import re
import struct

from gateway.domain.usage import MAX_DURATION_MS

UNKNOWN_BITRATE = 16_000
"""Bits a second of a recording that nobody can read: the least at which Opus keeps speech in wideband (RFC 6716, 2.1.1:
16 to 20 kbit/s). What callers record is of a higher rate, and so it is hardly longer."""
LEAST_BITRATE = 1_000
"""Of a recording whose header says how long it is; silence takes as little. It is no longer, whatever it says."""
MOST_BITRATE = 10_000_000
"""Nor is it shorter than at this rate: 24 bits of two channels, 192,000 times a second."""

HEARD_TOKENS_A_MINUTE = 1_000
"""Of a recording: gpt-4o-transcribe is said to cost $0.006 a minute, at $6 per million tokens of sound
(developers.openai.com/api/docs/pricing, "Transcription and speech generation")."""
SPOKEN_TOKENS_A_MINUTE = 1_250
"""Of speech: gpt-4o-mini-tts is said to cost $0.015 a minute, at $12 per million tokens of sound (the same page)."""
SPOKEN_CHARACTERS_A_SECOND = 15
"""Of English, at its usual speed: 900 a minute, as speech is read out."""
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
_MP3_HEADER_BYTES = 4
_FIRST_VERSION = 0b11
_LAYER_THREE = 0b01


def read_length_ms(seconds: object) -> int | None:
    """Seconds as a provider said them, a number or one as text; None where they cannot be believed."""
    if isinstance(seconds, str):
        seconds = float(seconds) if _NUMBER.match(seconds) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not 0 <= seconds <= MAX_DURATION_MS / 1_000:  # of what is no number this is not true either
        return None
    return math.ceil(round(seconds * 1_000, 3))


def read_last_cue_ms(subtitles: str) -> int | None:
    """When the last of subtitles (SubRip or WebVTT) ends; None where they have none."""
    ends = [_read_clock(found.groups()[4:]) for found in _CUE.finditer(subtitles)]
    return min(max(ends), MAX_DURATION_MS) if ends else None


def _read_clock(parts: tuple[str | None, ...]) -> int:
    hours, minutes, seconds, millis = (int(part or 0) for part in parts)
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000 + millis


def bound_length_ms(size: int) -> int:
    """What a recording of ``size`` bytes hardly exceeds, where nobody can say how long it is."""
    return _time(size, UNKNOWN_BITRATE)


def fit_length_ms(seconds: float, size: int) -> int | None:
    """What a file of ``size`` bytes says of its length, within what is possible; None where it says nothing."""
    if not seconds > 0 or not math.isfinite(seconds):
        return None
    told = math.ceil(min(seconds, MAX_DURATION_MS) * 1_000)
    return min(max(told, _time(size, MOST_BITRATE)), _time(size, LEAST_BITRATE))


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


def find_speech_ms(head: bytes, size: int, kind: str) -> int | None:
    """How long ``size`` bytes of speech in the format ``kind`` sound, by the first of them; None: they do not tell."""
    if kind == "pcm":
        rate = PCM_BYTES_A_SECOND
    elif head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        # Streamed, its sizes are not known when its header is written: they are no number of bytes.
        rate, size = int.from_bytes(head[28:32], "little"), max(size - _WAV_HEADER_BYTES, 0)
    else:
        rate = _read_mp3_rate(head)
    return min(-(-size * 1_000 // rate), MAX_DURATION_MS) if rate else None


def _read_mp3_rate(head: bytes) -> int:
    """Bytes a second of an MP3 by its first frame; 0 where it is none."""
    if len(head) < _MP3_HEADER_BYTES or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:  # noqa: PLR2004 - eleven ones
        return 0
    version, layer, index = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4
    rates = _MP3_BITRATES[1 if version == _FIRST_VERSION else 2]
    return rates[index] * 125 if layer == _LAYER_THREE and index < len(rates) else 0


OGG_MARK = b"OggS"
"""What a page of Ogg begins with (RFC 3533, 6)."""
OGG_PAGE_BYTES = 27
_OPUS_RATE = 48_000
_NO_PACKET_ENDS = 2**64 - 1


def read_ogg_page(page: bytes) -> tuple[int, int] | None:
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
    return float(ticks) * _read_scale(head)


def read_cluster_seconds(head: bytes, cluster: bytes) -> float | None:
    """When a cluster of a WebM file begins; None where it is none."""
    found = _CLUSTER.match(cluster)
    if found is None:
        return None
    return int.from_bytes(next(filter(None, found.groups()), b""), "big") * _read_scale(head)


def _read_scale(head: bytes) -> float:
    """Seconds in one tick of a WebM file."""
    found = _SCALE.search(head[:_INFO_BYTES])
    return (int.from_bytes(found[1], "big") if found else _USUAL_SCALE) / 1e9
