"""``POST /responses/compact``: the request (``CompactResponseMethodPublicBody``), and its passthrough.

Internally the request is a Responses request whose input ends with a compaction trigger.
"""

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_answer_object, parse_any_object
from gateway.formats.chat.responses.compaction import TRIGGER_KIND
from gateway.formats.chat.responses.responses import (
    build_responses_body,
    parse_response_usage,
    parse_responses_inference,
)
from gateway.formats.errors.openai import Secrets
from gateway.formats.references.stored import list_created_ids
from gateway.formats.wire.fields import Body, parse_flag

COMPACTION_OBJECT = "response.compaction"
_RESPONSES_FIELDS = frozenset({"stream", "store", "background"})


def parse_compact_inference(body: Body) -> InferenceRequest:
    """Check a body and return the request. Raises ``InvalidRequest`` naming the field."""
    if parse_flag(body, "stream"):
        raise InvalidRequest("'stream' must be false: a compacted conversation comes as one object", param="stream")
    compact_fields = {name: value for name, value in body.items() if name not in _RESPONSES_FIELDS} | {"store": False}
    items = body.get("input")
    if items is None or isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}] if items else []
    compact_fields["input"] = [*items, {"type": TRIGGER_KIND}] if isinstance(items, list) else items
    return attrs.evolve(parse_responses_inference(compact_fields), compaction="response")


def build_compact_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body with the provider's name for the model, without the trigger, which the path makes redundant."""
    body = build_responses_body(inference, model)
    del body["store"]
    items = body.pop("input")[:-1]
    return body | {"input": items} if items else body


def parse_compact_answer(raw: bytes, inference: InferenceRequest, secrets: Secrets = ()) -> Usage:
    """Return the usage of a compaction answer, and record the ids in the answer. Raises ``ProviderError``."""
    value = parse_any_object(raw)
    if value.get("object") != COMPACTION_OBJECT:
        parse_answer_object(raw, secrets)
        raise ProviderBadResponse("The provider's answer is not a compacted conversation")
    inference.made[:] = list_created_ids(value, keeps_answer=False)
    return parse_response_usage(value, inference)
