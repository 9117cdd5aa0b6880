"""A film's slate: everything there is to know of a task, written into its id.

The demo lives in the gateway's process and keeps nothing, so that one which has been started anew answers about every
task as the old one did. An id is ``video_`` and base64url of: a head of fixed size, the prompt's beginning, what a
remix has of its parent's look, the parent itself where there is room for it, and a checksum.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from functools import partial
from hashlib import blake2b
from secrets import token_bytes

import attrs
from attrs import field, frozen

from gateway.demo.asks import VIDEO_MODELS
from gateway.demo.film_asks import LENGTHS, SIZES, FilmAsk
from gateway.demo.scenery import Colour, imagine

MAX_ID_CHARS = 400

_PREFIX = "video_"
_HEAD = struct.Struct(">BBBQ3s8s4s3s?BB")
_NONCE_BYTES = 3
_SUM_BYTES = 6
_MAX_BODY = (MAX_ID_CHARS - len(_PREFIX)) * 3 // 4 - _SUM_BYTES
_MAX_OPENING = 80  # bytes: enough for a mood, and a parent's slate still fits behind a child's
_MAX_LOOK = 56
_ELLIPSIS = "…"


@frozen(kw_only=True)
class Slate:
    """One task.

    Attributes:
        created_ms: when it was asked for, in Unix milliseconds.
        nonce: what tells it from another of the same moment; it does not show.
        opening: the prompt, or its beginning and an ellipsis.
        seed: what its scene follows from; a remix has its parent's.
        take: what tells a remix from its parent; zeros where it is none.
        tint: the colour of a reference picture, where there was one that could be read.
        look: of a remix: words for what its parent shows, which hold where its own prompt says nothing.
        parent: of a remix: its parent's slate, in bytes; none where that would be too long.
    """

    model: str
    size: tuple[int, int]
    seconds: int
    created_ms: int
    opening: str = field(repr=False)
    seed: bytes = field(repr=False)
    take: bytes = field(default=bytes(4), repr=False)
    tint: Colour | None = None
    look: str = field(default="", repr=False)
    parent: bytes = field(default=b"", repr=False)
    nonce: bytes = field(factory=partial(token_bytes, _NONCE_BYTES), repr=False)

    @property
    def id(self) -> str:
        """The task's id."""
        return _write_id(self.pack())

    @property
    def parent_id(self) -> str | None:
        """The id of the task this is a remix of; None where it is none, or nobody knows any more."""
        return _write_id(self.parent) if self.parent else None

    @property
    def words(self) -> str:
        """What decides on landscape, hour and colours."""
        return f"{self.opening} {self.look}".strip()

    def remix(self, prompt: str, created_ms: int) -> "Slate":
        """Another take of the same scene."""
        scene = imagine(self.words, int.from_bytes(self.seed, "big"))
        child = attrs.evolve(
            self,
            created_ms=created_ms,
            opening=cut(prompt, _MAX_OPENING),
            take=blake2b(self.take + prompt.encode(errors="replace"), digest_size=4).digest(),
            look=f"{cut(self.opening, _MAX_LOOK // 2)} {scene.kind} {scene.hour}",
            parent=b"",
            nonce=token_bytes(_NONCE_BYTES),
        )
        parent = self.pack()
        return attrs.evolve(child, parent=parent) if len(child.pack()) + len(parent) <= _MAX_BODY else child

    def pack(self) -> bytes:
        """What its id is written from."""
        opening, look = self.opening.encode(), self.look.encode()
        head = _HEAD.pack(
            VIDEO_MODELS.index(self.model),
            SIZES.index(self.size),
            self.seconds,
            self.created_ms,
            self.nonce,
            self.seed,
            self.take,
            bytes(self.tint or (0, 0, 0)),
            self.tint is not None,
            len(opening),
            len(look),
        )
        return head + opening + look + self.parent


def open_slate(ask: FilmAsk, created_ms: int, *, reference: bytes = b"", tint: Colour | None = None) -> Slate:
    """The slate of a new task; ``reference``: what tells the picture it starts from, and its colour, from others."""
    return Slate(
        model=ask.model,
        size=ask.size,
        seconds=ask.seconds,
        created_ms=created_ms,
        opening=cut(ask.prompt, _MAX_OPENING),
        seed=blake2b(ask.prompt.encode(errors="replace") + b"\0" + reference, digest_size=8).digest(),
        tint=tint,
    )


def find_slate(task_id: str) -> Slate | None:
    """The slate that is written into an id; None where nobody wrote one."""
    if not task_id.startswith(_PREFIX) or len(task_id) > MAX_ID_CHARS:
        return None
    try:
        packed = urlsafe_b64decode(task_id.removeprefix(_PREFIX) + "==")
    except (Error, ValueError):
        return None
    slate = _unpack(packed[:-_SUM_BYTES])
    return slate if slate is not None and slate.id == task_id else None


def cut(text: str, most: int) -> str:
    """A text of so many bytes at most, with an ellipsis where it was longer."""
    whole = text.encode(errors="replace")
    if len(whole) <= most:
        return whole.decode()
    return whole[: most - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


def _unpack(packed: bytes) -> Slate | None:
    try:
        model, size, seconds, created_ms, nonce, seed, take, tint, tinted, opening, look = _HEAD.unpack_from(packed)
        texts = packed[_HEAD.size :]
        return Slate(
            model=VIDEO_MODELS[model],
            size=SIZES[size],
            seconds=LENGTHS[LENGTHS.index(seconds)],
            created_ms=created_ms,
            opening=texts[:opening].decode(),
            seed=seed,
            take=take,
            tint=(tint[0], tint[1], tint[2]) if tinted else None,
            look=texts[opening : opening + look].decode(),
            parent=texts[opening + look :],
            nonce=nonce,
        )
    except (struct.error, IndexError, ValueError):
        return None


def _write_id(packed: bytes) -> str:
    told = packed + blake2b(packed, digest_size=_SUM_BYTES).digest()
    return _PREFIX + urlsafe_b64encode(told).decode().rstrip("=")
