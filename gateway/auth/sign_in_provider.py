"""An OpenID Connect provider for the sign-in of members (``[[sign_in]]``), and the meaning of its claims."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from gateway.domain.audit_log import KINDS
from gateway.domain.member import MEMBER_NAME, ROLES, Role
from gateway.frozen import frozen
from gateway.parsing import must
from gateway.providers.base import find_url_problem

Claims = Mapping[str, Any]

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}\Z")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}\Z")
_DOMAIN = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+\Z")
_MAX_LABEL_CHARS, _MAX_TEXT_CHARS, _MAX_NAME_CHARS, _TAIL_CHARS = 40, 4096, 64, 8
_SLUG = must("1 to 32 lower-case letters, digits or -", lambda value: bool(_NAME.match(value)))
_LABEL = must("at most 40 printable characters", lambda value: len(value) <= _MAX_LABEL_CHARS and value.isprintable())
_TEXT = must("1 to 4096 printable characters", lambda value: 0 < len(value) <= _MAX_TEXT_CHARS and value.isprintable())
_SCOPES = must('scopes with "openid"', lambda value: "openid" in value and all(_SCOPE.match(scope) for scope in value))
_DOMAINS = must("domains in lower case such as example.com", lambda value: all(map(_DOMAIN.match, value)))


def _is_issuer(url: str) -> bool:
    """Return whether the issuer is reached over TLS or on this machine (OpenID Connect Discovery 1.0, section 3)."""
    if find_url_problem(url) is not None:
        return False
    url_parts = urlsplit(url)
    return url_parts.scheme == "https" or url_parts.hostname in _LOOPBACK


_ISSUER = must("an https:// URL without query or fragment; http:// only on this machine", _is_issuer)


@frozen
class RoleClaims:
    """The values of the role claim that give each role; the highest role wins."""

    administrator: tuple[str, ...] = ()
    member: tuple[str, ...] = ()
    viewer: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.administrator or self.member or self.viewer)


@frozen
class SignInProvider:
    """``[[sign_in]]``: one provider.

    Attributes:
        name: part of the redirect URI.
        role_claim: a claim, or a dotted path of claims (``realm_access.roles``); its value is a string or an array of
            strings.
        roles: without any, a new member is a viewer, and administrators assign roles.
        account_claim: the claim that names the member's account; a token without it is refused.
        create: whether an unknown person becomes a member at the first sign-in.
        domains: the domains of e-mail addresses that may sign in, which the provider must have verified; empty: any.
    """

    name: str = attrs.field(metadata=_SLUG)
    issuer: str = attrs.field(metadata=_ISSUER)
    client_id: str = attrs.field(metadata=_TEXT)
    client_secret: str = attrs.field(metadata=_TEXT, repr=False)
    label: str = attrs.field(default="", metadata=_LABEL)
    scopes: tuple[str, ...] = attrs.field(default=("openid", "email", "profile"), metadata=_SCOPES)
    role_claim: str = attrs.field(default="groups", metadata=_TEXT)
    roles: RoleClaims = attrs.Factory(RoleClaims)
    account: str | None = attrs.field(default=None, metadata=_TEXT)
    account_claim: str | None = attrs.field(default=None, metadata=_TEXT)
    create: bool = False
    domains: tuple[str, ...] = attrs.field(default=(), metadata=_DOMAINS)

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Yield a key and a description for each broken rule that involves more than one key."""
        if self.create and not (self.account or self.account_claim):
            yield "account", "expected the account of new members, or account_claim: create is true"

    @property
    def title(self) -> str:
        return self.label or self.name

    def find_role(self, claims: Claims) -> Role | None:
        values = set(_list_texts(_find_claim(claims, self.role_claim)))
        return next((role for role in reversed(ROLES) if values.intersection(getattr(self.roles, role))), None)

    def find_account(self, claims: Claims) -> str | None:
        """Return the name of the member's account: the value of ``account_claim`` if that is set, else ``account``.

        None if the claim is not exactly one text, or neither is set.
        """
        if self.account_claim is None:
            return self.account
        values = _list_texts(_find_claim(claims, self.account_claim))
        return values[0] if len(values) == 1 else None

    def may_sign_in(self, claims: Claims) -> bool:
        """Return whether the e-mail address is verified and in one of ``domains``; True if there are no domains."""
        if not self.domains:
            return True
        email = find_email(claims)
        return email is not None and email.rpartition("@")[2] in self.domains


def find_email(claims: Claims) -> str | None:
    """Return the e-mail address in lower case; None if it is missing, malformed or not verified by the provider."""
    email = claims.get("email")
    if not isinstance(email, str) or claims.get("email_verified") is not True:
        return None
    local_part, _, domain = email.lower().rpartition("@")
    return f"{local_part}@{domain}" if local_part and domain and "@" not in local_part else None


def list_names(claims: Claims) -> tuple[str, ...]:
    """Return candidate names for a new member, best first. The last name is unique. Names do not identify members."""
    tail = hashlib.sha256(f"{claims['iss']}\n{claims['sub']}".encode()).hexdigest()[:_TAIL_CHARS]
    candidates = _list_texts([find_email(claims), claims.get("preferred_username")])
    names = [text.lower() for text in candidates if MEMBER_NAME.match(text.lower()) and text.lower() not in KINDS]
    stem = names[0][: _MAX_NAME_CHARS - _TAIL_CHARS - 1] if names else "member"
    return (*names[:1], f"{stem}-{tail}")


def _find_claim(claims: Claims, path: str) -> Any:
    """Return the claim called ``path``, else the claim at this dotted path; None if both are missing."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for segment in path.split("."):
        value = value.get(segment) if isinstance(value, Mapping) else None
    return value


def _list_texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, str)]
