"""Passkeys (W3C Web Authentication, Level 3): a device keeps the private key, the gateway the public one."""

from ipaddress import ip_address
from urllib.parse import urlsplit

import attrs

from gateway.domain.origin import parse_origins
from gateway.frozen import frozen

MAX_PASSKEYS = 10
"""Maximum number of passkeys per member."""
CHALLENGE_MS = 5 * 60 * 1000
"""How long a challenge is valid."""
PASSKEY_REFUSED = "This passkey is not accepted here: sign in with your passphrase"
PASSKEYS_MISSING = "You have no passkey"


@frozen
class Passkey:
    """A registered credential.

    Attributes:
        public_key: as COSE (RFC 9052).
        sign_count: the highest signature counter seen; 0 if the authenticator has none.
        transports: how browsers reach the authenticator, as it reported at the registration.
    """

    id: int
    member_id: int
    credential_id: bytes
    public_key: bytes = attrs.field(repr=False)
    sign_count: int
    name: str
    transports: tuple[str, ...] = ()
    created_ms: int = 0
    used_ms: int | None = None

    def accepts(self, sign_count: int) -> bool:
        """Return whether the counter has increased or is unused. Otherwise the key may be a copy (section 6.1.1)."""
        return sign_count > self.sign_count or sign_count == self.sign_count == 0


@frozen
class PasskeyUse:
    """A verified signature of a passkey; ``sign_count`` is the authenticator's counter after it."""

    id: int
    sign_count: int


@frozen
class Assertion:
    """An authenticator's answer to a sign-in challenge. If ``user_handle`` is None, the authenticator has none."""

    credential_id: bytes
    client_data: bytes = attrs.field(repr=False)
    authenticator_data: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)
    user_handle: bytes | None = attrs.field(default=None, repr=False)


@frozen
class Attestation:
    """An authenticator's answer to a registration challenge, and the passkey's ``name`` and ``transports``."""

    credential_id: bytes
    client_data: bytes = attrs.field(repr=False)
    attestation_object: bytes = attrs.field(repr=False)
    name: str
    transports: tuple[str, ...] = ()


@frozen
class RelyingParty:
    """The site whose passkeys a browser uses. ``id`` is its host."""

    id: str
    origin: str


def find_relying_party(address: str) -> RelyingParty | None:
    """Return the site at ``address``; None if browsers allow no passkeys there.

    They allow none at an IP address. Without TLS, they allow them on this machine only. None also if ``address`` is
    unreadable.
    """
    try:
        url = urlsplit(address)
        host = url.hostname or ""
    except ValueError:
        return None
    if not host or _is_address(host) or (url.scheme != "https" and not is_localhost(host)):
        return None
    return RelyingParty(host, *parse_origins([f"{url.scheme}://{url.netloc}"]))


def is_localhost(host: str) -> bool:
    """Return whether a host name always means this machine, regardless of DNS (RFC 6761, section 6.3)."""
    return host == "localhost" or host.endswith(".localhost")


def write_user_handle(member_id: int) -> bytes:
    """Return the user handle that authenticators store with a passkey. It does not reveal the member's identity."""
    return member_id.to_bytes(8, "big")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
