"""Rate limits of an account or a key."""

import attrs


@attrs.frozen
class Limits:
    """Requests a minute, tokens a minute, requests at once; None is unlimited."""

    rpm: int | None = None
    tpm: int | None = None
    max_concurrency: int | None = None


NO_LIMITS = Limits()
