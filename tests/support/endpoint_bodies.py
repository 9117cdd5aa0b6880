"""The smallest request of every inference endpoint: bodies by path, and forms with a file."""

from typing import Any

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/compact": {"input": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/moderations": {"input": "hi"},
    "/v1/rerank": {"query": "hi", "documents": ["a"]},
    "/v1/images/generations": {"prompt": "a cat"},
    "/v1/audio/speech": {"input": "hi", "voice": "alloy"},
    "/v1/videos": {"prompt": "a cat"},
}
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "/v1/images/edits": ("image", {"prompt": "a cat"}),
    "/v1/audio/transcriptions": ("file", {}),
    "/v1/audio/translations": ("file", {}),
}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\0\0\0\0"
