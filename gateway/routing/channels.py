"""The channel service: channels of the configuration file and those added at run time, else the discovered ones.

When a method that changes a channel returns, the catalog and the load balancer use the change. After ``add`` and
``edit``, a synchronized channel's models have been listed anew. Running requests keep the channel configuration with
which they began.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs
import structlog

from gateway.deferred import defer_function
from gateway.domain.audit_log import OPERATOR, Actor, AuditRow, build_change
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.errors import Conflict, InvalidRequest, NotFound, ProviderAuthError, ProviderError, ProxyRefused
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_spec import ChannelSpec, build_channel_fields, build_secrets
from gateway.routing.channel_tester import Answer, ChannelTester, ChannelTestResult, RequestTestResult
from gateway.routing.model_catalog import ModelCatalog
from gateway.storage.channels import ChannelRepository

log = structlog.stdlib.get_logger(__name__)
_drop_former_keys = defer_function("routing.channel_keys:drop_former_keys")

Fields = dict[str, Any]
DiscoveredChannel = tuple[Channel, Sequence[ModelInfo] | None]
"""A discovered channel, with its models if discovery listed them."""
DemoMode = Literal["auto", "on", "off"]
"""When the demo is offered. "auto": until a channel has answered, and then while the demo is in use."""
DEMO_STAYS_S = 3_600
"""How long after its last use the demo stays available next to channels that have answered."""
Check = Literal["refuse", "hold", "none"]
"""What happens if a new channel's provider does not answer. "refuse": the channel is not added. "hold": it gets no
requests until the provider answers. "none": the provider is not asked."""


@frozen
class Demo:
    """The built-in demo of a gateway.

    ``find_mode`` returns the setting ``routing.demo``. ``start`` starts the demo unless it runs, and returns its
    channel. ``find_last_use`` returns the time of the latest logged request for the demo since its argument, or None;
    both are Unix seconds.
    """

    find_mode: Callable[[], DemoMode]
    start: Callable[[], Awaitable[Channel]]
    find_last_use: Callable[[float], Awaitable[float | None]]


class ChannelService:
    """Reads and changes the channels.

    Args:
        discover: looks for local servers and provider keys; also returns the demo if no server has answered.
        leads: returns whether this process is the one that tests held channels.
        demo: the demo; None: it is offered only if ``discover`` returns it.
        note_listing: called with the answer to each listing of a channel's models; None: no other node needs it.
    """

    def __init__(
        self,
        catalog: ModelCatalog,
        store: ChannelRepository,
        *,
        tester: ChannelTester,
        discover: Callable[[], Awaitable[Sequence[DiscoveredChannel]]],
        clock: Callable[[], float],
        leads: Callable[[], bool],
        note_listing: Callable[[Channel, Answer], object] | None,
        demo: Demo | None = None,
    ) -> None:
        self._catalog = catalog
        self._load_balancer = tester.load_balancer
        self._store = store
        self.tester = tester
        self._discover = discover
        self._clock = clock
        self._declared_channels: tuple[Channel, ...] = ()
        self._discovered_channels: tuple[Channel, ...] | None = None
        self._changing = asyncio.Lock()
        self.leads = leads
        self._note_listing = note_listing
        self._demo = demo
        self._demo_mode: DemoMode = "auto"
        self._demo_call_count = 0
        self._demo_used_s: float | None = None

    async def declare(self, channels: Iterable[Channel]) -> None:
        """Replace the channels of the configuration file, and reload the stored ones.

        While the demo is offered, the channels of the file that have not answered yet are tested.
        """
        async with self._changing:
            stored_channels = await self._store.list_channels()
            self._declared_channels = tuple(channels)
            if self._demo is not None and self._demo_used_s is None:
                self._demo_used_s = await self._demo.find_last_use(self._clock() - DEMO_STAYS_S)
            await self._apply_channels(stored_channels)
        if self._offers_demo and self._declared_channels:
            await self._test_declared()

    async def adopt_stored(self) -> list[Channel]:
        async with self._changing:
            before = {channel.name: channel for channel in self._catalog.channels}
            await self._apply_channels(await self._store.list_channels())
            return [channel for channel in self._catalog.channels if before.get(channel.name) is not channel]

    async def _apply_channels(
        self, stored_channels: Sequence[Channel], listings: Sequence[DiscoveredChannel] = ()
    ) -> None:
        """Apply the declared, stored and, if needed, discovered channels to the catalog and the load balancer.

        Discovered channels are offered only while every configured channel is held. A channel of the file is never
        held, because a restart must not stop its requests. A demo that is already offered stays until a configured
        channel has answered; ``_set_demo`` may keep it longer.
        """
        names = {channel.name for channel in self._declared_channels}
        for channel in stored_channels:
            if channel.name in names:
                log.warning(
                    "channel_hidden", channel=channel.name, reason="the configuration file has one of this name"
                )
        channels = [*self._declared_channels, *(channel for channel in stored_channels if channel.name not in names)]
        if all(channel.held for channel in channels):
            if self._discovered_channels is None:
                listings = await self._discover()
                self._discovered_channels = tuple(channel for channel, _ in listings)
            used_names = {channel.name for channel in channels}
            channels += [channel for channel in self._discovered_channels if channel.name not in used_names]
        elif self._offers_demo and not any(map(self._has_answered, channels)):
            channels += [channel for channel in self._discovered_channels or () if channel.origin == "demo"]
        channels = await self._set_demo(channels)
        before = {channel.name: channel for channel in self._catalog.channels}
        # Unchanged channels keep their object, because a listing of their models may be under way.
        channels = [
            before[new_channel.name] if before.get(new_channel.name) == new_channel else new_channel
            for new_channel in channels
        ]
        self._catalog.set_channels(channels)
        self._load_balancer.set_channels(channels)
        for channel, listing in listings:
            if listing is not None:
                self._catalog.apply_listing(channel, listing)
        _log_changes(before, channels)

    async def _set_demo(self, channels: list[Channel]) -> list[Channel]:
        """Add the demo to ``channels`` or remove it, according to ``routing.demo`` and the demo's use."""
        if self._demo is None:
            return channels
        self._demo_mode = self._demo.find_mode()
        if self._demo_mode == "off":
            return [channel for channel in channels if channel.origin != "demo"]
        if any(channel.origin == "demo" for channel in channels):
            return channels
        if self._demo_mode == "on" or self._demo_in_use():
            demo = await self._demo.start()
            if all(channel.name != demo.name for channel in channels):
                return [*channels, demo]
        return channels

    def _demo_in_use(self) -> bool:
        """Return whether the demo got a request in the last hour, as seen by polling its number of calls."""
        now_s, demo = (
            self._clock(),
            next((candidate for candidate in self._catalog.channels if candidate.origin == "demo"), None),
        )
        state = None if demo is None else self._load_balancer.channels.get(demo.name)
        calls = 0 if state is None else state.calls
        if calls > self._demo_call_count:
            self._demo_used_s = now_s
        self._demo_call_count = calls
        return self._demo_used_s is not None and now_s - self._demo_used_s < DEMO_STAYS_S

    async def review_demo(self) -> None:
        """Offer the demo or withdraw it, according to its setting and last use."""
        is_beside_others = self._offers_demo and any(channel.origin != "demo" for channel in self._catalog.channels)
        if is_beside_others or (self._demo is not None and self._demo_mode != self._demo.find_mode()):
            async with self._changing:
                await self._apply_channels(await self._store.list_channels())

    @property
    def _offers_demo(self) -> bool:
        return any(channel.origin == "demo" for channel in self._catalog.channels)

    def _has_answered(self, channel: Channel) -> bool:
        """Return whether a channel replaces the demo: its provider has answered, or cannot be tested."""
        if channel.origin != "file" or (PROVIDERS[channel.provider].models_path is None and not channel.sync):
            return not channel.held
        state = self._load_balancer.channels.get(channel.name)
        if state is None:
            return False
        return state.calls > state.failures or (state.test is not None and state.test.error is None)

    async def _retire_demo(self) -> None:
        """Stop offering the demo because a discovered provider has answered."""
        async with self._changing:
            if self._discovered_channels is not None and any(
                channel.origin == "demo" for channel in self._discovered_channels
            ):
                self._discovered_channels = tuple(
                    channel for channel in self._discovered_channels if channel.origin != "demo"
                )
                await self._apply_channels(await self._store.list_channels())

    async def add(
        self, fields: Fields, by: Actor = OPERATOR, *, check: Check = "none", request: bool = False
    ) -> Channel:
        """Add a channel. It gets requests immediately unless ``check`` holds it.

        If ``request`` is set, the check also sends one real request of one token.
        Raises ``InvalidRequest`` (also if ``check`` refuses the channel) and ``Conflict``.
        """
        spec = parse_spec(fields, ChannelSpec)
        draft = Channel(spec.name, "", "", origin="stored", created_ms=self._now_ms())
        new_channel, answer = spec.apply(draft), None
        if check != "none" and new_channel.status == "active":
            answer = await self.tester.ask(new_channel)
            if request and answer.passes:
                answer, _ = await self.tester.ask_chat(new_channel, answer)
            if check == "refuse" and not answer.passes and answer.error is not None:
                raise InvalidRequest(
                    f"The channel is not added: {answer.error.message}", param=find_field(answer.error)
                )
            if answer.error is not None and not answer.passes:
                new_channel = attrs.evolve(new_channel, held=True, held_reason=answer.error.message)
        async with self._changing:
            if any(channel.name == spec.name for channel in self._declared_channels):
                raise Conflict(f"The configuration file has a channel called {spec.name!r} already", param="name")
            audit = self.build_audit("channel.created", spec.name, by, _build_change(draft, new_channel))
            channel = await self._store.add_channel(new_channel, audit)
            await self._apply_channels(await self._store.list_channels())
        if answer is None:
            await self.sync(channel)
        else:
            self.tester.record(channel, answer)
            self._note_answer(channel, answer)
        return self.get(channel.name)

    async def edit(self, name: str, fields: Fields, by: Actor = OPERATOR) -> Channel:
        """Change some fields; null resets a field. Then test a held channel, or list a synchronized one's models.

        Raises ``NotFound``, ``InvalidRequest``, ``Conflict``.
        """
        async with self._changing:
            channel = self.get_editable(name)
            new_channel = _parse_change(channel, fields).apply(channel)
            if channel.key_names or channel.disabled_keys:
                new_channel = _drop_former_keys(new_channel)
            _check_secrets_stay(channel, new_channel, fields)
            if new_channel.name != name and any(
                declared_channel.name == new_channel.name for declared_channel in self._declared_channels
            ):
                raise Conflict(
                    f"The configuration file has a channel called {new_channel.name!r} already", param="name"
                )
            audit = self.build_audit("channel.edited", name, by, _build_change(channel, new_channel))
            await self._store.put_channel(new_channel, None if new_channel == channel else audit, original=channel)
            await self._apply_channels(await self._store.list_channels())
        await (self._retry_held(new_channel) if new_channel.held else self.sync(new_channel))
        return self.get(new_channel.name)

    async def change_stored(self, change: Callable[[Sequence[Channel]], tuple[Sequence[Channel], AuditRow]]) -> None:
        """Call ``change`` with all channels, and store the changed ones that it returns, with its audit row.

        If it returns none, nothing is stored. Raises ``Conflict`` if a channel was changed meanwhile, and the errors of
        ``change``.
        """
        async with self._changing:
            originals = self._catalog.channels
            changed_channels, audit = change(originals)
            if changed_channels:
                await self._store.put_channels(changed_channels, audit, originals=originals)
                await self._apply_channels(await self._store.list_channels())

    async def delete(self, name: str, by: Actor = OPERATOR) -> None:
        """Remove a channel; its running requests finish. After the last one, discovered channels are offered again.

        Raises ``NotFound``, and ``Conflict`` for a channel that is not stored.
        """
        async with self._changing:
            before = self._catalog.channels
            audit = self.build_audit("channel.deleted", name, by)
            await self._store.delete_channel(self.get_editable(name).id, audit)
            await self._apply_channels(await self._store.list_channels())
        returned_channels = [channel for channel in self._catalog.channels if channel not in before]
        unlisted_channels = [channel for channel in returned_channels if self._catalog.find_offer(channel) is None]
        await asyncio.gather(*map(self.sync, unlisted_channels))

    async def sync(self, channel: Channel) -> ProviderError | None:
        """Fetch a synchronized channel's model list now. Return the error if that failed; else release a held channel.

        Does nothing for a channel that is not synchronized, or not active.
        """
        if not channel.sync or channel.status != "active":
            return None
        channel = self._catalog.find_channel(channel.name) or channel
        answer = await self.tester.ask(channel)
        if self._catalog.find_channel(channel.name) == channel:  # otherwise the channel was changed meanwhile
            self.tester.record(channel, answer)
        self._note_answer(channel, answer)
        if answer.error is None and channel.origin in {"environment", "local"}:
            await self._retire_demo()
        if channel.held:
            await self._decide_held(channel, answer.error)
        return answer.error

    def _note_answer(self, channel: Channel, answer: Answer) -> None:
        """Update the catalog with a synchronized channel's model list, or record the error of the fetch.

        Other nodes are notified.
        """
        if not channel.sync:
            return
        if self._note_listing is not None:
            self._note_listing(channel, answer)
        if answer.error is not None:
            self._catalog.note_failure(channel, answer.error.message)
            log.warning("models_not_synced", channel=channel.name, error=answer.error.message)
        elif (listing := answer.listing) is not None:
            added_models, removed_models = self._catalog.apply_listing(channel, listing)
            if added_models or removed_models:
                log.info(
                    "models_synced",
                    channel=channel.name,
                    models=len(listing),
                    came=len(added_models),
                    went=sorted(removed_models),
                )

    async def test(self, channel: Channel, *, request: bool = False, model: str | None = None) -> ChannelTestResult:
        """Test a channel with every key; see ``ChannelTester.test``. A held channel that passes is released."""
        result = await self.tester.test(channel, request=request, model=model)
        if channel.held and result.ok:
            await (self.sync(channel) if channel.sync else self._release(channel))
        elif channel.held and result.error is not None and result.error != channel.held_reason:
            await self._put_held(attrs.evolve(channel, held_reason=result.error), channel)
        return result

    async def send_test(self, channel: Channel, model: str) -> RequestTestResult:
        """Send one real chat request of one token for ``model`` to a channel; return how it went.

        Without a chat for the model, the result is a failure. The result is not recorded for the channel: a step of a
        route may use a model that the channel's own test does not.
        """
        try:
            _, result = await self.tester.ask_chat(channel, Answer(), model)
        except InvalidRequest as error:
            return RequestTestResult(model, ok=False, error=error.message, ms=None)
        return result

    async def retry(self) -> None:
        """Test held channels again, review the demo, and look for local servers while no configured channel serves.

        Held channels are tested only by the process that leads. While the demo is offered, channels of the file that
        have not answered are tested, too.
        """
        if self.leads():
            await asyncio.gather(*(self._retry_held(channel) for channel in self._catalog.channels if channel.held))
        if self._offers_demo and any(channel.origin == "file" for channel in self._catalog.channels):
            await self._test_declared()
        await self.review_demo()
        configured = (channel for channel in self._catalog.channels if channel.origin in {"file", "stored"})
        if self._discovered_channels is not None and not any(channel.serving for channel in configured):
            await self.rediscover()

    async def _test_declared(self) -> None:
        """Test the channels of the file that have not answered yet. If one answers, the demo may be withdrawn."""
        await asyncio.gather(
            *(self.test(channel) for channel in self._declared_channels if not self._has_answered(channel))
        )
        async with self._changing:
            await self._apply_channels(await self._store.list_channels())

    async def _retry_held(self, channel: Channel) -> None:
        if channel.status != "active":
            return
        if channel.sync:
            await self.sync(channel)
            return
        answer = await self.tester.ask(channel)
        self.tester.record(channel, answer)
        await self._decide_held(channel, None if answer.passes else answer.error)

    async def rediscover(self) -> None:
        """Look for new local servers. The demo stays until one of them, or a provider with a key, has answered."""
        listings = await self._discover()
        async with self._changing:
            known_channels = {
                channel.name: channel for channel in self._discovered_channels or () if channel.origin != "demo"
            }
            any_answered = any(self._catalog.find_offer(channel) is not None for channel in known_channels.values())
            new_channels = [
                (channel, listing)
                for channel, listing in listings
                if channel.name not in known_channels and not (any_answered and channel.origin == "demo")
            ]
            all_channels = (*known_channels.values(), *(channel for channel, _ in new_channels))
            if all_channels != self._discovered_channels:
                self._discovered_channels = all_channels
                await self._apply_channels(await self._store.list_channels(), new_channels)
        unlisted_channels = [
            channel for channel, listing in new_channels if listing is None and channel.origin != "demo"
        ]
        await asyncio.gather(*map(self.sync, unlisted_channels))

    async def _decide_held(self, channel: Channel, error: ProviderError | None) -> None:
        """Release a held channel if there is no ``error``; otherwise store the reason, which survives a restart."""
        if error is None:
            await self._release(channel)
        elif error.message != channel.held_reason:
            await self._put_held(attrs.evolve(channel, held_reason=error.message), channel)

    async def _release(self, channel: Channel) -> None:
        if await self._put_held(attrs.evolve(channel, held=False, held_reason=""), channel):
            log.info("channel_released", channel=channel.name, reason="its provider answered")

    async def _put_held(self, new_channel: Channel, channel: Channel) -> bool:
        """Store a held channel's new state. Return False if the channel was changed or deleted meanwhile."""
        async with self._changing:
            if self._catalog.find_channel(channel.name) != channel:
                return False
            try:
                await self._store.put_channel(new_channel, original=channel)
            except (NotFound, Conflict):  # by another node, which announces the change
                return False
            await self._apply_channels(await self._store.list_channels())
            return True

    def get(self, name: str) -> Channel:
        channel = self._catalog.find_channel(name)
        if channel is None:
            raise NotFound(f"No channel is called {name[:64]!r}")
        return channel

    def build_audit(self, action: str, name: str, by: Actor, detail: str = "{}") -> AuditRow:
        """Return the audit row of a change at this time."""
        return by.build_audit_row(action, name, self._now_ms(), detail=detail)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def get_editable(self, name: str) -> Channel:
        """Return a stored channel. Raises ``NotFound``, and ``Conflict`` for a channel that is not stored."""
        channel = self.get(name)
        if channel.origin == "file":
            raise Conflict(f"The channel {name!r} is declared in the configuration file; change it there")
        if channel.origin == "demo":
            raise Conflict('The demo is built in; set routing.demo to "off" to turn it off')
        if channel.origin != "stored":
            raise Conflict(f"The channel {name!r} was found, not made; add one of your own and it gives way")
        return channel


