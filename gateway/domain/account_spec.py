"""Accounts, keys and credits: as users write them (configuration file, commands, admin API), and as JSON.

Amounts are USD here and nano-USD in the data types. A time without a zone is UTC.
"""

from datetime import UTC, datetime
from decimal import Decimal
from ipaddress import ip_network
from typing import Any, Literal

import attrs

from gateway.deferred import defer_function
from gateway.domain.account import NAME_SHAPE, Account, ApiKey, Status, is_key_shape
from gateway.domain.attribution import MAX_NAME_CHARS, MAX_TAG_CHARS, MAX_TAGS, build_tags, find_tag_problem, split_tags
from gateway.domain.balance import Quota, QuotaPeriod
from gateway.domain.cache_rules import MAX_TTL_S
from gateway.domain.keep_rule import KEY_RULE_FORMS, is_key_rule
from gateway.domain.loop_rule import LoopRule
from gateway.domain.price import NANOS_PER_USD, nanos
from gateway.domain.rate_limit import Limits
from gateway.domain.webhook import find_webhook_problem
from gateway.frozen import frozen
from gateway.parsing import between, must


def _is_network(value: str) -> bool:
    try:
        ip_network(value, strict=False)
    except ValueError:
        return False
    return True


def _is_moment(value: datetime) -> bool:
    return 0 <= value.timestamp() < _MAX_TIME_S


def _is_word(value: str) -> bool:
    return 0 < len(value) <= 256 and value.isprintable()  # noqa: PLR2004 - the length of a model's name


NAME = must(
    "1 to 64 letters, digits, spaces or ._@/-, beginning with a letter or digit",
    lambda value: NAME_SHAPE.match(value) is not None,
)
_SECRET = must("'sk-' and 13 to 253 letters, digits or ._-", is_key_shape)
NETWORKS = must("addresses or networks such as 10.0.0.0/8", lambda value: all(map(_is_network, value)))
_AMOUNT = must("an amount from 0 to 9000000000", lambda value: 0 <= value <= _MAX_USD)
_CREDIT = must("an amount from -9000000000 to 9000000000", lambda value: -_MAX_USD <= value <= _MAX_USD)
_REFERENCE = must("1 to 64 printable characters", lambda value: 0 < len(value) <= 64 and value.isprintable())  # noqa: PLR2004
_NOTE = must("at most 256 printable characters", lambda value: len(value) <= 256 and value.isprintable())  # noqa: PLR2004
_WEB_URL = must(
    "a plain http or https URL without a user name", lambda value: find_webhook_problem(value, ("*",)) is None
)
_USER = must(
    f"1 to {MAX_NAME_CHARS} printable characters",
    lambda value: 0 < len(value) <= MAX_NAME_CHARS and value.isprintable() and value == value.strip(),
)
_TAGS = must(
    f'at most {MAX_TAGS} tags such as team = "web"; names of 1 to {MAX_TAG_CHARS} letters, digits or _.-, values of 1 '
    f"to {MAX_TAG_CHARS} printable characters without a comma",
    lambda tags: len(tags) <= MAX_TAGS and not any(find_tag_problem(*tag) for tag in tags.items()),
)
_WORD_LIST = must("printable words of 1 to 256 characters", lambda value: all(map(_is_word, value)))
_EXPIRY = must("a time from 1970 to 9998", _is_moment)
_change_zone = defer_function("domain.account_zone:change_zone")
_TIMEZONE = must("an IANA time zone", defer_function("domain.account_zone:is_known_zone"))
_POSITIVE_NUMBER = between(1)
_OVERLAP_HOURS = between(0, 720)
_REPEATS = between(2, 1_000)
_WINDOW_S = between(1, 86_400)
_CACHE_TTL_S = between(0, MAX_TTL_S)
_MAX_USD = 9 * 10**9  # so that nano-USD fit a 64-bit integer
_MAX_TIME_S = 253_370_764_800  # a four-digit year in UTC, whichever zone was meant


