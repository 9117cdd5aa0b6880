"""Accounts, their API keys, and the caller of a request."""

import hashlib
import hmac
import re
from fnmatch import fnmatchcase
from typing import Literal

import attrs

from gateway.domain.balance import UNLIMITED_QUOTA, Quota
from gateway.domain.ip_address import Networks, is_inside
from gateway.domain.loop_rule import LoopRule
from gateway.domain.rate_limit import NO_LIMITS, Limits, RateLimitSubject
from gateway.domain.zone_periods import ZonePeriods
from gateway.errors import GroupNotAllowed, IpNotAllowed, KeyDisabled, KeyExpired, ModelNotAllowed
from gateway.frozen import frozen

Status = Literal["active", "disabled"]

KEY_PREFIX = "sk-"
KEY_LENGTH = 48
"""Characters after the prefix of a key that the gateway generates."""

_KEY_SHAPE = re.compile(r"sk-[A-Za-z0-9._-]{13,253}\Z", re.ASCII)
NAME_SHAPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,63}\Z", re.ASCII)
"""Names of accounts, keys and channels, which appear in pages, logs and paths."""


def is_key_shape(secret: str) -> bool:
    """Return whether ``secret`` has the form of a key: ``sk-`` and 13 to 253 letters, digits or ``._-``."""
    return _KEY_SHAPE.match(secret) is not None


_KEY_MAKERS = (
    ("sk-ant-", "an Anthropic"), ("sk-or-", "an OpenRouter"), ("sk-proj-", "an OpenAI"), ("sk-svcacct-", "an OpenAI"),
    ("sk-admin-", "an OpenAI"), ("AIza", "a Google"), ("gsk_", "a Groq"), ("xai-", "an xAI"), ("pplx-", "a Perplexity"),
    ("hf_", "a Hugging Face"), ("nvapi-", "an NVIDIA"), ("r8_", "a Replicate"), ("csk-", "a Cerebras"),
    ("fw_", "a Fireworks"), ("jina_", "a Jina"), ("tgp_v1_", "a Together"), ("ya29.", "a Google"),
    ("ghp_", "a GitHub"), ("github_pat_", "a GitHub"), ("ABSK", "an Amazon Bedrock"),
)  # fmt: skip
"""What the keys of other makers begin with."""


def find_key_maker(secret: str) -> str | None:
    """Return whose key ``secret`` seems to be, with an article; None if it looks like no other maker's."""
    return next((maker for prefix, maker in _KEY_MAKERS if secret.startswith(prefix)), None)


def key_digest(pepper: bytes, secret: str) -> bytes:
    """Return the digest under which a key is stored: HMAC-SHA256, 32 bytes."""
    return hmac.digest(pepper, secret.encode(), hashlib.sha256)


@frozen
class Account:
    """The owner of keys, who pays.

    If ``declared`` is true, the account comes from the configuration file and is read-only elsewhere. ``zones``: in
    which time zones the days and months of its quotas and the windows of its limits begin (``account_zone.py``).
    """

    id: int
    name: str
    status: Status = "active"
    quota: Quota = UNLIMITED_QUOTA
    limits: Limits = NO_LIMITS
    groups: tuple[str, ...] = ()
    declared: bool = False
    created_ms: int = 0
    zones: ZonePeriods = ()

    @property
    def timezone(self) -> str | None:
        """The name of the time zone, or of the next zone if a change is pending; None: UTC."""
        return self.zones[-1][1] if self.zones and self.zones[-1][1] != "UTC" else None


@frozen
class ApiKey:
    """An API key. Only the digest of its secret and the last four characters are stored.

    ``webhook_url`` is notified when a video of the key has ended, unless the request names another URL.
    ``former_digest`` is that of the secret before the last rotation, valid until ``former_until_s``. ``locked`` are
    fields that an administrator has set and members cannot change (``key_lock.py``). ``user`` and ``tags`` are the end
    user and the tags (``env=test,team=web``) of all its requests; empty if the requests name them. ``loops``: when a
    client is taken to repeat itself; None: never. ``max_session_nanos``: the highest budget that a session may have;
    None: any, but no later request may raise it. ``shows_account``: whether the key may see the limits of its
    account. ``keep_bodies``: of which requests the bodies are kept; None: as ``requests.keep_bodies`` says.
    ``resumable``: whether streams can be taken up again, unless a request says otherwise. ``cache_ttl_s``: for how many
    seconds answers are given again (0: never); None: as ``cache.ttl_s`` says.
    """

    id: int
    account_id: int
    name: str
    digest: bytes = attrs.field(repr=False)
    last4: str
    status: Status = "active"
    expires_s: int | None = None
    quota: Quota = UNLIMITED_QUOTA
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
    user: str = ""
    tags: str = ""
    loops: LoopRule | None = None
    max_session_nanos: int | None = None
    shows_account: bool = False
    keep_bodies: str | None = None
    resumable: bool = False
    cache_ttl_s: int | None = None

    @property
    def masked(self) -> str:
        return f"{KEY_PREFIX}…{self.last4}"


@frozen
class Caller:
    """An account and the key that the client sent.

    ``networks`` are those from which the key may be used; empty: from any address. ``subjects`` are the key and the
    account, as far as they have rate limits. ``capped`` says whether one of them has a spending limit.
    """

    account: Account
    key: ApiKey
    networks: Networks = ()
    subjects: tuple[RateLimitSubject, ...] = attrs.field(init=False, repr=False)
    capped: bool = attrs.field(init=False, repr=False)

    @subjects.default
    def _list_subjects(self) -> tuple[RateLimitSubject, ...]:
        key, account = self.key, self.account
        subjects = (
            RateLimitSubject("key", key.id, key.limits),
            RateLimitSubject("account", account.id, account.limits),
        )
        return tuple(subject for subject in subjects if subject.limits.any)

    @capped.default
    def _find_capped(self) -> bool:
        return self.key.quota.capped or self.account.quota.capped

    def check_usable(self, now_s: float) -> None:
        """Raise ``KeyDisabled`` or ``KeyExpired`` if the key may not be used at ``now_s`` (Unix seconds)."""
        if self.key.status != "active":
            raise KeyDisabled("This API key is disabled", should_retry=False)
        if self.account.status != "active":
            raise KeyDisabled("The account of this API key is disabled", should_retry=False)
        if self.key.expires_s is not None and now_s >= self.key.expires_s:
            raise KeyExpired("This API key has expired", should_retry=False)

    def check_address(self, address: str | None) -> None:
        """Raise ``IpNotAllowed`` if the key may not be used from ``address``; None means an unknown address."""
        if self.networks and not is_inside(address, self.networks):
            raise IpNotAllowed("This API key may not be used from this address", should_retry=False)

    @property
    def may_use_group(self) -> bool:
        return self.key.group is None or not self.account.groups or self.key.group in self.account.groups

    def check_group(self) -> None:
        """Raise ``GroupNotAllowed`` if the account may not use the key's group."""
        if not self.may_use_group:
            raise GroupNotAllowed(
                f"The account of this API key may not use the group {self.key.group!r}", should_retry=False
            )

    def may_use(self, model: str) -> bool:
        """Return whether the key's globs allow ``model``; a key without globs allows every model."""
        return not self.key.models or any(fnmatchcase(model, glob) for glob in self.key.models)

    def check_model(self, model: str) -> None:
        """Raise ``ModelNotAllowed`` if the key's globs exclude ``model``."""
        if not self.may_use(model):
            raise ModelNotAllowed(f"This API key may not use the model {model!r}", param="model", should_retry=False)
