"""Translators: one request in a provider's API format, and the provider's answer in the client's.

If both sides use the same format, bytes pass through and the answer is only inspected. Otherwise the request becomes a
``ChatRequest``, the answer becomes a sequence of events, and each side's format is built from those.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import orjson

from gateway.domain.api_format import Wire
from gateway.domain.frozen import frozen
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats import rerank
from gateway.formats.anthropic import message_to_stream as anthropic_whole
from gateway.formats.anthropic import request_reader as anthropic_reader
from gateway.formats.anthropic import request_writer as anthropic_writer
from gateway.formats.anthropic import response as anthropic_response
from gateway.formats.anthropic.passthrough import MessagesPassthrough
from gateway.formats.anthropic.passthrough_body import build_passed_body
from gateway.formats.anthropic.stream import MessagesStreamParser
from gateway.formats.bedrock import request_writer as bedrock_writer
from gateway.formats.bedrock import response as bedrock_response
from gateway.formats.bedrock.event_stream import MEDIA_TYPE as AWS_EVENT_STREAM
from gateway.formats.bedrock.stream import ConverseStreamParser
from gateway.formats.chat import ChatRequest, Event
from gateway.formats.client_formats import CLIENT_FORMATS, ClientFormat
from gateway.formats.gemini import client_embeddings, token_counts, vertex_embeddings
from gateway.formats.gemini import embeddings as gemini_embeddings
from gateway.formats.gemini import passthrough as gemini_passthrough
from gateway.formats.gemini import request_writer as gemini_writer
from gateway.formats.gemini import response as gemini_response
from gateway.formats.gemini.passthrough_body import build_passed_body as build_gemini_body
from gateway.formats.one_call import OneCallParser, keep_first_call, takes_one_call
from gateway.formats.openai import completion_to_stream as openai_whole
from gateway.formats.openai import completions as openai_completions
from gateway.formats.openai import moderations as openai_moderations
from gateway.formats.openai import request_writer as openai_writer
from gateway.formats.openai import response as openai_response
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
from gateway.formats.openai.stream import ChatStreamParser
from gateway.formats.passthrough_format import BuildWhole, ParseAnswer, Parsed, PassthroughFormat
from gateway.formats.request_body import Payload
from gateway.formats.stream import (
    StreamParser,
    StreamTransform,
    TranslatingStream,
    parse_events_usage,
)
from gateway.formats.translator import PLAIN, ResponseIdentity, ResponseMode, Translator
from gateway.formats.vendors import (
    deepgram_speech,
    deepgram_transcriptions,
    elevenlabs_speech,
    elevenlabs_transcriptions,
)

Body = dict[str, Any]

_TOO_DEEP = "The provider's answer is nested too deeply to be passed on"
"""orjson reads JSON nested up to 1024 deep, but writes only up to 254."""


@frozen
class _Passthrough:
    """``Translator`` for two sides with the same format, and for formats that are built directly."""

    call: InferenceRequest
    naming: ResponseIdentity
    direct: PassthroughFormat
    manner: ResponseMode

    @property
    def path(self) -> str | None:
        find = self.direct.find_path
        return None if find is None else find(self.call, self.naming.model)

    def write_body(self) -> Payload:
        return self.direct.write(self.call, self.naming.model)

    def open_gate(self, secrets: Secrets) -> StreamTransform:
        return self.direct.transform(self.call, secrets)

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
class _ProviderFormat:
    """An API format that providers use: requests are built in it, answers are parsed from it.

    ``several_calls``: it has no option for one tool call at a time.
    """

    write_body: Callable[[ChatRequest, InferenceRequest, str], Body]
    open_reader: Callable[[InferenceRequest, ResponseIdentity, Secrets], StreamParser]
    parse_answer: Callable[[bytes, ResponseIdentity, Secrets], list[Event]]
    manner: ResponseMode = PLAIN
    several_calls: bool = False


@frozen
class _ChatTranslation:
    """``Translator`` between two formats, by the common chat model."""

    call: InferenceRequest
    naming: ResponseIdentity
    client: ClientFormat
    provider: _ProviderFormat

    @property
    def manner(self) -> ResponseMode:
        return self.provider.manner

    @property
    def path(self) -> str | None:
        return None

    def write_body(self) -> Body:
        return self.provider.write_body(self.client.parse_chat_request(self.call.body), self.call, self.naming.model)

    @property
    def _must_choose(self) -> bool:
        """Whether the answer may have more tool calls than the client takes."""
        return self.provider.several_calls and takes_one_call(self.call.body)

    def _parse_events(self, raw: bytes, secrets: Secrets) -> list[Event]:
        events = self.provider.parse_answer(raw, self.naming, secrets)
        return keep_first_call(events) if self._must_choose else events

    def open_gate(self, secrets: Secrets) -> StreamTransform:
        reader = self.provider.open_reader(self.call, self.naming, secrets)
        return TranslatingStream(
            OneCallParser(reader) if self._must_choose else reader,
            self.client.open_writer(self.call, self.naming),
            self.call,
        )

    def build_whole(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        events = self._parse_events(raw, secrets)
        writer = self.client.open_writer(self.call, self.naming)
        try:
            written = b"".join([writer.write(event) for event in events])
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(_TOO_DEEP) from None
        return written, parse_events_usage(events, self.call)

    def parse_answer(self, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
        events = self._parse_events(raw, secrets)
        try:
            written = self.client.write_answer(events, self.call, self.naming)
        except orjson.JSONEncodeError:
            raise ProviderBadResponse(_TOO_DEEP) from None
        return written, parse_events_usage(events, self.call)


def _untouched(read: Callable[[bytes, InferenceRequest, Secrets], Usage]) -> ParseAnswer:
    """Wrap a function that only reads the usage so that it also returns the bytes."""
    return lambda raw, call, _naming, secrets: (raw, read(raw, call, secrets))


def _without_identity(parse: BuildWhole) -> ParseAnswer:
    return lambda raw, call, _naming, secrets: parse(raw, call, secrets)


def _uncounted(convert: Callable[[bytes, Secrets], bytes]) -> ParseAnswer:
    """Wrap the conversion of an answer that nothing is charged for."""
    return lambda raw, _call, _naming, secrets: (convert(raw, secrets), NO_USAGE)


def _parse_chat(raw: bytes, call: InferenceRequest, _naming: ResponseIdentity, secrets: Secrets) -> Parsed:
    return raw, parse_chat_answer(parse_answer_object(raw, secrets), call)  # hot: not through ``_untouched``


def _parse_count(raw: bytes, _call: InferenceRequest, _naming: ResponseIdentity, secrets: Secrets) -> Parsed:
    anthropic_response.parse_count_answer(raw, secrets)
    return raw, NO_USAGE


def _build_gemini_count(call: InferenceRequest, model: str) -> Body:
    return gemini_writer.build_count_body(anthropic_reader.parse_chat_request(call.body), model)


def _parse_gemini_count(raw: bytes, _call: InferenceRequest, _naming: ResponseIdentity, secrets: Secrets) -> Parsed:
    return anthropic_response.build_count_answer(gemini_writer.parse_count_answer(raw, secrets)), NO_USAGE


def _refuse_whole(_raw: bytes, _call: InferenceRequest, _naming: ResponseIdentity, _secrets: Secrets) -> Parsed:
    raise ProviderBadResponse("An answer of this kind is not read whole")


def _refuse_body(_call: InferenceRequest, _model: str) -> Body:
    raise InvalidRequest("A call of this kind is not said in one body")


def _find_speech_manner(call: InferenceRequest) -> ResponseMode:
    return PLAIN if openai_speech.is_events(call) else ResponseMode(openai_speech.find_media_type(call), binary=True)


def _find_transcript_manner(call: InferenceRequest) -> ResponseMode:
    return ResponseMode(openai_transcriptions.find_media_type(call))


_IMAGE_BACKEND = PassthroughFormat(_refuse_body, _refuse_whole)
"""Images come from an image backend (``formats/image_backends.py``): there is neither one body nor one answer."""
_PASSTHROUGH: Mapping[Wire, PassthroughFormat] = MappingProxyType(
    {
        "openai_chat": PassthroughFormat(build_chat_body, _parse_chat, ChatPassthrough, openai_whole.build_whole),
        "openai_embeddings": PassthroughFormat(
            build_embeddings_body,
            _without_identity(parse_embeddings_answer),
        ),
        "openai_completions": PassthroughFormat(
            openai_completions.build_completions_body,
            _parse_chat,
            openai_completions.CompletionsPassthrough,
            openai_whole.build_whole,
        ),
        "openai_moderations": PassthroughFormat(
            openai_moderations.build_moderations_body,
            _untouched(openai_moderations.parse_moderations_answer),
        ),
        "openai_responses": PassthroughFormat(
            openai_responses.build_responses_body,
            _untouched(openai_responses.parse_responses_answer),
            openai_responses.ResponsesPassthrough,
            responses_whole.build_whole,
        ),
        "openai_images": PassthroughFormat(build_images_body, _refuse_whole, ImagesPassthrough, write_whole_images),
        "openai_edits": PassthroughFormat(build_edits_form, _refuse_whole, ImagesPassthrough, write_whole_images),
        "openai_transcriptions": PassthroughFormat(
            openai_transcriptions.build_transcription_form,
            _without_identity(openai_transcriptions.parse_transcription_answer),
            openai_transcriptions.TranscriptPassthrough,
            openai_transcriptions.build_whole,
            _find_transcript_manner,
        ),
        "openai_translations": PassthroughFormat(
            openai_transcriptions.build_transcription_form,
            _without_identity(openai_transcriptions.parse_transcription_answer),
            find_manner=_find_transcript_manner,
        ),
        "openai_speech": PassthroughFormat(
            openai_speech.build_speech_body,
            _refuse_whole,
            openai_speech.open_speech_gate,
            find_manner=_find_speech_manner,
        ),
        "deepgram_speech": PassthroughFormat(
            deepgram_speech.build_speech_body,
            _refuse_whole,
            openai_speech.open_speech_gate,
            find_manner=_find_speech_manner,
        ),
        "elevenlabs_speech": PassthroughFormat(
            elevenlabs_speech.build_speech_body,
            _refuse_whole,
            openai_speech.open_speech_gate,
            find_manner=_find_speech_manner,
            find_path=elevenlabs_speech.find_speech_path,
        ),
        "elevenlabs_transcriptions": PassthroughFormat(
            elevenlabs_transcriptions.build_form,
            _without_identity(elevenlabs_transcriptions.parse_answer),
            openai_transcriptions.TranscriptPassthrough,
            elevenlabs_transcriptions.build_whole,
            _find_transcript_manner,
        ),
        "deepgram_transcriptions": PassthroughFormat(
            deepgram_transcriptions.build_file,
            _without_identity(deepgram_transcriptions.parse_answer),
            openai_transcriptions.TranscriptPassthrough,
            deepgram_transcriptions.build_whole,
            _find_transcript_manner,
            deepgram_transcriptions.find_path,
        ),
        "rerank": PassthroughFormat(rerank.build_rerank_body, _untouched(rerank.parse_rerank_answer)),
        "rerank_data": PassthroughFormat(rerank.build_rerank_body, _without_identity(rerank.parse_data_answer)),
        "anthropic_messages": PassthroughFormat(
            build_passed_body,
            _untouched(anthropic_response.parse_passed_answer),
            MessagesPassthrough,
            anthropic_whole.build_whole,
        ),
        "anthropic_count_tokens": PassthroughFormat(build_passed_body, _parse_count),
        "gemini_generate": PassthroughFormat(
            build_gemini_body,
            _untouched(gemini_passthrough.parse_passed_answer),
            gemini_passthrough.GenerateContentPassthrough,
            gemini_passthrough.build_whole,
        ),
        "gemini_count_tokens": PassthroughFormat(_build_gemini_count, _parse_gemini_count),
        "gemini_embeddings": PassthroughFormat(
            gemini_embeddings.build_embeddings_body,
            lambda raw, call, naming, secrets: gemini_embeddings.parse_embeddings_answer(
                raw, call, naming.model, secrets
            ),
        ),
        "vertex_embeddings": PassthroughFormat(
            vertex_embeddings.build_predict_body,
            lambda raw, call, naming, secrets: vertex_embeddings.parse_predict_answer(raw, call, naming.model, secrets),
        ),
    },
)

_PROVIDER_FORMATS: Mapping[Wire, _ProviderFormat] = MappingProxyType(
    {
        "openai_chat": _ProviderFormat(
            lambda request, call, model: openai_writer.build_body(request, model, stream=call.stream),
            lambda call, naming, secrets: ChatStreamParser(call.choices, secrets, naming.id),
            lambda raw, naming, secrets: openai_response.parse_answer(raw, secrets, naming.id),
        ),
        "anthropic_messages": _ProviderFormat(
            lambda request, call, model: anthropic_writer.build_body(request, model, stream=call.stream),
            lambda _call, naming, secrets: MessagesStreamParser(secrets, naming.id),
            lambda raw, naming, secrets: anthropic_response.parse_answer(raw, secrets, naming.id),
        ),
        "gemini_generate": _ProviderFormat(
            lambda request, _call, model: gemini_writer.build_body(request, model),
            lambda _call, naming, secrets: gemini_response.GenerateContentParser(naming.id, naming.model, secrets),
            lambda raw, naming, secrets: gemini_response.parse_answer(
                raw, answer_id=naming.id, model=naming.model, secrets=secrets
            ),
            several_calls=True,
        ),
        "bedrock_converse": _ProviderFormat(
            lambda request, _call, model: bedrock_writer.build_body(request, model),
            lambda _call, naming, secrets: ConverseStreamParser(naming.id, naming.model, secrets),
            lambda raw, naming, secrets: bedrock_response.parse_answer(raw, naming.id, naming.model, secrets),
            ResponseMode(stream_type=AWS_EVENT_STREAM),
            several_calls=True,
        ),
    },
)
_OF_GOOGLE: Mapping[Operation, Mapping[Wire, PassthroughFormat]] = MappingProxyType(
    {
        "count_content_tokens": {
            "gemini_count_tokens": PassthroughFormat(
                token_counts.build_gemini_body, _uncounted(token_counts.check_gemini_answer)
            ),
            "anthropic_count_tokens": PassthroughFormat(
                token_counts.build_anthropic_body, _uncounted(token_counts.convert_anthropic_answer)
            ),
        },
        "embed_contents": {
            "gemini_embeddings": PassthroughFormat(
                client_embeddings.build_batch_body, _without_identity(client_embeddings.parse_batch_answer)
            ),
            "openai_embeddings": PassthroughFormat(
                client_embeddings.build_openai_body, _without_identity(client_embeddings.build_google_answer)
            ),
        },
    }
)
"""Operations of Google's API whose formats are built from each other directly."""
_NATIVE: Mapping[str, Wire] = MappingProxyType(
    {
        "chat": "openai_chat",
        "messages": "anthropic_messages",
        "responses": "openai_responses",
        "generate_content": "gemini_generate",
    }
)
"""The native format of each operation that can be translated."""


def make_exchange(call: InferenceRequest, wire: Wire, naming: ResponseIdentity) -> Translator:
    """Return the translator of ``call`` for ``wire``, a format of its operation (see ``domain/api_format.py``)."""
    if _NATIVE.get(call.operation, wire) != wire:
        return _ChatTranslation(call, naming, CLIENT_FORMATS[call.operation], _PROVIDER_FORMATS[wire])
    direct = _OF_GOOGLE.get(call.operation, _PASSTHROUGH).get(wire, _IMAGE_BACKEND)
    return _Passthrough(call, naming, direct, PLAIN if direct.find_manner is None else direct.find_manner(call))


def is_translated(operation: Operation, wire: Wire) -> bool:
    """Return whether ``operation`` goes through the common chat model to a provider that uses ``wire``."""
    return _NATIVE.get(operation, wire) != wire
