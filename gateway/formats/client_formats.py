"""The API formats of clients that can be translated: each is parsed into the common chat model and built from it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs

from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.formats.anthropic import request_reader as anthropic_reader
from gateway.formats.anthropic import response as anthropic_response
from gateway.formats.anthropic.stream import MessagesStreamSerializer
from gateway.formats.chat import ChatRequest, Event
from gateway.formats.gemini import request_reader as gemini_reader
from gateway.formats.gemini import response_writer as gemini_writer
from gateway.formats.openai import compaction_writer, responses_reader
from gateway.formats.openai import request_reader as openai_reader
from gateway.formats.openai import response as openai_response
from gateway.formats.openai.custom_tools import CustomCallSerializer, find_custom_names
from gateway.formats.openai.stream import ChatStreamSerializer
from gateway.formats.stream import StreamSerializer
from gateway.formats.translator import ResponseIdentity


@attrs.frozen
class ClientFormat:
    """An API format that clients use: requests are parsed from it, answers are built in it.

    ``fields``: its names of fields that errors name as the OpenAI API does.
    """

    parse_chat_request: Callable[[dict[str, Any]], ChatRequest]
    open_writer: Callable[[InferenceRequest, ResponseIdentity], StreamSerializer]
    write_answer: Callable[[Sequence[Event], InferenceRequest, ResponseIdentity], bytes]
    fields: Mapping[str, str] = MappingProxyType({})


def _open_chat_writer(inference: InferenceRequest, identity: ResponseIdentity) -> StreamSerializer:
    custom = find_custom_names(inference.body)
    return (partial(CustomCallSerializer, custom) if custom else ChatStreamSerializer)(
        answer_id=f"chatcmpl-{identity.id}",
        model=identity.model,
        created_s=identity.now_s,
        include_usage=inference.include_usage,
    )


CLIENT_FORMATS: Mapping[Operation, ClientFormat] = MappingProxyType(
    {
        "chat": ClientFormat(
            openai_reader.parse_chat_request,
            _open_chat_writer,
            lambda events, inference, identity: openai_response.build_answer(
                events,
                answer_id=f"chatcmpl-{identity.id}",
                model=identity.model,
                created_s=identity.now_s,
                custom=find_custom_names(inference.body),
            ),
        ),
        "messages": ClientFormat(
            anthropic_reader.parse_chat_request,
            lambda _inference, identity: MessagesStreamSerializer(identity.model, f"msg_{identity.id}"),
            lambda events, _inference, identity: anthropic_response.build_answer(
                events, model=identity.model, message_id=f"msg_{identity.id}"
            ),
            MappingProxyType({"stop": "stop_sequences", "response_format": "output_config.format"}),
        ),
        "responses": ClientFormat(
            responses_reader.parse_chat_request,
            compaction_writer.open_writer,
            compaction_writer.build_answer,
            MappingProxyType({"messages": "input", "response_format": "text.format", "logprobs": "top_logprobs"}),
        ),
        "generate_content": ClientFormat(
            gemini_reader.parse_chat_request,
            lambda _inference, identity: gemini_writer.GenerateContentSerializer(identity.model, identity.id),
            lambda events, _inference, identity: gemini_writer.build_answer(
                events, model=identity.model, answer_id=identity.id
            ),
            MappingProxyType(
                {
                    "messages": "contents",
                    "n": "generationConfig.candidateCount",
                    "stop": "generationConfig.stopSequences",
                    "response_format": "generationConfig.responseJsonSchema",
                    "tool_choice": "toolConfig.functionCallingConfig",
                }
            ),
        ),
    },
)
"""By the operation."""
