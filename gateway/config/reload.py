"""The configuration in effect (``LiveConfig``), and its replacement while the gateway runs (``Reloader``).

A configuration that has problems changes nothing. Running requests keep their channel, price and reservation.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal

import attrs
import structlog

from gateway.auth.accounts import AccountService
from gateway.auth.declared import declare
from gateway.billing.abandoned import Abandoned
from gateway.billing.limit_spec import LimitSpec
from gateway.config.certificate import Certificate, CertificateError, ServerCertificate
from gateway.config.diff import describe_channels, describe_items, describe_section
from gateway.config.loader import ConfigError, read_prices, read_words_file
from gateway.config.merge import (
    EffectiveConfig,
    FileConfig,
    list_sections,
    merge_stored_settings,
    parse_stored_settings,
)
from gateway.config.schema import Config
from gateway.domain.attribution import AttributionRules
from gateway.domain.audit_log import FILE, Actor, build_change
from gateway.domain.capability import Capability
from gateway.domain.channel import Channel
from gateway.domain.client_file import FileRules
from gateway.domain.ip_address import Networks, parse_networks
from gateway.domain.keep_rule import BodyBounds
from gateway.domain.kept_response import KeptRules
from gateway.domain.media import MediaRules
from gateway.domain.model_description import UNDESCRIBED, NamedDescription
from gateway.domain.price import ONE_PPM
from gateway.domain.route import Route
from gateway.domain.video import VideoRules
from gateway.errors import Conflict, GatewayError, InvalidRequest
from gateway.frozen import frozen
from gateway.routing.channels import ChannelService
from gateway.routing.pricing_policy import PricingPolicy, Unpriced
from gateway.routing.router import Router
from gateway.storage.audit_log import AuditLogRepository
from gateway.storage.settings import SettingRepository

if TYPE_CHECKING:
    from gateway.media.word_filter import WordList

log = structlog.stdlib.get_logger(__name__)

AT_START = ("server", "store", "cluster", "rate_limits", "ledger", "tracing")
"""Sections that are read only at startup: the socket stays bound, the database stays open, the exporter keeps its
receiver."""
TABLES_AT_START = ("sign_in", "alert", "sink")
"""Tables in double brackets that are read only at startup."""


def build_pricing(effective: EffectiveConfig) -> PricingPolicy:
    """Build the price list, the group multipliers, the rule for unpriced models, and the names of limited keys.

    A key is limited if a limit counts its spending. The set is empty if all keys are, and None if there are no limits.
    """
    config = effective.config
    groups = {group.name: int(group.price_multiplier * ONE_PPM) for group in config.group}
    unpriced: Unpriced = "refuse" if config.billing.require_price else config.billing.unpriced
    limits = [limit for limit in build_limits(effective) if limit.usd is not None and limit.raises is None]
    limited_keys = None
    if limits:
        limited_keys = frozenset(name for limit in limits for name in limit.keys if all(limit.keys for limit in limits))
    return PricingPolicy(read_prices(config, effective.prices), groups, unpriced, limited_keys)


def build_channels(config: Config) -> list[Channel]:
    """Build the channels that ``config`` declares."""
    return [spec.channel() for spec in config.channel]


def build_models(config: Config) -> tuple[Capability, ...]:
    """Build the model capabilities that ``config`` declares."""
    return tuple(section.capability() for section in config.model)


def build_descriptions(config: Config) -> tuple[NamedDescription, ...]:
    """Build the descriptions of models that ``config`` declares."""
    named_descriptions = ((section.name, section.description()) for section in config.model)
    return tuple((name, description) for name, description in named_descriptions if description != UNDESCRIBED)


def build_routes(effective: EffectiveConfig) -> Mapping[str, Route]:
    """Return the routes in force, by name. A route of the file replaces a stored one of the same name."""
    return {spec.name: spec.route() for spec in (*effective.routes, *effective.config.route)}


def build_limits(effective: EffectiveConfig) -> list[LimitSpec]:
    """Return the limits in force: those of the file, and stored ones."""
    return [*effective.config.limit, *effective.limits]


@attrs.define
class LiveConfig:
    """The configuration in effect. Services get its methods, so a reload applies immediately.

    Attributes:
        hash_key: the key of the hashes under which end users may be stored; equal on all nodes.
        attribution: what is stored of the end users, sessions and tags of requests.
        keep_bodies: of which requests the bodies are kept, unless their keys say otherwise; None: of none.
        caches: whether answers may be given again to requests whose key does not say so.
        followers: called with each configuration that is put into effect after the first.
    """

    effective: EffectiveConfig
    words: "WordList | None"
    hash_key: bytes = attrs.field(repr=False)
    attribution: AttributionRules = attrs.field(init=False)
    keep_bodies: str | None = attrs.field(init=False)
    caches: bool = attrs.field(init=False)
    followers: list[Callable[[EffectiveConfig], object]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.adopt(self.effective)

    def adopt(self, effective: EffectiveConfig) -> None:
        """Put another configuration into effect."""
        self.effective = effective
        self.attribution = effective.config.attribution.rules(self.hash_key)
        rule = effective.config.requests.keep_bodies
        self.keep_bodies = None if rule == "none" else rule
        self.caches = effective.config.cache.ttl_s > 0 or any(
            spec.cache_ttl_s for spec in (*effective.config.route, *effective.routes)
        )
        for follow in self.followers:
            follow(effective)

    @property
    def config(self) -> Config:
        return self.effective.config

    def find_link_ttl_s(self) -> float:
        return self.config.media.link_hours * 3_600

    def find_media_rules(self) -> MediaRules:
        return self.config.media.rules()

    def find_video_rules(self) -> VideoRules:
        return self.config.videos.rules()

    def find_video_content_rules(self) -> MediaRules:
        return self.config.videos.media_rules()

    def find_file_rules(self) -> FileRules:
        return self.config.files.rules()

    def find_kept_rules(self) -> KeptRules:
        return self.config.responses.rules()

    def find_batch_slots(self) -> int:
        return self.config.batches.max_active

    def find_batch_multiplier_ppm(self) -> int:
        return self.config.batches.multiplier_ppm

    def find_polls(self) -> int:
        return self.config.videos.polls_per_channel

    def find_status_words(self) -> Literal["auto", "spec", "openai"]:
        return self.config.videos.status_words

    def find_webhook_hosts(self) -> tuple[str, ...]:
        return self.config.videos.webhook_hosts

    def find_abandoned(self) -> Abandoned:
        return self.config.billing.abandoned

    def find_keep_days(self) -> int:
        return self.config.requests.keep_days

    def find_body_bounds(self) -> BodyBounds:
        return self.config.bodies.bounds()

    def find_cache_max_bytes(self) -> int:
        return self.config.cache.find_max_bytes()

    def find_sync_interval_s(self) -> float:
        return self.config.routing.sync_interval_s

    def find_demo_mode(self) -> Literal["auto", "on", "off"]:
        return self.config.routing.demo

    def find_words(self) -> "WordList | None":
        return self.words

    def find_allowed_networks(self) -> Networks:
        return parse_networks(self.config.egress.allow)


@frozen
class ReloadSource:
    """The inputs of a reload.

    Attributes:
        read: reads file and environment. Raises ``ConfigError``. None: a reload is not possible.
        certificate: the server's; None without TLS.
        declaring: entered while the accounts and keys of a file are stored; a cluster lets one node do so at a time.
    """

    read: Callable[[], FileConfig] | None
    certificate: ServerCertificate | None
    declaring: Callable[[Config], AbstractAsyncContextManager[None]]


class Reloader:
    """Applies the configuration: the file again, on SIGHUP or for an administrator, and changed stored settings.

    Args:
        live_config: the configuration in effect; a reload replaces it.
        source: the inputs that are read again.
        router: receives the prices and models; its load balancer receives the routing settings.

    Attributes:
        changing: the lock to hold while the configuration is changed. Changes by other nodes are applied without it,
            since the heartbeat of this node waits for them.
        adoptions: how often the configuration in effect was replaced.
    """

    def __init__(
        self,
        live_config: LiveConfig,
        source: ReloadSource,
        settings: SettingRepository,
        *,
        accounts: AccountService,
        channels: ChannelService,
        router: Router,
        audit_log: AuditLogRepository,
        clock: Callable[[], float],
    ) -> None:
        self._live = live_config
        self._at_start = live_config.config
        self._source = source
        self._settings = settings
        self._accounts = accounts
        self._channels = channels
        self._router = router
        self._audit_log = audit_log
        self._clock = clock
        self.changing = asyncio.Lock()
        self._reload_lock = asyncio.Lock()
        self.adoptions = 0

    async def reload(self, by: Actor = FILE) -> dict[str, Any]:
        """Read and apply the configuration.

        Return the lists ``changes`` and ``needs_restart``, the latter of settings that are read at start only. Raises
        ``InvalidRequest``, and ``Conflict`` without a configuration that can be read; nothing has changed then. After
        another error, some of the file's accounts and keys may be stored.
        """
        router = self._router
        async with self._reload_lock, AsyncExitStack() as stack:
            file_config, words, new_certificate = await asyncio.to_thread(self._read_all)
            adoptions = self.adoptions
            effective = merge_stored_settings(file_config, parse_stored_settings(await self._settings.list_settings()))
            config = effective.config
            changes = self._list_changes(effective, words, new_certificate)
            restart = _list_at_start(self._at_start, config)
            # The database first, because only it can fail. All later steps change memory.
            async with self._source.declaring(file_config.config):  # this may wait for the start of another node
                await declare(self._accounts, config.account, config.key)
            await stack.enter_async_context(self.changing)
            before = {channel.name: channel for channel in router.catalog.channels}
            await self._record(by, changes)
            await self._channels.declare(build_channels(config))
            router.models, router.descriptions = build_models(config), build_descriptions(config)
            self._live.words = words
            if new_certificate is not None and self._source.certificate is not None:
                self._source.certificate.adopt(new_certificate)
            if adoptions != self.adoptions:  # settings were changed meanwhile
                effective = merge_stored_settings(file_config, self._live.effective.stored)
            self._adopt(effective)
            changed_channels = [channel for channel in router.catalog.channels if before.get(channel.name) != channel]
        earlier_names = {channel.name for channel in router.catalog.channels}
        await self._channels.retry()
        discovered_names = [channel.name for channel in router.catalog.channels if channel.name not in earlier_names]
        changes += [f"channel {name!r} found" for name in discovered_names]
        log.info("configuration_reloaded", reason="; ".join(changes) or "nothing has changed")
        log_ignored_settings(effective)
        if restart:
            log.warning("restart_required", reason=f"read at start only: {', '.join(restart)}")
        await asyncio.gather(*(self._channels.sync(channel) for channel in changed_channels))
        return {"changes": changes, "needs_restart": restart}

    def _list_changes(
        self, effective: EffectiveConfig, words: "WordList | None", new_certificate: Certificate | None
    ) -> list[str]:
        changes = _describe_changes(self._live.effective, effective)
        if words is not self._live.words and effective.config.safety == self._live.config.safety:
            changes.append("the words of safety.words_file changed")
        if new_certificate is not None:
            changes.append(f"the certificate changed; it expires at {new_certificate.expires}")
        return changes

    async def _record(self, by: Actor, changes: list[str]) -> None:
        if changes:
            detail = build_change({"changes": []}, {"changes": changes})
            now_ms = int(self._clock() * 1000)
            await self._audit_log.add_audit(
                by.build_audit_row("configuration.reloaded", "configuration", now_ms, detail=detail)
            )

    async def adopt(self, effective: EffectiveConfig, adoptions: int) -> None:
        """Apply stored settings that this process has changed.

        ``adoptions``: the count before the settings were read. If others were applied since, all are read again. This
        may raise ``StoreUnavailable``; the next heartbeat applies them then.
        """
        if adoptions == self.adoptions:
            self._adopt(effective)
            await self._channels.review_demo()
        else:
            await self.adopt_stored()

    async def adopt_stored(self) -> None:
        while True:
            adoptions = self.adoptions
            stored_settings = parse_stored_settings(await self._settings.list_settings())
            if adoptions == self.adoptions:  # else this node has meanwhile applied its own change
                break
        if stored_settings != self._live.effective.stored:
            effective = merge_stored_settings(self._live.effective.declared, stored_settings)
            self._adopt(effective)
            await self._channels.review_demo()
            log.info("settings_followed")

    def _adopt(self, effective: EffectiveConfig) -> None:
        self.adoptions += 1
        self._router.pricing = build_pricing(effective)
        self._router.routes = build_routes(effective)
        self._router.load_balancer.settings = effective.config.routing.settings()
        self._router.load_balancer.measured_balance = None  # made again by the next request that is balanced by it
        self._live.adopt(effective)

    async def reload_logged(self) -> None:
        """Reload for a signal: a ``GatewayError`` is logged, not raised."""
        try:
            await self.reload()
        except GatewayError as error:
            log.error("configuration_not_reloaded", error=error.message)  # noqa: TRY400 - a refusal, not a bug

    def _read_all(self) -> tuple[FileConfig, "WordList | None", Certificate | None]:
        """Read the configuration, its word list, and the certificate if it has changed. Runs in a thread.

        Raises ``InvalidRequest``, or ``Conflict`` without a configuration that can be read.
        """
        if self._source.read is None:
            raise Conflict("This gateway was started without a configuration that can be reloaded")
        try:
            file_config = self._source.read()
            words = read_words_file(file_config.config)
            certificate = self._source.certificate
            new_certificate = None if certificate is None else certificate.read_changed_certificate()
        except CertificateError as error:
            raise InvalidRequest(str(error)) from None
        except ConfigError as error:
            raise InvalidRequest("\n".join(error.problems)) from None
        if _declares_anything(self._live.config) and not _declares_anything(file_config.config):
            raise InvalidRequest(
                "Refused: the new configuration has no channels, keys or accounts. If intended, restart the gateway"
            )
        return file_config, words, new_certificate


def _declares_anything(config: Config) -> bool:
    """Return whether ``config`` has any channel, account or key; if not, the file may be truncated."""
    return bool(config.channel or config.account or config.key)


def log_ignored_settings(effective: EffectiveConfig) -> None:
    """Log every ignored stored setting, and a warning for ``billing.require_price``, which is deprecated."""
    if effective.config.billing.require_price:
        use = 'billing.unpriced = "refuse"'
        log.warning("setting_deprecated", path="billing.require_price", reason=f"write {use}")
    for path, reason in effective.ignored.items():
        log.warning("setting_ignored", path=path, reason=f"console: {path}: {reason}")


def _describe_changes(effective_before: EffectiveConfig, effective_after: EffectiveConfig) -> list[str]:
    before, after = effective_before.config, effective_after.config
    lines = describe_channels(build_channels(before), build_channels(after))
    for name, _ in list_sections(after):
        if name not in AT_START:
            lines += [f"{line} changed" for line in _describe_section(name, before, after)]
    for name in ("group", "account", "model", "route", "limit"):
        lines += describe_items(name, getattr(before, name), getattr(after, name))
    lines += _describe_keys(before, after)
    if (before.price, effective_before.prices) != (after.price, effective_after.prices):
        lines.append("prices changed")
    if effective_before.routes != effective_after.routes:
        lines.append("stored routes changed")
    if effective_before.limits != effective_after.limits:
        lines.append("stored limits changed")
    return lines


def _list_at_start(at_start: Config, config: Config) -> list[str]:
    """Describe changes of sections and tables that are read only at startup."""
    lines = [line for name in AT_START for line in _describe_section(name, at_start, config)]
    return lines + [name for name in TABLES_AT_START if getattr(config, name) != getattr(at_start, name)]


def _describe_keys(before: Config, after: Config) -> list[str]:
    """Describe changed keys by account: key names are unique only within an account."""
    lines = []
    for account in dict.fromkeys(key.account for key in (*before.key, *after.key)):
        old_keys, new_keys = ([key for key in config.key if key.account == account] for config in (before, after))
        lines += describe_items(f"account {account!r}: key", old_keys, new_keys)
    return lines


def _describe_section(name: str, before: Config, after: Config) -> list[str]:
    return describe_section(name, getattr(before, name), getattr(after, name))
