"""Finds weak secrets: they are logged, and refused if other machines can reach the gateway."""

from collections.abc import Iterator
from ipaddress import ip_address

import structlog

from gateway.config.loader import ConfigError
from gateway.config.schema import Config
from gateway.domain.weak_secret import is_weak

MIN_TOKEN_CHARS = 16
_WEAK = "is easy to guess; use a random one"

log = structlog.stdlib.get_logger(__name__)


def check_secrets(config: Config, admin_token: str) -> None:
    """Log the name of every weak secret; raise ``ConfigError`` instead if the gateway listens on more than loopback."""
    problems = [f"{setting}: {_WEAK}" for setting in _list_weak(config, admin_token)]
    if problems and not is_loopback(config.server.host):
        raise ConfigError([f"{problem}, or listen on 127.0.0.1 only (server.host)" for problem in problems])
    for problem in problems:
        log.warning("weak_secret_found", reason=problem)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to ``host``."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _list_weak(config: Config, admin_token: str) -> Iterator[str]:
    for index, key in enumerate(config.key):
        if key.secret is not None and is_weak(key.secret):
            yield f"key[{index}].secret"
    if config.store.master_key and is_weak(config.store.master_key):
        yield "store.master_key"
    if config.metrics.token and is_weak(config.metrics.token):
        yield "metrics.token"
    if len(admin_token) < MIN_TOKEN_CHARS or is_weak(admin_token):
        yield "the file admin.token of the data folder"
