"""Corrects what the gateway refuses in requests of the suites, to show that it refuses them for nothing else."""

import base64
import re
from collections.abc import Mapping
from typing import Any

from scripts.suite_runs.examples import PNG

MODELS: Mapping[str, str] = {
    "/v1/images/generations": "gpt-image-1.5",
    "/v1/images/edits": "gpt-image-1.5",
    "/v1/responses": "gpt-6-astra",
    "/v1/videos": "sora-2",
}
"""The model of requests that name none, by path."""
_DATA = b"Example data"
"""What the suites send as any file."""
_LEAST = ("max_tokens", "max_completion_tokens", "bytes")
_INVENTED = {"md5": "md5", "fallbacks": "default"}
_CURSORS = ("after", "after_id", "before_id")


def correct_query(query: Mapping[str, str]) -> dict[str, str]:
    """Return a query without invented cursors and with a limit of at least 1."""
    kept = {name: value for name, value in query.items() if name not in _CURSORS}
    return kept | ({"limit": "1"} if kept.get("limit") == "0" else {})


def correct_body(path: str, body: dict[str, Any]) -> None:
    """Add the model, raise what must be at least 1, and remove what is invented or needs ``stream``."""
    if path in MODELS:
        body.setdefault("model", MODELS[path])
    for name in _LEAST:
        if body.get(name) == 0:
            body[name] = len(_DATA)
    for name, value in _INVENTED.items():
        if body.get(name) == value:
            del body[name]
    if not body.get("stream"):
        body.pop("stream_options", None)


def correct_form(path: str, content_type: str, body: bytes) -> bytes:
    """Add the model to a form, and put images in the place of the suite's invented ones."""
    found = re.search(r"boundary=\"?([^\";]+)", content_type)
    if found is None or path not in MODELS:
        return body
    body = body.replace(_DATA, base64.b64decode(PNG))
    if b'name="model"' in body:
        return body
    head = f'--{found[1]}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{MODELS[path]}\r\n'
    return head.encode() + body
