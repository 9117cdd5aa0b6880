"""Speech and transcripts of vendors with formats of their own."""

from gateway.formats.openai.direct_audio import find_speech_mode, find_transcript_mode
from gateway.formats.openai.speech import open_speech_transform
from gateway.formats.openai.transcriptions import TranscriptPassthrough
from gateway.formats.passthrough_format import PassthroughFormat, refuse_whole, without_identity
from gateway.formats.vendors import (
    deepgram_speech,
    deepgram_transcriptions,
    elevenlabs_speech,
    elevenlabs_transcriptions,
)

DEEPGRAM_SPEECH = PassthroughFormat(
    deepgram_speech.build_speech_body, refuse_whole, open_speech_transform, find_mode=find_speech_mode
)
ELEVENLABS_SPEECH = PassthroughFormat(
    elevenlabs_speech.build_speech_body,
    refuse_whole,
    open_speech_transform,
    find_mode=find_speech_mode,
    find_path=elevenlabs_speech.find_speech_path,
)
ELEVENLABS_TRANSCRIPTIONS = PassthroughFormat(
    elevenlabs_transcriptions.build_form,
    without_identity(elevenlabs_transcriptions.parse_answer),
    TranscriptPassthrough,
    elevenlabs_transcriptions.build_whole,
    find_transcript_mode,
)
DEEPGRAM_TRANSCRIPTIONS = PassthroughFormat(
    deepgram_transcriptions.build_file,
    without_identity(deepgram_transcriptions.parse_answer),
    TranscriptPassthrough,
    deepgram_transcriptions.build_whole,
    find_transcript_mode,
    deepgram_transcriptions.find_path,
)
