"""``:embedContent`` and ``:batchEmbedContents`` for clients, served by channels with Gemini's or OpenAI's format.

Both operations are sent to Gemini as a batch. In OpenAI's format ``outputDimensionality`` becomes ``dimensions``, and
``taskType`` and ``title`` are dropped.
"""

from typing import Any

import orjson

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage, parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.gemini.field_names import unify_names
from gateway.formats.chat.gemini.request import check_content, check_object, measure_parts
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.embeddings.openai import MAX_DIMENSIONS, parse_embeddings_answer
from gateway.formats.errors.openai import Secrets
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.wire.fields import Body, parse_integer, parse_list, parse_model, read_text
from gateway.formats.wire.json_values import list_objects

_DIMENSIONS_FIELD = "outputDimensionality"
_STRING_FIELDS = ("taskType", "title")


def parse_embed_inference(body: Body, *, model: str) -> InferenceRequest:
    """Check a body for ``:embedContent`` and return the request. Raises ``InvalidRequest`` naming the field."""
    return _parse_inference({name: value for name, value in unify_names(body).items() if name != "requests"}, model)


def parse_batch_embed_inference(body: Body, *, model: str) -> InferenceRequest:
    """Check a body for ``:batchEmbedContents`` and return the request. Raises ``InvalidRequest`` naming the field."""
    requests = parse_list(unify_names(body), "requests")
    if not requests:
        raise InvalidRequest("Missing required field 'requests': at least one request", param="requests")
    return _parse_inference({"requests": requests}, model)


def _parse_inference(body: Body, model: str) -> InferenceRequest:
    model = parse_model({"model": model})
    chars = tokens = 0
    for prefix, request in _list_requests(body):
        config_fields = {f"{prefix}{name}": value for name, value in check_object(request, prefix[:-1]).items()}
        check_content(request.get("content"), f"{prefix}content")
        parse_integer(config_fields, f"{prefix}{_DIMENSIONS_FIELD}", 1, MAX_DIMENSIONS)
        for name in _STRING_FIELDS:
            read_text(config_fields, f"{prefix}{name}")
        content_chars, content_tokens = measure_parts(request["content"]["parts"])
        title = request.get("title") or ""
        chars += content_chars + len(title)
        tokens += content_tokens + len(title.encode()) + 1
    return InferenceRequest(
        operation="embed_contents", model=model, body=body, prompt_chars=chars, max_prompt_tokens=tokens
    )


def _list_requests(body: Body) -> list[tuple[str, Any]]:
    if "requests" not in body:
        return [("", body)]
    return [(f"requests[{index}].", request) for index, request in enumerate(body["requests"])]


# Gemini's format.


def build_batch_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body of ``:batchEmbedContents`` with the provider's name for the model."""
    model_name = f"models/{model.removeprefix('models/')}"
    return {"requests": [request | {"model": model_name} for _, request in _list_requests(inference.body)]}


def parse_batch_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return the answer for the client and the usage. The answer to a batch is unchanged.

    Raises ``ProviderError``.
    """
    value = parse_answer_object(raw, secrets)
    embeddings = list_objects(value.get("embeddings"))
    if len(embeddings) != len(_list_requests(inference.body)):
        raise ProviderBadResponse("The provider's answer does not have one embedding for each content")
    metadata = value.get("usageMetadata")
    prompt_tokens = parse_count(metadata.get("promptTokenCount")) if isinstance(metadata, dict) else None
    usage = (
        Usage(estimate_prompt(inference), source="estimate")
        if prompt_tokens is None
        else Usage(prompt_tokens, source="upstream")
    )
    if "requests" in inference.body:
        return raw, usage
    other_fields = {name: item for name, item in value.items() if name != "embeddings"}
    return orjson.dumps({"embedding": embeddings[0], **other_fields}), usage


# OpenAI's format.


def build_openai_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body in OpenAI's format. Raises ``InvalidRequest`` for non-text content and for mixed dimensions."""
    requests = _list_requests(inference.body)
    dimensions = requests[0][1].get(_DIMENSIONS_FIELD)
    for prefix, request in requests:
        if request.get(_DIMENSIONS_FIELD) != dimensions:
            param = f"{prefix}{_DIMENSIONS_FIELD}"
            raise InvalidRequest(f"'{param}' must be the same in all requests with this model", param=param)
    texts = [_join_text(request["content"]["parts"], prefix) for prefix, request in requests]
    body: Body = {"model": model, "input": texts, "encoding_format": "float"}
    return body if dimensions is None else body | {"dimensions": dimensions}


def _join_text(parts: list[Body], prefix: str) -> str:
    for index, part in enumerate(parts):
        if part.keys() != {"text"} or part["text"] is None:
            param = f"{prefix}content.parts[{index}]"
            raise InvalidRequest(f"'{param}': this model embeds only text", param=param)
    return "\n".join(part["text"] for part in parts)


def build_google_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Return an answer of OpenAI's format in Gemini's, and the usage. Raises ``ProviderError``."""
    openai_answer, usage = parse_embeddings_answer(raw, inference, secrets)
    items = sorted(
        enumerate(orjson.loads(openai_answer)["data"]), key=lambda numbered_item: _get_sort_index(*numbered_item)
    )
    vectors = [{"values": item["embedding"]} for _, item in items]
    if len(vectors) != len(_list_requests(inference.body)):
        raise ProviderBadResponse("The provider's answer does not have one embedding for each content")
    answer: Body = {"embeddings": vectors} if "requests" in inference.body else {"embedding": vectors[0]}
    return orjson.dumps(answer | {"usageMetadata": {"promptTokenCount": usage.prompt_tokens}}), usage


def _get_sort_index(position: int, item: Body) -> int:
    index = item.get("index")
    return index if type(index) is int else position
