"""Embeddings: the formats of OpenAI, Gemini and Vertex AI."""
