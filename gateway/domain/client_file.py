"""Files and uploads of clients, kept for an account until the client deletes them or they expire."""

import re
from typing import Literal, get_args

from gateway.frozen import frozen

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
"""Purposes that a client may name (OpenAI's OpenAPI document, ``CreateFileRequest``)."""
PURPOSES: tuple[str, ...] = get_args(Purpose)
BATCH_OUTPUT = "batch_output"
"""The purpose of the files that a batch writes."""
MIN_EXPIRY_S, MAX_EXPIRY_S = 3_600, 2_592_000
"""The shortest and the longest ``expires_after`` (OpenAI's OpenAPI document, ``FileExpirationAfter``)."""
UPLOAD_TTL_MS = 3_600_000
"""An upload that is not completed expires after an hour, as at OpenAI."""
MAX_PART_BYTES = 64 * 1024**2
"""Maximum bytes of one part of an upload, as at OpenAI."""

UploadStatus = Literal["pending", "completed", "cancelled", "expired"]

_ID = re.compile(r"(?:file-|upload_|part_|batch_|msgbatch_)[0-9a-f]{32}", re.ASCII)
_ID_DIGITS = 32


def is_client_id(text: str, prefix: str) -> bool:
    """Return whether ``text`` is an id with that prefix."""
    return text.startswith(prefix) and _ID.fullmatch(text) is not None


def find_digits(object_id: str) -> str:
    """Return the digits of an id, which are the name of its file on disk."""
    return object_id[-_ID_DIGITS:]


@frozen
class FileRules:
    """The limits of clients' files; 0 means none.

    ``max_bytes`` limits one file. ``max_total_bytes`` limits all files of an account, including the sizes that its open
    uploads declare. ``keep_ms`` is how long a file is kept if its client names no time.
    """

    max_bytes: int
    max_total_bytes: int
    keep_ms: int


@frozen
class ClientFile:
    """One file. Times are Unix milliseconds; ``expires_ms`` is None if it does not expire."""

    id: str
    account_id: int
    key_id: int
    filename: str
    purpose: str
    bytes: int
    created_ms: int
    expires_ms: int | None = None


@frozen
class NewFile:
    """A client's description of a file to upload. ``kept_s`` is its ``expires_after``; None if it is missing."""

    filename: str
    purpose: str
    kept_s: int | None = None


@frozen
class ClientUpload:
    """A file that is sent in parts. Times are Unix milliseconds.

    ``bytes`` is the size that the parts must have together. ``kept_s`` is the ``expires_after`` of the file; None if
    the client names none. ``file_id`` is the id of the completed file; None until then.
    """

    id: str
    account_id: int
    key_id: int
    filename: str
    purpose: str
    mime_type: str
    bytes: int
    created_ms: int
    expires_ms: int
    status: UploadStatus = "pending"
    kept_s: int | None = None
    file_id: str | None = None

    def find_status(self, now_ms: int) -> UploadStatus:
        """Return the status at ``now_ms``: a pending upload expires by itself."""
        return "expired" if self.status == "pending" and now_ms >= self.expires_ms else self.status


@frozen
class UploadPart:
    """One part of an upload."""

    id: str
    upload_id: str
    bytes: int
    created_ms: int


@frozen
class FileFilter:
    """A filter for files that have not expired at ``now_ms``.

    ``after`` is the id of a file: only the files that follow it in the list match. ``account_id`` is None for the files
    of all accounts. ``search``: a part of the id or the name, in any case of letters.
    """

    account_id: int | None
    now_ms: int
    limit: int
    purpose: str | None = None
    after: str | None = None
    newest_first: bool = True
    search: str = ""
