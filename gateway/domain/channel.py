"""A channel: one way to one provider, with the keys, models and timers that belong to it."""

from fnmatch import fnmatchcase
from typing import Literal

import attrs

from gateway.domain.price import ONE_PPM

Origin = Literal["file", "environment", "local", "demo"]
"""Where a channel came from: the configuration file, a provider key, a local server, or the built-in demo."""


@attrs.frozen
class Timeouts:
    """Seconds towards a provider.

    ``first_byte_s`` bounds the wait for a stream's first complete event, ``idle_s`` the wait between complete
    events, ``total_s`` the whole call. An answer that is not streamed has its first byte when it is complete,
    so there ``total_s`` alone bounds it.
    """

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    idle_s: float = 120.0
    total_s: float = 1800.0


DEFAULT_TIMEOUTS = Timeouts()


@attrs.frozen
class Channel:
    """One way to one provider. ``base_url`` ends before ``/chat/completions``."""

    name: str
    provider: str
    base_url: str
    api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    models: tuple[str, ...] = ()
    sync: bool = False
    model_map: tuple[tuple[str, str], ...] = ()
    groups: tuple[str, ...] = ()
    priority: int = 0
    weight: int = 1
    max_concurrency: int | None = None
    rpm: int | None = None
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    proxy: str | None = attrs.field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    multiplier_ppm: int = ONE_PPM
    origin: Origin = "file"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be heard outside: its keys and the values of its headers."""
        return (*self.api_keys, *(value for _, value in self.headers))

    def find_alias(self, model: str) -> str | None:
        """The provider's own name of ``model`` where the channel maps it, else None."""
        return next((theirs for ours, theirs in self.model_map if ours == model), None)

    def upstream_model(self, model: str) -> str:
        """The name under which the provider knows ``model``."""
        return self.find_alias(model) or model

    def serves(self, group: str | None) -> bool:
        """Whether keys of ``group`` (None: of no group) may use it; a channel without groups serves everyone."""
        return not self.groups or group in self.groups

    def keeps(self, model: str) -> bool:
        """Whether a synchronised model passes the channel's filter (``models`` as globs; none keeps all)."""
        return not self.models or any(fnmatchcase(model, glob) for glob in self.models)
