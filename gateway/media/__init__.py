"""Media of requests and answers: images, audio, clients' files; and the filter of forbidden words in prompts."""
