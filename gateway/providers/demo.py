"""The gateway's built-in demo provider (``gateway/demo``), on an ephemeral port that the application fills in."""

import attrs

from gateway.domain.capability import Capability
from gateway.providers.base import (
    CHAT,
    COMPLETIONS,
    EDITS,
    EMBEDDINGS,
    IMAGES,
    MODERATIONS,
    RERANK,
    RESPONSES,
    SPEECH,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    Endpoint,
    Provider,
)


def _only(model: str, *endpoints: Endpoint) -> tuple[Endpoint, ...]:
    return tuple(attrs.evolve(endpoint, models=(model,)) for endpoint in endpoints)


DEMO = Provider(
    slug="demo",
    title="Built-in demo",
    endpoints=(
        *_only("demo-chat", CHAT, COMPLETIONS, RESPONSES),
        *_only("demo-embedding", EMBEDDINGS),
        *_only("demo-moderation", MODERATIONS),
        *_only("demo-rerank", RERANK),
        *_only("demo-image", IMAGES, EDITS),
        *_only("demo-speech", SPEECH),
        *_only("demo-transcribe", TRANSCRIPTIONS, TRANSLATIONS),
        Endpoint("openai_videos", "/videos", models=("demo-video*",)),
    ),
    capabilities=(
        Capability(
            "demo-image",
            sizes=("256x256", "512x512", "1024x1024", "1536x1024", "1024x1536"),
            max_n=10,
            response_formats=("url", "b64_json"),
            edits=True,
            masks=True,
            max_sources=16,
            streams=True,
        ),
        Capability(
            "demo-video*",
            seconds=(4, 8, 12),
            sizes=("1280x720", "720x1280", "854x480", "480x854", "640x360"),
            references=True,
            remixes=True,
        ),
    ),
    priced_fields=frozenset(),
)
