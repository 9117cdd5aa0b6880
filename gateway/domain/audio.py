"""Audio: the known or estimated length of recordings and speech, and their tokens.

Durations in milliseconds are rounded up, and at most ``MAX_DURATION_MS``. The headers of a recording come from the
client, who pays by its duration. So a header is believed only within what the file's size allows and, if its frames
can be read, within what they say. The reservation covers the longest of these durations.
"""

import math
import re
import struct

from gateway.domain.usage import MAX_DURATION_MS
from gateway.frozen import frozen

ASSUMED_BITRATE = 16_000
"""Bits per second of an unreadable recording: the lowest rate at which Opus keeps wideband speech (RFC 6716, 2.1.1: 16
to 20 kbit/s). Real recordings have higher rates, so they are rarely longer than this estimate."""
MIN_BITRATE = 1_000
"""The lowest plausible bits per second of a recording; silence needs as little."""
MAX_BITRATE = 10_000_000
"""The highest plausible bits per second: 24 bits, two channels, 192,000 samples per second."""
LOSSY_BITRATE = 512_000
"""Upper limit of lossy formats: Opus has 510 kbit/s (RFC 6716, 2.1.1), AAC 576 at 48,000 samples a second, of which
encoders use 320."""
MP3_BITRATE = 320_000
"""The highest rate of MPEG-1 layer III (ISO/IEC 11172-3, 2.4.2.3)."""
TYPICAL_BITRATE = 128_000
"""Bits per second that recordings of phones and browsers rarely exceed."""
TRUSTED_FACTOR = 2
"""The maximum ratio of the sampled frames' duration to the header's, above which the header is distrusted."""

AUDIO_TOKENS_PER_MINUTE = 1_000
"""Estimate for a recording: gpt-4o-transcribe costs about $0.006 a minute at $6 per million audio tokens
(developers.openai.com/api/docs/pricing, "Transcription and speech generation")."""
SPOKEN_TOKENS_PER_MINUTE = 1_250
"""Estimate for speech: gpt-4o-mini-tts costs about $0.015 a minute at $12 per million audio tokens (the same page)."""
SPOKEN_CHARACTERS_PER_SECOND = 15
"""The usual speed of spoken English: 900 characters per minute."""
MAX_SPEECH_FACTOR = 16
"""The maximum ratio of speech to its estimate: a factor of four for a script with a syllable per letter, times four for
the slowest speed."""
SHORT_SPEECH_MS = 10_000
"""The minimum of ``bound_speech_ms``, because the estimate leaves out the pauses of a short text."""
SPOKEN_TOKENS_PER_BYTE = 2
"""Tokens per byte of text that speech rarely exceeds. English takes 1.4; letters that take longer to speak have more
bytes."""

_MINUTE_MS = 60_000
_NUMBER_PATTERN = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,20})?\Z", re.ASCII)
_TIMESTAMP_PATTERN = re.compile(r"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[.,](\d{3})", re.ASCII)
_CUE_PATTERN = re.compile(rf"{_TIMESTAMP_PATTERN.pattern}[ \t]*-->[ \t]*{_TIMESTAMP_PATTERN.pattern}", re.ASCII)

