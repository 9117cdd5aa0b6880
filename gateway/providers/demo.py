"""The gateway's own demo upstream (``gateway/demo``): it runs on an ephemeral port that the roof fills in."""

from gateway.providers.base import CHAT, EMBEDDINGS, Provider

DEMO = Provider(slug="demo", title="Built-in demo", endpoints=(CHAT, EMBEDDINGS))
