"""Providers that answer well in a language of their own, and refuse what the real ones refuse.

A test says what the model says (``Says``), whichever language it is said in; the provider looks at what it was sent as
strictly as the vendor does, answers 400 in the vendor's shape where it finds a mistake, and keeps what it understood
(``Heard``) for the test to look at.
"""

import abc
import base64
import binascii
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, Received, ScriptedUpstream, Step, answer, chunk

KEY = "provider-key"
Json = dict[str, Any]


@attrs.frozen
class Call:
    """A tool call by the model."""

    name: str
    arguments: Json = attrs.Factory(dict)


@attrs.frozen
class Says:
    """What a model says. ``more`` are the texts of further answers to the same question.

    The last four are counts of tokens: ``cached`` is part of ``prompt``, ``reasoning`` of ``completion``.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    thought: str = ""
    more: tuple[str, ...] = ()
    cut: bool = False
    stopped_at: str | None = None
    prompt: int = 21
    cached: int = 5
    completion: int = 13
    reasoning: int = 4


@attrs.frozen
class Fails:
    """An error in the vendor's own shape. ``late``: a stream begins with status 200, and then says it."""

    status: int
    message: str
    late: bool = False
    headers: Mapping[str, str] = attrs.Factory(dict)


class Refused(Exception):
    """What was sent is not what the vendor takes."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.fails = Fails(status, message)


@attrs.frozen
class ReceivedImage:
    """A picture or a file that arrived: its bytes, or an address."""

    media_type: str | None
    data: bytes | None = None
    url: str | None = None


@attrs.frozen
class Heard:
    """What arrived, in words that are nobody's.

    Attributes:
        said: ``user: …`` and ``assistant: …`` in order, texts only.
        results: the name of the tool and what it answered, in order.
    """

    system: str
    messages: tuple[str, ...]
    results: tuple[tuple[str, str], ...] = ()
    images: tuple[ReceivedImage, ...] = ()
    tools: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    schema: Json | None = None


class Provider(ScriptedUpstream, abc.ABC):
    """Gives ``answers`` in order, the last one again and again; a request it refuses takes none of them.

    Attributes:
        heard: every chat request it took.
        refusals: what it said to those it did not take.
    """

    slug: ClassVar[str]
    model: ClassVar[str]
    root: ClassVar[str] = "/v1"

    def __init__(self, *answers: Says | Fails) -> None:
        super().__init__(_Unwritten(self._write_script))
        self._answers = answers or (Says("Hello"),)
        self._given = 0
        self.heard: list[Heard] = []
        self.refusals: list[str] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.root}"

    def channel(self, name: str = "up", **more: Any) -> Json:
        """A ``[[channel]]`` that leads here, and serves the model ``m`` under the vendor's own name of one."""
        return {
            "name": name,
            "provider": self.slug,
            "base_url": self.base_url,
            "api_key": KEY,
            "models": ["m"],
            "model_map": {"m": self.model},
            "connect_timeout_s": 20,
            "first_byte_timeout_s": 2,
            "idle_timeout_s": 2,
            "total_timeout_s": 5,
            **more,
        }

    def give(self) -> Says | Fails:
        """The next answer."""
        given = self._answers[min(self._given, len(self._answers) - 1)]
        self._given += 1
        return given

    @abc.abstractmethod
    def read(self, received: Received) -> "list[Step]":
        """The script that answers. Raises ``Refused``."""

    @abc.abstractmethod
    def write_error(self, fails: Fails) -> Json:
        """The vendor's error object."""

    def write_late(self, fails: Fails) -> bytes:
        """The same as an event of a stream."""
        raise NotImplementedError

    def _write_script(self) -> "list[Step]":
        try:
            return self.read(self.received[-1])
        except Refused as refused:
            self.refusals.append(str(refused))
            return [self.fail(refused.fails)]

    def fail(self, fails: Fails) -> bytes:
        """The whole error answer."""
        return answer(self.write_error(fails), fails.status, **fails.headers)

    def speak(self, stream: bool, whole: Callable[[Says], Any], events: Callable[[Says], list[bytes]]) -> "list[Step]":
        """The next answer, whole or one event a chunk."""
        given = self.give()
        if isinstance(given, Fails):
            late = stream and given.late
            return [SSE_HEAD, chunk(self.write_late(given)), LAST_CHUNK] if late else [self.fail(given)]
        if not stream:
            return [answer(whole(given))]
        return [SSE_HEAD, *map(chunk, events(given)), LAST_CHUNK]


class _Unwritten(list[Step]):
    """A script that is written when it is about to be played."""

    def __init__(self, write: Callable[[], list[Step]]) -> None:
        super().__init__()
        self._write = write

    def __iter__(self) -> Iterator[Step]:
        return iter(self._write())


def expect(held: object, message: str, status: int = 400) -> None:
    """Refuse unless ``held``."""
    if not held:
        raise Refused(message, status)


def expect_object(value: Any, where: str, known: Collection[str]) -> Json:
    """An object with no field but the ``known``."""
    expect(isinstance(value, dict), f"{where}: Input should be an object")
    unknown = value.keys() - set(known)
    expect(not unknown, f"{where}: unknown fields {sorted(unknown)}")
    return dict(value)


def expect_list(value: Any, where: str) -> list[Any]:
    """An array with something in it."""
    expect(isinstance(value, list) and value, f"{where}: Input should be an array with at least one item")
    return list(value)


def expect_text(value: Any, where: str) -> str:
    """A string with something in it."""
    expect(isinstance(value, str) and value, f"{where}: Input should be a non-empty string")
    return str(value)


def expect_number(value: Any, where: str, least: float, most: float) -> None:
    """Nothing, or a number in the range."""
    if value is not None:
        good = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        expect(good, f"{where}: Input should be a number from {least} to {most}")


def decode(data: Any, where: str) -> bytes:
    """The bytes of base64."""
    try:
        return base64.b64decode(expect_text(data, where), validate=True)
    except binascii.Error:
        raise Refused(f"{where}: not base64") from None


def split_words(text: str) -> list[str]:
    """A text in pieces of a word each, which joined are the text."""
    pieces = text.split(" ")
    return [piece if not at else f" {piece}" for at, piece in enumerate(pieces)] if text else []


def halve(text: str) -> Sequence[str]:
    """A text in two pieces."""
    return (text[: len(text) // 2], text[len(text) // 2 :])