def _parse_change(channel: Channel, change: Fields) -> ChannelSpec:
    """Merge ``change`` into the channel's current settings; null resets a setting. Raises ``InvalidRequest``."""
    names = {field.name for field in attrs.fields(ChannelSpec)}
    before = {**build_channel_fields(channel), **build_secrets(channel)}
    if "api_key" in change:  # api_key replaces api_keys
        del before["api_keys"]
    if "provider" in change and "base_url" not in change:
        del before["base_url"]
    merged_fields = {name: value for name, value in before.items() if name in names} | change
    fields = {name: value for name, value in merged_fields.items() if value is not None or name not in names}
    return parse_spec(fields, ChannelSpec)


def find_field(error: ProviderError) -> str:
    """Return the field of a channel that an error of its provider is about."""
    return {ProviderAuthError: "api_key", ProxyRefused: "proxy"}.get(type(error), "base_url")


def _build_change(before: Channel, after: Channel) -> str:
    """Return the changed fields for the audit log; for a secret field, only the fact that it changed."""
    return build_change(*({**build_channel_fields(version), **build_secrets(version)} for version in (before, after)))


def _check_secrets_stay(before: Channel, after: Channel, change: Fields) -> None:
    """Raise ``InvalidRequest`` if a kept secret would be sent to another server than it was entered for."""
    if urlsplit(before.base_url)[:2] == urlsplit(after.base_url)[:2]:
        return
    for names, kept in ((("api_keys", "api_key"), before.api_keys), (("headers",), before.headers)):
        if kept and change.keys().isdisjoint(names):
            raise InvalidRequest(
                f"The channel now uses another server: give the {names[0]} for it, or null for none", param=names[0]
            )


def _log_changes(before: dict[str, Channel], channels: Sequence[Channel]) -> None:
    for channel in channels:
        earlier_channel = before.pop(channel.name, None)
        if earlier_channel is None:
            log.info("channel_added", channel=channel.name, address=channel.base_url, reason=channel.origin)
        elif earlier_channel != channel:
            log.info("channel_changed", channel=channel.name, reason=", ".join(find_changes(earlier_channel, channel)))
    for name in before:
        log.info("channel_removed", channel=name)


def find_changes(earlier_channel: Channel, later_channel: Channel) -> list[str]:
    """Return the names of the fields in which two channels differ, without the values, which may be secret."""
    return [
        field.name
        for field in attrs.fields(Channel)
        if field.eq and getattr(earlier_channel, field.name) != getattr(later_channel, field.name)
    ]
