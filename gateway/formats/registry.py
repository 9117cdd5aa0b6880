"""One call in the language of one provider: what is sent, and how the answer becomes the caller's.

Where both sides speak the same language the bytes pass, and the answer is only looked at. Where they do not, the call
becomes a ``ChatRequest`` and the answer a sequence of events, and each side's own language is written from those.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import attrs
import orjson

from gateway.domain.api_format import Wire
from gateway.domain.frozen import frozen
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats import rerank
from gateway.formats.anthropic import message_to_stream as anthropic_whole
from gateway.formats.anthropic import request_reader as anthropic_conversation
from gateway.formats.anthropic import request_writer as anthropic_body
from gateway.formats.anthropic import response as anthropic_answer
from gateway.formats.anthropic.passthrough import MessagesPassthrough
from gateway.formats.anthropic.passthrough_body import build_passed_body
from gateway.formats.anthropic.stream import MessagesStreamParser, MessagesStreamSerializer
from gateway.formats.chat import ChatRequest, Event
from gateway.formats.gemini import embeddings as gemini_embeddings
from gateway.formats.gemini import request_writer as gemini_body
from gateway.formats.gemini import response as gemini_events
from gateway.formats.openai import completion_to_stream as openai_whole
from gateway.formats.openai import completions as openai_completions
from gateway.formats.openai import moderations as openai_moderations
from gateway.formats.openai import request_reader as openai_conversation
from gateway.formats.openai import request_writer as openai_body
from gateway.formats.openai import response as openai_answer
from gateway.formats.openai import response_to_stream as responses_whole
from gateway.formats.openai import responses as openai_responses
from gateway.formats.openai import speech as openai_speech
from gateway.formats.openai import transcriptions as openai_transcriptions
from gateway.formats.openai.chat import ChatPassthrough, build_chat_body, parse_answer_object, parse_chat_answer
from gateway.formats.openai.embeddings import build_embeddings_body, parse_embeddings_answer
from gateway.formats.openai.errors import Secrets
from gateway.formats.openai.image_stream import ImagesPassthrough
from gateway.formats.openai.image_stream import build_whole as write_whole_images
from gateway.formats.openai.images import build_edits_form, build_images_body
from gateway.formats.openai.stream import ChatStreamParser, ChatStreamSerializer
from gateway.formats.request_body import Said
from gateway.formats.stream import (
    StreamParser,
    StreamSerializer,
    StreamTransform,
    TranslatingStream,
    parse_events_usage,
)

Body = dict[str, Any]


@frozen
class ResponseIdentity:
    """What an answer is called where its provider does not say: its id, the model's own name, the time (Unix s)."""

    id: str
    model: str
    now_s: int


@attrs.frozen
class ResponseMode:
    """What an answer looks like on its way to the caller.

    Attributes:
        media_type: of a whole answer.
        binary: a stream is no events but bytes, of the type that its provider says: nothing may be put into it, and it
            ends with its transport.
    """

    media_type: str = "application/json"
    binary: bool = False

    @property
    def accept(self) -> str:
        """What a whole answer may come as."""
        return self.media_type if self.media_type == "application/json" else "*/*"


PLAIN = ResponseMode()


