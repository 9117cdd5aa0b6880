"""A request in Gemini's format for a provider of the same format: unchanged, except for foreign or missing signatures.

Several providers may have answered the same chat, and the client sends back all their answers. Gemini rejects thought
signatures of other providers. From Gemini 3 on, it also rejects a turn whose first function call has no signature
(ai.google.dev/gemini-api/docs/thought-signatures).
"""

from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.gemini.generation_config import requires_signatures
from gateway.formats.chat.gemini.request_writer import DUMMY_SIGNATURE
from gateway.formats.chat.gemini.signatures import is_foreign

Body = dict[str, Any]


def build_passed_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body without the model, which is in the path. The request's own body is not modified."""
    needs_signature = requires_signatures(model)
    contents = [_build_content(content, needs_signature=needs_signature) for content in inference.body["contents"]]
    return inference.body | {"contents": [content for content in contents if content["parts"]]}


def _build_content(content: Body, *, needs_signature: bool) -> Body:
    if content.get("role") != "model":
        return content
    original_parts: list[Body] = content["parts"]
    parts = [
        {name: value for name, value in part.items() if name != "thoughtSignature"}
        if is_foreign(part.get("thoughtSignature"))
        else part
        for part in original_parts
        if not (part.get("thought") is True and is_foreign(part.get("thoughtSignature")))
    ]
    if needs_signature:
        for index, part in enumerate(parts):
            if part.get("functionCall"):  # only the first call of a turn needs a signature
                parts[index] = {"thoughtSignature": DUMMY_SIGNATURE} | part
                break
    is_unchanged = len(parts) == len(original_parts) and all(
        new_part is original_part for new_part, original_part in zip(parts, original_parts, strict=True)
    )
    return content if is_unchanged else content | {"parts": parts}