@frozen
class AccountSpec:
    """``[[account]]``: an account, which owns keys; its limits apply to all of them together."""

    name: str = attrs.field(metadata=NAME)
    quota_usd: Decimal | None = attrs.field(default=None, metadata=_AMOUNT)
    quota_period: QuotaPeriod | None = None
    rpm: int | None = attrs.field(default=None, metadata=_POSITIVE_NUMBER)
    tpm: int | None = attrs.field(default=None, metadata=_POSITIVE_NUMBER)
    max_concurrency: int | None = attrs.field(default=None, metadata=_POSITIVE_NUMBER)
    burst: int | None = attrs.field(default=None, metadata=_POSITIVE_NUMBER)
    quota_status: Literal[403, 429] | None = None
    groups: tuple[str, ...] = attrs.field(default=(), metadata=_WORD_LIST)
    status: Status = "active"
    timezone: str | None = attrs.field(default=None, metadata=_TIMEZONE)

    def apply(self, account: Account, now_s: float | None = None) -> Account:
        """Return ``account`` with these settings. Another time zone takes effect soon after ``now_s``; None: at once.

        Raises ``Conflict`` after too many changes of the time zone.
        """
        zones, timezone = account.zones, None if self.timezone == "UTC" else self.timezone
        if timezone != account.timezone:
            zones = _change_zone(zones, timezone, now_s)
        return attrs.evolve(
            account,
            name=self.name,
            status=self.status,
            quota=_build_quota(self.quota_usd, self.quota_period, self.quota_status),
            limits=Limits(self.rpm, self.tpm, self.max_concurrency, self.burst),
            groups=self.groups,
            zones=zones,
        )


@frozen
class LoopSpec:
    """``loops`` of a key: how often the same conversation may be answered within ``window_s`` seconds."""

    same_prompt: int = attrs.field(metadata=_REPEATS)
    window_s: int = attrs.field(default=300, metadata=_WINDOW_S)


@frozen
class KeySpec:
    """``[[key]]``: an API key of an account.

    If ``secret`` is None, the gateway generates one.
    """

    name: str = attrs.field(metadata=NAME)
    account: str
    secret: str | None = attrs.field(default=None, metadata=_SECRET, repr=False)
    quota_usd: Decimal | None = attrs.field(default=None, metadata=_AMOUNT)
    quota_period: QuotaPeriod | None = None
    models: tuple[str, ...] = attrs.field(default=(), metadata=_WORD_LIST)
    group: str | None = attrs.field(default=None, metadata=NAME)
    expires_at: datetime | None = attrs.field(default=None, metadata=_EXPIRY)
    allow_ips: tuple[str, ...] = attrs.field(default=(), metadata=NETWORKS)
    rpm: int | None = attrs.field(default=None, metadata=_POSITIVE_NUMBER)
    tpm: int | None = attrs.field(default=None, metadata=_POSITIVE_NUMBER)
    max_concurrency: int | None = attrs.field(default=None, metadata=_POSITIVE_NUMBER)
    burst: int | None = attrs.field(default=None, metadata=_POSITIVE_NUMBER)
    quota_status: Literal[403, 429] | None = None
    status: Status = "active"
    webhook_url: str | None = attrs.field(default=None, metadata=_WEB_URL)
    user: str | None = attrs.field(default=None, metadata=_USER)
    tags: dict[str, str] = attrs.field(factory=dict, metadata=_TAGS)
    loops: LoopSpec | None = None
    max_session_usd: Decimal | None = attrs.field(default=None, metadata=_AMOUNT)
    show_account: bool = False
    keep_bodies: str | None = attrs.field(default=None, metadata=must(KEY_RULE_FORMS, is_key_rule))
    resumable: bool = False
    cache_ttl_s: int | None = attrs.field(default=None, metadata=_CACHE_TTL_S)

    def apply(self, key: ApiKey) -> ApiKey:
        """Return ``key`` with these settings; its secret and account stay."""
        return attrs.evolve(
            key,
            name=self.name,
            status=self.status,
            quota=_build_quota(self.quota_usd, self.quota_period, self.quota_status),
            limits=Limits(self.rpm, self.tpm, self.max_concurrency, self.burst),
            models=self.models,
            group=self.group,
            expires_s=None if self.expires_at is None else int(self.expires_at.timestamp()),
            allow_ips=self.allow_ips,
            webhook_url=self.webhook_url,
            user=self.user or "",
            tags=build_tags(self.tags.items()),
            loops=None if self.loops is None else LoopRule(self.loops.same_prompt, self.loops.window_s),
            max_session_nanos=None if self.max_session_usd is None else nanos(self.max_session_usd),
            shows_account=self.show_account,
            keep_bodies=self.keep_bodies,
            resumable=self.resumable,
            cache_ttl_s=self.cache_ttl_s,
        )


