"""The configuration as one frozen tree; ``loader.py`` reads it.

Each service gets its own section, or objects built from it.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Literal

import attrs

from gateway.auth.sign_in_provider import SignInProvider
from gateway.billing.abandoned import Abandoned
from gateway.billing.limit_spec import LimitSpec
from gateway.billing.price_spec import MODEL, GroupSpec, PriceSpec
from gateway.config.alert_schema import AlertSpec
from gateway.config.attribution_schema import AttributionSection
from gateway.config.bodies_schema import BodiesSection
from gateway.config.cache_schema import CacheSection
from gateway.config.files_schema import BatchesSection, FilesSection
from gateway.config.observability_schema import MetricsSection, TracingSection
from gateway.config.server_schema import ClusterSection, RateLimitsSection, ServerSection, StoreSection
from gateway.config.sink_schema import SinkSpec
from gateway.config.streams_schema import StreamsSection
from gateway.deferred import load
from gateway.domain.account import NAME_SHAPE
from gateway.domain.account_spec import NETWORKS, AccountSpec, KeySpec
from gateway.domain.capability import Capability
from gateway.domain.circuit_breaker import DEFAULT_RULES, BreakerSettings
from gateway.domain.image import MAX_IMAGES, ImageForm
from gateway.domain.keep_rule import RULE_FORMS, is_keep_rule
from gateway.domain.kept_response import KeptRules
from gateway.domain.ledger import OnCrash
from gateway.domain.media import MediaRules
from gateway.domain.model_description import (
    Feature,
    Modality,
    ModelDescription,
    ModelKind,
    sort_features,
    sort_modalities,
)
from gateway.domain.route import BalanceStrategy
from gateway.domain.video import MAX_SECONDS, VideoRules
from gateway.frozen import frozen
from gateway.parsing import NOT_NEGATIVE, POSITIVE, Problem, about, between, must
from gateway.routing.channel_spec import ChannelSpec
from gateway.routing.load_balancer import DEFAULT_SETTINGS, AffinityMode, RetrySettings
from gateway.routing.pricing_policy import Unpriced
from gateway.routing.route_spec import RouteSpec


def _is_ratio(value: float) -> bool:
    return 0 < value <= 1


FORMS: tuple[ImageForm, ...] = ("url", "b64_json")
_SIZE = re.compile(r"[1-9][0-9]{1,4}x[1-9][0-9]{1,4}\Z")
_SIZES = must("sizes such as 1024x1024", lambda value: all(map(_SIZE.match, value)))
_VOICES = must("names of voices", lambda value: all(name and name.isprintable() for name in value))
_FORMS = must("'url' and 'b64_json' only", lambda value: all(form in FORMS for form in value))
_LENGTHS = must("lengths of 1 to 600 seconds", lambda value: all(1 <= seconds <= MAX_SECONDS for seconds in value))
# A link's expiry has twelve digits (domain/media.py); the cleanup needs finite numbers.
_HOURS = must("a number of hours above 0 and up to 876000", lambda value: 0 < value <= 876_000)  # noqa: PLR2004
_DAYS = must("a number of days above 0 and up to 36500", lambda value: 0 < value <= 36_500)  # noqa: PLR2004
_KEPT = between(0, 36_500)
_HOSTS = must("hosts such as *.example.com", lambda value: all(host and host.isprintable() for host in value))
_GIGABYTES = must("a number above 0 and up to 1000000", lambda value: 0 < value <= 1_000_000)  # noqa: PLR2004
_TOKENS = between(1, 100_000_000)


def _is_day(value: str) -> bool:
    try:
        return len(value) == 10 and bool(date.fromisoformat(value))  # noqa: PLR2004
    except ValueError:
        return False


_DAY = must("a day such as 2027-01-31", _is_day)
_NOTHING: Mapping[str, str] = {}


@frozen
class LedgerSection:
    """``[ledger]``: reservations that were open when the process was killed."""

    on_crash: OnCrash = attrs.field(
        default="release",
        metadata=about(
            'what is charged for a request that was running when the process was killed: with "release", nothing; '
            'with "charge", the reserved amount'
        ),
    )


@frozen
class BillingSection:
    """``[billing]``: models without a price, requests whose client disconnects, and alerts about fast spending."""

    unpriced: Unpriced = attrs.field(
        default="refuse_limited",
        metadata=about(
            'how models without a price are treated: "refuse_limited": refused to keys and accounts with a spending '
            'limit, free for all others; "free": free for everyone; "refuse": neither listed nor served'
        ),
    )
    require_price: bool = attrs.field(
        default=False,
        metadata=about(
            'deprecated; true has the same effect as unpriced = "refuse" and takes precedence over unpriced'
        ),
    )
    abandoned: Abandoned = attrs.field(
        default="charge",
        metadata=about(
            'what is charged for a request if its client disconnects: with "charge", at least the prompt; with '
            '"drain", the usage that the provider reports at the end; with "free", only what was received'
        ),
    )
    burn_rate: float = attrs.field(
        default=4.0,
        metadata=about(
            "alert if, at the pace of the last hour, a spending limit would be used up within 1 / burn_rate of the "
            "time left in its period; 0: no such alert",
            between(0, 1000),
        ),
    )
    anomaly_factor: float = attrs.field(
        default=5.0,
        metadata=about(
            "alert if a key or account spends, within one hour, this many times the median for that hour of the day in "
            "the last 14 days; 0: no such alert",
            between(0, 1000),
        ),
    )
    anomaly_usd: float = attrs.field(
        default=1.0,
        metadata=about(
            "the alert on unusual spending is sent only if at least this many dollars were spent within the hour, or "
            "ten times as many if the median for that hour of the day in the last 14 days is 0",
            between(0, 1_000_000),
        ),
    )


@frozen
class RoutingSection:
    """``[routing]``: the choice of channels, retries, circuit breakers, model lists, shadow copies and the demo."""

    max_attempts: int = attrs.field(
        default=3,
        metadata=about(
            "maximum number of channels to try per request before the first byte of the response is sent",
            between(1, 10),
        ),
    )
    retry_ratio: float = attrs.field(
        default=0.2,
        metadata=about(
            "maximum number of retries, as a share of the running requests (three are always allowed)", between(0, 1)
        ),
    )
    failover_after_s: float = attrs.field(
        default=DEFAULT_SETTINGS.failover_after_s,
        metadata=about(
            "how long to wait for a stream's first event if another channel could serve the request; a channel's own "
            "first_byte_timeout_s takes precedence",
            POSITIVE,
        ),
    )
    trip_failures: int = attrs.field(
        default=DEFAULT_RULES.failures,
        metadata=about(
            "open the circuit for a channel and model (or API format) after this many consecutive failures",
            between(1, 1_000),
        ),
    )
    trip_ratio: float = attrs.field(
        default=DEFAULT_RULES.ratio,
        metadata=about(
            "also open a circuit if this share of an account's calls in the last 30 s failed (min. 20 calls)",
            must("above 0 and up to 1", _is_ratio),
        ),
    )
    cooldown_s: float = attrs.field(
        default=DEFAULT_RULES.cooldown_s,
        metadata=about(
            "how long a circuit blocks calls when it first opens; doubles each time it opens again", POSITIVE
        ),
    )
    max_cooldown_s: float = attrs.field(
        default=DEFAULT_RULES.max_cooldown_s,
        metadata=about("maximum time for which a circuit blocks calls; also limits a provider's Retry-After", POSITIVE),
    )
    warm_up_s: float = attrs.field(
        default=DEFAULT_RULES.ramp_s,
        metadata=about("how long a recovered channel takes to return to its full share of traffic", NOT_NEGATIVE),
    )
    sync_interval_s: float = attrs.field(
        default=600.0, metadata=about("how often the model lists of synchronized channels are fetched", POSITIVE)
    )
    affinity: AffinityMode = attrs.field(
        default="auto",
        metadata=about(
            "which conversations stay on the channel and key that last answered them, to make use of prompt caching: "
            '"auto": all; "header": only those that the client identifies by a header or prompt_cache_key; "off": '
            "none"
        ),
    )
    affinity_s: float = attrs.field(
        default=DEFAULT_SETTINGS.affinity_s,
        metadata=about("how long a conversation stays on its channel after its last answer", POSITIVE),
    )
    balance: BalanceStrategy = attrs.field(
        default="weight",
        metadata=about(
            'how to choose among channels of the same priority: by "weight", or by a measurement: "latency" (time to '
            'the first event), "throughput" (tokens per second) or "cost" (price paid for tokens)'
        ),
    )
    allow_prefer: bool = attrs.field(
        default=False,
        metadata=about(
            "let callers choose how to balance, with the x-gateway-prefer header (latency, throughput or cost); if "
            "false, the header has no effect"
        ),
    )
    shadow_account: str = attrs.field(
        default="shadow",
        metadata=about(
            "account that pays for the request copies that routes send to shadow models; created when the first copy "
            "is sent",
            must("the name of an account", lambda value: NAME_SHAPE.match(value) is not None),
        ),
    )
    demo: Literal["auto", "on", "off"] = attrs.field(
        default="auto",
        metadata=about(
            "built-in demo: on, off or auto (on until a channel has answered and the demo has not been used for an "
            "hour)"
        ),
    )

    def find_problems(self) -> Iterator[tuple[str, str]]:
        if self.max_cooldown_s < self.cooldown_s:
            yield "max_cooldown_s", "expected no less than cooldown_s"

    def settings(self) -> RetrySettings:
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
            affinity=self.affinity,
            affinity_s=self.affinity_s,
            balance=self.balance,
            allow_prefer=self.allow_prefer,
        )


@frozen
class MediaSection:
    """``[media]``: images that are kept for clients that ask for URLs."""

    link_hours: float = attrs.field(default=24.0, metadata=about("how long the URL of an image is valid", _HOURS))
    keep_hours: float = attrs.field(default=48.0, metadata=about("how long an image is kept", _HOURS))
    max_gb: float = attrs.field(
        default=10.0, metadata=about("disk space for images; the oldest are deleted first", _GIGABYTES)
    )

    def find_problems(self) -> Iterator[tuple[str, str]]:
        if self.keep_hours < self.link_hours:
            yield "keep_hours", "expected no less than link_hours: a link must not outlive its image"

    def rules(self) -> MediaRules:
        return MediaRules(max_age_s=self.keep_hours * 3_600, max_bytes=int(self.max_gb * 1024**3))


@frozen
class ResponsesSection:
    """``[responses]``: responses of the Responses API that are kept for clients if the provider does not."""

    keep_days: float = attrs.field(
        default=30.0,
        metadata=about(
            "how long a stored response can be retrieved and continued; 0: responses are not stored", between(0, 3_650)
        ),
    )
    max_total_mb_per_account: int = attrs.field(
        default=1_024,
        metadata=about(
            "maximum total size of an account's stored responses, compressed; the oldest are deleted first (0 = no "
            "limit)",
            between(0, 1_000_000_000),
        ),
    )

    def rules(self) -> KeptRules:
        return KeptRules(self.keep_days, self.max_total_mb_per_account * 1024**2)


@frozen
class VideosSection:
    """``[videos]``: video jobs and their content.

    ``webhook_hosts``: globs; if empty, requests may not have a ``webhook_url``.
    """

    store: Literal["keep", "proxy"] = attrs.field(
        default="keep",
        metadata=about(
            '"keep": a finished video is downloaded once and kept; "proxy": it is fetched from the provider '
            "on every request"
        ),
    )
    keep_days: float = attrs.field(
        default=7.0, metadata=about("how long a video is available; kept files are deleted afterwards", _DAYS)
    )
    max_gb: float = attrs.field(
        default=50.0, metadata=about("disk space for kept videos; the oldest are deleted first", _GIGABYTES)
    )
    deadline_h: float = attrs.field(
        default=24.0, metadata=about("a job that has not ended after this time fails and costs nothing", _HOURS)
    )
    max_open: int = attrs.field(
        default=1_000, metadata=about("maximum number of unfinished video jobs per account", between(1, 1_000_000))
    )
    status_words: Literal["auto", "spec", "openai"] = attrs.field(
        default="auto",
        metadata=about(
            'status reported for a running job: "spec": processing; "openai": in_progress; "auto": in_progress if an '
            "OpenAI client library created the job or asks about it, or if a form created the job, otherwise processing"
        ),
    )
    polls_per_channel: int = attrs.field(
        default=16, metadata=about("maximum number of concurrent status polls per channel", between(1, 1_000))
    )
    webhook_hosts: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            'hosts that a request may name in webhook_url, such as ["*.example.com"]; the webhook_url of a [[key]] '
            "is not restricted",
            _HOSTS,
        ),
    )

    def media_rules(self) -> MediaRules:
        return MediaRules(max_age_s=self.keep_days * 86_400, max_bytes=int(self.max_gb * 1024**3))

    def rules(self) -> VideoRules:
        return VideoRules(
            keep=self.store == "keep", keep_days=self.keep_days, deadline_h=self.deadline_h, max_open=self.max_open
        )


@frozen
class SafetySection:
    """``[safety]``: the word filter for image and video prompts."""

    words_file: str = attrs.field(
        default="",
        metadata=about(
            "file (up to 2 MB) with the words and phrases, one per line, that image and video prompts must not "
            "contain; a relative path is relative to the configuration file's folder"
        ),
    )


@frozen
class EgressSection:
    """``[egress]``: private networks that outbound fetches may reach."""

    allow: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about('private networks that outbound requests may reach, such as ["10.1.0.0/16"]', NETWORKS),
    )


@frozen
class RequestsSection:
    """``[requests]``: how long the details of requests are kept, and of which requests the bodies."""

    keep_days: int = attrs.field(
        default=90, metadata=about("days to keep request details (0 = forever); costs are always kept", _KEPT)
    )
    keep_bodies: str = attrs.field(
        default="none",
        metadata=about(
            'which prompts and answers are kept (see [bodies]): "none"; "errors": those of failed requests and of '
            'requests with a failed attempt; "sampled:0.05": those of a random share of requests; "all"',
            must(RULE_FORMS, is_keep_rule),
        ),
    )


@frozen
class ModelSection:
    """``[[model]]``: capabilities and description of a model, or of all that match a glob.

    For a field that is None, the built-in value holds, or what the provider's list says.
    """

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
    voices: tuple[str, ...] | None = attrs.field(default=None, metadata=_VOICES)
    kind: ModelKind | None = None
    context_window: int | None = attrs.field(default=None, metadata=_TOKENS)
    max_output_tokens: int | None = attrs.field(default=None, metadata=_TOKENS)
    input_modalities: tuple[Modality, ...] | None = None
    output_modalities: tuple[Modality, ...] | None = None
    features: tuple[Feature, ...] | None = None
    deprecated_at: str | None = attrs.field(default=None, metadata=_DAY)

    def description(self) -> ModelDescription:
        """Return the section's description of the model for callers."""
        inputs, outputs, features = self.input_modalities, self.output_modalities, self.features
        return ModelDescription(
            self.kind,
            self.context_window,
            self.max_output_tokens,
            None if inputs is None else sort_modalities(inputs),
            None if outputs is None else sort_modalities(outputs),
            None if features is None else sort_features(features),
            None if self.deprecated_at is None else f"{self.deprecated_at}T00:00:00Z",
        )

    def capability(self) -> Capability:
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
            voices=self.voices,
        )


