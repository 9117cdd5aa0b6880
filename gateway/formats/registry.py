"""Choose the translator between the client's and a provider's API format for a request.

If both sides use the same format, bytes pass through and the answer is only inspected.
"""

from operator import methodcaller
from typing import Any

import attrs
import orjson

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.openai.chat import ChatPassthrough
from gateway.formats.chat.openai.custom_tools import uses_custom_tools
from gateway.formats.chat.translation import (
    CLIENT_FORMATS,
    NATIVE_WIRES,
    PROVIDER_FORMATS,
    TRANSLATED_WIRES,
    ChatTranslation,
)
from gateway.formats.direct_formats import DIRECT_FORMATS, DIRECT_WIRES, GOOGLE_FORMATS
from gateway.formats.errors.openai import Secrets
from gateway.formats.passthrough_format import IMAGE_BACKEND_FORMAT, PassthroughFormat
from gateway.formats.stream import StreamTransform
from gateway.formats.translator import PLAIN_MODE, TOO_DEEP_TEXT, ResponseIdentity, ResponseMode, Translator
from gateway.formats.wire.request_body import AdaptedBody, Payload

Body = dict[str, Any]


@attrs.define
class _Passthrough:
    """``Translator`` for client and provider with the same format, and for directly converted formats."""

    inference: InferenceRequest
    identity: ResponseIdentity
    direct_format: PassthroughFormat
    mode: ResponseMode
    adapted: tuple[str, ...] = attrs.field(default=(), eq=False)

    @property
    def path(self) -> str | None:
        find_path = self.direct_format.find_path
        return None if find_path is None else find_path(self.inference, self.identity.model)

    def write_body(self) -> Payload:
        body = self.direct_format.write_body(self.inference, self.identity.model)
        if type(body) is AdaptedBody:
            self.adapted = tuple(dict.fromkeys((*self.adapted, *body.adapted)))
        return body

    def open_transform(self, secrets: Secrets) -> StreamTransform:
        transform = self.direct_format.open_transform(self.inference, secrets)
        if type(transform) is ChatPassthrough:
            transform.on_repair = self._record_repair
        return transform

    def _record_repair(self) -> None:
        """Record that tool calls of the answer were repaired: client libraries would misread the provider's."""
        self.adapted = tuple(dict.fromkeys((*self.adapted, "answer.tool_calls")))

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        try:
            return self.direct_format.build_whole(raw, self.inference, secrets)
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(TOO_DEEP_TEXT) from None

    def parse_answer(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        try:
            parsed = self.direct_format.parse_answer(raw, self.inference, self.identity, secrets)
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(TOO_DEEP_TEXT) from None
        if parsed[0] is not raw and self.inference.operation == "chat":
            self._record_repair()
        return parsed


_get_calls = methodcaller("get", "tool_calls")


def make_translator(
    inference: InferenceRequest,
    wire: Wire,
    identity: ResponseIdentity,
    *,
    custom_tools: bool = True,
    longest_answer: int = 0,
) -> Translator:
    """Return the translator for ``wire``. ``custom_tools``: whether the provider supports custom tools in chats.

    ``longest_answer`` is the configured limit of the model's answers, in tokens; 0 without one.
    """
    converts_custom_tools = (
        not (custom_tools or inference.plain)
        and inference.operation == "chat"
        and ("tools" in inference.body or any(map(_get_calls, inference.body["messages"])))
        and uses_custom_tools(inference.body)
    )
    if converts_custom_tools or (wire in TRANSLATED_WIRES and NATIVE_WIRES.get(inference.operation, wire) != wire):
        client, provider = CLIENT_FORMATS[inference.operation], PROVIDER_FORMATS[wire]
        return ChatTranslation(inference, identity, client, provider, longest_answer=longest_answer)
    formats = GOOGLE_FORMATS.get(inference.operation, DIRECT_FORMATS)
    direct_format = formats[wire] if wire in DIRECT_WIRES else IMAGE_BACKEND_FORMAT
    return _Passthrough(
        inference,
        identity,
        direct_format,
        PLAIN_MODE if direct_format.find_mode is None else direct_format.find_mode(inference),
    )
