"""The configuration as one frozen tree; ``config_file.py`` reads it.

Rooms are handed their own section, or the nouns it declares; nothing below the roof reads a file or the environment.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from gateway.billing.abandoned import Abandoned
from gateway.billing.price_spec import MODEL, GroupSpec, PriceSpec
from gateway.config.server_schema import ServerSection, StoreSection
from gateway.domain.account_spec import NETWORKS, AccountSpec, KeySpec
from gateway.domain.capability import Capability
from gateway.domain.circuit_breaker import DEFAULT_RULES, BreakerSettings
from gateway.domain.image import MAX_IMAGES, ImageForm
from gateway.domain.ledger import OnCrash
from gateway.domain.media import MediaRules
from gateway.domain.video import MAX_SECONDS, VideoRules
from gateway.parsing import NOT_NEGATIVE, POSITIVE, Problem, about, between, must
from gateway.routing.channel_spec import ChannelSpec
from gateway.routing.load_balancer import DEFAULT_SETTINGS, RetrySettings


def _is_part(value: float) -> bool:
    return 0 < value <= 1


FORMS: tuple[ImageForm, ...] = ("url", "b64_json")
_SIZE = re.compile(r"[1-9][0-9]{1,4}x[1-9][0-9]{1,4}\Z")
_SIZES = must("sizes such as 1024x1024", lambda value: all(map(_SIZE.match, value)))
_FORMS = must("'url' and 'b64_json' only", lambda value: all(form in FORMS for form in value))
_LENGTHS = must("lengths of 1 to 600 seconds", lambda value: all(1 <= one <= MAX_SECONDS for one in value))
# A link's end is written in twelve digits (domain/media.py), and a sweep counts bytes and seconds that are finite.
_HOURS = must("a number of hours above 0 and up to 876000", lambda value: 0 < value <= 876_000)  # noqa: PLR2004
_DAYS = must("a number of days above 0 and up to 36500", lambda value: 0 < value <= 36_500)  # noqa: PLR2004
_KEPT = between(0, 36_500)
_HOSTS = must("hosts such as *.example.com", lambda value: all(one and one.isprintable() for one in value))
_GIGABYTES = must("a number above 0 and up to 1000000", lambda value: 0 < value <= 1_000_000)  # noqa: PLR2004
_NOTHING: Mapping[str, str] = MappingProxyType({})


@attrs.frozen
class LedgerSection:
    """``[ledger]``: what becomes of money that was held when the process was killed."""

    on_crash: OnCrash = attrs.field(
        default="release",
        metadata=about(
            'a request that was running when the process was killed costs nothing; "charge": what was held for it'
        ),
    )


@attrs.frozen
class BillingSection:
    """``[billing]``: what is served at all."""

    require_price: bool = attrs.field(
        default=False,
        metadata=about("true: models without a price are neither listed nor served; false: they cost nothing"),
    )
    abandoned: Abandoned = attrs.field(
        default="charge",
        metadata=about(
            'who leaves early pays: "charge" the prompt at least; "drain" what the provider says at the end; '
            '"free" what came'
        ),
    )


@attrs.frozen
class RoutingSection:
    """``[routing]``: how calls are spread over channels, and when a channel that fails is left alone."""

    max_attempts: int = attrs.field(
        default=3, metadata=about("channels tried for one request; only before its first byte", between(1, 10))
    )
    retry_ratio: float = attrs.field(
        default=0.2,
        metadata=about("at most this part of the running requests may be retries (three always may)", between(0, 1)),
    )
    failover_after_s: float = attrs.field(
        default=DEFAULT_SETTINGS.failover_after_s,
        metadata=about(
            "how long a stream's first event is waited for where another channel could serve it; a channel that says "
            "its own first_byte_timeout_s has that",
            POSITIVE,
        ),
    )
    trip_failures: int = attrs.field(
        default=DEFAULT_RULES.failures,
        metadata=about("failures in a row after which calls of a kind (language, model) cool down", between(1, 1_000)),
    )
    trip_ratio: float = attrs.field(
        default=DEFAULT_RULES.ratio,
        metadata=about(
            "they cool down too when this part of an account's calls of the last half minute, of at least 20, failed",
            must("above 0 and up to 1", _is_part),
        ),
    )
    cooldown_s: float = attrs.field(
        default=DEFAULT_RULES.cooldown_s,
        metadata=about("how long they cool down at first; twice as long each time", POSITIVE),
    )
    max_cooldown_s: float = attrs.field(
        default=DEFAULT_RULES.max_cooldown_s,
        metadata=about(
            "how long they cool down at most; also the most that a provider's Retry-After is obeyed", POSITIVE
        ),
    )
    warm_up_s: float = attrs.field(
        default=DEFAULT_RULES.ramp_s,
        metadata=about("how long a channel that is well again takes to get its whole share", NOT_NEGATIVE),
    )
    sync_interval_s: float = attrs.field(
        default=600.0, metadata=about("how often synchronised channels are asked for their models", POSITIVE)
    )

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Key and problem for what concerns more than one key."""
        if self.max_cooldown_s < self.cooldown_s:
            yield "max_cooldown_s", "expected no less than cooldown_s"

    def settings(self) -> RetrySettings:
        """The switchboard's."""
        rules = BreakerSettings(
            failures=self.trip_failures,
            ratio=self.trip_ratio,
            cooldown_s=self.cooldown_s,
            max_cooldown_s=self.max_cooldown_s,
            ramp_s=self.warm_up_s,
        )
        return RetrySettings(
            rules,
            max_attempts=self.max_attempts,
            retry_ratio=self.retry_ratio,
            failover_after_s=self.failover_after_s,
        )


