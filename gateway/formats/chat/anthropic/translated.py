"""Anthropic's API format for translation: the client's side and the provider's side."""

from gateway.formats.chat.anthropic import request_writer, response
from gateway.formats.chat.anthropic.request_reader import parse_chat_request
from gateway.formats.chat.anthropic.stream import MessagesStreamParser, MessagesStreamSerializer
from gateway.formats.chat.translated_format import ClientFormat, ProviderFormat

CLIENT = ClientFormat(
    parse_chat_request,
    lambda _inference, identity: MessagesStreamSerializer(identity.model, f"msg_{identity.id}"),
    lambda events, _inference, identity: response.build_answer(
        events, model=identity.model, message_id=f"msg_{identity.id}"
    ),
    {"stop": "stop_sequences", "response_format": "output_config.format"},
)
PROVIDER = ProviderFormat(
    lambda request, inference, model: request_writer.build_body(request, model, stream=inference.stream),
    lambda _inference, identity, secrets: MessagesStreamParser(secrets, identity.id),
    lambda raw, identity, secrets, _choices: response.parse_answer(raw, secrets, identity.id),
    request_writer.find_rules,
)
