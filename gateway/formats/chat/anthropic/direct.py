"""Direct formats for Messages requests and token counts to providers that use Anthropic's API format."""

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import NO_USAGE
from gateway.formats.chat.anthropic import call_ids
from gateway.formats.chat.anthropic.message_to_stream import build_whole
from gateway.formats.chat.anthropic.passthrough_body import build_passed_body
from gateway.formats.chat.anthropic.response import parse_count_answer
from gateway.formats.errors.openai import Secrets
from gateway.formats.passthrough_format import ParsedAnswer, PassthroughFormat, without_identity
from gateway.formats.translator import ResponseIdentity


def _parse_count(
    raw: bytes, _inference: InferenceRequest, _identity: ResponseIdentity, secrets: Secrets
) -> ParsedAnswer:
    parse_count_answer(raw, secrets)
    return raw, NO_USAGE


MESSAGES = PassthroughFormat(
    build_passed_body, without_identity(call_ids.parse_answer), call_ids.open_stream, build_whole
)
COUNT_TOKENS = PassthroughFormat(build_passed_body, _parse_count)
