"""The demo's models."""

CHAT_MODEL = "demo-chat"
EMBEDDING_MODEL = "demo-embedding"
IMAGE_MODEL = "demo-image"
MODERATION_MODEL = "demo-moderation"
REALTIME_MODEL = "demo-realtime"
RERANK_MODEL = "demo-rerank"
SPEECH_MODEL = "demo-speech"
TRANSCRIPTION_MODEL = "demo-transcribe"
VIDEO_MODEL = "demo-video"
FAILING_VIDEO_MODEL = "demo-video-fail"
BLOCKED_VIDEO_MODEL = "demo-video-blocked"
SLOW_VIDEO_MODEL = "demo-video-slow"
VIDEO_MODELS: tuple[str, ...] = (VIDEO_MODEL, FAILING_VIDEO_MODEL, BLOCKED_VIDEO_MODEL, SLOW_VIDEO_MODEL)
ALL: tuple[str, ...] = (
    CHAT_MODEL,
    EMBEDDING_MODEL,
    MODERATION_MODEL,
    RERANK_MODEL,
    IMAGE_MODEL,
    SPEECH_MODEL,
    TRANSCRIPTION_MODEL,
    REALTIME_MODEL,
    *VIDEO_MODELS,
)
