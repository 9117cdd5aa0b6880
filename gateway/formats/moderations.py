"""Moderations in the OpenAI API format: the request, and the usage of its answer."""

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage, parse_usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.errors.openai import Secrets
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.usage.token_bounds import PART_TOKENS, bound_text
from gateway.formats.wire.fields import Body, make_missing_error, name_json_type, parse_model

DEFAULT_MODEL = "omni-moderation-latest"
"""OpenAI's default if the client names no model."""


def parse_moderations_inference(body: Body) -> InferenceRequest:
    """Check a parsed body and return the request. Raises ``InvalidRequest`` naming the field."""
    model = DEFAULT_MODEL if body.get("model") is None else parse_model(body)
    bounds = [_bound_item(item, param) for item, param in _list_input(body)]
    return InferenceRequest(
        operation="moderations",
        model=model,
        body=body,
        prompt_chars=sum(chars for chars, _ in bounds),
        max_prompt_tokens=sum(bound for _, bound in bounds),
    )


def _list_input(body: Body) -> list[tuple[object, str]]:
    value = body.get("input")
    if value is None:
        raise make_missing_error(body, "input")
    if isinstance(value, str):
        return [(value, "input")]
    if not isinstance(value, list):
        raise InvalidRequest(f"'input' must be a string or an array, not {name_json_type(value)}", param="input")
    if not value:
        raise InvalidRequest("'input' must not be an empty array", param="input")
    return [(item, f"input[{index}]") for index, item in enumerate(value)]


def _bound_item(item: object, param: str) -> tuple[int, int]:
    item_text = item
    if isinstance(item, dict) and isinstance(item.get("type"), str):
        item_text = item.get("text")
        if not isinstance(item_text, str):
            return 0, PART_TOKENS
    if not isinstance(item_text, str):
        raise InvalidRequest(f"'{param}' must be a string or an object with a 'type'", param=param)
    return len(item_text), 1 + bound_text(item_text)


def build_moderations_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body with the provider's name of the model."""
    return inference.body | {"model": model}


def parse_moderations_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> Usage:
    """Return the usage of an answer, usually an estimate: OpenAI reports none. Raises ``ProviderError``."""
    value = parse_answer_object(raw, secrets)
    if not isinstance(value.get("results"), list):
        raise ProviderBadResponse("The provider's answer has no results")
    return parse_usage(value.get("usage")) or Usage(estimate_prompt(inference), source="estimate")
