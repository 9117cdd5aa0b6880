"""A video inside a provider's answer, read like a fetched file."""

from collections.abc import Callable, Mapping

_PIECE_BYTES = 64 * 1024
_HEADERS: Mapping[str, str] = {"Content-Type": "video/mp4"}


class InlineFile:
    """A ``FetchedFile`` of ``content``. Closing it calls ``release``."""

    def __init__(self, content: bytes, release: Callable[[], None]) -> None:
        self._content, self._offset, self._release = content, 0, release
        self._closed = False

    @property
    def status(self) -> int:
        return 200

    @property
    def headers(self) -> Mapping[str, str]:
        return _HEADERS

    @property
    def length(self) -> int | None:
        return len(self._content)

    async def read(self) -> bytes:
        piece = self._content[self._offset : self._offset + _PIECE_BYTES]
        self._offset += len(piece)
        return piece

    def close(self) -> None:
        if not self._closed:
            self._closed, self._content = True, b""
            self._release()