@attrs.frozen
class MediaSection:
    """``[media]``: pictures that are kept for callers who want addresses."""

    link_hours: float = attrs.field(default=24.0, metadata=about("how long the address of a picture is good", _HOURS))
    keep_hours: float = attrs.field(default=48.0, metadata=about("how long a picture is kept", _HOURS))
    max_gb: float = attrs.field(
        default=10.0, metadata=about("how much room pictures may take; the oldest are deleted first", _GIGABYTES)
    )

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """Key and problem for what concerns more than one key."""
        if self.keep_hours < self.link_hours:
            yield "keep_hours", "expected no less than link_hours: a link must not outlive its picture"

    def rules(self) -> MediaRules:
        """The sweep's."""
        return MediaRules(max_age_s=self.keep_hours * 3_600, max_bytes=int(self.max_gb * 1024**3))


@attrs.frozen
class VideosSection:
    """``[videos]``: jobs and what they make.

    ``store``: "keep" fetches a finished video once, "proxy" passes it through whenever it is asked for.
    ``webhook_hosts``: globs of the hosts that a request may name in ``webhook_url``; without any it may name none.
    """

    store: Literal["keep", "proxy"] = attrs.field(
        default="keep",
        metadata=about(
            '"keep": a finished video is fetched once and kept; "proxy": it is passed through whenever it is asked for'
        ),
    )
    keep_days: float = attrs.field(
        default=7.0, metadata=about("how long a video is there; kept ones are deleted then", _DAYS)
    )
    max_gb: float = attrs.field(
        default=50.0, metadata=about("how much room kept videos may take; the oldest are deleted first", _GIGABYTES)
    )
    deadline_h: float = attrs.field(
        default=24.0, metadata=about("a job that has not ended by then has failed, and costs nothing", _HOURS)
    )
    max_open: int = attrs.field(
        default=1_000, metadata=about("videos of one account under way at the same time", between(1, 1_000_000))
    )
    status_words: Literal["auto", "spec", "openai"] = attrs.field(
        default="auto",
        metadata=about(
            'the word for a job that is being worked on: "spec": processing; "openai": in_progress; "auto": '
            "in_progress for OpenAI's own libraries, which know no other, and for jobs that came as a form, as its "
            "libraries send them"
        ),
    )
    polls_per_channel: int = attrs.field(
        default=16,
        metadata=about("jobs of one channel that its provider is asked after at the same time", between(1, 1_000)),
    )
    webhook_hosts: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            'hosts that a call may name in webhook_url: ["*.example.com"]; what a [[key]] says is not bound by it',
            _HOSTS,
        ),
    )

    def media_rules(self) -> MediaRules:
        """The sweep's."""
        return MediaRules(max_age_s=self.keep_days * 86_400, max_bytes=int(self.max_gb * 1024**3))

    def rules(self) -> VideoRules:
        """Those of the jobs."""
        return VideoRules(
            keep=self.store == "keep",
            keep_days=self.keep_days,
            deadline_h=self.deadline_h,
            max_open=self.max_open,
        )


@attrs.frozen
class SafetySection:
    """``[safety]``: what nobody is to have painted."""

    words_file: str = attrs.field(
        default="",
        metadata=about(
            "a file of words and phrases, one a line (2 MB), that nobody may ask a picture or a video of; a relative "
            "path begins at the folder of the configuration file"
        ),
    )


