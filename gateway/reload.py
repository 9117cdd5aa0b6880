"""A new configuration while the gateway runs: validated, applied whole or not at all, and said in words.

What runs is untouched: calls under way keep their channel, their price and their hold.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import attrs
import structlog

from gateway.config import Config
from gateway.config_file import ConfigError, read_prices, read_words_file
from gateway.domain.capability import Capability
from gateway.domain.channel import Channel
from gateway.domain.fault import Conflict, Fault, InvalidRequest
from gateway.domain.media import MediaRules
from gateway.domain.network import Networks, read_networks
from gateway.domain.price import ONE_PPM
from gateway.domain.video import VideoRules
from gateway.flow.administration import Administration
from gateway.flow.fleet import Fleet
from gateway.flow.images import Images
from gateway.flow.models import Catalog
from gateway.flow.reloading import describe_channels, describe_items, describe_section
from gateway.flow.routing import Router, Tariff
from gateway.flow.safety import WordList
from gateway.flow.submission import Submissions
from gateway.flow.switchboard import Switchboard

log = structlog.stdlib.get_logger(__name__)

_AT_START = ("server", "store", "ledger")
"""Sections that are read once: a socket stays where it is bound, a database where it is open."""


def build_tariff(config: Config) -> Tariff:
    """What calls cost, as ``config`` says."""
    groups = {group.name: int(group.price_multiplier * ONE_PPM) for group in config.group}
    return Tariff(read_prices(config), groups, config.billing.require_price)


def build_channels(config: Config) -> list[Channel]:
    """The channels that ``config`` declares."""
    return [spec.channel() for spec in config.channel]


def build_models(config: Config) -> tuple[Capability, ...]:
    """What models can do, as ``config`` says."""
    return tuple(section.capability() for section in config.model)


@attrs.define
class InForce:
    """The configuration in force, for those who look at it whenever they need it."""

    config: Config

    def find_link_ttl_s(self) -> float:
        """How long a new link to a picture is good."""
        return self.config.media.link_hours * 3_600

    def find_media_rules(self) -> MediaRules:
        """How long pictures are kept, and how many."""
        return self.config.media.rules()

    def find_video_rules(self) -> VideoRules:
        """What becomes of jobs."""
        return self.config.videos.rules()

    def find_footage_rules(self) -> MediaRules:
        """How long videos are kept, and how many."""
        return self.config.videos.media_rules()

    def find_polls(self) -> int:
        """Answers of one channel about its jobs that are waited for at a time."""
        return self.config.videos.polls_per_channel

    def find_status_words(self) -> Literal["auto", "spec", "openai"]:
        """How a job that is under way is called."""
        return self.config.videos.status_words

    def find_webhook_hosts(self) -> tuple[str, ...]:
        """Globs of the hosts that a request may have a job's end told to."""
        return self.config.videos.webhook_hosts

    def find_allowed_networks(self) -> Networks:
        """Private networks from which providers' pictures may be fetched."""
        return read_networks(self.config.egress.allow)


class Reloader:
    """Reads the configuration again, on SIGHUP or when it is asked to.

    Args:
        in_force: the configuration in force; replaced by what is read.
        read: reads it anew. Raises ``ConfigError``. None: there is nothing to read it from.
        administration: told of accounts and keys.
        fleet: told of channels.
        catalog: the channels in force.
        router: told of prices, and of what models can do.
        switchboard: told how calls are spread.
        studios: told of words that nobody is to have painted, or filmed.
    """

    def __init__(
        self,
        in_force: InForce,
        read: Callable[[], Config] | None,
        *,
        administration: Administration,
        fleet: Fleet,
        catalog: Catalog,
        router: Router,
        switchboard: Switchboard,
        studios: tuple[Images, Submissions],
    ) -> None:
        self._in_force = in_force
        self._at_start = in_force.config
        self._read = read
        self._administration = administration
        self._fleet = fleet
        self._catalog = catalog
        self._router = router
        self._switchboard = switchboard
        self._images, self._submissions = studios
        self._reloading = asyncio.Lock()

    def find_sync_interval_s(self) -> float:
        """How often channels are asked for their models."""
        return self._in_force.config.routing.sync_interval_s

    async def reload(self) -> dict[str, Any]:
        """Apply what is written now, and say what that changed.

        Raises ``InvalidRequest`` with every problem, ``Conflict``, ``StoreUnavailable``; then nothing is changed.
        """
        async with self._reloading:
            config, words = await asyncio.to_thread(self._read_all)
            changes = _describe(self._in_force.config, config)
            if words is not self._images.words and config.safety == self._in_force.config.safety:
                changes.append("the words of safety.words_file changed")
            restart = [line for name in _AT_START for line in _describe_section(name, self._at_start, config)]
            tariff = build_tariff(config)
            before = {channel.name: channel for channel in self._catalog.channels}
            # The store first, for it alone can refuse; what follows is memory.
            await self._administration.declare(config.account, config.key)
            await self._fleet.declare(build_channels(config))
            self._router.tariff = tariff
            self._router.models = build_models(config)
            self._images.words = self._submissions.words = words
            self._switchboard.settings = config.routing.settings()
            self._in_force.config = config
            fresh = [channel for channel in self._catalog.channels if before.get(channel.name) != channel]
        log.info("configuration_reloaded", reason="; ".join(changes) or "nothing has changed")
        if restart:
            log.warning("restart_needed", reason=f"read at start only: {', '.join(restart)}")
        await asyncio.gather(*(self._fleet.sync(channel) for channel in fresh))
        return {"changes": changes, "needs_restart": restart}

    async def reload_logged(self) -> None:
        """The same for a signal, which has nobody to answer to but the log."""
        try:
            await self.reload()
        except Fault as fault:
            log.error("configuration_not_reloaded", error=fault.message)  # noqa: TRY400 - a refusal, not a bug

    def _read_all(self) -> tuple[Config, WordList | None]:
        """What is written now; files that other files name are read with them. To be called in a thread."""
        if self._read is None:
            raise Conflict("This gateway was started without a configuration that could be read again")
        try:
            config = self._read()
            words = read_words_file(config)
        except ConfigError as error:
            raise InvalidRequest("\n".join(error.problems)) from None
        if _declares(self._in_force.config) and not _declares(config):
            raise InvalidRequest("The configuration declares nothing any more: half a file? Restart where it is meant")
        return config, words


def _declares(config: Config) -> bool:
    """Whether there is anything in a file that a slip of an editor could take away."""
    return bool(config.channel or config.account or config.key)


def _describe(before: Config, after: Config) -> list[str]:
    lines = describe_channels(build_channels(before), build_channels(after))
    for name in ("routing", "billing", "media", "videos", "safety", "egress"):
        lines += [f"{line} changed" for line in _describe_section(name, before, after)]
    for name in ("group", "account", "model"):
        lines += describe_items(name, getattr(before, name), getattr(after, name))
    lines += _describe_keys(before, after)
    if before.price != after.price:
        lines.append("prices changed")
    return lines


def _describe_keys(before: Config, after: Config) -> list[str]:
    """Keys have names of their own within their account only."""
    lines = []
    for account in dict.fromkeys(key.account for key in (*before.key, *after.key)):
        old, new = ([key for key in config.key if key.account == account] for config in (before, after))
        lines += describe_items(f"account {account!r}: key", old, new)
    return lines


def _describe_section(name: str, before: Config, after: Config) -> list[str]:
    return describe_section(name, getattr(before, name), getattr(after, name))
