"""Files between a caller and a provider: how long a body with files in it is, before any of them is read."""

import base64
import io

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.media import sniff_media
from gateway.domain.upload import HEAD_BYTES, Content, FilePiece, Upload
from tests.support.image_calls import InMemory
from tests.support.image_providers import draw
from tests.support.openai_audio import make_wav
from tests.support.table_rows import table_rows

DATA = st.binary(max_size=200)


def upload(data: bytes) -> Upload:
    return Upload("image", "hunter2.png", "image/png", data[:HEAD_BYTES], InMemory(data))


def test_an_upload_is_as_large_as_its_file() -> None:
    assert upload(b"").size == 0
    assert upload(b"x" * 5_000).size == 5_000


def test_nothing_that_is_in_a_file_is_shown() -> None:
    secret = upload(b"hunter2-bytes")
    shown = repr((secret, FilePiece(secret), Content((b"hunter2-bytes", FilePiece(secret)))))
    assert "hunter2-bytes" not in shown


@given(DATA)
def test_a_file_takes_as_many_bytes_as_it_has_and_in_base64_a_third_more(data: bytes) -> None:
    assert FilePiece(upload(data)).length == len(data)
    assert FilePiece(upload(data), base64=True).length == len(base64.b64encode(data))


@table_rows(("size", "length"), [(0, 0), (1, 4), (2, 4), (3, 4), (4, 8), (30_000_000, 40_000_000)])
def test_base64_is_in_groups_of_four(size: int, length: int) -> None:
    assert FilePiece(Upload("image", "f", "image/png", b"", Sized(size)), base64=True).length == length


class Sized(InMemory):
    """A file that is only as long as it says: nothing reads it."""

    def __init__(self, size: int) -> None:
        super().__init__(b"")
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    async def read(self, offset: int, size: int) -> bytes:
        raise AssertionError((offset, size))


@given(st.lists(DATA | st.tuples(DATA, st.booleans()), max_size=6))
def test_a_body_is_as_long_as_what_is_written_of_it(parts: list[bytes | tuple[bytes, bool]]) -> None:
    written, pieces = io.BytesIO(), []
    for part in parts:
        data, encoded = (part, None) if isinstance(part, bytes) else part
        written.write(base64.b64encode(data) if encoded else data)
        pieces.append(data if encoded is None else FilePiece(upload(data), base64=encoded))
    assert Content(tuple(pieces)).length == len(written.getvalue())


@table_rows(("data", "kind"), [(draw(600, 600), "image/png"), (make_wav(), "audio/wav")])
def test_the_head_that_is_kept_tells_what_a_file_is(data: bytes, kind: str) -> None:
    assert sniff_media(data[:HEAD_BYTES]) == kind


def test_two_uploads_of_the_same_bytes_are_two() -> None:
    assert upload(b"x") != upload(b"x")
    assert len({upload(b"x"), upload(b"x")}) == 2
