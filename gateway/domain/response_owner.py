"""Owners of responses that a provider stores: the provider knows only the gateway, not its accounts."""

from gateway.frozen import frozen

KEPT_MS = 30 * 24 * 3_600 * 1000
"""As long as providers keep responses (OpenAI API reference, ``store``)."""
LONGEST_ID = 256


@frozen
class ResponseOwner:
    """The account and the channel of a response. ``tokens``: of prompt and answer, as reported; 0: unknown."""

    account_id: int
    channel: str
    tokens: int = 0