@attrs.frozen
class EgressSection:
    """``[egress]``: private networks from which providers' pictures may be fetched all the same."""

    allow: tuple[str, ...] = attrs.field(
        default=(), metadata=about('private networks that may be gone to all the same: ["10.1.0.0/16"]', NETWORKS)
    )


@attrs.frozen
class RequestsSection:
    """``[requests]``: what is remembered of each request. Sums and balances know of it for ever."""

    keep_days: int = attrs.field(
        default=90,
        metadata=about("how long each request can be looked up; what it cost is known for ever. 0: always", _KEPT),
    )


@attrs.frozen
class ModelSection:
    """``[[model]]``: what a model, or every model a glob matches, can be asked for. What is left out is as known."""

    name: str = attrs.field(metadata=MODEL)
    sizes: tuple[str, ...] | None = attrs.field(default=None, metadata=_SIZES)
    max_n: int | None = attrs.field(default=None, metadata=between(1, MAX_IMAGES))
    response_formats: tuple[str, ...] | None = attrs.field(default=None, metadata=_FORMS)
    edits: bool | None = None
    masks: bool | None = None
    streams: bool | None = None
    seconds: tuple[int, ...] | None = attrs.field(default=None, metadata=_LENGTHS)
    references: bool | None = None
    remixes: bool | None = None

    def capability(self) -> Capability:
        """The same as the noun that routing knows."""
        forms = self.response_formats
        return Capability(
            self.name,
            sizes=self.sizes,
            max_n=self.max_n,
            response_formats=None if forms is None else tuple(form for form in FORMS if form in forms),
            edits=self.edits,
            masks=self.masks,
            streams=self.streams,
            seconds=self.seconds,
            references=self.references,
            remixes=self.remixes,
        )


@attrs.frozen
class Config:
    """The whole tree."""

    server: ServerSection = attrs.Factory(ServerSection)
    store: StoreSection = attrs.Factory(StoreSection)
    ledger: LedgerSection = attrs.Factory(LedgerSection)
    billing: BillingSection = attrs.Factory(BillingSection)
    routing: RoutingSection = attrs.Factory(RoutingSection)
    media: MediaSection = attrs.Factory(MediaSection)
    videos: VideosSection = attrs.Factory(VideosSection)
    safety: SafetySection = attrs.Factory(SafetySection)
    egress: EgressSection = attrs.Factory(EgressSection)
    requests: RequestsSection = attrs.Factory(RequestsSection)
    channel: tuple[ChannelSpec, ...] = ()
    group: tuple[GroupSpec, ...] = ()
    account: tuple[AccountSpec, ...] = ()
    key: tuple[KeySpec, ...] = ()
    price: tuple[PriceSpec, ...] = ()
    model: tuple[ModelSection, ...] = ()

    @staticmethod
    def find_table_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
        """What concerns more than one table, told also of tables that have problems of their own."""
        for what in ("channel", "group", "account", "model"):
            yield from _find_repeated(tables, what, ("name",), "expected a name of its own")
        whoever = {"provider": ""}
        yield from _find_repeated(tables, "price", ("provider", "model"), "expected a model of its own", whoever)
        yield from _find_repeated(tables, "key", ("account", "name"), "expected a name of its own within the account")
        yield from _find_repeated(tables, "key", ("secret",), "expected a secret of its own")
        accounts = {str(account.get("name")) for _, account in _list_tables(tables, "account")}
        for where, table in _list_tables(tables, "key"):
            owner = table.get("account")
            if isinstance(owner, str) and owner not in accounts:
                yield f"{where}.account", f"expected the name of an [[account]], not {owner!r}"
            if "secret" not in table:
                yield f"{where}.secret", "expected a value; this key is required"


def _list_tables(tables: Mapping[str, Any], what: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Path and content of every ``[[what]]`` that is a table."""
    items = tables.get(what)
    for index, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, Mapping):
            yield f"{what}[{index}]", item


def _find_repeated(
    tables: Mapping[str, Any],
    what: str,
    keys: tuple[str, ...],
    expected: str,
    absent: Mapping[str, str] = _NOTHING,
) -> Iterator[Problem]:
    """Tables that agree in all ``keys``; ``absent``: what a key that is left out stands for."""
    seen: dict[tuple[str, ...], str] = {}
    for where, table in _list_tables(tables, what):
        told = {**absent, **table}
        value = tuple(str(told[key]) for key in keys if isinstance(told.get(key), str))
        if len(value) == len(keys) and seen.setdefault(value, where) != where:
            yield f"{where}.{keys[-1]}", f"{expected}; {seen[value]} has it"
