"""A limit as people write it: ``[[limit]]`` in the configuration file, or JSON in the admin API."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import attrs

from gateway.deferred import defer_function
from gateway.domain.account_spec import NAME
from gateway.frozen import frozen
from gateway.parsing import about, between, must

if TYPE_CHECKING:  # only if a limit is configured
    from gateway.domain.limit import Limit

_MAX_USD = 9 * 10**9
_is_subject = defer_function("billing.limit_fields:is_subject")
_is_window = defer_function("billing.limit_fields:is_window")
_is_timezone = defer_function("domain.account_zone:is_known_zone")
_parse_limit = defer_function("billing.limit_fields:parse_limit")


@frozen
class LimitSpec:
    """``[[limit]]``: what each key, account, end user, session, tag or model may spend in a window, or its rates."""

    name: str = attrs.field(metadata=NAME)
    of: str | None = attrs.field(
        default=None,
        metadata=about(
            'what is limited, each by itself: "key", "account", "user" (the end user of a request), "session", '
            '"tag:NAME" (each value of that tag) or "model:GLOB" (these models of an account together)',
            must("key, account, user, session, tag:NAME or model:GLOB", _is_subject),
        ),
    )
    keys: tuple[str, ...] = attrs.field(
        default=(), metadata=about("names of the keys whose requests count; default: all keys")
    )
    usd: Decimal | None = attrs.field(
        default=None,
        metadata=about(
            "what may be spent in a window, in USD",
            must("an amount from 0 to 9000000000", lambda value: 0 <= value <= _MAX_USD),
        ),
    )
    window: str = attrs.field(
        default="month",
        metadata=about(
            'the window of usd: "hour", "5h", "day", "week" (from Monday), "month", "quarter", "lifetime", or a '
            'rolling one, such as "rolling:24h" or "rolling:7d"',
            must("hour, 5h, day, week, month, quarter, lifetime, or rolling:1h to rolling:366d", _is_window),
        ),
    )
    timezone: str | None = attrs.field(
        default=None,
        metadata=about(
            "the time zone in which windows begin, such as Europe/Berlin; default: that of the account",
            must("an IANA time zone", _is_timezone),
        ),
    )
    rpm: int | None = attrs.field(default=None, metadata=about("requests per minute", between(1)))
    tpm: int | None = attrs.field(default=None, metadata=about("tokens per minute", between(1)))
    status: Literal[403, 429] | None = attrs.field(
        default=None, metadata=about('the status of a refusal; default: 429, and 403 for window = "lifetime"')
    )
    until: datetime | None = attrs.field(
        default=None, metadata=about("when the limit ends; a day means its start in UTC; default: never")
    )
    raises: str | None = attrs.field(
        default=None,
        metadata=about("the name of another limit: its subjects may spend usd in addition, until this limit ends"),
    )
    max_subjects: int = attrs.field(
        default=100_000,
        metadata=about(
            "subjects that are kept in memory; the spending of others is read again from the database",
            between(1, 10_000_000),
        ),
    )

    soft: float | None = attrs.field(
        default=None,
        metadata=about(
            "the share of usd from which on answers have the header x-gateway-limit-soft and an alert is sent",
            must("a share between 0 and 1, such as 0.8", lambda value: 0 < value < 1),
        ),
    )

    def find_problems(self) -> Iterator[tuple[str, str]]:
        if self.raises is None and self.of is None:
            yield "of", "expected a value; this key is required"
        if self.raises is not None:
            for name in ("of", "keys", "status", "rpm", "tpm", "soft"):
                if getattr(self, name):
                    yield name, "expected no value: the limit that is raised has it"
        if self.usd is None and (self.raises is not None or not (self.rpm or self.tpm)):
            yield "usd", "expected an amount"
        if self.soft is not None and self.usd is None and self.raises is None:
            yield "soft", "expected no value without usd"

    def limit(self) -> "Limit":
        """Return the ``Limit`` that the fields describe."""
        limit: Limit = _parse_limit(self)
        return limit
