"""Frames of a segment: a mark, the length and the CRC-32 of the content, then the content.

The checksum tells an incomplete or erased frame from one that was sealed with another key.
"""

import zlib

HEAD_BYTES = 12
_MARK = b"GWB1"
_NUMBER_BYTES = 4


class FrameDamaged(Exception):
    """The bytes are not one whole frame."""


def build_frame(content: bytes) -> bytes:
    """Return ``content`` as a frame."""
    length, checksum = len(content), zlib.crc32(content)
    return _MARK + length.to_bytes(_NUMBER_BYTES, "big") + checksum.to_bytes(_NUMBER_BYTES, "big") + content


def parse_frame(frame: bytes) -> bytes:
    """Return the content. Raises ``FrameDamaged`` unless ``frame`` is exactly one whole frame."""
    head, content = frame[:HEAD_BYTES], frame[HEAD_BYTES:]
    check_head(head, len(frame))
    if int.from_bytes(head[-_NUMBER_BYTES:], "big") != zlib.crc32(content):
        raise FrameDamaged("the checksum of a frame is wrong")
    return content


def check_head(head: bytes, frame_bytes: int) -> None:
    """Raise ``FrameDamaged`` unless ``head`` begins a frame of ``frame_bytes``."""
    if len(head) != HEAD_BYTES or not head.startswith(_MARK):
        raise FrameDamaged("the mark of a frame is missing")
    if int.from_bytes(head[len(_MARK) : -_NUMBER_BYTES], "big") != frame_bytes - HEAD_BYTES:
        raise FrameDamaged("a frame is incomplete")
