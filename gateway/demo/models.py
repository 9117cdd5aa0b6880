"""The demo's models."""

CHAT_MODEL = "demo-chat"
EMBEDDING_MODEL = "demo-embedding"
IMAGE_MODEL = "demo-image"
REALTIME_MODEL = "demo-realtime"
SPEECH_MODEL = "demo-speech"
TRANSCRIPTION_MODEL = "demo-transcribe"
VIDEO_MODEL = "demo-video"
FAILING_VIDEO_MODEL = "demo-video-fail"
BLOCKED_VIDEO_MODEL = "demo-video-blocked"
SLOW_VIDEO_MODEL = "demo-video-slow"
VIDEO_MODELS: tuple[str, ...] = (VIDEO_MODEL, FAILING_VIDEO_MODEL, BLOCKED_VIDEO_MODEL, SLOW_VIDEO_MODEL)
MODEL_NAMES: tuple[str, ...] = (
    CHAT_MODEL,
    EMBEDDING_MODEL,
    IMAGE_MODEL,
    SPEECH_MODEL,
    TRANSCRIPTION_MODEL,
    REALTIME_MODEL,
    *VIDEO_MODELS,
)
