"""Seals frames of a segment anew with another data key, and finds those of a destroyed one.

The frames keep their places, since their sizes stay.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby

from gateway.frozen import frozen
from gateway.storage.bodies.framing import FrameDamaged
from gateway.storage.bodies.segments import Location, Segments
from gateway.storage.encryption import DecryptionFailed, SecretBox


@frozen
class KeyChange:
    """The boxes that unseal the bodies of an account now and seal them anew.

    ``sealed_key`` is the old data key as its file has it: sealed by the master key.
    """

    old: SecretBox
    new: SecretBox
    sealed_key: bytes


def reseal_frames(
    segments: Segments, frames: Iterable[tuple[str, int, Location]], changes: Mapping[int, KeyChange]
) -> None:
    """Seal anew the frames of the accounts in ``changes``. Each frame is given as request id, account id and place.

    A segment is replaced as a whole: a process that is killed has sealed all or none of it. Frames that the old key
    does not unseal stay as they are. Raises ``OSError``.
    """
    ordered = sorted(frames, key=lambda frame: (frame[2].segment, frame[2].position))
    for number, group in groupby(ordered, key=lambda frame: frame[2].segment):
        resealed = []
        for request_id, account_id, location in group:
            if account_id not in changes:
                continue
            change = changes[account_id]
            try:
                plain = change.old.open(segments.read(location), context=request_id)
            except (DecryptionFailed, FrameDamaged):
                continue
            resealed.append((location, change.new.seal(plain, context=request_id)))
        if resealed:
            segments.replace(number, resealed)


def list_unreadable(
    segments: Segments, frames: Iterable[tuple[str, int, Location]], find_boxes: Callable[[int], Sequence[SecretBox]]
) -> list[str]:
    """Return the requests whose frames none of the keys of their account unseals. Raises ``OSError``.

    Damaged frames, and those of an account whose keys another master key has sealed, are left out.
    """
    boxes: dict[int, Sequence[SecretBox] | None] = {}
    unreadable = []
    for request_id, account_id, location in frames:
        if account_id not in boxes:
            boxes[account_id] = None
            with suppress(DecryptionFailed):
                boxes[account_id] = find_boxes(account_id)
        account_boxes = boxes[account_id]
        with suppress(FrameDamaged):
            content = segments.read(location)
            if account_boxes is not None and not any(_unseals(box, content, request_id) for box in account_boxes):
                unreadable.append(request_id)
    return unreadable


def _unseals(box: SecretBox, content: bytes, request_id: str) -> bool:
    with suppress(DecryptionFailed):
        box.open(content, context=request_id)
        return True
    return False
