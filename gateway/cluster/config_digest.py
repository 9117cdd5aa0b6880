"""The digest by which the nodes of a cluster see whether they have the same configuration."""

import hashlib
import hmac
from pathlib import Path

import attrs

from gateway.config.loader import read_words_text
from gateway.config.schema import Config

_NODE_SECTIONS = frozenset({"server", "store", "cluster"})
"""Sections that may differ between the nodes of a cluster."""


def compute_digest(config: Config) -> str:
    """Return a keyed digest of the settings that should be the same on every node."""
    shared_settings = {name: value for name, value in attrs.asdict(config).items() if name not in _NODE_SECTIONS}
    try:
        words = read_words_text(Path(config.safety.words_file)) if config.safety.words_file else ""
    except (OSError, ValueError):  # startup or reload reports it
        words = ""
    key = bytes.fromhex(config.store.master_key)
    return hmac.digest(key, f"model gateway, configuration {(shared_settings, words)!r}".encode(), hashlib.sha256)[
        :8
    ].hex()
