"""The events of one direction of a realtime session, as they are kept: of audio only its type, size and SHA-256.

The log is an event stream: a text whose pieces are in several events is redacted as one text. An hour of audio has
hundreds of megabytes: audio is replaced when it arrives, and the rest is compressed.
"""

import hashlib
import zlib
from array import array
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable
from typing import Any, Literal

import attrs

from gateway.domain import exact_json
from gateway.formats.redaction.media import MIN_MEDIA_CHARS, replace_media
from gateway.formats.wire.json_values import loads_or_none

Direction = Literal["input", "output"]
Frame = tuple[int, bytes]
"""The milliseconds from the beginning of the session to an event, and the event's bytes."""
_AUDIO_FIELDS = {
    "input_audio_buffer.append": "audio",
    "response.audio.delta": "delta",
    "response.output_audio.delta": "delta",
}
_MAX_RUNS = 16
_MAX_HEAD_BYTES = 4 * 1024
"""The maximum of ``_AudioRun.head``. A run with a larger head ends at once, since its memory is not counted."""
_COMPRESSION_LEVEL = 1
_LINE_ENDS = (b"\n", b"\r")
_AUDIO = "audio"
_MIN_AUDIO_CHARS = 64
"""A shorter text in a field named ``audio`` is a name, such as that of a voice."""


@attrs.define(eq=False)
class _AudioRun:
    """Successive pieces of one sound. ``head`` is the first event as JSON, without the data in its ``field``."""

    head: bytes
    field: str
    at_ms: int
    event_count: int = 0
    data_bytes: int = 0
    digest: Any = attrs.Factory(hashlib.sha256)


class EventLog:
    """The events of one direction. Not for the event loop: hashing and compressing take milliseconds.

    Attributes:
        received_bytes: the size of all events as they came.
        text_bytes: the size of the events in the log, before compression.
        stored_bytes: the size of the compressed log in memory.
    """

    def __init__(self, direction: Direction, *, keeps_media: bool) -> None:
        self._direction = direction
        self._keeps_media = keeps_media
        self._audio_format = _AUDIO
        self._pieces: list[bytes] = []
        self._chunks: list[bytes] = []
        self._times_ms = array("q")
        self._runs: dict[tuple[Any, ...], _AudioRun] = {}
        self.received_bytes = 0
        self.text_bytes = 0
        self.stored_bytes = 0

    def add(self, frames: Iterable[Frame]) -> None:
        """Add events, in order."""
        for at_ms, raw in frames:
            self.received_bytes += len(raw)
            self._add(at_ms, raw)
        self._compress()

    def build(self) -> tuple[bytes, tuple[int, ...]]:
        """Return the log as an event stream, and the milliseconds of each of its events."""
        self._end_runs()
        self._compress()
        return b"".join(map(zlib.decompress, self._chunks)), tuple(self._times_ms)

    def _add(self, at_ms: int, raw: bytes) -> None:
        if b"audio" not in raw and len(raw) < MIN_MEDIA_CHARS:
            self._write(at_ms, raw)
            return
        event = loads_or_none(raw)
        if isinstance(event, dict):
            if self._add_audio(at_ms, event):
                return
            self._note_format(event.get("session"))
            if self._replace_media(event):
                raw = exact_json.dumps(event)
        self._write(at_ms, raw)

    def _add_audio(self, at_ms: int, event: dict[str, Any]) -> bool:
        """Add an audio event to the run of its sound. Return False for another event, and for audio that is not base64.

        If there are too many runs, or the event's other fields are large, all runs are ended.
        """
        kind = event.get("type")
        field = _AUDIO_FIELDS.get(kind, "") if isinstance(kind, str) else ""
        data = _decode(event.get(field)) if field else None
        if data is None:
            return False
        sound_key = (kind, *(repr(event.get(name)) for name in ("response_id", "item_id", "content_index")))
        if sound_key not in self._runs and len(self._runs) >= _MAX_RUNS:
            self._end_runs()
        run = self._runs.get(sound_key)
        if run is None:
            head = exact_json.trim(exact_json.dumps({**event, field: ""}))
            run = self._runs[sound_key] = _AudioRun(head, field, at_ms)
        run.at_ms = at_ms
        run.event_count += 1
        run.data_bytes += len(data)
        run.digest.update(data)
        if len(run.head) > _MAX_HEAD_BYTES:
            self._end_runs()
        return True

    def _end_runs(self) -> None:
        """Write an event for each sound, in place of all its pieces."""
        runs = list(self._runs.values())
        self._runs.clear()
        for run in runs:
            note = f"[media {self._audio_format}, {run.event_count:,} events, {run.data_bytes:,} bytes, "
            event = {**exact_json.loads(run.head), run.field: f"{note}SHA-256 {run.digest.hexdigest()}]"}
            self._append(run.at_ms, exact_json.dumps(event))

    def _write(self, at_ms: int, raw: bytes) -> None:
        if self._runs and b".delta" not in raw:  # texts of the same answer come between the pieces of its sound
            self._end_runs()
        self._append(at_ms, raw)

    def _append(self, at_ms: int, raw: bytes) -> None:
        lines = raw.splitlines() if any(end in raw for end in _LINE_ENDS) else [raw]
        event = b"".join(b"data: " + line + b"\n" for line in lines if line) + b"\n"
        self._pieces.append(event)
        self._times_ms.append(at_ms)
        self.text_bytes += len(event)

    def _compress(self) -> None:
        if self._pieces:
            chunk = zlib.compress(b"".join(self._pieces), _COMPRESSION_LEVEL)
            self._pieces.clear()
            self._chunks.append(chunk)
            self.stored_bytes += len(chunk)

    def _note_format(self, session: Any) -> None:
        """Note the audio format of this direction, if ``session`` names one."""
        if not isinstance(session, dict):
            return
        name = session.get(f"{self._direction}_audio_format")  # of the beta version
        audio = session.get("audio")
        settings = audio.get(self._direction) if isinstance(audio, dict) else None
        audio_format = settings.get("format") if isinstance(settings, dict) else None
        if isinstance(audio_format, dict):
            name = audio_format.get("type")
        if isinstance(name, str) and name.isprintable() and len(name) < MIN_MEDIA_CHARS // 16:
            self._audio_format = name

    def _replace_media(self, event: dict[str, Any]) -> bool:
        """Replace audio in ``audio`` fields and, unless media are kept, all media. Return whether any was replaced."""
        changed = False
        stack: list[Any] = [event]
        while stack:
            holder = stack.pop()
            items = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
            for key, value in items:
                if isinstance(value, dict | list):
                    stack.append(value)
                elif isinstance(value, str):
                    new_value = self._replace_value(key, value)
                    changed = changed or new_value is not value
                    holder[key] = new_value
        return changed

    def _replace_value(self, key: Any, value: str) -> str:
        data = _decode(value) if key == _AUDIO and len(value) >= _MIN_AUDIO_CHARS else None
        if data is not None:
            digest = hashlib.sha256(data).hexdigest()
            return f"[media {self._audio_format}, {len(data):,} bytes, SHA-256 {digest}]"
        if self._keeps_media or len(value) < MIN_MEDIA_CHARS:
            return value
        replaced = replace_media(value)
        return value if replaced == value else replaced


def _decode(value: Any) -> bytes | None:
    if not isinstance(value, str):
        return None
    try:
        return b64decode(value, validate=True)
    except (NotBase64, ValueError):
        return None
