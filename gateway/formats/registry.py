"""Choose the translator between the client's and a provider's API format for a request.

If both sides use the same format, bytes pass through and the answer is only inspected.
"""

from collections.abc import Iterable, Mapping
from operator import methodcaller
from typing import Any

import attrs
import orjson

from gateway.deferred import defer
from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.adaptations import LEFT_OUT
from gateway.formats.chat.call_conversion import (
    NO_CONVERSION,
    CallConversion,
    CallConverter,
    ConvertingParser,
    find_call_conversion,
)
from gateway.formats.chat.model import Event, UsageReport
from gateway.formats.chat.one_call import OneCallParser, keep_first_call, takes_one_call
from gateway.formats.chat.openai.chat import ChatPassthrough
from gateway.formats.chat.openai.custom_tools import has_custom
from gateway.formats.chat.translated_format import ClientFormat, ProviderFormat
from gateway.formats.chat.valid_chat import find_losses, make_valid
from gateway.formats.direct_formats import DIRECT_FORMATS, DIRECT_WIRES, GOOGLE_FORMATS
from gateway.formats.errors.openai import Secrets
from gateway.formats.passthrough_format import IMAGE_BACKEND_FORMAT, PassthroughFormat
from gateway.formats.stream import StreamTransform, TranslatingStream, parse_events_usage
from gateway.formats.translator import PLAIN, ResponseIdentity, ResponseMode, Translator
from gateway.formats.wire.request_body import AdaptedBody, Payload

Body = dict[str, Any]

_TOO_DEEP = "The provider's answer is nested too deeply to be passed on"
"""orjson reads JSON nested up to 1024 levels deep, but writes only up to 254 levels."""