@frozen
class Config:
    """The whole configuration."""

    server: ServerSection = attrs.Factory(ServerSection)
    store: StoreSection = attrs.Factory(StoreSection)
    cluster: ClusterSection = attrs.Factory(ClusterSection)
    rate_limits: RateLimitsSection = attrs.Factory(RateLimitsSection)
    ledger: LedgerSection = attrs.Factory(LedgerSection)
    billing: BillingSection = attrs.Factory(BillingSection)
    routing: RoutingSection = attrs.Factory(RoutingSection)
    media: MediaSection = attrs.Factory(MediaSection)
    videos: VideosSection = attrs.Factory(VideosSection)
    files: FilesSection = attrs.Factory(FilesSection)
    batches: BatchesSection = attrs.Factory(BatchesSection)
    responses: ResponsesSection = attrs.Factory(ResponsesSection)
    attribution: AttributionSection = attrs.Factory(AttributionSection)
    safety: SafetySection = attrs.Factory(SafetySection)
    egress: EgressSection = attrs.Factory(EgressSection)
    requests: RequestsSection = attrs.Factory(RequestsSection)
    bodies: BodiesSection = attrs.Factory(BodiesSection)
    streams: StreamsSection = attrs.Factory(StreamsSection)
    cache: CacheSection = attrs.Factory(CacheSection)
    metrics: MetricsSection = attrs.Factory(MetricsSection)
    tracing: TracingSection = attrs.Factory(TracingSection)
    channel: tuple[ChannelSpec, ...] = ()
    group: tuple[GroupSpec, ...] = ()
    account: tuple[AccountSpec, ...] = ()
    key: tuple[KeySpec, ...] = ()
    price: tuple[PriceSpec, ...] = ()
    model: tuple[ModelSection, ...] = ()
    route: tuple[RouteSpec, ...] = ()
    limit: tuple[LimitSpec, ...] = ()
    sign_in: tuple[SignInProvider, ...] = ()
    alert: tuple[AlertSpec, ...] = ()
    sink: tuple[SinkSpec, ...] = ()

    def find_problems(self) -> Iterator[tuple[str, str]]:
        has_administrators = any(provider.create and provider.roles.administrator for provider in self.sign_in)
        if self.limits_store == "postgresql" and not (self.rate_limits.url or self.store.is_postgres):
            yield "rate_limits.url", "expected postgresql://...: store.url names no PostgreSQL database"
        if not self.server.local_sign_in and not has_administrators:
            needed_table = "a [[sign_in]] with create = true and roles.administrator"
            yield "server.local_sign_in", f"expected true: without {needed_table} no administrator could sign in"
        if self.cluster.enabled and not (self.store.is_postgres and self.store.master_key):
            yield "cluster.enabled", "expected store.url to name a PostgreSQL database, and store.master_key"
        if self.cluster.enabled and any(account.timezone for account in self.account):
            yield from load("config.zone_check:find_zone_problems")(self.account, self.key)
        for index, sink in enumerate(self.sink):
            if self.cluster.enabled and sink.fields == "full" and not self.store.bodies_url:
                yield (
                    f"sink[{index}].fields",
                    "expected metadata: a node reads no other bodies without store.bodies_url",
                )

    @property
    def limits_store(self) -> Literal["memory", "postgresql", "valkey"]:
        """The store that counts rate limits: ``rate_limits.store``, with "auto" resolved."""
        return self.rate_limits.find_store(in_cluster=self.cluster.enabled)

    @staticmethod
    def find_table_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
        for name in ("channel", "group", "account", "model", "route", "limit", "sign_in", "alert", "sink"):
            yield from _find_repeated_tables(tables, name, ("name",), "expected a name of its own")
        any_provider = {"provider": ""}
        yield from _find_repeated_tables(
            tables, "price", ("provider", "model"), "expected a model of its own", any_provider
        )
        yield from _find_repeated_tables(
            tables, "key", ("account", "name"), "expected a name of its own within the account"
        )
        yield from _find_repeated_tables(tables, "key", ("secret",), "expected a secret of its own")
        accounts = {str(account.get("name")) for _, account in _list_tables(tables, "account")}
        for table_path, table in _list_tables(tables, "key"):
            owner = table.get("account")
            if isinstance(owner, str) and owner not in accounts:
                yield f"{table_path}.account", f"expected the name of an [[account]], not {owner!r}"
            if "secret" not in table:
                yield f"{table_path}.secret", "expected a value; this key is required"
        yield from _find_limit_problems(tables)


