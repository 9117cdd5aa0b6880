"""The channels: those of the configuration file, those added at run time, else those that were discovered.

Every change is live when its method returns: in the catalogue, in the load balancer, and with its models synchronised.
Requests under way keep the channel with which they began.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs
import structlog

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import OPERATOR, Actor, AuditRow, build_change
from gateway.domain.channel import Channel
from gateway.domain.circuits import Tripped
from gateway.domain.model_info import ModelInfo
from gateway.domain.statistics import find_percentile
from gateway.errors import Conflict, InvalidRequest, NotFound, ProviderError
from gateway.parsing import parse_spec
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_order import ChannelOrder, pick_channels, set_priorities
from gateway.routing.channel_spec import ChannelSpec, build_channel, build_secrets
from gateway.routing.channel_state import FAILED, ChannelState, KeyState
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.storage.channels import ChannelRepository

log = structlog.stdlib.get_logger(__name__)

Fields = dict[str, Any]
Found = tuple[Channel, Sequence[ModelInfo] | None]
"""A discovered channel, with its models if they were listed to discover it."""
Fetch = Callable[[Channel], Awaitable[Sequence[ModelInfo]]]
"""Lists the models of a channel's provider. Raises ``ProviderError``."""


class ChannelService:
    """Reads and changes the channels.

    Args:
        catalog: gets the enabled channels.
        load_balancer: gets all channels.
        store: keeps the channels that are not in the configuration file.
        fetch: asks a provider for its models.
        discover: looks for channels where there are none; asked once at most.
        clock: Unix seconds.
    """

    def __init__(
        self,
        catalog: ModelCatalog,
        load_balancer: LoadBalancer,
        store: ChannelRepository,
        *,
        fetch: Fetch,
        discover: Callable[[], Awaitable[Sequence[Found]]],
        clock: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._load_balancer = load_balancer
        self._store = store
        self._fetch = fetch
        self._discover = discover
        self._clock = clock
        self._declared: tuple[Channel, ...] = ()
        self._found: tuple[Channel, ...] | None = None
        self._changing = asyncio.Lock()

    async def declare(self, channels: Iterable[Channel]) -> None:
        """The file declares exactly these; what is stored is read anew. Raises ``StoreUnavailable``."""
        async with self._changing:
            stored = await self._store.list_channels()
            self._declared = tuple(channels)
            await self._offer(stored)

    async def _offer(self, stored: Sequence[Channel]) -> None:
        """Bring into force what there is."""
        names = {channel.name for channel in self._declared}
        for channel in stored:
            if channel.name in names:
                log.warning(
                    "channel_hidden", channel=channel.name, reason="the configuration file has one of this name"
                )
        channels = [*self._declared, *(channel for channel in stored if channel.name not in names)]
        listings: Sequence[Found] = ()
        if not channels:
            if self._found is None:
                listings = await self._discover()
                self._found = tuple(channel for channel, _ in listings)
            channels = list(self._found)
        before = {channel.name: channel for channel in self._catalog.channels}
        # One that has not changed stays the very same: its provider may be naming its models at this moment.
        channels = [before[each.name] if before.get(each.name) == each else each for each in channels]
        self._catalog.use(channels)
        self._load_balancer.use(channels)
        for channel, listing in listings:
            if listing is not None:
                self._catalog.apply_listing(channel, listing)
        _log_changes(before, channels)

    async def add(self, fields: Fields, by: Actor = OPERATOR) -> Fields:
        """A new channel, live at once. Raises ``InvalidRequest``, ``Conflict``, ``StoreUnavailable``."""
        spec = parse_spec(fields, ChannelSpec)
        async with self._changing:
            if any(channel.name == spec.name for channel in self._declared):
                raise Conflict(f"The configuration file has a channel called {spec.name!r} already", param="name")
            draft = Channel(spec.name, "", "", origin="stored", created_ms=self._now_ms())
            made = spec.apply(draft)
            audit = self._record("channel.created", spec.name, by, _build_change(draft, made))
            channel = await self._store.add_channel(made, audit)
            await self._offer(await self._store.list_channels())
        await self.sync(channel)
        return self.describe(self.get(channel.name))

    async def edit(self, name: str, fields: Fields, by: Actor = OPERATOR) -> Fields:
        """Change some fields; null takes a setting back. Raises ``NotFound``, ``InvalidRequest``, ``Conflict``."""
        async with self._changing:
            channel = self._get_editable(name)
            changed = _parse_change(channel, fields).apply(channel)
            _check_secrets_stay(channel, changed, fields)
            if changed.name != name and any(other.name == changed.name for other in self._declared):
                raise Conflict(f"The configuration file has a channel called {changed.name!r} already", param="name")
            audit = self._record("channel.edited", name, by, _build_change(channel, changed))
            await self._store.put_channel(changed, None if changed == channel else audit)
            await self._offer(await self._store.list_channels())
        await self.sync(changed)
        return self.describe(self.get(changed.name))

    async def delete(self, name: str, by: Actor = OPERATOR) -> None:
        """Remove a channel; calls under way finish. Those that were found come back after the last one.

        Raises ``NotFound``, ``Conflict``.
        """
        async with self._changing:
            before = self._catalog.channels
            audit = self._record("channel.deleted", name, by)
            await self._store.delete_channel(self._get_editable(name).id, audit)
            await self._offer(await self._store.list_channels())
        back = [channel for channel in self._catalog.channels if channel not in before]
        unknown = [channel for channel in back if self._catalog.find_offer(channel) is None]
        await asyncio.gather(*map(self.sync, unknown))

    async def order(self, fields: Fields, by: Actor = OPERATOR) -> list[Fields]:
        """Ask the channels in that order (``ChannelOrder``). Raises ``InvalidRequest``, ``Conflict``."""
        names = parse_spec(fields, ChannelOrder).names
        async with self._changing:
            ordered = pick_channels(self._catalog.channels, names)
            changed = set_priorities(ordered)
            if changed:
                before = {channel.name: channel.priority for channel in ordered}
                after = before | {channel.name: channel.priority for channel in changed}
                audit = self._record("channel.ordered", ", ".join(names), by, build_change(before, after))
                await self._store.put_channels(changed, audit)
                await self._offer(await self._store.list_channels())
        return self.list_channels()

    async def sync(self, channel: Channel) -> ProviderError | None:
        """Ask a synchronised channel for its models, now. Returns why that failed, if it did."""
        if not channel.sync or channel.status != "active":
            return None
        channel = self._catalog.find_channel(channel.name) or channel
        try:
            listing = await self._fetch(channel)
        except ProviderError as error:
            self._catalog.note_failure(channel, error.message)
            log.warning("models_not_synced", channel=channel.name, error=error.message)
            return error
        came, went = self._catalog.apply_listing(channel, listing)
        if came or went:
            log.info("models_synced", channel=channel.name, models=len(listing), came=len(came), went=sorted(went))
        return None

    async def test(self, channel: Channel) -> Fields:
        """Ask a channel's provider for its models with every key it has, and say what each was answered.

        Where a provider lists none there is nothing to ask that costs nothing: such a channel passes.
        """
        keys = channel.api_keys or ("",)
        asked = keys if PROVIDERS[channel.provider].models_path is not None else ()
        results = await asyncio.gather(*(self._test_key(channel, key) for key in asked))
        errors = [result["error"] for result in results if result["error"]]
        models = next((result["models"] for result in results if result["models"] is not None), None)
        return {
            "name": channel.name,
            "ok": not errors,
            "error": errors[0] if errors else None,
            "models": models,
            "keys": results if len(results) > 1 else [],
        }

    async def _test_key(self, channel: Channel, key: str) -> Fields:
        try:
            listing = await self._fetch(attrs.evolve(channel, api_keys=(key,) if key else ()))
        except ProviderError as error:
            return {"last4": _show_end(key), "ok": False, "error": error.message, "models": None}
        return {"last4": _show_end(key), "ok": True, "error": None, "models": len(listing)}

    def list_channels(self) -> list[Fields]:
        """Every channel, in order."""
        return [self.describe(channel) for channel in self._catalog.channels]

    def get(self, name: str) -> Channel:
        """The channel itself. Raises ``NotFound``."""
        channel = self._catalog.find_channel(name)
        if channel is None:
            raise NotFound(f"No channel is called {name[:64]!r}")
        return channel

    def describe(self, channel: Channel) -> Fields:
        """A channel without its secrets, how it stands, and what is known of its models."""
        offer, synced = self._catalog.find_offer(channel), self._catalog.find_synced(channel)
        state = self._load_balancer.lines.get(channel.name)
        return {
            **build_channel(channel),
            "offers": None if offer is None else len(offer),
            "synced_at": None if synced.at_s is None else build_time(synced.at_s),
            "sync_error": synced.error,
            "came": list(synced.came),
            "went": list(synced.went),
            "changed_at": None if synced.changed_s is None else build_time(synced.changed_s),
            **({} if state is None else self._describe_line(state)),
        }

    def _describe_line(self, state: ChannelState) -> Fields:
        now, rules, breaker = self._load_balancer.now, self._load_balancer.settings.rules, state.breaker
        wait, reason, circuits = breaker.wait_s(now), breaker.reason, _describe_circuits(state.list_tripped(), now)
        if breaker.state == "up" and state.state != "up":  # each model that it serves has tripped
            wait = min((circuit["cooldown_s"] or 0.0 for circuit in circuits), default=0.0)
            reason = circuits[0]["reason"]
        return {
            "state": state.state,
            "running": state.running,
            "share": round(breaker.share(now, rules), 2),
            "cooldown_s": None if wait is None else round(wait, 1),
            "trips": breaker.trips,
            "reason": reason,
            "circuits": circuits,
            **_describe_figures(state),
            "keys": [
                {
                    "last4": _show_end(key.key),
                    **_describe_key(key, now),
                    "limited_models": sorted(model for model, limit in key.limited.items() if limit.until > now),
                }
                for key in state.keys
                if key.key
            ],
        }

    def _record(self, action: str, name: str, by: Actor, detail: str = "{}") -> AuditRow:
        return by.did(action, name, self._now_ms(), detail=detail)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _get_editable(self, name: str) -> Channel:
        channel = self.get(name)
        if channel.origin == "file":
            raise Conflict(f"The channel {name!r} is declared in the configuration file; change it there")
        if channel.origin != "stored":
            raise Conflict(f"The channel {name!r} was found, not made; add one of your own and it gives way")
        return channel


def _describe_key(key: KeyState, now: float) -> Fields:
    """A key that was refused is down until a call made with it is answered."""
    refused = _describe_circuits(key.circuits.list_tripped(), now)
    state, wait, reason = key.breaker.state, key.breaker.wait_s(now), key.breaker.reason
    if state == "up" and refused and not key.circuits.answered_lately:
        state, wait, reason = refused[0]["state"], refused[0]["cooldown_s"], refused[0]["reason"]
    return {"state": state, "cooldown_s": round(wait or 0.0, 1), "reason": reason, "circuits": refused}


def _describe_circuits(tripped: Sequence[Tripped], now: float) -> list[Fields]:
    """What does not pass every call, at most ``MOST_CIRCUITS`` of it."""
    return [
        {
            "model": place[1] or None,
            "language": place[0] or None,
            "account": account,
            "state": breaker.state,
            "cooldown_s": None if (wait := breaker.wait_s(now)) is None else round(wait, 1),
            "trips": breaker.trips,
            "reason": breaker.reason,
        }
        for place, account, breaker in tripped[:MOST_CIRCUITS]
    ]


def _describe_figures(state: ChannelState) -> Fields:
    """What its calls have come to; of a channel that has had none nothing is known."""
    answered = sorted(figure for figure in state.recent if figure != FAILED)
    return {
        "latency_ms": {f"p{percent}": find_percentile(answered, percent) for percent in (50, 95, 99)}
        if answered
        else None,
        "success_ratio": round(len(answered) / len(state.recent), 4) if len(state.recent) else None,
        "calls": state.calls,
        "failures": state.failures,
    }


MOST_CIRCUITS = 50
"""Maximum number of circuits reported for one channel or key: clients can invent names of models."""
_SHOWABLE = 16
"""Characters of a key from which its last four give nothing away."""


def _show_end(key: str) -> str:
    return key[-4:] if len(key) >= _SHOWABLE else ""


def _parse_change(channel: Channel, change: Fields) -> ChannelSpec:
    """What stands, with ``change`` over it; null takes a setting back."""
    names = {field.name for field in attrs.fields(ChannelSpec)}
    before = {**build_channel(channel), **build_secrets(channel)}
    if "api_key" in change:  # the one takes the place of the other
        del before["api_keys"]
    if "provider" in change and "base_url" not in change:
        del before["base_url"]
    merged = {name: value for name, value in before.items() if name in names} | change
    fields = {name: value for name, value in merged.items() if value is not None or name not in names}
    return parse_spec(fields, ChannelSpec)


def _build_change(before: Channel, after: Channel) -> str:
    """What differs, for the audit trail; of what is secret, only that it does."""
    return build_change(*({**build_channel(each), **build_secrets(each)} for each in (before, after)))


def _check_secrets_stay(before: Channel, after: Channel, change: Fields) -> None:
    """A secret goes to the server it was given for. Raises ``InvalidRequest`` where it would go to another unasked."""
    if urlsplit(before.base_url)[:2] == urlsplit(after.base_url)[:2]:
        return
    for names, kept in ((("api_keys", "api_key"), before.api_keys), (("headers",), before.headers)):
        if kept and change.keys().isdisjoint(names):
            raise InvalidRequest(
                f"The channel leads to another server now: say which {names[0]} are for that one, or null for none",
                param=names[0],
            )


def _log_changes(before: dict[str, Channel], channels: Sequence[Channel]) -> None:
    for channel in channels:
        known = before.pop(channel.name, None)
        if known is None:
            log.info("channel_added", channel=channel.name, address=channel.base_url, reason=channel.origin)
        elif known != channel:
            log.info("channel_changed", channel=channel.name, reason=", ".join(find_changes(known, channel)))
    for name in before:
        log.info("channel_removed", channel=name)


def find_changes(one: Channel, other: Channel) -> list[str]:
    """The names of the fields in which two channels differ; what is in them may be secret."""
    return [
        field.name
        for field in attrs.fields(Channel)
        if field.eq and getattr(one, field.name) != getattr(other, field.name)
    ]
