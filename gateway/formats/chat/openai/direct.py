"""Chat and other text operations of the OpenAI API, passed through to channels that use the same format."""

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.openai.chat import ChatPassthrough, build_chat_body, parse_answer_object, parse_chat_answer
from gateway.formats.chat.openai.completion_to_stream import build_whole
from gateway.formats.chat.openai.completions import CompletionsPassthrough, build_completions_body
from gateway.formats.chat.openai.odd_answers import repair_answer
from gateway.formats.embeddings.openai import build_embeddings_body, parse_embeddings_answer
from gateway.formats.errors.openai import Secrets
from gateway.formats.moderations import build_moderations_body, parse_moderations_answer
from gateway.formats.passthrough_format import Parsed, PassthroughFormat, unchanged_answer, without_identity
from gateway.formats.translator import ResponseIdentity


def _parse_chat(raw: bytes, inference: InferenceRequest, identity: ResponseIdentity, secrets: Secrets) -> Parsed:
    value = parse_answer_object(raw, secrets)  # hot path: avoids the indirection of ``unchanged_answer``
    usage = parse_chat_answer(value, inference)
    several = inference.choices == 1 and len(value["choices"]) > 1
    if inference.operation == "chat" and (several or raw.find(b'"tool_calls"') >= 0):  # ``in`` is slower
        return repair_answer(raw, inference, identity.id), usage
    return raw, usage


CHAT = PassthroughFormat(build_chat_body, _parse_chat, ChatPassthrough, build_whole)
COMPLETIONS = PassthroughFormat(build_completions_body, _parse_chat, CompletionsPassthrough, build_whole)
EMBEDDINGS = PassthroughFormat(build_embeddings_body, without_identity(parse_embeddings_answer))
MODERATIONS = PassthroughFormat(build_moderations_body, unchanged_answer(parse_moderations_answer))
