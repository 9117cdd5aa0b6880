"""OpenAI's API format. Type names in docstrings of this package are those of OpenAI's OpenAPI document."""