@attrs.define
class _Passthrough:
    """``Translator`` for client and provider with the same format, and for directly converted formats."""

    inference: InferenceRequest
    identity: ResponseIdentity
    direct: PassthroughFormat
    mode: ResponseMode
    adapted: tuple[str, ...] = attrs.field(default=(), eq=False)

    @property
    def path(self) -> str | None:
        find = self.direct.find_path
        return None if find is None else find(self.inference, self.identity.model)

    def write_body(self) -> Payload:
        body = self.direct.write(self.inference, self.identity.model)
        if type(body) is AdaptedBody:
            self.adapted = tuple(dict.fromkeys((*self.adapted, *body.adapted)))
        return body

    def open_transform(self, secrets: Secrets) -> StreamTransform:
        transform = self.direct.transform(self.inference, secrets)
        if type(transform) is ChatPassthrough:
            transform.note_repaired = self._note_repaired
        return transform

    def _note_repaired(self) -> None:
        """Record that tool calls of the answer were repaired: as sent, client libraries would misread them."""
        self.adapted = tuple(dict.fromkeys((*self.adapted, "answer.tool_calls")))

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        try:
            return self.direct.build_whole(raw, self.inference, secrets)
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(_TOO_DEEP) from None

    def parse_answer(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        try:
            parsed = self.direct.read(raw, self.inference, self.identity, secrets)
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(_TOO_DEEP) from None
        if parsed[0] is not raw and self.inference.operation == "chat":
            self._note_repaired()
        return parsed


@attrs.define
class _ChatTranslation:
    inference: InferenceRequest
    identity: ResponseIdentity
    client: ClientFormat
    provider: ProviderFormat
    adapted: tuple[str, ...] = attrs.field(default=(), eq=False)
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
            valid = make_valid(request, self.provider.find_rules(model), model)
            self._conversion = find_call_conversion(valid)
            self.adapted = tuple(dict.fromkeys((*self.adapted, *valid.request.adapted)))
            return self.provider.write_body(valid.request, self.inference, model)
        except InvalidRequest as refused:
            raise self._name_field(refused) from None

    def _name_field(self, refused: InvalidRequest) -> InvalidRequest:
        """Return the error with the client format's field name in place of the OpenAI API's."""
        name = self.client.fields.get(refused.param or "")
        if name is None:
            return refused
        return InvalidRequest(refused.message.replace(f"'{refused.param}'", f"'{name}'"), param=name)

    @property
    def _must_choose(self) -> bool:
        """Whether the client forbids parallel tool calls and the provider's format has no option for that."""
        return self.provider.several_calls and takes_one_call(self.inference.body)

    def _parse_events(self, raw: bytes, secrets: Secrets) -> list[Event]:
        events = self.provider.parse_answer(raw, self.identity, secrets, self.inference.choices)
        if self._conversion is not NO_CONVERSION:
            events = CallConverter(self._conversion, self.identity.id).fit(events)
        return keep_first_call(events) if self._must_choose else events

    def open_transform(self, secrets: Secrets) -> StreamTransform:
        reader = self.provider.open_reader(self.inference, self.identity, secrets)
        if self._conversion is not NO_CONVERSION:
            reader = ConvertingParser(reader, CallConverter(self._conversion, self.identity.id))
        return TranslatingStream(
            OneCallParser(reader) if self._must_choose else reader,
            self.client.open_writer(self.inference, self.identity),
            self.inference,
        )

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        events = self._parse_events(raw, secrets)
        writer = self.client.open_writer(self.inference, self.identity)
        try:
            written = b"".join([writer.write(event) for event in events])
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(_TOO_DEEP) from None
        return written, parse_events_usage(events, self.inference)

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
            raise ProviderBadResponse(_TOO_DEEP) from None


CLIENT_FORMATS: Mapping[Operation, ClientFormat] = defer(
    {
        "chat": "formats.chat.openai.translated:CLIENT",
        "messages": "formats.chat.anthropic.translated:CLIENT",
        "responses": "formats.chat.responses.translated:CLIENT",
        "generate_content": "formats.chat.gemini.translated:CLIENT",
    }
)
_PROVIDER_FORMATS: Mapping[Wire, ProviderFormat] = defer(
    {
        "openai_chat": "formats.chat.openai.translated:PROVIDER",
        "anthropic_messages": "formats.chat.anthropic.translated:PROVIDER",
        "gemini_generate": "formats.chat.gemini.translated:PROVIDER",
        "bedrock_converse": "formats.chat.bedrock.translated:PROVIDER",
    }
)
_TRANSLATED = frozenset(_PROVIDER_FORMATS)
_NATIVE: Mapping[str, Wire] = {
    "chat": "openai_chat",
    "messages": "anthropic_messages",
    "responses": "openai_responses",
    "generate_content": "gemini_generate",
}
"""The native format of each operation that can be translated."""


_GET_CALLS = methodcaller("get", "tool_calls")


def make_translator(
    inference: InferenceRequest, wire: Wire, identity: ResponseIdentity, *, custom_tools: bool = True
) -> Translator:
    """Return the translator for ``wire``. ``custom_tools``: the provider supports custom tools in chats."""
    foreign = (
        not custom_tools
        and inference.operation == "chat"
        and ("tools" in inference.body or any(map(_GET_CALLS, inference.body["messages"])))
        and has_custom(inference.body)
    )
    if foreign or (wire in _TRANSLATED and _NATIVE.get(inference.operation, wire) != wire):
        return _ChatTranslation(inference, identity, CLIENT_FORMATS[inference.operation], _PROVIDER_FORMATS[wire])
    formats = GOOGLE_FORMATS.get(inference.operation, DIRECT_FORMATS)
    direct = formats[wire] if wire in DIRECT_WIRES else IMAGE_BACKEND_FORMAT
    return _Passthrough(inference, identity, direct, PLAIN if direct.find_mode is None else direct.find_mode(inference))


def count_losses(inference: InferenceRequest, places: Iterable[tuple[Wire, str]]) -> list[int]:
    """Count the requested features that each place drops; a place is an API format and the provider's model name.

    The count for an invalid request is 0: the request is rejected.
    """
    try:
        request = CLIENT_FORMATS[inference.operation].parse_chat_request(inference.body)
    except InvalidRequest:
        return [0 for _ in places]
    hosted = sum(name.startswith(LEFT_OUT) for name in request.adapted)
    return [
        hosted + find_losses(request, _PROVIDER_FORMATS[wire].find_rules(model))
        if is_translated(inference.operation, wire)
        else 0
        for wire, model in places
    ]


def is_translated(operation: Operation, wire: Wire) -> bool:
    """Return whether ``operation`` is translated through the common chat model for a provider that uses ``wire``."""
    return wire in _TRANSLATED and _NATIVE.get(operation, wire) != wire
