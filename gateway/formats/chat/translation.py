"""Translation of chats between the formats of clients and of providers, through the common chat model (``model.py``).

Each format is a package beside this module: its ``translated.py`` has the side of clients, of providers, or both. Every
format of clients is translated to all formats of providers, except its own.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import orjson

from gateway.deferred import defer
from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.adaptations import LEFT_OUT_PREFIX
from gateway.formats.chat.call_conversion import (
    NO_CONVERSION,
    CallConversion,
    CallConverter,
    ConvertingParser,
    find_call_conversion,
    keep_first_call,
    takes_one_call,
)
from gateway.formats.chat.model import Event, UsageReport
from gateway.formats.chat.translated_format import ClientFormat, ProviderFormat
from gateway.formats.chat.valid_chat import find_losses, make_valid
from gateway.formats.errors.openai import Secrets
from gateway.formats.stream import StreamTransform, TranslatingStream, parse_events_usage
from gateway.formats.translator import TOO_DEEP_TEXT, ResponseIdentity, ResponseMode

Body = dict[str, Any]

CLIENT_FORMATS: Mapping[Operation, ClientFormat] = defer(
    {
        "chat": "formats.chat.openai.translated:CLIENT",
        "messages": "formats.chat.anthropic.translated:CLIENT",
        "responses": "formats.chat.responses.translated:CLIENT",
        "generate_content": "formats.chat.gemini.translated:CLIENT",
    }
)
"""The clients' side of each operation that is translated for providers of every format."""
PROVIDER_FORMATS: Mapping[Wire, ProviderFormat] = defer(
    {
        "openai_chat": "formats.chat.openai.translated:PROVIDER",
        "anthropic_messages": "formats.chat.anthropic.translated:PROVIDER",
        "gemini_generate": "formats.chat.gemini.translated:PROVIDER",
        "bedrock_converse": "formats.chat.bedrock.translated:PROVIDER",
    }
)
TRANSLATED_WIRES = frozenset(PROVIDER_FORMATS)
NATIVE_WIRES: Mapping[Operation, Wire] = {operation: OPERATIONS[operation].formats[0] for operation in CLIENT_FORMATS}
"""Operations -> the format in which a provider gets the request untranslated."""


@attrs.define
class ChatTranslation:
    """``Translator`` between two formats, through the common chat model. ``longest_answer`` is as in ``make_valid``."""

    inference: InferenceRequest
    identity: ResponseIdentity
    client: ClientFormat
    provider: ProviderFormat
    adapted: tuple[str, ...] = attrs.field(default=(), eq=False)
    longest_answer: int = 0
    _conversion: CallConversion = attrs.field(default=NO_CONVERSION, init=False, eq=False)

    @property
    def mode(self) -> ResponseMode:
        return self.provider.mode

    @property
    def path(self) -> str | None:
        return None

    def write_body(self) -> Body:
        model = self.identity.model
        try:
            request = self.client.parse_chat_request(self.inference.body)
            valid_chat = make_valid(request, self.provider.find_rules(model), model, self.longest_answer)
            self._conversion = find_call_conversion(valid_chat)
            self.adapted = tuple(dict.fromkeys((*self.adapted, *valid_chat.request.adapted)))
            return self.provider.write_body(valid_chat.request, self.inference, model)
        except InvalidRequest as error:
            raise self._name_field(error) from None

    def _name_field(self, error: InvalidRequest) -> InvalidRequest:
        """Return the error with the name that the field has in the client's format."""
        name = self.client.fields.get(error.param or "")
        if name is None:
            return error
        return InvalidRequest(error.message.replace(f"'{error.param}'", f"'{name}'"), param=name)

    @property
    def _must_keep_one_call(self) -> bool:
        """Whether the client forbids parallel tool calls and the provider's format has no option for that."""
        return self.provider.forces_parallel_calls and takes_one_call(self.inference.body)

    def _parse_events(self, raw: bytes, secrets: Secrets) -> list[Event]:
        events = self.provider.parse_answer(raw, self.identity, secrets, self.inference.choices)
        if self._conversion is not NO_CONVERSION:
            events = CallConverter(self._conversion, self.identity.id).convert(events)
        return keep_first_call(events) if self._must_keep_one_call else events

    def open_transform(self, secrets: Secrets) -> StreamTransform:
        reader = self.provider.open_reader(self.inference, self.identity, secrets)
        if self._conversion is not NO_CONVERSION:
            reader = ConvertingParser(reader, CallConverter(self._conversion, self.identity.id).convert)
        return TranslatingStream(
            ConvertingParser(reader, keep_first_call) if self._must_keep_one_call else reader,
            self.client.open_writer(self.inference, self.identity),
            self.inference,
        )

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        events = self._parse_events(raw, secrets)
        writer = self.client.open_writer(self.inference, self.identity)
        try:
            output = b"".join([writer.write(event) for event in events])
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(TOO_DEEP_TEXT) from None
        return output, parse_events_usage(events, self.inference)

    def parse_answer(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        events = self._parse_events(raw, secrets)
        usage = parse_events_usage(events, self.inference)
        # Clients of these operations require counts, so an estimate is written too.
        if usage.source == "estimate" and (
            OPERATIONS[self.inference.operation].requires_usage or self.inference.compaction == "response"
        ):
            events = [*events, UsageReport(usage)]
        try:
            return self.client.write_answer(events, self.inference, self.identity), usage
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(TOO_DEEP_TEXT) from None


def count_losses(inference: InferenceRequest, targets: Iterable[tuple[Wire, str]]) -> list[int]:
    """Count the requested features that each target drops. A target is an API format and the provider's model name.

    The count is 0 for a target that needs no translation. All counts are 0 for an invalid request, which is rejected
    later.
    """
    try:
        request = CLIENT_FORMATS[inference.operation].parse_chat_request(inference.body)
    except InvalidRequest:
        return [0 for _ in targets]
    hosted_count = sum(name.startswith(LEFT_OUT_PREFIX) for name in request.adapted)
    return [
        hosted_count + find_losses(request, PROVIDER_FORMATS[wire].find_rules(model))
        if is_translated(inference.operation, wire)
        else 0
        for wire, model in targets
    ]


def is_translated(operation: Operation, wire: Wire) -> bool:
    """Return whether ``operation`` is translated through the common chat model for a provider that uses ``wire``."""
    return wire in TRANSLATED_WIRES and NATIVE_WIRES.get(operation, wire) != wire
