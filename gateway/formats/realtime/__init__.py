"""OpenAI's Realtime API: the events of a session, the log in which they are kept, and client secrets."""
