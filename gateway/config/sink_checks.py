"""Checks of a ``[[sink]]`` across its keys. Imported only if there is one."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from gateway.config.alert_schema import SECRET_FORM, WEB_SCHEMES, is_secret
from gateway.config.observability_schema import HEADER
from gateway.config.sink_schema import SinkSpec
from gateway.storage.media_location import is_location

_OTLP_PATHS = ("/v1/traces", "/v1/logs")


def find_sink_problems(spec: SinkSpec) -> Iterator[tuple[str, str]]:
    """Yield the keys of ``spec`` that do not fit its kind, each with what is expected."""
    url_parts = urlsplit(spec.url)
    if spec.kind == "bucket":
        if url_parts.scheme != "s3" or not is_location(spec.url):
            yield "url", "expected s3://bucket/folder?endpoint=…&region=…"
    elif url_parts.scheme not in WEB_SCHEMES or not url_parts.hostname or "@" in url_parts.netloc:
        yield "url", "expected https://… without a user name"
    elif spec.kind == "otlp" and not url_parts.path.endswith(_OTLP_PATHS):
        yield "url", f"expected an address that ends in {' or '.join(_OTLP_PATHS)}"
    expected_secret = _find_expected_secret(spec)
    if expected_secret:
        yield "secret", f"expected {expected_secret}"


def _find_expected_secret(spec: SinkSpec) -> str:
    """Return the form that the secret should have; empty if it has that form."""
    if spec.kind == "otlp":
        return "" if not spec.secret or HEADER.fullmatch(spec.secret) else 'a header: "Authorization=Bearer …"'
    if spec.kind == "langfuse":
        public_key, _, secret_key = spec.secret.partition(":")
        return "" if public_key and secret_key else '"public key:secret key"'
    if spec.kind == "webhook":
        return "" if is_secret(spec.secret) else SECRET_FORM
    return "" if not spec.secret else "no secret: the credentials of a bucket are in its url or the environment"
