"""The interfaces of API formats translated through the common chat model: the client's side and the provider's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.model import ChatRequest, Event
from gateway.formats.chat.valid_chat import ChatRules
from gateway.formats.errors.openai import Secrets
from gateway.formats.stream import StreamParser, StreamSerializer
from gateway.formats.translator import PLAIN_MODE, ResponseIdentity, ResponseMode
from gateway.frozen import frozen

_UNCHANGED_NAMES: Mapping[str, str] = {}


@frozen
class ClientFormat:
    """An API format that clients use.

    Attributes:
        fields: names of this format's fields, by those of the OpenAI API, for error messages.
    """

    parse_chat_request: Callable[[dict[str, Any]], ChatRequest]
    open_writer: Callable[[InferenceRequest, ResponseIdentity], StreamSerializer]
    write_answer: Callable[[Sequence[Event], InferenceRequest, ResponseIdentity], bytes]
    fields: Mapping[str, str] = _UNCHANGED_NAMES


@frozen
class ProviderFormat:
    """An API format that providers use.

    Attributes:
        forces_parallel_calls: whether the format has no field that forbids parallel tool calls.
    """

    write_body: Callable[[ChatRequest, InferenceRequest, str], dict[str, Any]]
    open_reader: Callable[[InferenceRequest, ResponseIdentity, Secrets], StreamParser]
    parse_answer: Callable[[bytes, ResponseIdentity, Secrets, int], list[Event]]
    find_rules: Callable[[str], ChatRules]
    mode: ResponseMode = PLAIN_MODE
    forces_parallel_calls: bool = False
