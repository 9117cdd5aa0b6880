"""Read multipart forms. Files go to anonymous temporary files, not into memory."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO, cast

from aiohttp import BodyPartReader, ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError
from attrs import field, frozen

from gateway.demo.requests import RequestError

MAX_FILE = 64 * 1024 * 1024
MAX_FORM = 256 * 1024 * 1024
_MAX_FIELD = 256 * 1024
_MAX_PARTS = 64
_BATCH = 256 * 1024
_TOO_LARGE = 413


@frozen
class FormFile:
    """A file of a form: its field's name, its own name, and its size in bytes."""

    name: str
    filename: str
    size: int
    file: BinaryIO = field(repr=False)


@frozen
class DemoForm:
    """The texts and files of a form in their order; a ``[]`` at the end of a field's name is removed."""

    fields: Sequence[tuple[str, str]]
    files: Sequence[FormFile]

    def text(self, name: str) -> str | None:
        """Return the last text of a field; None if there is none."""
        return next((text for field, text in reversed(self.fields) if field == name), None)

    def texts(self, name: str) -> list[str]:
        """Return every text of a field."""
        return [text for field, text in self.fields if field == name]

    def files_of(self, name: str) -> list[FormFile]:
        """Return every file of a field."""
        return [file for file in self.files if file.name == name]


@contextlib.asynccontextmanager
async def receive_form(request: web.Request) -> AsyncIterator[DemoForm]:
    """Read a ``multipart/form-data`` body; its files exist until the context ends. Raises ``RequestError``."""
    if request.content_type != "multipart/form-data":
        raise RequestError("The request body must be multipart/form-data.")
    with contextlib.ExitStack() as open_files:
        try:
            form = await _read_parts(request, open_files)
        except (AssertionError, HttpProcessingError, ClientPayloadError, RuntimeError, ValueError) as error:
            raise RequestError(f"The form cannot be read: {error}.") from error
        yield form


async def _read_parts(request: web.Request, open_files: contextlib.ExitStack) -> DemoForm:
    fields: list[tuple[str, str]] = []
    files: list[FormFile] = []
    left = MAX_FORM
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader):
            raise RequestError("The form contains another form.")
        if not part.name:
            raise RequestError("The form has a part without a name.")
        if len(fields) + len(files) >= _MAX_PARTS:
            raise RequestError(f"The form has more than {_MAX_PARTS} parts.")
        name = part.name.removesuffix("[]")
        if part.filename is None:
            fields.append((name, await _read_text(part, name)))
            continue
        file = cast(BinaryIO, open_files.enter_context(tempfile.TemporaryFile()))  # noqa: SIM115 - the stack closes it
        size = await _keep(part, name, file, min(left, MAX_FILE))
        files.append(FormFile(name, part.filename, size, file))
        left -= size
    return DemoForm(fields, files)


async def _read_text(part: BodyPartReader, name: str) -> str:
    text = bytearray()
    while piece := await part.read_chunk(_BATCH):
        text += piece
        if len(text) > _MAX_FIELD:
            raise RequestError(f"'{name}' is too long.", param=name)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"'{name}' is not UTF-8 text.", param=name) from error


async def _keep(part: BodyPartReader, name: str, file: BinaryIO, most: int) -> int:
    """Write a part to its file in a thread; return its size."""
    size, batch = 0, bytearray()
    while piece := await part.read_chunk(_BATCH):
        batch += piece
        size += len(piece)
        if size > most:
            raise RequestError(f"'{name}' is larger than the demo takes.", param=name, status=_TOO_LARGE)
        if len(batch) >= _BATCH:
            await asyncio.to_thread(file.write, bytes(batch))
            batch.clear()
    await asyncio.to_thread(file.write, bytes(batch))
    await asyncio.to_thread(file.seek, 0)
    return size
