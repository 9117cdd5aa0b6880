"""Formats in which requests and answers are built from the client's directly, without the common chat model.

Bytes pass through if the client's format is the provider's; otherwise there is a function for each pair.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats import rerank
from gateway.formats.anthropic import call_ids
from gateway.formats.anthropic import message_to_stream as anthropic_whole
from gateway.formats.anthropic import request_reader as anthropic_reader
from gateway.formats.anthropic import response as anthropic_response
from gateway.formats.anthropic.passthrough_body import build_passed_body
from gateway.formats.gemini import client_embeddings, token_counts, vertex_embeddings
from gateway.formats.gemini import embeddings as gemini_embeddings
from gateway.formats.gemini import passthrough as gemini_passthrough
from gateway.formats.gemini import request_writer as gemini_writer
from gateway.formats.gemini.passthrough_body import build_passed_body as build_gemini_body
from gateway.formats.openai import compact_call
from gateway.formats.openai import completion_to_stream as openai_whole
from gateway.formats.openai import completions as openai_completions
from gateway.formats.openai import moderations as openai_moderations
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
from gateway.formats.openai.odd_answers import mend_answer
from gateway.formats.passthrough_format import BuildWhole, ParseAnswer, Parsed, PassthroughFormat
from gateway.formats.translator import PLAIN, ResponseIdentity, ResponseMode
from gateway.formats.valid_chat import make_valid
from gateway.formats.vendors import (
    deepgram_speech,
    deepgram_transcriptions,
    elevenlabs_speech,
    elevenlabs_transcriptions,
)

Body = dict[str, Any]


def _untouched(read: Callable[[bytes, InferenceRequest, Secrets], Usage]) -> ParseAnswer:
    """Wrap a function that only reads the usage so that it also returns the bytes."""
    return lambda raw, inference, _identity, secrets: (raw, read(raw, inference, secrets))


def _without_identity(parse: BuildWhole) -> ParseAnswer:
    return lambda raw, inference, _identity, secrets: parse(raw, inference, secrets)


def _uncounted(convert: Callable[[bytes, Secrets], bytes]) -> ParseAnswer:
    """Wrap the conversion of an answer that nothing is charged for."""
    return lambda raw, _inference, _identity, secrets: (convert(raw, secrets), NO_USAGE)


def _parse_chat(raw: bytes, inference: InferenceRequest, identity: ResponseIdentity, secrets: Secrets) -> Parsed:
    value = parse_answer_object(raw, secrets)  # hot: not through ``_untouched``
    usage = parse_chat_answer(value, inference)
    several = inference.choices == 1 and len(value["choices"]) > 1
    if inference.operation == "chat" and (several or raw.find(b'"tool_calls"') >= 0):  # ``in`` is slower
        return mend_answer(raw, inference, identity.id), usage
    return raw, usage


def _parse_count(raw: bytes, _inference: InferenceRequest, _identity: ResponseIdentity, secrets: Secrets) -> Parsed:
    anthropic_response.parse_count_answer(raw, secrets)
    return raw, NO_USAGE


def _build_gemini_count(inference: InferenceRequest, model: str) -> Body:
    valid = make_valid(anthropic_reader.parse_chat_request(inference.body), gemini_writer.find_rules(model), model)
    return gemini_writer.build_count_body(valid.request, model)


def _parse_gemini_count(
    raw: bytes, _inference: InferenceRequest, _identity: ResponseIdentity, secrets: Secrets
) -> Parsed:
    return anthropic_response.build_count_answer(gemini_writer.parse_count_answer(raw, secrets)), NO_USAGE


def _refuse_whole(_raw: bytes, _inference: InferenceRequest, _identity: ResponseIdentity, _secrets: Secrets) -> Parsed:
    raise ProviderBadResponse("An answer of this kind is not read whole")


def _refuse_body(_inference: InferenceRequest, _model: str) -> Body:
    raise InvalidRequest("A call of this kind is not said in one body")


def _find_speech_mode(inference: InferenceRequest) -> ResponseMode:
    return (
        PLAIN
        if openai_speech.is_events(inference)
        else ResponseMode(openai_speech.find_media_type(inference), binary=True)
    )


def _find_transcript_mode(inference: InferenceRequest) -> ResponseMode:
    return ResponseMode(openai_transcriptions.find_media_type(inference))


IMAGE_BACKEND_FORMAT = PassthroughFormat(_refuse_body, _refuse_whole)
"""Images come from an image backend (``formats/image_backends.py``): there is neither one body nor one answer."""
DIRECT_FORMATS: Mapping[Wire, PassthroughFormat] = MappingProxyType(
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
        "openai_compact": PassthroughFormat(
            compact_call.build_compact_body, _untouched(compact_call.parse_compact_answer)
        ),
        "openai_images": PassthroughFormat(build_images_body, _refuse_whole, ImagesPassthrough, write_whole_images),
        "openai_edits": PassthroughFormat(build_edits_form, _refuse_whole, ImagesPassthrough, write_whole_images),
        "openai_transcriptions": PassthroughFormat(
            openai_transcriptions.build_transcription_form,
            _without_identity(openai_transcriptions.parse_transcription_answer),
            openai_transcriptions.TranscriptPassthrough,
            openai_transcriptions.build_whole,
            _find_transcript_mode,
        ),
        "openai_translations": PassthroughFormat(
            openai_transcriptions.build_transcription_form,
            _without_identity(openai_transcriptions.parse_transcription_answer),
            find_mode=_find_transcript_mode,
        ),
        "openai_speech": PassthroughFormat(
            openai_speech.build_speech_body,
            _refuse_whole,
            openai_speech.open_speech_transform,
            find_mode=_find_speech_mode,
        ),
        "deepgram_speech": PassthroughFormat(
            deepgram_speech.build_speech_body,
            _refuse_whole,
            openai_speech.open_speech_transform,
            find_mode=_find_speech_mode,
        ),
        "elevenlabs_speech": PassthroughFormat(
            elevenlabs_speech.build_speech_body,
            _refuse_whole,
            openai_speech.open_speech_transform,
            find_mode=_find_speech_mode,
            find_path=elevenlabs_speech.find_speech_path,
        ),
        "elevenlabs_transcriptions": PassthroughFormat(
            elevenlabs_transcriptions.build_form,
            _without_identity(elevenlabs_transcriptions.parse_answer),
            openai_transcriptions.TranscriptPassthrough,
            elevenlabs_transcriptions.build_whole,
            _find_transcript_mode,
        ),
        "deepgram_transcriptions": PassthroughFormat(
            deepgram_transcriptions.build_file,
            _without_identity(deepgram_transcriptions.parse_answer),
            openai_transcriptions.TranscriptPassthrough,
            deepgram_transcriptions.build_whole,
            _find_transcript_mode,
            deepgram_transcriptions.find_path,
        ),
        "rerank": PassthroughFormat(rerank.build_rerank_body, _untouched(rerank.parse_rerank_answer)),
        "rerank_data": PassthroughFormat(rerank.build_rerank_body, _without_identity(rerank.parse_data_answer)),
        "anthropic_messages": PassthroughFormat(
            build_passed_body,
            _without_identity(call_ids.parse_answer),
            call_ids.open_stream,
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
            lambda raw, inference, identity, secrets: gemini_embeddings.parse_embeddings_answer(
                raw, inference, identity.model, secrets
            ),
        ),
        "vertex_embeddings": PassthroughFormat(
            vertex_embeddings.build_predict_body,
            lambda raw, inference, identity, secrets: vertex_embeddings.parse_predict_answer(
                raw, inference, identity.model, secrets
            ),
        ),
    },
)
GOOGLE_FORMATS: Mapping[Operation, Mapping[Wire, PassthroughFormat]] = MappingProxyType(
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
