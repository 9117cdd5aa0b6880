"""Anthropic's API format. Type names in docstrings are those of Anthropic's Python library."""
