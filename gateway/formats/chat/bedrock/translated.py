"""Bedrock's Converse API format for translation: the provider's side."""

from gateway.formats.chat.bedrock import request_writer, response
from gateway.formats.chat.bedrock.event_stream import MEDIA_TYPE
from gateway.formats.chat.bedrock.stream import ConverseStreamParser
from gateway.formats.chat.translated_format import ProviderFormat
from gateway.formats.translator import ResponseMode

PROVIDER = ProviderFormat(
    lambda request, _inference, model: request_writer.build_body(request, model),
    lambda _inference, identity, secrets: ConverseStreamParser(identity.id, identity.model, secrets),
    lambda raw, identity, secrets, _choices: response.parse_answer(raw, identity.id, identity.model, secrets),
    request_writer.find_rules,
    ResponseMode(stream_type=MEDIA_TYPE),
    forces_parallel_calls=True,
)
