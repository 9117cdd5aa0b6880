"""The location in ``store.media_url`` or ``store.bodies_url``: the data folder, another folder, or an S3 bucket."""

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from gateway.frozen import frozen

_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}\Z")
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+/?\Z")
_OPTIONS = frozenset({"endpoint", "region", "style"})
_STYLES = frozenset({"path", "virtual"})


@frozen
class BucketAddress:
    """A bucket, and the prefix of the gateway's objects in it.

    ``endpoint`` is the URL of the store. An empty endpoint, region or key is looked up in the environment. Without an
    endpoint there, the store is AWS. ``virtual`` says whether the bucket's name is part of the host name instead of
    the path.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    access_key: str = attrs.field(default="", repr=False)
    secret_key: str = attrs.field(default="", repr=False)
    virtual: bool = False

    def describe(self) -> str:
        """Return the address without credentials."""
        at_endpoint = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}{'/' if self.prefix else ''}{self.prefix}{at_endpoint}"


MediaLocation = Path | BucketAddress | None
"""Where media or kept bodies are stored: a folder, a bucket, or None for the data folder."""


def parse_location(url: str) -> MediaLocation:
    """Parse ``store.media_url`` or ``store.bodies_url``; return None if it is empty. Raises ``ValueError``."""
    if not url:
        return None
    if url.startswith("s3://"):
        return parse_bucket(url)
    path = url
    if url.startswith("file://"):
        url_parts = urlsplit(url)
        if url_parts.netloc not in {"", "localhost"} or url_parts.query or url_parts.fragment:
            raise ValueError(url)
        path = unquote(url_parts.path)
    if not path.startswith("/") or "\0" in path:
        raise ValueError(url)
    return Path(path)


def is_location(url: str) -> bool:
    """Return whether ``parse_location`` accepts the text."""
    try:
        parse_location(url)
    except ValueError:
        return False
    return True


def parse_bucket(url: str) -> BucketAddress:
    """Parse ``s3://access_key:secret_key@bucket/prefix?endpoint=…``; only the bucket is required.

    Raises ``ValueError``.
    """
    url_parts = urlsplit(url)
    credentials, _, bucket = url_parts.netloc.rpartition("@")
    access_key, colon, secret_key = credentials.partition(":")
    options = dict(parse_qsl(url_parts.query, keep_blank_values=True, strict_parsing=bool(url_parts.query)))
    endpoint, style = options.get("endpoint", ""), options.get("style", "path")
    segments = unquote(url_parts.path).strip("/")
    if (
        not _BUCKET_NAME.match(bucket)
        or bool(credentials) != bool(access_key and colon and secret_key)
        or not options.keys() <= _OPTIONS
        or not (not endpoint or _ENDPOINT.match(endpoint))
        or style not in _STYLES
        or url_parts.fragment
        or not segments.isprintable()
        or {"", ".", ".."} & set(segments.split("/") if segments else ())
    ):
        raise ValueError("not the URL of a bucket")
    return BucketAddress(
        bucket,
        segments,
        endpoint.rstrip("/"),
        options.get("region", ""),
        unquote(access_key),
        unquote(secret_key),
        virtual=style == "virtual",
    )
