"""The rules of the cache of answers (``domain/cached_answer.py``)."""

from typing import Literal

MAX_TTL_S = 365 * 86_400
CacheScope = Literal["account", "key", "all"]
"""Who shares answers: the keys of an account, only the same key, or all keys."""
CacheResult = Literal["", "hit", "miss", "joined"]
"""Where an answer came from: "hit": from the cache. "joined": from the provider's answer to an equal request that was
running. "miss": from a provider, although the request may be answered from the cache. Empty: from a provider, because
the request may not be answered from the cache."""