class Translator(Protocol):
    """One call in one provider's language."""

    @property
    def manner(self) -> ResponseMode:
        """What its answer looks like."""
        ...

    @property
    def naming(self) -> ResponseIdentity:
        """What the answer is called."""
        ...

    def write_body(self) -> Said:
        """What is sent; the outermost dict is fresh. Raises ``InvalidRequest`` where it cannot be said."""
        ...

    def open_gate(self, secrets: Secrets) -> StreamTransform:
        """A gate for the stream that answers."""
        ...

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        """A whole answer to a call for a stream -> the stream that says the same, end mark included, and what it used.

        Raises an ``ProviderError`` where it is none.
        """
        ...

    def parse_answer(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        """A whole answer -> the caller's bytes, and what it used. Raises an ``ProviderError`` where it is none."""
        ...


_TOO_DEEP = "The provider's answer is nested too deeply to be passed on"
"""JSON can be read that cannot be written again: what is nested 254 to 1024 deep."""


_WriteWhole = Callable[[bytes, InferenceRequest, Secrets], tuple[bytes, Usage]]


def _open_none(_call: InferenceRequest, _secrets: Secrets) -> StreamTransform:
    raise ProviderBadResponse("An answer of this kind is not streamed")


def _build_none(_raw: bytes, _call: InferenceRequest, _secrets: Secrets) -> tuple[bytes, Usage]:
    raise ProviderBadResponse("The provider did not answer with an event stream")


@attrs.frozen
class _PassthroughFormat:
    """How a call that needs no hub is sent, read whole, and let through where it streams.

    ``build_whole`` makes the stream of a whole answer. ``find_manner`` None: every answer is plain.
    """

    write: Callable[[InferenceRequest, str], Said]
    read: Callable[[bytes, InferenceRequest, ResponseIdentity, Secrets], tuple[bytes, Usage]]
    gate: Callable[[InferenceRequest, Secrets], StreamTransform] = _open_none
    build_whole: _WriteWhole = _build_none
    find_manner: Callable[[InferenceRequest], ResponseMode] | None = None


@frozen
class _Passthrough:
    """``Translator`` without the hub between."""

    call: InferenceRequest
    naming: ResponseIdentity
    direct: _PassthroughFormat
    manner: ResponseMode

    def write_body(self) -> Said:
        return self.direct.write(self.call, self.naming.model)

    def open_gate(self, secrets: Secrets) -> StreamTransform:
        return self.direct.gate(self.call, secrets)

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        try:
            return self.direct.build_whole(raw, self.call, secrets)
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(_TOO_DEEP) from None

    def parse_answer(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        try:
            return self.direct.read(raw, self.call, self.naming, secrets)
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(_TOO_DEEP) from None


@attrs.frozen
class _ClientFormat:
    """A language in which callers ask: read from, and answered in."""

    parse_conversation: Callable[[Body], ChatRequest]
    open_writer: Callable[[InferenceRequest, ResponseIdentity], StreamSerializer]
    write_answer: Callable[[Sequence[Event], ResponseIdentity], bytes]


@attrs.frozen
class _ProviderFormat:
    """A language that providers speak: written to, and read from."""

    write_body: Callable[[ChatRequest, InferenceRequest, str], Body]
    open_reader: Callable[[InferenceRequest, ResponseIdentity, Secrets], StreamParser]
    parse_answer: Callable[[bytes, ResponseIdentity, Secrets], list[Event]]


@frozen
class _ChatTranslation:
    """``Translator`` between two languages."""

    call: InferenceRequest
    naming: ResponseIdentity
    asked: _ClientFormat
    spoken: _ProviderFormat

    @property
    def manner(self) -> ResponseMode:
        return PLAIN

    def write_body(self) -> Body:
        return self.spoken.write_body(self.asked.parse_conversation(self.call.body), self.call, self.naming.model)

    def open_gate(self, secrets: Secrets) -> StreamTransform:
        return TranslatingStream(
            self.spoken.open_reader(self.call, self.naming, secrets),
            self.asked.open_writer(self.call, self.naming),
            self.call,
        )

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        events = self.spoken.parse_answer(raw, self.naming, secrets)
        writer = self.asked.open_writer(self.call, self.naming)
        try:
            written = b"".join([writer.write(event) for event in events])
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(_TOO_DEEP) from None
        return written, parse_events_usage(events, self.call)

    def parse_answer(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        events = self.spoken.parse_answer(raw, self.naming, secrets)
        try:
            written = self.asked.write_answer(events, self.naming)
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(_TOO_DEEP) from None
        return written, parse_events_usage(events, self.call)


def _untouched(
    read: Callable[[bytes, InferenceRequest, Secrets], Usage],
) -> Callable[[bytes, InferenceRequest, ResponseIdentity, Secrets], tuple[bytes, Usage]]:
    """A reader that only looks, as one that gives the bytes too."""
    return lambda raw, call, _naming, secrets: (raw, read(raw, call, secrets))


def _parse_chat(raw: bytes, call: InferenceRequest, _naming: ResponseIdentity, secrets: Secrets) -> tuple[bytes, Usage]:
    return raw, parse_chat_answer(parse_answer_object(raw, secrets), call)


def _parse_count(
    raw: bytes, _call: InferenceRequest, _naming: ResponseIdentity, secrets: Secrets
) -> tuple[bytes, Usage]:
    anthropic_answer.parse_count_answer(raw, secrets)
    return raw, NO_USAGE


def _build_gemini_count(call: InferenceRequest, model: str) -> Body:
    return gemini_body.build_count_body(anthropic_conversation.parse_conversation(call.body), model)


def _parse_gemini_count(
    raw: bytes, _call: InferenceRequest, _naming: ResponseIdentity, secrets: Secrets
) -> tuple[bytes, Usage]:
    return anthropic_answer.build_count_answer(gemini_body.parse_count_answer(raw, secrets)), NO_USAGE


def _refuse_whole(
    _raw: bytes, _call: InferenceRequest, _naming: ResponseIdentity, _secrets: Secrets
) -> tuple[bytes, Usage]:
    raise ProviderBadResponse("An answer of this kind is not read whole")


def _refuse_body(_call: InferenceRequest, _model: str) -> Body:
    raise InvalidRequest("A call of this kind is not said in one body")


def _find_speech_manner(call: InferenceRequest) -> ResponseMode:
    return PLAIN if openai_speech.is_events(call) else ResponseMode(openai_speech.find_media_type(call), binary=True)


def _find_transcript_manner(call: InferenceRequest) -> ResponseMode:
    return ResponseMode(openai_transcriptions.find_media_type(call))


_PAINTED = _PassthroughFormat(_refuse_body, _refuse_whole)
"""Of pictures that a painter gets (``formats/image_backends.py``): there is no one body, and no one answer."""
_DIRECT: Mapping[Wire, _PassthroughFormat] = MappingProxyType(
    {
        "openai_chat": _PassthroughFormat(build_chat_body, _parse_chat, ChatPassthrough, openai_whole.build_whole),
        "openai_embeddings": _PassthroughFormat(
            build_embeddings_body,
            lambda raw, call, _naming, secrets: parse_embeddings_answer(raw, call, secrets),
        ),
        "openai_completions": _PassthroughFormat(
            openai_completions.build_completions_body,
            _parse_chat,
            openai_completions.CompletionsGate,
            openai_whole.build_whole,
        ),
        "openai_moderations": _PassthroughFormat(
            openai_moderations.build_moderations_body,
            _untouched(openai_moderations.parse_moderations_answer),
        ),
        "openai_responses": _PassthroughFormat(
            openai_responses.build_responses_body,
            _untouched(openai_responses.parse_responses_answer),
            openai_responses.ResponsesPassthrough,
            responses_whole.build_whole,
        ),
        "openai_images": _PassthroughFormat(build_images_body, _refuse_whole, ImagesPassthrough, write_whole_images),
        "openai_edits": _PassthroughFormat(build_edits_form, _refuse_whole, ImagesPassthrough, write_whole_images),
        "openai_transcriptions": _PassthroughFormat(
            openai_transcriptions.build_transcription_form,
            lambda raw, call, _naming, secrets: openai_transcriptions.parse_transcription_answer(raw, call, secrets),
            openai_transcriptions.TranscriptPassthrough,
            openai_transcriptions.build_whole,
            _find_transcript_manner,
        ),
        "openai_translations": _PassthroughFormat(
            openai_transcriptions.build_transcription_form,
            lambda raw, call, _naming, secrets: openai_transcriptions.parse_transcription_answer(raw, call, secrets),
            find_manner=_find_transcript_manner,
        ),
        "openai_speech": _PassthroughFormat(
            openai_speech.build_speech_body,
            _refuse_whole,
            openai_speech.open_speech_gate,
            find_manner=_find_speech_manner,
        ),
        "rerank": _PassthroughFormat(rerank.build_rerank_body, _untouched(rerank.parse_rerank_answer)),
        "anthropic_messages": _PassthroughFormat(
            build_passed_body,
            _untouched(anthropic_answer.parse_passed_answer),
            MessagesPassthrough,
            anthropic_whole.build_whole,
        ),
        "anthropic_count_tokens": _PassthroughFormat(build_passed_body, _parse_count),
        "gemini_count_tokens": _PassthroughFormat(_build_gemini_count, _parse_gemini_count),
        "gemini_embeddings": _PassthroughFormat(
            gemini_embeddings.build_embeddings_body,
            lambda raw, call, naming, secrets: gemini_embeddings.parse_embeddings_answer(
                raw, call, naming.model, secrets
            ),
        ),
    },
)

_ASKED: Mapping[str, _ClientFormat] = MappingProxyType(
    {
        "chat": _ClientFormat(
            openai_conversation.parse_conversation,
            lambda call, naming: ChatStreamSerializer(
                answer_id=f"chatcmpl-{naming.id}",
                model=naming.model,
                created_s=naming.now_s,
                include_usage=call.include_usage,
            ),
            lambda events, naming: openai_answer.build_answer(
                events,
                answer_id=f"chatcmpl-{naming.id}",
                model=naming.model,
                created_s=naming.now_s,
            ),
        ),
        "messages": _ClientFormat(
            anthropic_conversation.parse_conversation,
            lambda _call, naming: MessagesStreamSerializer(naming.model, f"msg_{naming.id}"),
            lambda events, it: anthropic_answer.build_answer(events, model=it.model, message_id=f"msg_{it.id}"),
        ),
    },
)

_SPOKEN: Mapping[Wire, _ProviderFormat] = MappingProxyType(
    {
        "openai_chat": _ProviderFormat(
            lambda conversation, call, model: openai_body.build_body(conversation, model, stream=call.stream),
            lambda call, naming, secrets: ChatStreamParser(call.choices, secrets, naming.id),
            lambda raw, naming, secrets: openai_answer.parse_answer(raw, secrets, naming.id),
        ),
        "anthropic_messages": _ProviderFormat(
            lambda conversation, call, model: anthropic_body.build_body(conversation, model, stream=call.stream),
            lambda _call, naming, secrets: MessagesStreamParser(secrets, naming.id),
            lambda raw, naming, secrets: anthropic_answer.parse_answer(raw, secrets, naming.id),
        ),
        "gemini_generate": _ProviderFormat(
            lambda conversation, _call, model: gemini_body.build_body(conversation, model),
            lambda _call, naming, secrets: gemini_events.GenerateContentParser(naming.id, naming.model, secrets),
            lambda raw, naming, secrets: gemini_events.parse_answer(
                raw, answer_id=naming.id, model=naming.model, secrets=secrets
            ),
        ),
    },
)
_OWN: Mapping[str, Wire] = MappingProxyType({"chat": "openai_chat", "messages": "anthropic_messages"})
"""The language an operation is asked in, where it can be answered in another."""


def make_exchange(call: InferenceRequest, wire: Wire, naming: ResponseIdentity) -> Translator:
    """``call`` in the language ``wire``, one of those that ``domain/api_format.py`` names for its operation."""
    if is_translated(call.operation, wire):
        return _ChatTranslation(call, naming, _ASKED[call.operation], _SPOKEN[wire])
    direct = _DIRECT.get(wire, _PAINTED)
    return _Passthrough(call, naming, direct, PLAIN if direct.find_manner is None else direct.find_manner(call))


def is_translated(operation: Operation, wire: Wire) -> bool:
    """Whether what is asked for as ``operation`` goes through the hub on its way to a provider that speaks ``wire``."""
    return _OWN.get(operation, wire) != wire
