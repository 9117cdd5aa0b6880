"""Chats: the common chat model, and a package for each API format that is translated from or to it."""
