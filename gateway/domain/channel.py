"""A channel: one way to one provider, with the keys, models and timers that belong to it."""

from base64 import b64encode
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

import attrs

from gateway.domain.account import Status
from gateway.domain.price import ONE_PPM

Origin = Literal["file", "environment", "local", "demo", "stored"]
"""Where a channel came from: the configuration file, a provider key, a local server, the demo, or the store."""


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
    """One way to one provider. ``base_url`` ends before ``/chat/completions``; ``id`` is 0 where it is not stored.

    ``fan_out``: more pictures than its model makes at a time are asked for in several calls. ``pass_urls``: callers are
    given the provider's own addresses of pictures. ``owned_by``: whose its models are, as callers are told; None:
    ``system``. ``allow_fields``: globs of the fields that change what is bought and that callers may send all the same.
    What it is made with and does not show (``repr=False``) is secret, and sealed where it is stored.
    """

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
    id: int = 0
    status: Status = "active"
    created_ms: int = 0
    fan_out: bool = False
    pass_urls: bool = False
    owned_by: str | None = None
    allow_fields: tuple[str, ...] = ()
    patterns: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)
    """Those of ``models`` that are globs: what matches them is served, and cannot be listed."""

    @patterns.default
    def _find_patterns(self) -> tuple[str, ...]:
        return tuple(model for model in self.models if is_glob(model))

    @property
    def owner(self) -> str:
        """``owned_by`` of its models: never what the provider says, which may be the name of its customer's account."""
        return self.owned_by or "system"

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """What must not be heard outside, in every form that an echo may give it.

        Its keys, the values of its headers, the password of its proxy.
        """
        keys = (*self.api_keys, *_list_parts(self.api_keys))
        plain = [*keys, *_list_header_secrets(self.headers), *_list_proxy_secrets(self.proxy)]
        return tuple(dict.fromkeys(form for secret in plain for form in _list_forms(secret)))

    def find_alias(self, model: str) -> str | None:
        """The provider's own name of ``model`` where the channel maps it, else None."""
        if not self.model_map:
            return None
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

    def matches(self, model: str) -> bool:
        """Whether a channel that is not synchronised serves ``model`` because it matches one of its globs."""
        return not self.sync and any(fnmatchcase(model, glob) for glob in self.patterns)


def _list_header_secrets(headers: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Their values, and of ``Bearer KEY`` the key alone as well."""
    for _, value in headers:
        yield value
        _, spaced, credential = value.partition(" ")
        if spaced and " " not in credential:
            yield credential


def _list_parts(api_keys: tuple[str, ...]) -> Iterator[str]:
    """What a key is made of that is two in one: ``ACCESS:SECRET``."""
    for key in api_keys:
        if ":" in key:
            yield from key.split(":")


def _list_proxy_secrets(proxy: str | None) -> Iterator[str]:
    """The password as it is written and as it is meant, and the pair that is sent in base64."""
    parts = urlsplit(proxy or "")
    if parts.password:
        yield parts.password
        yield unquote(parts.password)
        yield f"{unquote(parts.username or '')}:{unquote(parts.password)}"


def _list_forms(secret: str) -> tuple[str, str, str]:
    """As it is, as in a URL, and in base64 (without its padding)."""
    raw = secret.encode("utf-8", "surrogateescape")  # a variable of the environment may hold any bytes
    return secret, quote(raw, safe=""), b64encode(raw).decode().rstrip("=")


def is_glob(name: str) -> bool:
    """Whether a name stands for every name that matches it."""
    return any(mark in name for mark in "*?[")
