"""Whose a response is that its provider has stored: the provider knows the gateway alone, and none of its accounts."""

import attrs

KEPT_MS = 30 * 24 * 3_600 * 1000
"""As long as providers keep responses (the convention's API reference, ``store``)."""
LONGEST_ID = 256


@attrs.frozen
class ResponseOwner:
    """The account that made a response, and the channel that it was made over."""

    account_id: int
    channel: str
