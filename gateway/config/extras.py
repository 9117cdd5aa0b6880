"""Extras: packages that only some settings need, and that a plain installation does not contain."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from gateway.config.schema import Config
from gateway.installation import format_install_command

MODULES: Mapping[str, str] = {
    "tracing": "opentelemetry.exporter.otlp.proto.http",
    "alerts": "apprise",
    "sso": "authlib.oidc",
    "postgres": "asyncpg",
    "valkey": "valkey.asyncio",
    "s3": "obstore",
}
"""For each extra, a module that exists only if the extra is installed."""


def describe_missing_extra(setting: str, extra: str) -> str:
    """Return the error message for a ``setting`` whose extra is missing, with the command that installs the extra."""
    return f"{setting}: needs an extra that is not installed; install it with: {format_install_command(extra)}"


def list_missing_extras(config: Config) -> list[str]:
    """Return an error message for each setting whose extra is not installed."""
    return [
        describe_missing_extra(setting, extra)
        for setting, extra in _list_wanted_extras(config)
        if not _is_installed(extra)
    ]


def _list_wanted_extras(config: Config) -> Iterator[tuple[str, str]]:
    if config.tracing.endpoint:
        yield "tracing.endpoint", "tracing"
    yield from ((f"alert[{index}].url", "alerts") for index, spec in enumerate(config.alert) if not spec.is_webhook)
    yield from ((f"sink[{index}].url", "s3") for index, spec in enumerate(config.sink) if spec.kind == "bucket")
    if config.store.is_postgres:
        yield "store.url", "postgres"
    if config.store.media_url.startswith("s3://"):
        yield "store.media_url", "s3"
    if config.store.bodies_url.startswith("s3://"):
        yield "store.bodies_url", "s3"
    if config.limits_store == "postgresql":
        yield "rate_limits.store", "postgres"
    if config.limits_store == "valkey":
        yield "rate_limits.store", "valkey"
    if config.sign_in:
        yield "sign_in", "sso"


def _is_installed(extra: str) -> bool:
    try:
        return find_spec(MODULES[extra]) is not None
    except ModuleNotFoundError:  # raised for a missing parent package
        return False
