"""Owners of responses that a provider stores: the provider knows only the gateway, not its accounts."""

from gateway.frozen import frozen

RETENTION_MS = 30 * 24 * 3_600 * 1000
"""How long owners are kept: as long as providers keep responses (OpenAI API reference, ``store``)."""
MAX_ID_CHARS = 256


@frozen
class ResponseOwner:
    """The account and the channel of a response. ``tokens`` counts prompt and answer as reported; 0 if unknown."""

    account_id: int
    channel: str
    tokens: int = 0