@frozen
class RotateSpec:
    """Rotation of a key's secret: the present secret stays valid for ``overlap_h`` hours."""

    overlap_h: int = attrs.field(default=24, metadata=_OVERLAP_HOURS)


@frozen
class CreditSpec:
    """A credit to a balance.

    The kind ``top_up`` adds ``amount_usd``, which may be negative, to the amount that may be spent. The kind ``set``
    makes ``amount_usd`` the amount that is left, including the reservations of running requests. A credit to a daily
    or monthly quota counts for that day or month.
    """

    amount_usd: Decimal = attrs.field(metadata=_CREDIT)
    kind: Literal["top_up", "set"] = "top_up"
    reference: str | None = attrs.field(default=None, metadata=_REFERENCE)
    note: str | None = attrs.field(default=None, metadata=_NOTE)


def build_account_fields(account: Account) -> dict[str, Any]:
    """Return an account as JSON; ``AccountSpec`` can parse its own keys from it."""
    return {
        "id": account.id,
        "name": account.name,
        "status": account.status,
        **_build_quota_fields(account.quota),
        **attrs.asdict(account.limits),
        "groups": list(account.groups),
        "timezone": account.timezone,
        "declared": account.declared,
        "created_at": build_time(account.created_ms // 1000),
    }


def build_key_fields(key: ApiKey, account: str) -> dict[str, Any]:
    """Return a key as JSON, with the last four characters of its secret."""
    return {
        "id": key.id,
        "name": key.name,
        "account": account,
        "key": key.masked,
        "status": key.status,
        "expires_at": None if key.expires_s is None else build_time(key.expires_s),
        **_build_quota_fields(key.quota),
        **attrs.asdict(key.limits),
        "models": list(key.models),
        "group": key.group,
        "allow_ips": list(key.allow_ips),
        "webhook_url": key.webhook_url,
        "user": key.user or None,
        "tags": dict(split_tags(key.tags)),
        "loops": None if key.loops is None else attrs.asdict(key.loops),
        "max_session_usd": None if key.max_session_nanos is None else key.max_session_nanos / NANOS_PER_USD,
        "show_account": key.shows_account,
        "keep_bodies": key.keep_bodies,
        "resumable": key.resumable,
        "cache_ttl_s": key.cache_ttl_s,
        "locked": list(key.locked),
        "declared": key.declared,
        "created_at": build_time(key.created_ms // 1000),
    }


def _build_quota(usd: Decimal | None, period: QuotaPeriod | None, status: Literal[403, 429] | None) -> Quota:
    # An amount without a period is a lifetime quota: the safer reading of "quota_usd = 5".
    limit = None if usd is None else nanos(usd)
    return Quota(limit, period or ("none" if limit is None else "lifetime"), status)


def _build_quota_fields(quota: Quota) -> dict[str, Any]:
    limit = quota.limit_nanos
    return {
        "quota_usd": None if limit is None else limit / NANOS_PER_USD,
        "quota_period": quota.period,
        "quota_status": quota.status,
    }


def build_time(seconds: int) -> str:
    """Format Unix seconds as ``2027-01-31T12:00:00Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
