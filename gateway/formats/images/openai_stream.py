"""Passthrough of OpenAI's image stream (see ``StreamTransform``), and streams from unstreamed answers.

``ImageGenStreamEvent`` and ``ImageEditStreamEvent``: partial images, and a ``completed`` event with the usage for each
finished image. The end mark is not always sent.
"""

import re

import attrs

from gateway.domain.image import MAX_IMAGE_BYTES
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import NO_USAGE, Usage, add_usages
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.chat.openai.chat import DONE_EVENT
from gateway.formats.errors.content_filter import find_block
from gateway.formats.errors.openai import ErrorBody, Secrets, build_reported_error
from gateway.formats.errors.vendor import parse_reason
from gateway.formats.images.image_data import check_whole
from gateway.formats.images.openai import (
    ESTIMATED_IMAGE_TOKENS,
    estimate_usage,
    parse_images_answer,
    parse_images_usage,
)
from gateway.formats.images.openai_response import build_completed_stream
from gateway.formats.stream import PassthroughStream
from gateway.formats.stream_tail import DONE_MARK
from gateway.formats.wire import sse
from gateway.formats.wire.json_values import loads_or_none

_PARTIAL_SUFFIX = ".partial_image"
_COMPLETED_SUFFIX = ".completed"
_TYPE_PATTERN = re.compile(rb'"type"\s*:\s*"((?:image_generation|image_edit)\.[a-z_]{1,32})"')
_NAME_PATTERN = re.compile(rb"(?:^|\n)event: ?([a-z_.]{1,64})\r?\n")
_HEAD_BYTES = 128
"""Bytes at the beginning of an event that contain its name, and usually the type in its data."""
_INDEX_KEY = b'"partial_image_index"'
_INDEX_VALUE_PATTERN = re.compile(rb"\s*:\s*([0-9])(?![0-9.eE])")
MAX_IMAGE_EVENT_BYTES = MAX_IMAGE_BYTES * 4 // 3 + 64 * 1024
"""The maximum size of an event: an image in base64 with its description."""
_UNNUMBERED_INDEX = 10
"""The index assumed for partial images without an index; valid indexes are 0 to 9."""


