"""Prints an OpenAPI document of Anthropic's API, made from the types of its library, in whose environment it runs."""

import json
from typing import Any

from anthropic import types
from anthropic.types import beta, message_count_tokens_params, message_create_params, messages
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params
from anthropic.types.beta import messages as beta_messages
from anthropic.types.beta.messages import batch_create_params as beta_batch_params
from anthropic.types.beta.messages import batch_list_params as beta_list_params
from anthropic.types.messages import batch_create_params, batch_list_params
from pydantic import TypeAdapter


def describe(
    created: tuple[Any, ...], read: tuple[Any, ...], listed: tuple[Any, ...], events: tuple[Any, ...]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the operations of the stable or of the beta API.

    Args:
        created: the parameters of messages, counts and batches.
        read: a message, a count, a batch, a deleted batch, and a model.
        listed: the parameters of lists of batches and of models.
        events: of a stream, in their order.
    """
    message, count, batch, deleted, model = read
    page = {"has_more": {"const": False}, "first_id": {"type": "string"}, "last_id": {"type": "string"}}
    one_batch = "/v1/messages/batches/{message_batch_id}"
    return {
        "/v1/messages": {"post": _operation(message, created[0], stream=events)},
        "/v1/messages/count_tokens": {"post": _operation(count, created[1])},
        "/v1/messages/batches": {
            "post": _operation(batch, created[2]),
            "get": _operation(_page_of(batch, page), query=listed[0]),
        },
        one_batch: {"get": _operation(batch), "delete": _operation(deleted)},
        f"{one_batch}/cancel": {"post": _operation(batch)},
        "/v1/models": {"get": _operation(_page_of(model, page), query=listed[1])},
        "/v1/models/{model_id}": {"get": _operation(model)},
    }


def _operation(answer: Any, body: Any = None, *, stream: tuple[Any, ...] = (), query: Any = None) -> dict[str, Any]:
    content = {"application/json": {"schema": answer if isinstance(answer, dict) else _schema(answer, "serialization")}}
    if stream:
        events = [_schema(event, "serialization") for event in stream]
        content["text/event-stream"] = {"schema": {"type": "array", "prefixItems": events}}
    made: dict[str, Any] = {"responses": {"200": {"content": content}}}
    if body is not None:
        made["requestBody"] = {"content": {"application/json": {"schema": _schema(body, "validation")}}}
    if query is not None:
        made["parameters"] = [{"name": name, "in": "query", "schema": {}} for name in query.__annotations__]
    return made


_SCHEMAS: dict[str, Any] = {}


def _schema(kind: Any, mode: Any) -> dict[str, Any]:
    """Return a type's schema; its parts go to one place, under names that no other type's parts have."""
    prefix = f"T{len(_SCHEMAS)}."
    place = "#/components/schemas/" + prefix + "{model}"
    schema = TypeAdapter(kind).json_schema(mode=mode, ref_template=place)
    parts = schema.pop("$defs", {})
    _SCHEMAS.update({prefix + name: part for name, part in parts.items()})
    return schema


def _page_of(kind: Any, page: dict[str, Any]) -> dict[str, Any]:
    items = {"type": "array", "items": _schema(kind, "serialization")}
    return {"type": "object", "properties": {"data": items, **page}}


def main() -> None:
    """Print the documents of the stable and of the beta API."""
    stable = describe(
        (
            message_create_params.MessageCreateParamsBase,
            message_count_tokens_params.MessageCountTokensParams,
            batch_create_params.BatchCreateParams,
        ),
        (types.Message, types.MessageTokensCount, messages.MessageBatch, messages.DeletedMessageBatch, types.ModelInfo),
        (batch_list_params.BatchListParams, types.model_list_params.ModelListParams),
        (
            types.RawMessageStartEvent,
            types.RawContentBlockStartEvent,
            types.RawContentBlockDeltaEvent,
            types.RawContentBlockStopEvent,
            types.RawMessageDeltaEvent,
            types.RawMessageStopEvent,
        ),
    )
    newer = describe(
        (
            beta_create_params.MessageCreateParamsBase,
            beta_count_params.MessageCountTokensParams,
            beta_batch_params.BatchCreateParams,
        ),
        (
            beta.BetaMessage,
            beta.BetaMessageTokensCount,
            beta_messages.BetaMessageBatch,
            beta_messages.BetaDeletedMessageBatch,
            beta.BetaModelInfo,
        ),
        (beta_list_params.BatchListParams, beta.model_list_params.ModelListParams),
        (
            beta.BetaRawMessageStartEvent,
            beta.BetaRawContentBlockStartEvent,
            beta.BetaRawContentBlockDeltaEvent,
            beta.BetaRawContentBlockStopEvent,
            beta.BetaRawMessageDeltaEvent,
            beta.BetaRawMessageStopEvent,
        ),
    )
    components = {"schemas": _SCHEMAS}
    documents = [{"openapi": "3.1.0", "paths": paths, "components": components} for paths in (stable, newer)]
    print(json.dumps(documents))


if __name__ == "__main__":
    main()
