"""Translation of Gemini's API from and to other formats, for clients and for providers."""

from gateway.formats.chat.gemini import request_writer, response, response_writer
from gateway.formats.chat.gemini.request_reader import parse_chat_request
from gateway.formats.chat.translated_format import ClientFormat, ProviderFormat

CLIENT = ClientFormat(
    parse_chat_request,
    lambda _inference, identity: response_writer.GenerateContentSerializer(identity.model, identity.id),
    lambda events, _inference, identity: response_writer.build_answer(
        events, model=identity.model, answer_id=identity.id
    ),
    {
        "messages": "contents",
        "n": "generationConfig.candidateCount",
        "stop": "generationConfig.stopSequences",
        "response_format": "generationConfig.responseJsonSchema",
        "tool_choice": "toolConfig.functionCallingConfig",
    },
)
PROVIDER = ProviderFormat(
    lambda request, _inference, model: request_writer.build_body(request, model),
    lambda _inference, identity, secrets: response.GenerateContentParser(identity.id, identity.model, secrets),
    lambda raw, identity, secrets, _choices: response.parse_answer(
        raw, answer_id=identity.id, model=identity.model, secrets=secrets
    ),
    request_writer.find_rules,
    forces_parallel_calls=True,
)
