"""The token of the link that creates the first administrator. The link is printed at startup."""

import secrets

from gateway.auth.short_lived import ShortLived
from gateway.storage.members import MemberRepository

SETUP = ("setup", b"token")
"""The token's kind and name among the short-lived values."""
NEVER_MS = 2**62


async def find_setup_token(members: MemberRepository, values: ShortLived, *, is_local: bool) -> str | None:
    """Return the token, created if necessary; None if there is an active administrator or passwords are off."""
    if not is_local or await members.is_administered():
        return None
    while (stored_token := await values.find(*SETUP)) is None:  # another node may be creating a token
        await values.put(*SETUP, secrets.token_urlsafe(32).encode(), NEVER_MS)
    return stored_token.decode()
