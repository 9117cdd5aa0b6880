"""What bodies are made of in every format: events, JSON, forms, files, and their typed fields."""
