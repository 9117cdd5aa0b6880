"""Reads multipart forms. aiohttp keeps large files in temporary files, not in memory."""

import contextlib
import io
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO, cast

from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError
from attrs import field

from gateway.demo.requests import RequestError
from gateway.frozen import frozen


@frozen
class FormFile:
    """A file of a form, with the name of its field and its size in bytes."""

    name: str
    size: int
    file: BinaryIO = field(repr=False)


@frozen
class DemoForm:
    """The texts and files of a form in order. A ``[]`` at the end of a field name is removed."""

    fields: Sequence[tuple[str, str]]
    files: Sequence[FormFile]

    def get_text(self, name: str) -> str | None:
        """Return the last text of a field; None if the field is missing."""
        return next((text for field, text in reversed(self.fields) if field == name), None)

    def list_files(self, name: str) -> list[FormFile]:
        return [file for file in self.files if file.name == name]


@contextlib.asynccontextmanager
async def receive_form(request: web.Request) -> AsyncIterator[DemoForm]:
    """Read a ``multipart/form-data`` body; its files exist until the context ends. Raises ``RequestError``."""
    if request.content_type != "multipart/form-data":
        raise RequestError("The request body must be multipart/form-data.")
    try:
        form_data = await request.post()
    except (AssertionError, HttpProcessingError, ClientPayloadError, RuntimeError, ValueError) as error:
        raise RequestError(f"The form cannot be read: {error}.") from error
    with contextlib.ExitStack() as open_files:
        fields: list[tuple[str, str]] = []
        files: list[FormFile] = []
        for key, value in form_data.items():
            name = key.removesuffix("[]")
            if isinstance(value, web.FileField):
                file = cast(BinaryIO, open_files.enter_context(value.file))
                files.append(FormFile(name, file.seek(0, io.SEEK_END), file))
            else:
                fields.append((name, value if isinstance(value, str) else value.decode(errors="replace")))
        yield DemoForm(fields, files)
