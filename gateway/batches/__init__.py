"""Batches: the requests of one file, sent by the gateway itself, each once at most."""
