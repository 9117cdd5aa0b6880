"""Batches: the gateway itself sends the requests of a file, each at most once."""
