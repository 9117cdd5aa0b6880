"""The gateway's built-in demo provider (``gateway/demo``), on an ephemeral port that the application fills in."""

import attrs

from gateway.domain.capability import Capability
from gateway.providers import base


def _restrict_to(model: str, *endpoints: base.Endpoint) -> tuple[base.Endpoint, ...]:
    return tuple(attrs.evolve(endpoint, models=(model,)) for endpoint in endpoints)


DEMO = base.Provider(
    slug="demo",
    title="Built-in demo",
    endpoints=(
        *_restrict_to("demo-chat", base.CHAT, base.COMPLETIONS),
        *_restrict_to("demo-embedding", base.EMBEDDINGS),
        *_restrict_to("demo-image", base.IMAGES, base.EDITS),
        *_restrict_to("demo-speech", base.SPEECH),
        *_restrict_to("demo-transcribe", base.TRANSCRIPTIONS, base.TRANSLATIONS),
        *_restrict_to("demo-realtime", base.REALTIME),
        base.Endpoint("openai_videos", "/videos", models=("demo-video*",)),
    ),
    capabilities=(
        Capability(
            "demo-image",
            sizes=("256x256", "512x512", "1024x1024", "1536x1024", "1024x1536"),
            max_n=10,
            response_formats=("url", "b64_json"),
            edits=True,
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
