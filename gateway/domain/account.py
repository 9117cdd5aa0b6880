"""Who calls: accounts, their keys, and the port that stores them."""

import hashlib
import hmac
import re
from fnmatch import fnmatchcase
from typing import Literal

import attrs

from gateway.domain.balance import NO_QUOTA, Quota
from gateway.domain.ip_address import Networks, is_inside
from gateway.domain.rate_limit import NO_LIMITS, Limits, RateLimitSubject
from gateway.errors import GroupNotAllowed, IpNotAllowed, KeyDisabled, KeyExpired, ModelNotAllowed

Status = Literal["active", "disabled"]

KEY_PREFIX = "sk-"
KEY_LENGTH = 48
"""Characters after the prefix of a key that the gateway makes."""

_KEY_SHAPE = re.compile(r"sk-[A-Za-z0-9._-]{13,253}\Z", re.ASCII)
NAME_SHAPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,63}\Z", re.ASCII)
"""Names of accounts, keys and channels: they are shown, logged and written in paths."""


def is_key_shape(secret: str) -> bool:
    """Whether ``secret`` could be a key: ``sk-`` and 13 to 253 characters of a token's alphabet."""
    return _KEY_SHAPE.match(secret) is not None


def key_digest(pepper: bytes, secret: str) -> bytes:
    """The keyed hash under which a key is stored; HMAC-SHA256, 32 bytes."""
    return hmac.digest(pepper, secret.encode(), hashlib.sha256)


@attrs.frozen
class Account:
    """Who pays. ``declared`` accounts come from the configuration file and are read-only elsewhere."""

    id: int
    name: str
    status: Status = "active"
    quota: Quota = NO_QUOTA
    limits: Limits = NO_LIMITS
    groups: tuple[str, ...] = ()
    declared: bool = False
    created_ms: int = 0


@attrs.frozen
class ApiKey:
    """What a caller shows. Only ``digest`` of the secret is kept, and its last four characters for people.

    ``webhook_url`` is told of the end of each of its videos, but for those whose call names another. The secret that
    it had before it was rotated (``former_digest``) is good until ``former_until_s``. ``locked`` are the fields that an
    administrator has set, which members cannot change (``key_lock.py``).
    """

    id: int
    account_id: int
    name: str
    digest: bytes = attrs.field(repr=False)
    last4: str
    status: Status = "active"
    expires_s: int | None = None
    quota: Quota = NO_QUOTA
    limits: Limits = NO_LIMITS
    models: tuple[str, ...] = ()
    group: str | None = None
    allow_ips: tuple[str, ...] = ()
    declared: bool = False
    created_ms: int = 0
    webhook_url: str | None = attrs.field(default=None, repr=False)
    former_digest: bytes | None = attrs.field(default=None, repr=False)
    former_until_s: int | None = None
    locked: tuple[str, ...] = ()

    @property
    def masked(self) -> str:
        """What lists show: ``sk-…abcd``."""
        return f"{KEY_PREFIX}…{self.last4}"


@attrs.frozen
class Caller:
    """The first parcel: an account and the key it called with. Written by ``auth/api_keys.py`` alone.

    ``networks`` are the key's ``allow_ips``, read once.
    """

    account: Account
    key: ApiKey
    networks: Networks = ()
    subjects: tuple[RateLimitSubject, ...] = attrs.field(init=False, repr=False)

    @subjects.default
    def _list_subjects(self) -> tuple[RateLimitSubject, ...]:
        key, account = self.key, self.account
        both = (RateLimitSubject("key", key.id, key.limits), RateLimitSubject("account", account.id, account.limits))
        return tuple(subject for subject in both if subject.limits.any)

    def check_usable(self, now_s: float) -> None:
        """Raise ``KeyDisabled`` or ``KeyExpired`` where the key may not be used at ``now_s`` (Unix seconds)."""
        if self.key.status != "active":
            raise KeyDisabled("This API key is disabled", should_retry=False)
        if self.account.status != "active":
            raise KeyDisabled("The account of this API key is disabled", should_retry=False)
        if self.key.expires_s is not None and now_s >= self.key.expires_s:
            raise KeyExpired("This API key has expired", should_retry=False)

    def check_address(self, address: str | None) -> None:
        """Raise ``IpNotAllowed`` where the key may not be used from ``address`` (None: unknown)."""
        if self.networks and not is_inside(address, self.networks):
            raise IpNotAllowed("This API key may not be used from this address", should_retry=False)

    @property
    def may_use_group(self) -> bool:
        """Whether the key's group, if it has one, is one of those its account may use; none there means all."""
        return self.key.group is None or not self.account.groups or self.key.group in self.account.groups

    def check_group(self) -> None:
        """Raise ``GroupNotAllowed`` where the key's group is not one of those its account may use."""
        if not self.may_use_group:
            raise GroupNotAllowed(
                f"The account of this API key may not use the group {self.key.group!r}",
                should_retry=False,
            )

    def may_use(self, model: str) -> bool:
        """Whether the key's model restriction (globs; none means all) lets ``model`` through."""
        return not self.key.models or any(fnmatchcase(model, glob) for glob in self.key.models)

    def check_model(self, model: str) -> None:
        """Raise ``ModelNotAllowed`` where the key's restriction excludes ``model``."""
        if not self.may_use(model):
            raise ModelNotAllowed(f"This API key may not use the model {model!r}", param="model", should_retry=False)
