"""A channel: one connection to one provider, with its keys, models and timeouts."""

from base64 import b64encode
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

import attrs

from gateway.domain.account import Status
from gateway.domain.model_name import is_glob
from gateway.domain.price import ONE_PPM
from gateway.frozen import frozen

Origin = Literal["file", "environment", "local", "demo", "stored"]
"""The origin of a channel: the configuration file, a provider key, a local server, the demo, or the store."""


@frozen
class Timeouts:
    """Timeouts towards a provider, in seconds.

    ``first_byte_s`` bounds the wait for a stream's first complete event, ``idle_s`` the wait between complete events,
    ``total_s`` the whole request. The first byte of an answer that is not streamed arrives when it is complete, so
    ``total_s`` alone bounds it.
    """

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    idle_s: float = 120.0
    total_s: float = 1800.0


DEFAULT_TIMEOUTS = Timeouts()


@frozen
class QueueSettings:
    """How requests wait for a place on a channel whose ``max_concurrency`` is reached.

    Attributes:
        length: the most requests that may wait.
        wait_s: the longest wait of one request.
        one_model: the server holds one model at a time, and takes long to load another.
        switch_after_s: with ``one_model``, how long a request waits before its model is loaded although requests of the
            loaded model wait, too.
    """

    length: int = 50
    wait_s: float = 120.0
    one_model: bool = False
    switch_after_s: float = 20.0


DEFAULT_QUEUE = QueueSettings()


@frozen
class Channel:
    """One connection to one provider. Secret fields have ``repr=False``, and are encrypted in the store.

    Attributes:
        base_url: ends before ``/chat/completions``.
        id: the database id; 0 if the channel is not stored.
        pass_urls: whether clients get the provider's own image URLs.
        queue: how requests wait while ``max_concurrency`` is reached; None: the channel is skipped then.
        owned_by: the owner of its models in lists; None: ``system``.
        allow_fields: globs of fields that clients may send although they change what is bought.
        key_names: names of keys, as pairs of key and name.
        disabled_keys: the keys among ``api_keys`` that requests do not use. At least one key is not disabled.
        held: the channel was added although its provider did not answer. It gets no requests until the provider does.
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
    held: bool = False
    held_reason: str = ""
    queue: QueueSettings | None = None
    key_names: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    disabled_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    patterns: tuple[str, ...] = attrs.field(init=False, repr=False, eq=False)
    """The globs among ``models``. A channel without ``sync`` serves models that match, but does not list them."""

    @patterns.default
    def _find_patterns(self) -> tuple[str, ...]:
        return tuple(model for model in self.models if is_glob(model))

    @property
    def serving(self) -> bool:
        """Whether the channel may get requests: it is enabled and not held."""
        return self.status == "active" and not self.held

    @property
    def owner(self) -> str:
        """The value of ``owned_by`` in model lists. A provider's own value is never used: it may name the operator."""
        return self.owned_by or "system"

    @property
    def usable_keys(self) -> tuple[str, ...]:
        """The keys that requests use: those that are not disabled."""
        if not self.disabled_keys:
            return self.api_keys
        return tuple(key for key in self.api_keys if key not in self.disabled_keys)

    def find_key_name(self, key: str) -> str | None:
        return next((name for named_key, name in self.key_names if named_key == key), None)

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not leave the gateway, in every form of an echo: keys, header values, proxy password."""
        keys = (*self.api_keys, *_list_parts(self.api_keys))
        plain_secrets = [*keys, *_list_header_secrets(self.headers), *_list_proxy_secrets(self.proxy)]
        return tuple(dict.fromkeys(form for secret in plain_secrets for form in _list_forms(secret)))

    def find_alias(self, model: str) -> str | None:
        """Return the provider's name of ``model`` if the channel maps it. None if it does not."""
        if not self.model_map:
            return None
        return next((upstream_name for own_name, upstream_name in self.model_map if own_name == model), None)

    def upstream_model(self, model: str) -> str:
        return self.find_alias(model) or model

    def serves(self, group: str | None) -> bool:
        """Return whether keys of ``group`` (None: no group) may use the channel. Without groups it serves every key."""
        return not self.groups or group in self.groups

    def keeps(self, model: str) -> bool:
        """Return whether a synchronized model passes the globs in ``models``; without globs every model does."""
        return not self.models or any(fnmatchcase(model, glob) for glob in self.models)

    def matches(self, model: str) -> bool:
        """Return whether one of the channel's globs serves ``model``; always False for a synchronized channel."""
        return not self.sync and any(fnmatchcase(model, glob) for glob in self.patterns)


def _list_header_secrets(headers: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """Yield the header values; for ``Bearer KEY`` also ``KEY``."""
    for _, value in headers:
        yield value
        _, spaced, credential = value.partition(" ")
        if spaced and " " not in credential:
            yield credential


def _list_parts(api_keys: tuple[str, ...]) -> Iterator[str]:
    for key in api_keys:
        if ":" in key:
            yield from key.split(":")


def _list_proxy_secrets(proxy: str | None) -> Iterator[str]:
    """Yield the password as written and decoded, and ``user:password``, which is sent in base64."""
    url_parts = urlsplit(proxy or "")
    if url_parts.password:
        yield url_parts.password
        yield unquote(url_parts.password)
        yield f"{unquote(url_parts.username or '')}:{unquote(url_parts.password)}"


def _list_forms(secret: str) -> tuple[str, str, str]:
    """Return the secret as it is, URL-encoded, and in base64 without padding."""
    encoded = secret.encode("utf-8", "surrogateescape")  # an environment variable may hold any bytes
    return secret, quote(encoded, safe=""), b64encode(encoded).decode().rstrip("=")
