"""Checks of an ID token (OpenID Connect Core 1.0, section 3.1.3.7).

Only a gateway with ``[[sign_in]]`` imports this module.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from authlib.oidc.core import CodeIDToken  # type: ignore[import-untyped]
from joserfc import jws, jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from gateway.frozen import frozen

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""Signatures with a private key. ``none`` and HMAC are excluded. Any client can forge the first, and also the second if
the provider's public key is mistaken for a shared secret."""
LEEWAY_S = 60
MAX_AGE_S = 600
"""Maximum age of an ID token: it is issued during the sign-in, which takes at most this long."""
_PUBLIC_KEY_TYPES = frozenset({"RSA", "EC", "OKP"})


class InvalidIdToken(Exception):
    """The ID token or the provider's key set is not valid; the message is for the log and gives the reason."""


class UnknownSigningKey(InvalidIdToken):
    """The ID token names a key that is not in the key set: the provider may have introduced a new key."""


@frozen
class ExpectedToken:
    """The values that a valid ID token has, and the algorithms with which it may be signed."""

    issuer: str
    client_id: str
    nonce: str
    algorithms: Sequence[str]


def choose_algorithms(algorithms: Any) -> tuple[str, ...]:
    """Return the allowed ones among ``algorithms``, a value of the provider's metadata; RS256 if it is no list."""
    names = algorithms if isinstance(algorithms, list) else ["RS256"]
    return tuple(name for name in names if isinstance(name, str) and name in ALGORITHMS)


def read_keys(document: Mapping[str, Any]) -> KeySet:
    """Return a JSON Web Key Set's public keys of known types that may sign. Raises ``InvalidIdToken``."""
    keys = document.get("keys")
    candidates = [key for key in (keys if isinstance(keys, list) else []) if isinstance(key, dict)]
    public_keys = [key for key in candidates if key.get("kty") in _PUBLIC_KEY_TYPES and key.get("use", "sig") == "sig"]
    try:
        return KeySet.import_key_set({"keys": public_keys})
    except (JoseError, ValueError, TypeError) as error:
        raise InvalidIdToken(f"the key set cannot be read: {error}") from None


def check_id_token(token: str, keys: KeySet, expected_token: ExpectedToken, now_s: float) -> dict[str, Any]:
    """Return the claims of a valid ID token. Raises ``InvalidIdToken``, ``UnknownSigningKey``."""
    try:
        header = jws.extract_compact(token.encode()).protected
        if header.get("alg") not in expected_token.algorithms:
            raise InvalidIdToken(f"the algorithm {str(header.get('alg'))[:20]!r} is not allowed")
        if "kid" in header:
            keys.get_by_kid(str(header["kid"]))
        elif len(keys.keys) != 1:
            raise InvalidIdToken("the token does not name its key, and the provider has several")
        decoded_token = jwt.decode(token, keys, algorithms=list(expected_token.algorithms))
        claims = CodeIDToken(
            decoded_token.claims,
            decoded_token.header,
            options={"iss": {"essential": True, "value": expected_token.issuer}},
            params={"nonce": expected_token.nonce, "client_id": expected_token.client_id},
        )
        claims.validate(now=int(now_s), leeway=LEEWAY_S)
    except InvalidKeyIdError:
        raise UnknownSigningKey("the token names an unknown key") from None
    except (JoseError, ValueError, TypeError) as error:
        raise InvalidIdToken(str(error)) from None
    _check_claims(decoded_token.claims, expected_token, now_s)
    return decoded_token.claims


def _check_claims(claims: Mapping[str, Any], expected_token: ExpectedToken, now_s: float) -> None:
    """Check the parts that the library does not check: types, the audience, the age and the subject.

    Raises ``InvalidIdToken``.
    """
    audience = claims["aud"]
    audiences = audience if isinstance(audience, list) else [audience]
    if expected_token.client_id not in audiences:
        raise InvalidIdToken("the token is for another client")
    if not isinstance(claims["iss"], str) or claims["iss"] != expected_token.issuer:
        raise InvalidIdToken("the token is of another issuer")
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT:
        raise InvalidIdToken("the token has no subject")
    times = (claims["exp"], claims["iat"])
    if not all(isinstance(time, int | float) and not isinstance(time, bool) for time in times):
        raise InvalidIdToken("the token's times are no numbers")
    if now_s - claims["iat"] > MAX_AGE_S + LEEWAY_S:
        raise InvalidIdToken("the token is too old")


MAX_SUBJECT = 255
"""Maximum length of a subject in characters (OpenID Connect Core 1.0, section 2)."""
