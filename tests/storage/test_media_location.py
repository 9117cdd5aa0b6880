"""The setting ``store.media_url``."""

from pathlib import Path

from gateway.storage.media_location import BucketAddress, is_location, parse_location
from tests.support.table_rows import table_rows


@table_rows(
    ("url", "location"),
    [
        ("", None),
        ("/mnt/gateway", Path("/mnt/gateway")),
        ("file:///mnt/our%20gateway", Path("/mnt/our gateway")),
        ("s3://bucket", BucketAddress("bucket")),
        ("s3://b-1.x/a/b/", BucketAddress("b-1.x", "a/b")),
        ("s3://bucket?region=eu-1", BucketAddress("bucket", region="eu-1")),
        (
            "s3://key:a%2Fb@bucket/p?endpoint=https://host:9000/&style=virtual",
            BucketAddress("bucket", "p", "https://host:9000", "", "key", "a/b", virtual=True),
        ),
        ("s3://bucket?endpoint=http%3A%2F%2F%5B::1%5D:9000", BucketAddress("bucket", endpoint="http://[::1]:9000")),
    ],
)
def test_a_location_is_read(url: str, location: object) -> None:
    assert parse_location(url) == location


@table_rows(
    "url",
    [
        "media", "./media", "file://media/x", "file:///x?y", "http://host/bucket", "s3:/bucket", "s3://", "s3:///p",
        "s3://bucket/../x", "s3://bucket/a//b", "s3://key@bucket", "s3://key:@bucket", "s3://:secret@bucket",
        "s3://bucket?endpoint=host:9000", "s3://bucket?endpoint=https://host/path", "s3://bucket?endpoint=https://u@host",
        "s3://bucket?regions=x", "s3://bucket?style=other", "s3://bucket?region", "s3://bucket#x", "/mnt/\0", "s3://[x/y",
    ],
)  # fmt: skip
def test_what_is_no_location_is_refused(url: str) -> None:
    assert not is_location(url)


def test_a_description_has_no_credentials() -> None:
    location = parse_location("s3://key:secret@bucket/p?endpoint=https://host")
    assert isinstance(location, BucketAddress)
    assert location.describe() == "s3://bucket/p at https://host"
    assert "key" not in repr(location)
    assert "secret" not in repr(location)
