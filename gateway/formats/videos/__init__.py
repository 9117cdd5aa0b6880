"""Videos: the client's format (OpenAI's), the interface of backends, and a backend for each vendor's format."""
