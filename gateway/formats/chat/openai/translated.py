"""Translation of the chat completions format from and to other formats, for clients and for providers."""

from functools import partial

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.openai import response
from gateway.formats.chat.openai.custom_tools import CustomCallSerializer, find_custom_names
from gateway.formats.chat.openai.request_reader import parse_chat_request
from gateway.formats.chat.openai.request_writer import build_body
from gateway.formats.chat.openai.stream import ChatStreamParser, ChatStreamSerializer
from gateway.formats.chat.translated_format import ClientFormat, ProviderFormat
from gateway.formats.chat.valid_chat import find_chat_rules
from gateway.formats.stream import StreamSerializer
from gateway.formats.translator import ResponseIdentity


def _open_writer(inference: InferenceRequest, identity: ResponseIdentity) -> StreamSerializer:
    custom_names = find_custom_names(inference.body)
    return (partial(CustomCallSerializer, custom_names) if custom_names else ChatStreamSerializer)(
        answer_id=f"chatcmpl-{identity.id}",
        model=identity.model,
        created_s=identity.now_s,
        include_usage=inference.include_usage,
    )


CLIENT = ClientFormat(
    parse_chat_request,
    _open_writer,
    lambda events, inference, identity: response.build_answer(
        events,
        answer_id=f"chatcmpl-{identity.id}",
        model=identity.model,
        created_s=identity.now_s,
        custom_names=find_custom_names(inference.body),
    ),
)
PROVIDER = ProviderFormat(
    lambda request, inference, model: build_body(request, model, stream=inference.stream),
    lambda inference, identity, secrets: ChatStreamParser(inference.choices, secrets, identity.id),
    lambda raw, identity, secrets, choices: response.parse_answer(raw, secrets, identity.id, choices=choices),
    find_chat_rules,
)
