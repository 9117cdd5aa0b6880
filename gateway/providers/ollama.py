"""Ollama on the same machine. github.com/ollama/ollama, docs/api/openai-compatibility.mdx: a key is ignored."""

from gateway.providers.base import Provider

OLLAMA = Provider(slug="ollama", title="Ollama", base_url="http://127.0.0.1:11434/v1", local_port=11434)
