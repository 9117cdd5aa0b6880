"""Handlers of the public API."""
