"""The error for a request for a model at the wrong endpoint."""

import re
from collections.abc import Iterable, Iterator

from gateway.domain.api_format import WIRES
from gateway.domain.inference_request import PATHS, Operation
from gateway.errors import GatewayError
from gateway.providers.base import Provider

_NAMED: tuple[tuple[re.Pattern[str], Operation], ...] = (
    (re.compile("embed|bge-|gte-|e5-|minilm"), "embeddings"),
    (re.compile("rerank"), "rerank"),
    (re.compile("moderation"), "moderations"),
    (re.compile("whisper|transcribe|asr"), "transcriptions"),
    (re.compile("tts|speech"), "speech"),
    (re.compile("image|dall-e|flux|imagen|seedream"), "images"),
    (re.compile("video|sora|veo-|kling|hailuo|seedance"), "videos"),
)
"""What a model's name says it is for, if its provider takes every model at several endpoints."""
_FIRST: tuple[Operation, ...] = ("chat", "embeddings", "images", "videos", "rerank", "transcriptions", "speech")
"""What a model is for that says nothing of it, in the order of what is usual."""


class UnsupportedOperation(GatewayError):
    """The model is served, but not at this endpoint; the message names one that works."""

    code = "unsupported_operation"


def refuse_operation(model: str, operation: Operation, serving: Iterable[tuple[Provider, str]]) -> UnsupportedOperation:
    """The fault of a call for ``operation`` with a model that is served, but takes none.

    ``serving``: the providers that serve it, each with its own name of the model.
    """
    works = _find_working(list(serving))
    hint = "" if works is None else f"; POST {PATHS[works]} does"
    return UnsupportedOperation(
        f"The endpoint {PATHS[operation]} does not serve the model {model!r}{hint}", param="model", should_retry=False
    )


def _find_working(serving: list[tuple[Provider, str]]) -> Operation | None:
    """Guess the operation that the model is made for; None if it is unknown."""
    sure = {found for provider, theirs in serving for found in _list_taken(provider, theirs, sure=True)}
    if sure:
        return min(sure, key=list(PATHS).index)
    taken = {found for provider, theirs in serving for found in _list_taken(provider, theirs, sure=False)}
    names = " ".join(theirs.lower() for _, theirs in serving)
    hinted = (operation for pattern, operation in _NAMED if pattern.search(names))
    return next((found for found in (*hinted, *_FIRST) if found in taken), None)


def _list_taken(provider: Provider, model: str, *, sure: bool) -> Iterator[Operation]:
    """The operations that ``provider`` takes with ``model``; ``sure``: those alone that it takes with few models."""
    for operation, wires in WIRES.items():
        endpoint = provider.find_endpoint(wires, model)
        if endpoint is not None and (endpoint.models or not sure):
            yield operation
