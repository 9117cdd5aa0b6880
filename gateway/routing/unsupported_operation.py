"""The error for a request for a model at the wrong endpoint."""

import re
from collections.abc import Iterable, Iterator, Mapping

from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.price import Price
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
_SAME: Mapping[tuple[str, Operation], Operation] = {
    ("anthropic", "chat"): "messages",
    ("google", "chat"): "generate_content",
    ("google", "embeddings"): "embed_contents",
}
"""What another API has in place of an operation of OpenAI's."""
_FIRST: tuple[Operation, ...] = ("chat", "embeddings", "images", "videos", "rerank", "transcriptions", "speech")
"""What a model is for that says nothing of it, in the order of what is usual."""

_MEDIA: Mapping[Operation, tuple[str, Operation]] = {
    "images": ("make images", "images"),
    "image_edits": ("edit images", "images"),
    "speech": ("make speech", "speech"),
    "transcriptions": ("transcribe audio", "transcriptions"),
    "translations": ("translate audio", "transcriptions"),
}
"""What a chat model cannot do, and the operation that the names of models that can tell."""
_MOST_NAMED = 5


class UnsupportedOperation(GatewayError):
    """The model is served, but not at this endpoint; the message names one that works."""

    code = "unsupported_operation"


def refuse_operation(model: str, operation: Operation, serving: Iterable[tuple[Provider, str]]) -> UnsupportedOperation:
    """The fault of a call for ``operation`` with a model that is served, but takes none.

    ``serving``: the providers that serve it, each with its own name of the model.
    """
    works = _find_working(list(serving), operation)
    hint = "" if works is None else f"; POST {OPERATIONS[works].path} does"
    return UnsupportedOperation(
        f"The endpoint {OPERATIONS[operation].path} does not serve the model {model!r}{hint}",
        param="model",
        should_retry=False,
    )


def find_named(model: str) -> Operation | None:
    """Return the operation that a model's name tells; None if it tells none, as the names of chat models."""
    return next((operation for pattern, operation in _NAMED if pattern.search(model.lower())), None)


def refuse_chat_model(
    model: str, operation: Operation, price: Price | None, offered: Iterable[str]
) -> UnsupportedOperation | None:
    """The fault of a call for media with a chat model, at a server without such a path; None if it may be none.

    A chat model costs tokens alone, and its name does not tell another use. ``offered``: what the caller may use at
    this endpoint.
    """
    doing, fitting = _MEDIA.get(operation, ("", "chat"))
    if not doing or price is None or not {"token"} <= price.units <= {"token", "search"} or find_named(model):
        return None
    others = [other for other in offered if find_named(other) == fitting][:_MOST_NAMED]
    hint = f"models that do: {', '.join(others)}" if others else "this gateway has no model that is known to do so"
    return UnsupportedOperation(f"{model!r} does not {doing}; {hint}", param="model", should_retry=False)


def _find_working(serving: list[tuple[Provider, str]], requested: Operation) -> Operation | None:
    """Guess the operation that the model is made for, in the API of ``requested`` if that has one; None if unknown."""
    api, order = OPERATIONS[requested].api, list(OPERATIONS)
    sure = {found for provider, theirs in serving for found in _list_taken(provider, theirs, sure=True)}
    if sure:
        apis = {found: OPERATIONS[found].api for found in sure}
        return min(sure, key=lambda found: (apis[found] != api, apis[found] != "openai", order.index(found)))
    taken = {found for provider, theirs in serving for found in _list_taken(provider, theirs, sure=False)}
    names = " ".join(theirs.lower() for _, theirs in serving)
    hinted = (operation for pattern, operation in _NAMED if pattern.search(names))
    works = next((found for found in (*hinted, *_FIRST) if found in taken), None)
    same = _SAME.get((api, works)) if works is not None else None
    return same if same in taken and same != requested else works


def _list_taken(provider: Provider, model: str, *, sure: bool) -> Iterator[Operation]:
    """The operations that ``provider`` takes with ``model``; ``sure``: those alone that it takes with few models."""
    for operation, facts in OPERATIONS.items():
        endpoint = provider.find_endpoint(facts.formats, model)
        if endpoint is not None and (endpoint.models or not sure):
            yield operation
