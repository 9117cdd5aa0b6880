"""Rerank requests and answers in the format of Jina and Cohere, which most other providers adopted.

Request: ``model``, ``query``, ``documents``, ``top_n``, ``return_documents`` and more; answer: ``results``, each with
an ``index`` and a ``relevance_score``. Sources: Cohere's "Best Practices for using Rerank" (at most 10,000 documents),
SiliconFlow's and Novita's "Create rerank", Alibaba Cloud's "Text rerank" (token counts), and the request and answer
classes of vLLM's server. Each reports tokens in a different place. Voyage's answer has ``data`` instead of ``results``.
"""

from collections.abc import Iterable
from typing import Any

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_TOKENS, Usage, attach_details, parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.errors.openai import Secrets
from gateway.formats.passthrough_format import PassthroughFormat, unchanged_answer, without_identity
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.usage.token_bounds import MESSAGE_TOKENS, PART_TOKENS, bound_json, bound_text
from gateway.formats.wire.fields import Body, make_missing_error, name_json_type, parse_integer, parse_list, parse_model

MAX_DOCUMENTS = 10_000
_MEDIA_FIELDS = frozenset({"image", "image_url", "video", "video_url", "audio"})
"""Fields of a query or a document that hold media."""
_TOKEN_PATHS = (
    ("usage", "total_tokens"),  # Jina, vLLM, llama.cpp, Together, DashScope
    ("usage", "prompt_tokens"),
    ("meta", "tokens", "input_tokens"),  # Cohere, SiliconFlow
    ("tokens", "input_tokens"),  # SiliconFlow, by its documentation
    ("meta", "billed_units", "total_tokens"),
    ("meta", "billed_units", "input_tokens"),
)

_SEARCHES_PATH = ("meta", "billed_units", "search_units")
_DOCUMENTS_PER_SEARCH = 100
_DOCUMENT_TOKENS = 500
"""One billed search covers a query and up to 100 documents. A document counts once per started 500 tokens of query and
document together (cohere.com/pricing, "Rerank")."""


def parse_rerank_inference(body: Body) -> InferenceRequest:
    """Check a parsed body and return the request. Raises ``InvalidRequest`` naming the field."""
    model = parse_model(body)
    query_chars, query_bound = _measure_item(body.get("query"), "query")
    documents = parse_list(body, "documents")
    if not documents:
        raise make_missing_error(body, "documents", "at least one document")
    if len(documents) > MAX_DOCUMENTS:
        raise InvalidRequest(f"'documents' must hold at most {MAX_DOCUMENTS} documents", param="documents")
    document_sizes = [_measure_item(document, f"documents[{index}]") for index, document in enumerate(documents)]
    parse_integer(body, "top_n", 1, MAX_TOKENS)
    # The provider reads the query once per document.
    chunk_count = sum(
        -(-max(query_bound + document_bound, 1) // _DOCUMENT_TOKENS) for _, document_bound in document_sizes
    )
    max_prompt_tokens = sum(MESSAGE_TOKENS + query_bound + document_bound for _, document_bound in document_sizes)
    return InferenceRequest(
        operation="rerank",
        model=model,
        body=body,
        prompt_chars=sum(query_chars + document_chars for document_chars, _ in document_sizes),
        max_prompt_tokens=max_prompt_tokens,
        searches=-(-chunk_count // _DOCUMENTS_PER_SEARCH),
    )


def _measure_item(item: object, param: str) -> tuple[int, int]:
    if item is None:
        raise InvalidRequest(f"Missing required field '{param}'", param=param)
    if isinstance(item, str):
        return len(item), bound_text(item)
    if not isinstance(item, dict):
        raise InvalidRequest(f"'{param}' must be a string or an object, not {name_json_type(item)}", param=param)
    fields = list(_list_fields(item))
    texts = [value for name, value in fields if name not in _MEDIA_FIELDS and isinstance(value, str)]
    return sum(map(len, texts)), sum(_bound_field(name, value) for name, value in fields)


def _list_fields(item: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """List a document's fields. If ``content`` is a list (vLLM's documents with images), list its parts' fields."""
    content = item.get("content")
    if not isinstance(content, list):
        return item.items()
    other_fields = [(name, value) for name, value in item.items() if name != "content"]
    parts = (part if isinstance(part, dict) else {"": part} for part in content)
    return other_fields + [field for part in parts for field in part.items()]


def _bound_field(name: str, value: Any) -> int:
    return PART_TOKENS if name in _MEDIA_FIELDS and value else bound_json(value)


def build_rerank_body(inference: InferenceRequest, model: str) -> Body:
    """Build the request body with the provider's model name."""
    return inference.body | {"model": model}


def parse_rerank_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> Usage:
    """Return the usage of an answer that is forwarded unchanged. Raises ``ProviderError``."""
    return _parse_usage(parse_answer_object(raw, secrets), inference)


def parse_data_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> tuple[bytes, Usage]:
    """Convert an answer that has ``data`` in place of ``results`` into the common format; return it with its usage.

    Raises ``ProviderError``.
    """
    value = parse_answer_object(raw, secrets)
    if "results" not in value:
        value["results"] = value.pop("data", None)
    usage = _parse_usage(value, inference)
    value.pop("object", None)  # "list"; the common format has no such field
    return exact_json.dumps(value), usage


def _parse_usage(value: Body, inference: InferenceRequest) -> Usage:
    if not isinstance(value.get("results"), list):
        raise ProviderBadResponse("The provider's answer has no results")
    searches = parse_count(_find_at_path(value, _SEARCHES_PATH))
    usage = Usage(estimate_prompt(inference), source="upstream" if searches else "estimate")
    for path in _TOKEN_PATHS:
        tokens = parse_count(_find_at_path(value, path))
        if tokens:  # a server that does not count reports 0
            usage = Usage(tokens, source="upstream")
            break
    return attach_details(usage, {"searches": searches}) if searches else usage


def _find_at_path(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


RERANK = PassthroughFormat(build_rerank_body, unchanged_answer(parse_rerank_answer))
RERANK_DATA = PassthroughFormat(build_rerank_body, without_identity(parse_data_answer))
