"""Speech and transcriptions of the OpenAI API, passed through to channels that use the same format."""

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.audio import speech, transcriptions
from gateway.formats.passthrough_format import PassthroughFormat, reject_unstreamed, without_identity
from gateway.formats.translator import PLAIN_MODE, ResponseMode


def find_speech_mode(inference: InferenceRequest) -> ResponseMode:
    """Return the mode of a speech answer: events or raw audio."""
    return PLAIN_MODE if speech.is_events(inference) else ResponseMode(speech.find_media_type(inference), binary=True)


def find_transcript_mode(inference: InferenceRequest) -> ResponseMode:
    """Return the response mode of a transcript, with the media type that the request selects."""
    return ResponseMode(transcriptions.find_media_type(inference))


TRANSCRIPTIONS = PassthroughFormat(
    transcriptions.build_transcription_form,
    without_identity(transcriptions.parse_transcription_answer),
    transcriptions.TranscriptPassthrough,
    transcriptions.build_whole,
    find_transcript_mode,
)
TRANSLATIONS = PassthroughFormat(
    transcriptions.build_transcription_form,
    without_identity(transcriptions.parse_transcription_answer),
    find_mode=find_transcript_mode,
)
SPEECH = PassthroughFormat(
    speech.build_speech_body, reject_unstreamed, speech.open_speech_transform, find_mode=find_speech_mode
)
