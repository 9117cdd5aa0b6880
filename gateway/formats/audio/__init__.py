"""Speech and transcriptions: the client's format (OpenAI's), and vendors' own formats."""
