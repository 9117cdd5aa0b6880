"""The error for a request for a model at the wrong endpoint."""

import re
from collections.abc import Iterable, Iterator, Mapping

from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.price import Price
from gateway.errors import GatewayError
from gateway.providers.base import Provider

_OPERATION_PATTERNS: tuple[tuple[re.Pattern[str], Operation], ...] = (
    (re.compile("embed|bge-|gte-|e5-|minilm"), "embeddings"),
    (re.compile("rerank"), "rerank"),
    (re.compile("moderation"), "moderations"),
    (re.compile("whisper|transcribe|asr"), "transcriptions"),
    (re.compile("tts|speech"), "speech"),
    (re.compile("image|dall-e|flux|imagen|seedream"), "images"),
    (re.compile("video|sora|veo-|kling|hailuo|seedance"), "videos"),
)
"""Name patterns that reveal a model's operation, for providers that take every model at several endpoints."""
_COUNTERPARTS: Mapping[tuple[str, Operation], Operation] = {
    ("anthropic", "chat"): "messages",
    ("google", "chat"): "generate_content",
    ("google", "embeddings"): "embed_contents",
}
"""The counterparts of OpenAI's operations in other APIs."""
_LIKELY_OPERATIONS: tuple[Operation, ...] = (
    "chat",
    "embeddings",
    "images",
    "videos",
    "rerank",
    "transcriptions",
    "speech",
)
"""The likely operations of a model whose name reveals nothing, the most usual first."""

_MEDIA_PHRASES: Mapping[Operation, tuple[str, Operation]] = {
    "images": ("make images", "images"),
    "image_edits": ("edit images", "images"),
    "speech": ("make speech", "speech"),
    "transcriptions": ("transcribe audio", "transcriptions"),
    "translations": ("translate audio", "transcriptions"),
}
"""For each media operation: the words for what a chat model cannot do, and the operation that fitting names reveal."""
_MAX_NAMED_MODELS = 5


class UnsupportedOperation(GatewayError):
    """The model is served, but not at this endpoint; the message names what works instead, if that is known."""

    code = "unsupported_operation"


def refuse_operation(
    model: str, operation: Operation, serving_providers: Iterable[tuple[Provider, str]]
) -> UnsupportedOperation:
    """Return the error for an operation that a served model lacks.

    ``serving_providers`` are the providers that serve the model, each with its name for it.
    """
    working_operation = _guess_operation(list(serving_providers), operation)
    hint = "" if working_operation is None else f"; POST {OPERATIONS[working_operation].path} does"
    return UnsupportedOperation(
        f"The endpoint {OPERATIONS[operation].path} does not serve the model {model!r}{hint}",
        param="model",
        should_retry=False,
    )


def find_operation_by_name(model: str) -> Operation | None:
    """Return the operation that a model's name reveals. None if it reveals none, as with chat models."""
    return next((operation for pattern, operation in _OPERATION_PATTERNS if pattern.search(model.lower())), None)


def refuse_chat_model(
    model: str, operation: Operation, price: Price | None, offered_models: Iterable[str]
) -> UnsupportedOperation | None:
    """Return the error for requesting media from a chat model. None if the model may not be a chat model.

    A chat model is priced only by tokens (and searches), and its name reveals no other operation. ``offered_models``
    are those that the caller may use at this endpoint.
    """
    phrase, fitting_operation = _MEDIA_PHRASES.get(operation, ("", "chat"))
    if (
        not phrase
        or price is None
        or not {"token"} <= price.units <= {"token", "search"}
        or find_operation_by_name(model)
    ):
        return None
    other_models = [other for other in offered_models if find_operation_by_name(other) == fitting_operation][
        :_MAX_NAMED_MODELS
    ]
    hint = (
        f"models that do: {', '.join(other_models)}"
        if other_models
        else "this gateway has no model that is known to do so"
    )
    return UnsupportedOperation(f"{model!r} does not {phrase}; {hint}", param="model", should_retry=False)


def _guess_operation(serving_providers: list[tuple[Provider, str]], requested: Operation) -> Operation | None:
    """Guess the model's operation, preferably in the API of ``requested``. None if unknown."""
    api, order = OPERATIONS[requested].api, list(OPERATIONS)
    certain_operations = {
        operation
        for provider, upstream_model in serving_providers
        for operation in _list_accepted_operations(provider, upstream_model, is_certain=True)
    }
    if certain_operations:
        apis = {operation: OPERATIONS[operation].api for operation in certain_operations}
        return min(
            certain_operations,
            key=lambda operation: (apis[operation] != api, apis[operation] != "openai", order.index(operation)),
        )
    accepted_operations = {
        operation
        for provider, upstream_model in serving_providers
        for operation in _list_accepted_operations(provider, upstream_model, is_certain=False)
    }
    names = " ".join(upstream_model.lower() for _, upstream_model in serving_providers)
    hinted = (operation for pattern, operation in _OPERATION_PATTERNS if pattern.search(names))
    working_operation = next(
        (operation for operation in (*hinted, *_LIKELY_OPERATIONS) if operation in accepted_operations), None
    )
    equal_operation = _COUNTERPARTS.get((api, working_operation)) if working_operation is not None else None
    return (
        equal_operation
        if equal_operation in accepted_operations and equal_operation != requested
        else working_operation
    )


def _list_accepted_operations(provider: Provider, model: str, *, is_certain: bool) -> Iterator[Operation]:
    """Yield the operations that ``provider`` accepts for ``model``.

    ``is_certain`` restricts them to endpoints that serve only certain models.
    """
    for operation, facts in OPERATIONS.items():
        endpoint = provider.find_endpoint(facts.formats, model)
        if endpoint is not None and (endpoint.models or not is_certain):
            yield operation
