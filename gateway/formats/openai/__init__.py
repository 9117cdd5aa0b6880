"""OpenAI's API format."""
