"""Find the gateway's file ids in a prompt, and replace them by the files' content.

Shapes: OpenAI's OpenAPI document, ``ChatCompletionRequestMessageContentPartFile``, ``InputFileContent`` and
``InputImageContent``; Anthropic's API documentation, "Files API" (a source of type ``file``).
"""

import base64
import mimetypes
from collections.abc import Iterator
from functools import cache
from typing import Any

from gateway.domain.client_file import is_client_id
from gateway.domain.media import SNIFF_BYTES, sniff_media
from gateway.errors import InvalidRequest
from gateway.frozen import frozen

Body = dict[str, Any]

_PROMPT_FIELDS = ("messages", "input")
_FILE_ID_PREFIX = "file-"
_MODEL_KINDS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call"})
"""Types of items written by a model, in which an id is only text."""
_PDF_START = b"%PDF-"
_TEXT_TYPE, _UNKNOWN_TYPE = "text/plain", "application/octet-stream"
_IMAGE_TYPE_PREFIX = "image/"


@frozen
class NamedFile:
    """An object in a body that references a file by id.

    Attributes:
        param: path of the id in the body.
    """

    holder: Body
    param: str

    @property
    def id(self) -> str:
        return str(self.holder["file_id"])


def list_files(body: Body) -> Iterator[NamedFile]:
    """Yield the parts of the prompt that reference a file of this gateway, in any order. Skip all other ids."""
    pending: list[tuple[Any, str]] = [(body.get(name), name) for name in _PROMPT_FIELDS]
    while pending:
        value, param = pending.pop()
        if isinstance(value, list):
            pending.extend((item, f"{param}[{index}]") for index, item in enumerate(value))
        elif isinstance(value, dict) and value.get("type") not in _MODEL_KINDS:
            file_id = value.get("file_id")
            if isinstance(file_id, str) and is_client_id(file_id, _FILE_ID_PREFIX):
                yield NamedFile(value, f"{param}.file_id")
            pending.extend((item, f"{param}.{name}") for name, item in value.items() if isinstance(item, list | dict))


def find_type(filename: str, head: bytes) -> str:
    """Return the media type of a file from its first bytes, else from its name, else text or unknown binary."""
    if head.startswith(_PDF_START):
        return "application/pdf"
    known_type = sniff_media(head[:SNIFF_BYTES]) or _read_media_types().guess_type(filename)[0]
    if known_type is not None:
        return known_type
    return _UNKNOWN_TYPE if b"\x00" in head else _TEXT_TYPE


def _decode_text(data: str, param: str) -> str:
    try:
        return base64.b64decode(data).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"The text file in '{param}' is not UTF-8", param=param) from None


def inline_file(named_file: NamedFile, filename: str, media_type: str, data: str) -> None:
    """Replace the id by the file, whose base64 is ``data``.

    Raises ``InvalidRequest`` if the part cannot hold such a file.
    """
    holder, url = named_file.holder, f"data:{media_type};base64,{data}"
    kind = holder.get("type")
    if kind == "input_image" and not media_type.startswith(_IMAGE_TYPE_PREFIX):
        raise InvalidRequest(f"The file in '{named_file.param}' is no image", param=named_file.param)
    if kind == "file":  # Anthropic's source, which holds text unencoded
        is_text = media_type.startswith("text/")
        content = _decode_text(data, named_file.param) if is_text else data
        holder |= {
            "type": "text" if is_text else "base64",
            "media_type": _TEXT_TYPE if is_text else media_type,
            "data": content,
        }
    elif kind == "input_image":
        holder["image_url"] = url
    else:
        holder |= {"filename": filename, "file_data": url}
    del holder["file_id"]


@cache
def _read_media_types() -> mimetypes.MimeTypes:
    # Python's built-in table alone: the system's tables differ between machines.
    return mimetypes.MimeTypes()
