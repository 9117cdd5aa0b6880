"""OpenAI's Responses API. Type names in docstrings are those of OpenAI's OpenAPI document."""
