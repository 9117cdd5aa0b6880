"""OpenAI's Realtime API."""
