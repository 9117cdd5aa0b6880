"""LM Studio's local server. lmstudio.ai/docs/api/openai-api: no key unless one was set."""

from gateway.providers.base import Provider

LM_STUDIO = Provider(slug="lm_studio", title="LM Studio", base_url="http://127.0.0.1:1234/v1", local_port=1234)