def _find_limit_problems(tables: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each limit that names a key, or a limit to raise, that the file does not declare."""
    key_names = {str(key.get("name")) for _, key in _list_tables(tables, "key")}
    own_limits = {str(limit.get("name")) for _, limit in _list_tables(tables, "limit") if "raises" not in limit}
    for table_path, table in _list_tables(tables, "limit"):
        keys = table.get("keys")
        unknown_keys = [key for key in keys if isinstance(key, str) and key not in key_names] if keys else []
        if unknown_keys:
            yield f"{table_path}.keys", f"expected names of [[key]], not {unknown_keys[0]!r}"
        raised_name = table.get("raises")
        if isinstance(raised_name, str) and raised_name not in own_limits:
            yield f"{table_path}.raises", f"expected the name of a [[limit]], not {raised_name!r}"


def _list_tables(tables: Mapping[str, Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    items = tables.get(name)
    for index, item in enumerate(items if isinstance(items, list) else []):
        if isinstance(item, Mapping):
            yield f"{name}[{index}]", item


def _find_repeated_tables(
    tables: Mapping[str, Any], name: str, keys: tuple[str, ...], expected: str, absent: Mapping[str, str] = _NOTHING
) -> Iterator[Problem]:
    """Yield a problem for each table that has the same values of ``keys`` as an earlier one.

    ``expected`` begins the text of the problem. ``absent`` has the values of keys that a table leaves out.
    """
    first_path: dict[tuple[str, ...], str] = {}
    for table_path, table in _list_tables(tables, name):
        fields = {**absent, **table}
        value = tuple(str(fields[key]) for key in keys if isinstance(fields.get(key), str))
        if len(value) == len(keys) and first_path.setdefault(value, table_path) != table_path:
            yield f"{table_path}.{keys[-1]}", f"{expected}; {first_path[value]} has it"
