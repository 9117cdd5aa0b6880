"""vLLM's server. docs.vllm.ai, "OpenAI-Compatible Server": a Bearer key only where ``--api-key`` was given."""

from gateway.providers.base import Provider

VLLM = Provider(slug="vllm", title="vLLM", base_url="http://127.0.0.1:8000/v1", local_port=8000)
