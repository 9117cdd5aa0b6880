"""Gemini's API format."""
