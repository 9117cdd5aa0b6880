"""AWS Signature Version 4.

Source: docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html. botocore is not used,
because it brings 14 MB of service descriptions and its own HTTP stack for a few lines of signing.
"""

import hashlib
import hmac
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

import attrs

from gateway.frozen import frozen

_ALGORITHM = "AWS4-HMAC-SHA256"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_UNSIGNED_HEADERS = frozenset(
    {"authorization", "user-agent", "connection", "accept-encoding", "accept", "content-length"}
)
"""Headers that a proxy may change, or that are not part of the request's meaning."""


@frozen
class AwsCredentials:
    """An access key. ``session_token`` belongs to temporary credentials; empty if they are permanent."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    session_token: str = attrs.field(default="", repr=False)


@lru_cache(maxsize=64)
def _derive_key(secret_key: str, date: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in (date, region, service, "aws4_request"):
        key = _sign(key, part)
    return key


def _sign(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def sign_request(
    method: str,
    url: str,
    headers: dict[str, str],
    body: bytes,
    *,
    credentials: AwsCredentials,
    region: str,
    service: str,
    now_s: int,
) -> dict[str, str]:
    """Return the headers that sign a request at ``now_s`` (Unix seconds), to be added to ``headers``."""
    time = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    date_header = {"X-Amz-Date": time}
    if credentials.session_token:
        date_header["X-Amz-Security-Token"] = credentials.session_token
    parts = urlsplit(url)
    signed_headers = {"host": _find_host(parts)}
    canonical_headers = ((name.lower(), " ".join(value.split())) for name, value in (headers | date_header).items())
    signed_headers |= {name: value for name, value in canonical_headers if name not in _UNSIGNED_HEADERS}
    names = ";".join(sorted(signed_headers))
    canonical = "\n".join(
        (
            method,
            quote(parts.path or "/", safe="/-_.~"),
            _build_query(parts.query),
            *(f"{name}:{signed_headers[name]}" for name in sorted(signed_headers)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        )
    )
    scope = f"{time[:8]}/{region}/{service}/aws4_request"
    text = f"{_ALGORITHM}\n{time}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = _derive_key(credentials.secret_key, time[:8], region, service)
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return date_header | {
        "Authorization": f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, "
        f"Signature={signature}"
    }


def _find_host(parts: SplitResult) -> str:
    is_default_port = parts.port == _DEFAULT_PORTS.get(parts.scheme)
    return parts.netloc.rpartition(":")[0] if is_default_port else parts.netloc


def _build_query(query: str) -> str:
    pairs = [
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in parse_qsl(query, keep_blank_values=True)
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))
