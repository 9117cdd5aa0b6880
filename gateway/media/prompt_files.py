"""Replaces file ids in prompts by the content of the account's files."""

import base64

from gateway.domain.media import SNIFF_BYTES
from gateway.errors import NotFound, RequestTooLarge
from gateway.formats.references.prompt_files import NamedFile, find_type, inline_file, list_files
from gateway.formats.wire.request_body import Body
from gateway.large_work import run_in_thread
from gateway.media.client_files import ClientFiles
from gateway.memory_budget import Loan
from gateway.storage.media_reading import read_all

FILE_ID_KEY = b'"file_id"'
"""A body without these bytes references no file."""


async def inline_files(
    files: ClientFiles, account_id: int, body: Body, memory_loan: Loan, *, size: int, limit: int
) -> int:
    """Replace file ids in ``body``, which has ``size`` bytes, by the account's files; return the new size.

    Raises ``NotFound`` naming the part, ``RequestTooLarge`` beyond ``limit`` bytes, and ``Overloaded`` if other
    requests use the memory.
    """
    for named_file in list_files(body):
        size += await _inline_file(files, account_id, named_file, memory_loan, room=limit - size)
    return size


async def _inline_file(
    files: ClientFiles, account_id: int, named_file: NamedFile, memory_loan: Loan, *, room: int
) -> int:
    try:
        file = await files.get(named_file.id, account_id)
        size = -(-file.bytes // 3) * 4
        if size > room:
            raise RequestTooLarge("The request with its files is larger than a request may be", param=named_file.param)
        memory_loan.take(size, "The request with its files", named_file.param)
        media = await files.open(file)
    except NotFound as error:
        error.param = named_file.param
        raise
    head, data = await run_in_thread(_encode, await read_all(media))
    inline_file(named_file, file.filename, find_type(file.filename, head), data)
    return size


def _encode(raw: bytes) -> tuple[bytes, str]:
    return raw[:SNIFF_BYTES], base64.b64encode(raw).decode("ascii")
