"""Gemini's API format. Type names in docstrings are those of ai.google.dev/api and of Google's SDK."""
