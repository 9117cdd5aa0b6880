"""Pictures that videos start from: here whole before anybody is asked, or the caller's mistake."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from gateway.domain.image import MAX_IMAGE_BYTES
from gateway.domain.upload import HEAD_BYTES, Upload
from gateway.domain.video import Reference
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderContentGone, ProviderTimeout
from gateway.storage.upload_spool import UploadSpool
from gateway.upstream.interface import FileRequest
from gateway.upstream.safe_fetch import SafeFetcher
from gateway.videos.reference_image import References
from tests.support.image_providers import draw
from tests.support.video_services import FileDouble

PNG = draw()
LONG = PNG + bytes(range(256)) * 4_000
MIB = 2**20


class Table(SafeFetcher):
    """A fetcher of one file, or of a fault."""

    def __init__(self, found: Any) -> None:
        self._found = found
        self.asked: list[FileRequest] = []
        self.opened: list[FileDouble] = []

    @override
    async def open(self, file_request: FileRequest) -> FileDouble:
        self.asked.append(file_request)
        if isinstance(self._found, Exception):
            raise self._found
        self.opened.append(FileDouble([*self._found]))
        return self.opened[-1]

    @property
    def closed(self) -> int:
        return sum(reel.closed for reel in self.opened)


def load(folder: Path, reference: Reference, found: Any = None, *, fetch: bool = True) -> Any:
    """What is to be sent (an address, or the upload's type, name, head and bytes), the table, and what is left held."""

    async def scene() -> Any:
        spool, table = UploadSpool(folder, limit_bytes=256 * MIB), Table(found)
        references = References(table, spool)
        async with references.load(reference, 7, fetch=fetch) as brought:
            upload = brought.upload
            given: Any = brought.url
            if upload is not None:
                given = upload.media_type, upload.filename, upload.head, await upload.spooled.read(0, upload.size)
        return given, table, spool.held_bytes

    return asyncio.run(scene())


def code(data: bytes, media_type: str = "image/png") -> Reference:
    return Reference(url=f"data:{media_type};base64,{base64.b64encode(data).decode()}")


@pytest.mark.parametrize("data", [PNG, LONG, LONG[:-1], LONG[:-2]])
def test_a_data_url_waits_as_an_upload_and_is_gone_afterwards(tmp_path: Path, data: bytes) -> None:
    given, table, held = load(tmp_path, code(data, "image/jpeg"))
    assert given == ("image/png", "reference.png", data[:HEAD_BYTES], data)
    assert (table.asked, held) == ([], 0)


@pytest.mark.parametrize("size", [1, 100, 64 * 1024])
def test_an_address_is_fetched_for_whom_does_not_fetch_itself(tmp_path: Path, size: int) -> None:
    pieces = [LONG[at : at + size] for at in range(0, 3_000 if size == 1 else len(LONG), size)]
    given, table, held = load(tmp_path, Reference(url="https://pictures.test/1"), pieces)
    assert given == ("image/png", "reference.png", LONG[:HEAD_BYTES], b"".join(pieces))
    (ask,) = table.asked
    assert (ask.url, ask.trusted_origin, ask.signature) == ("https://pictures.test/1", None, ())
    assert (table.closed, held) == (1, 0)


def test_a_file_that_came_with_the_call_stays_where_it_is(tmp_path: Path) -> None:
    class Whole:
        size = len(PNG)

        async def read(self, offset: int, size: int) -> bytes:
            return PNG[offset : offset + size]

    upload = Upload("input_reference", "a.png", "image/png", PNG[:9], Whole())
    given, _, held = load(tmp_path, Reference(upload))
    assert (given, held) == (("image/png", "a.png", PNG[:9], PNG), 0)


@pytest.mark.parametrize(
    "url",
    [
        "https://pictures.test/1",
        "https://pictures.test./1",
        "https://Pictures.Test/1",
        "http://93.184.216.34/1",
        "https://[2606:2800:220:1::1]:8443/1",
    ],
)
def test_who_fetches_itself_is_given_a_public_address(tmp_path: Path, url: str) -> None:
    assert load(tmp_path, Reference(url=url), fetch=False)[0] == url


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest", "http://10.0.0.5/1", "http://127.0.0.1:8000/1", "http://[::1]/1",
        "http://localhost/1", "http://intranet/1", "http://printer.local/1", "http://db.internal/1",
        "http://[::ffff:10.0.0.1]/1", "http://[fe80::1%25eth0]/1", "http://[/1",
        "http://127.1/1", "http://0x7f.1/1", "http://0177.0.0.1/1", "http://169.254.169.254./latest",
        "http://%31%32%37.0.0.1/1", "http://127.0.0.1%2f@0x7f.1/1", "http://2130706433/1",
    ],
)  # fmt: skip
def test_nobody_is_sent_to_a_private_place(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidRequest, match="not public") as refused:
        load(tmp_path, Reference(url=url), fetch=False)
    assert refused.value.param == "input_reference"


@pytest.mark.parametrize(
    ("reference", "found", "why"),
    [
        (code(b"<html>nothing to see</html>"), None, "not a PNG"),
        (code(b"GIF89a" + bytes(64)), None, "not a PNG"),
        (code(b""), None, "not a PNG"),
        (Reference(url=f"{code(LONG).url}="), None, "not valid base64"),
        (Reference(url=f"{(code(LONG).url or '')[:-8]}****{(code(LONG).url or '')[-4:]}"), None, "not valid base64"),
        (Reference(url=f"{(code(LONG[:4]).url or '')}{base64.b64encode(PNG).decode()}"), None, "not valid base64"),
        (Reference(url="data:image/png;base64,éééé"), None, "not valid base64"),
        (Reference(url=f"data:image/png;base64,{'A' * (MAX_IMAGE_BYTES // 3 * 4 + 8)}"), None, "larger than 32 MB"),
        (Reference(url="https://a.test/1"), [b"<html>"], "not a PNG"),
        (Reference(url="https://a.test/1"), [PNG, *[bytes(MIB)] * 32], "larger than 32 MB"),
        (Reference(url="https://a.test/1"), ProviderBadResponse("refused"), "could not be fetched"),
        (Reference(url="https://a.test/1"), ProviderContentGone("gone"), "could not be fetched"),
        (Reference(url="https://a.test/1"), [PNG, ProviderTimeout("stalled")], "could not be fetched"),
    ],
)
def test_what_is_no_image_is_the_callers_mistake(tmp_path: Path, reference: Any, found: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        load(tmp_path, reference, found)
    assert refused.value.param == "input_reference"
