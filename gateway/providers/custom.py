"""Any server of the convention: the channel says its ``base_url``."""

from gateway.providers.base import Provider

CUSTOM = Provider(slug="custom", title="Any OpenAI-compatible server")