PCM_BYTES_PER_SECOND = 48_000
"""Raw samples of the OpenAI API: 24,000 a second, 16 bits, one channel
(developers.openai.com/api/docs/guides/text-to-speech, "Supported output formats")."""
_MP3_BITRATES = {
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Kilobits per second of layer III, by MPEG version (ISO/IEC 11172-3 and 13818-3)."""
_WAV_HEADER_BYTES = 44
_MIN_WAV_BYTES_PER_SECOND = 1_000
"""Least plausible bytes per second of a WAV header. Telephones have 8,000."""
_MP3_HEADER_BYTES = 4
_FIRST_VERSION = 0b11
_LAYER_THREE = 0b01


def parse_length_ms(seconds: object) -> int | None:
    """Convert seconds, a number or text, to milliseconds. Return None if they are not plausible."""
    if isinstance(seconds, str):
        seconds = float(seconds) if _NUMBER_PATTERN.match(seconds) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not 0 <= seconds <= MAX_DURATION_MS / 1_000:  # also for NaN
        return None
    return math.ceil(round(seconds * 1_000, 3))


def parse_last_cue_ms(subtitles: str) -> int | None:
    """Return when the last cue of subtitles (SubRip or WebVTT) ends, in ms; None without a cue."""
    end_times_ms = [_parse_clock(match.groups()[4:]) for match in _CUE_PATTERN.finditer(subtitles)]
    return min(max(end_times_ms), MAX_DURATION_MS) if end_times_ms else None


def _parse_clock(groups: tuple[str | None, ...]) -> int:
    hours, minutes, seconds, millis = (int(group or 0) for group in groups)
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000 + millis


def bound_length_ms(size: int) -> int:
    """Return the duration that an unreadable recording of ``size`` bytes rarely exceeds, in milliseconds."""
    return _compute_ms(size, ASSUMED_BITRATE)


@frozen
class Length:
    """The length of a recording, as far as it is known before a provider has transcribed the recording.

    ``believed_ms`` is charged if the provider reports no duration; None if unknown. ``bound_ms`` is reserved, and is at
    least ``believed_ms``.
    """

    believed_ms: int | None
    bound_ms: int


@frozen
class BitrateCeiling:
    """The bits per second that a format cannot exceed, and those that its recordings rarely exceed."""

    highest: int
    usual: int


def estimate_length(header_s: float | None, seen_s: float | None, size: int, ceiling: BitrateCeiling) -> Length:
    """Estimate the length of ``size`` bytes of audio from the header's duration and the sampled frames' duration.

    If ``header_s`` is None, the header has no duration. If ``seen_s`` is None, the frames were not read; 0 means no
    frame was found, so the header is not believed.
    """
    if header_s is None or not header_s > 0 or not math.isfinite(header_s) or seen_s == 0:
        return Length(None, bound_length_ms(size))
    seen_s = seen_s or 0.0
    max_length_ms = limit_length_ms(size)
    header_ms, seen_ms = _convert_to_ms(header_s), _convert_to_ms(seen_s)
    believed_ms = max(
        header_ms if seen_ms <= header_ms * TRUSTED_FACTOR else seen_ms, _compute_ms(size, ceiling.highest)
    )
    bound_ms = max(believed_ms, seen_ms, _compute_ms(size, ceiling.usual))
    return Length(min(believed_ms, max_length_ms), min(bound_ms, max_length_ms))


def _convert_to_ms(seconds: float) -> int:
    return math.ceil(min(seconds, MAX_DURATION_MS) * 1_000)


def limit_length_ms(size: int) -> int:
    """Return the longest duration that ``size`` bytes can have."""
    return _compute_ms(size, MIN_BITRATE)


def compute_min_ms(size: int) -> int:
    """Return the duration that an unreadable recording of ``size`` bytes rarely falls below."""
    return _compute_ms(size, LOSSY_BITRATE)


def _compute_ms(size: int, bitrate: int) -> int:
    return min(-(-size * 8_000 // bitrate), MAX_DURATION_MS)


def count_audio_tokens(length_ms: int) -> int:
    """Estimate the tokens of a recording by its length, rounded up."""
    return -(-length_ms * AUDIO_TOKENS_PER_MINUTE // _MINUTE_MS)


def count_spoken_tokens(length_ms: int) -> int:
    """Estimate the tokens of speech by its length, rounded up."""
    return -(-length_ms * SPOKEN_TOKENS_PER_MINUTE // _MINUTE_MS)


def bound_spoken_tokens(text_bytes: int, speed: float) -> int:
    """Return the tokens that speech of a text (in UTF-8 bytes) rarely exceeds. Slow speech has more."""
    return math.ceil(text_bytes * SPOKEN_TOKENS_PER_BYTE / min(max(speed, 0.25), 1.0))


def estimate_speech_ms(characters: int, speed: float) -> int:
    """Return the usual duration of ``characters`` of text when spoken."""
    return min(math.ceil(characters * 1_000 / SPOKEN_CHARACTERS_PER_SECOND / max(speed, 0.25)), MAX_DURATION_MS)


def bound_speech_ms(estimate_ms: int) -> int:
    """Return the longest believable duration of speech whose estimate is ``estimate_ms``."""
    return min(max(estimate_ms * MAX_SPEECH_FACTOR, SHORT_SPEECH_MS), MAX_DURATION_MS)


def find_speech_ms(head: bytes, size: int, kind: str) -> int | None:
    """Return the duration of ``size`` bytes of speech in format ``kind`` by its first bytes; None if unknown."""
    if kind == "pcm":
        rate = PCM_BYTES_PER_SECOND
    elif head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        # A streamed file's header is written before its sizes are known, so they mean nothing.
        rate, size = int.from_bytes(head[28:32], "little"), max(size - _WAV_HEADER_BYTES, 0)
        rate = max(rate, _MIN_WAV_BYTES_PER_SECOND) if rate else 0
    else:
        rate = _parse_mp3_rate(head)
    return min(-(-size * 1_000 // rate), MAX_DURATION_MS) if rate else None


def _parse_mp3_rate(head: bytes) -> int:
    """Return the bytes per second of an MP3 by its first frame; 0 if ``head`` does not begin with one."""
    if len(head) < _MP3_HEADER_BYTES or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:  # noqa: PLR2004 - eleven bits set
        return 0
    version, layer, index = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4
    rates = _MP3_BITRATES[1 if version == _FIRST_VERSION else 2]
    return rates[index] * 125 if layer == _LAYER_THREE and index < len(rates) else 0


_WAV_SIGNATURES = (b"RIFF", b"RF64", b"BW64")
_WAV_PLAIN_FORMATS = (1, 3, 6, 7)
_WAV_EXTENSIBLE_FORMAT = 0xFFFE
_WAV_FORMAT_BYTES = 16


def is_wav(head: bytes) -> bool:
    """Return whether a file is WAV or one of its successors for long recordings (EBU Tech 3306, ITU-R BS.2088)."""
    return head[:4] in _WAV_SIGNATURES and head[8:12] == b"WAVE"


def find_wav_seconds(head: bytes, size: int) -> float | None:
    """Return the seconds of a WAV file of ``size`` bytes by its sample rate; None if the format is unknown.

    The byte counts of the header are ignored, because decoders read beyond them. Supported are plain samples: integers,
    floats, A-law and mu-law (RFC 2361).
    """
    offset, rate = 12, 0
    while offset + 8 <= len(head):
        chunk_id, length = head[offset : offset + 4], int.from_bytes(head[offset + 4 : offset + 8], "little")
        offset += 8
        if chunk_id == b"data":
            break
        if chunk_id == b"fmt " and not rate:
            rate = _parse_wav_rate(head[offset : offset + length])
        offset += length + length % 2
    return max(size - offset, 0) / rate if rate else None


def _parse_wav_rate(fmt: bytes) -> int:
    """Return the bytes per second by ``fmt``, the format chunk of a WAV file; 0 unless its samples are plain."""
    if len(fmt) < _WAV_FORMAT_BYTES:
        return 0
    tag, channels, samples, _, block, bits = struct.unpack("<HHIIHH", fmt[:_WAV_FORMAT_BYTES])
    if tag == _WAV_EXTENSIBLE_FORMAT:
        tag = int.from_bytes(fmt[24:26], "little")
    width = channels * -(-bits // 8)
    return samples * min(width, block or width) if tag in _WAV_PLAIN_FORMATS else 0


OGG_MARK = b"OggS"
"""The first bytes of an Ogg page (RFC 3533, 6)."""
OGG_PAGE_BYTES = 27
_OPUS_RATE = 48_000
_UNKNOWN_POSITION = 2**64 - 1


def parse_ogg_page(page: bytes) -> tuple[int, int] | None:
    """Return the position (samples) and the stream number of an Ogg page; None if it is no page or has no position."""
    if len(page) < OGG_PAGE_BYTES or not page.startswith(OGG_MARK) or page[4]:
        return None
    position = int.from_bytes(page[6:14], "little")
    return None if position == _UNKNOWN_POSITION else (position, int.from_bytes(page[14:18], "little"))


def find_ogg_rate(head: bytes) -> tuple[int, int] | None:
    """Return an Ogg file's samples per second and the samples before its audio (RFC 7845, 5.1; Vorbis I, 4.2.2).

    Return None if the file has another format.
    """
    if len(head) <= OGG_PAGE_BYTES:
        return None
    packet = head[OGG_PAGE_BYTES + head[26] :][:30]
    if packet.startswith(b"OpusHead"):
        return _OPUS_RATE, int.from_bytes(packet[10:12], "little")
    rate = int.from_bytes(packet[12:16], "little") if packet.startswith(b"\x01vorbis") else 0
    return (rate, 0) if rate else None


WEBM_HEAD = b"\x1a\x45\xdf\xa3"
"""The first bytes of Matroska and WebM: an EBML header (RFC 8794, 8.1)."""
WEBM_MARK = b"\x1f\x43\xb6\x75"
"""The first bytes of a cluster (RFC 9559, 5.1.3)."""
_INFO_BYTES = 1_024
_DURATION_PATTERN = re.compile(rb"\x44\x89(?:\x84(.{4})|\x88(.{8}))", re.DOTALL)
_SCALE_PATTERN = re.compile(rb"\x2a\xd7\xb1\x83(.{3})", re.DOTALL)
_CLUSTER_PATTERN = re.compile(rb"\x1f\x43\xb6\x75(?:[\x80-\xff]|[\x40-\x7f].|[\x20-\x3f].{2}|[\x10-\x1f].{3}|\x01.{7})"
                      rb"\xe7(?:\x81(.)|\x82(.{2})|\x83(.{3})|\x84(.{4}))", re.DOTALL)  # fmt: skip
_DEFAULT_SCALE = 1_000_000
CLUSTER_BYTES = 32
"""Upper limit of a cluster's beginning, up to its time."""


def find_webm_seconds(head: bytes) -> float | None:
    """Return the duration in a WebM header, in seconds; None without one, as in a live recording."""
    match = _DURATION_PATTERN.search(head[:_INFO_BYTES])
    if match is None:
        return None
    (ticks,) = struct.unpack(">f", match[1]) if match[1] else struct.unpack(">d", match[2])
    return float(ticks) * _parse_scale(head)


def parse_cluster_seconds(head: bytes, cluster: bytes) -> float | None:
    """Return when ``cluster`` begins in the WebM file with this ``head``, in seconds; None if it is no cluster."""
    match = _CLUSTER_PATTERN.match(cluster)
    if match is None:
        return None
    return int.from_bytes(next(filter(None, match.groups()), b""), "big") * _parse_scale(head)


def _parse_scale(head: bytes) -> float:
    """Return the seconds in one tick of a WebM file."""
    match = _SCALE_PATTERN.search(head[:_INFO_BYTES])
    return (int.from_bytes(match[1], "big") if match else _DEFAULT_SCALE) / 1e9