class ImagesPassthrough(PassthroughStream):
    """Forwards complete events until the requested number of images is finished, then writes the end mark."""

    __slots__ = ("_completed_count", "_has_failed", "_inference", "_partial_counts", "_usage")

    def __init__(self, inference: InferenceRequest, secrets: Secrets = ()) -> None:
        super().__init__(secrets)
        self._splitter = sse.SseSplitter(MAX_IMAGE_EVENT_BYTES)
        self._inference = inference
        self._partial_counts = [0] * (_UNNUMBERED_INDEX + 1)
        self._completed_count = 0
        self._has_failed = False
        self._usage: Usage | None = None

    def feed(self, data: bytes) -> bytes:
        return self._feed_by_event(data)

    def _forward_event(self, event: bytes) -> bytes:
        may_be_partial = not self.closed and self._has_started and b'"error"' not in event
        if may_be_partial and _find_event_type(event).endswith(_PARTIAL_SUFFIX):
            return self._count_partial(event)
        return super()._forward_event(event)

    def _filter_event(self, event: bytes, payload: bytes) -> bytes:
        if payload.startswith(DONE_MARK):
            return self._end_stream(b"")
        value = loads_or_none(payload)
        kind = _parse_event_type(event, value)
        if kind == "error" or (isinstance(value, dict) and value.get("error")):
            self.error = _parse_failure(value, self._secrets)
            return b""
        if kind.endswith(_PARTIAL_SUFFIX):
            return self._count_partial(event)
        return self._count_completed(event, value) if kind.endswith(_COMPLETED_SUFFIX) else event

    def _count_partial(self, event: bytes) -> bytes:
        """Count a partial image and return its event unchanged.

        Each image uses an index once, so an index seen n times means that n images are in progress.
        """
        self.events += 1
        index = _find_index(event)
        self._partial_counts[index] = 1 if index == _UNNUMBERED_INDEX else self._partial_counts[index] + 1
        return event

    def _count_completed(self, event: bytes, value: object) -> bytes:
        self.events += 1
        self._completed_count += 1
        self._partial_counts = [max(count - 1, 0) for count in self._partial_counts]
        usage = parse_images_usage(value.get("usage")) if isinstance(value, dict) else None
        if usage is not None:
            self._usage = usage if self._usage is None else _add_usages(self._usage, usage)
        return self._end_stream(event) if self._completed_count >= self._inference.choices else event

    def _end_stream(self, event: bytes) -> bytes:
        if self._completed_count:
            self.ended = True
            return event + DONE_EVENT
        self.error = ProviderBadResponse("The provider's stream ended without an image", phase="stream")
        return b""

    def finish(self) -> bytes:
        if self.ended:
            return b""
        last_event = self._splitter.take().strip()
        if (
            self.error is None
            and self._completed_count
            and (not last_event or (sse.parse_data(last_event) or b"").startswith(DONE_MARK))
        ):
            return self._end_stream(b"")
        self._has_failed = True
        raise self.error or ProviderBadResponse("The provider's stream ended before it was complete", phase="stream")

    def parse_usage(self) -> Usage:
        """Return the provider's counts, else an estimate.

        Finished images are always charged, failed images never. An image in progress is charged if the client
        disconnected after a partial image, because the provider finishes it anyway.
        """
        has_ended = self._has_failed or self.ended or self.error is not None
        unfinished_count = (
            0 if has_ended else min(max(self._partial_counts), self._inference.choices - self._completed_count)
        )
        if not self._completed_count and not unfinished_count:
            return NO_USAGE
        usage = self._usage or estimate_usage(self._inference, self._completed_count)
        if unfinished_count:
            completion_tokens = usage.completion_tokens + ESTIMATED_IMAGE_TOKENS * unfinished_count
            usage = attrs.evolve(usage, completion_tokens=completion_tokens, source="estimate")
        return attrs.evolve(usage, images=self._completed_count + unfinished_count)


def _find_event_type(event: bytes) -> str:
    """Return the type of an event without parsing its data; empty if it has none.

    Quotes in texts are escaped and do not match ``_TYPE_PATTERN``.
    """
    name = _NAME_PATTERN.search(event[:_HEAD_BYTES])
    if name is not None:
        return name[1].decode()
    start = event.find(b'"type"')
    while start >= 0:
        match = _TYPE_PATTERN.match(event, start)
        if match is not None:
            return match[1].decode()
        start = event.find(b'"type"', start + 1)
    return ""


def _find_index(event: bytes) -> int:
    """Return the index of a partial image, ``_UNNUMBERED_INDEX`` if it has none, without parsing the data.

    See ``_find_event_type``.
    """
    start = event.find(_INDEX_KEY)
    match = _INDEX_VALUE_PATTERN.match(event, start + len(_INDEX_KEY)) if start >= 0 else None
    return int(match[1]) if match else _UNNUMBERED_INDEX


def _parse_event_type(event: bytes, value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else _find_event_type(event)


def _parse_failure(value: object, secrets: Secrets) -> ProviderError:
    block = find_block(value, secrets)
    if block is not None:
        return block
    return build_reported_error(ErrorBody(parse_reason(value, secrets)))


def _add_usages(first: Usage, second: Usage) -> Usage:
    total = add_usages([first, second])
    return attrs.evolve(
        total,
        details=attrs.evolve(total.details, calls=1) if total.details and (first.details or second.details) else None,
    )


def build_whole(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return an unstreamed answer as a stream with at most the requested images, and its usage.

    Raises ``ProviderError``.
    """
    images = parse_images_answer(raw, inference, secrets)
    items = images.items[: inference.choices]
    for image in items:
        if image.data is not None:
            check_whole(image.data)
    images = attrs.evolve(images, items=items, usage=attrs.evolve(images.usage, images=len(items)))
    return build_completed_stream(images, inference, images.reported.get("created", 0)), images.usage
