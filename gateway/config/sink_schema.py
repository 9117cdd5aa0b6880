"""``[[sink]]``: where the rows of requests are delivered, and kept bodies with them."""

from collections.abc import Iterator
from typing import Literal

import attrs

from gateway.config.alert_schema import NAME, is_url
from gateway.deferred import load
from gateway.frozen import frozen
from gateway.parsing import about, must

SinkKind = Literal["otlp", "langfuse", "webhook", "bucket"]
SinkFields = Literal["metadata", "full"]


@frozen
class SinkFilter:
    """``filter`` of a ``[[sink]]``: a request is delivered if it matches every list that is not empty."""

    accounts: tuple[str, ...] = attrs.field(default=(), metadata=about("names of accounts"))
    models: tuple[str, ...] = attrs.field(default=(), metadata=about('models or globs, such as ["gpt-*"]'))
    routes: tuple[str, ...] = attrs.field(default=(), metadata=about("names of routes"))
    tags: tuple[str, ...] = attrs.field(
        default=(), metadata=about('requests with any of these tags, such as ["team=web"]')
    )
    only_errors: bool = attrs.field(default=False, metadata=about("only requests that failed or were refused"))


@frozen
class SinkSpec:
    """``[[sink]]``: a receiver of the rows of requests."""

    name: str = attrs.field(metadata=about("name shown in the log, in metrics and by `gateway sinks`", NAME))
    kind: SinkKind = attrs.field(
        metadata=about(
            '"otlp": OpenTelemetry over HTTP; "langfuse"; "webhook": signed JSON; "bucket": JSON Lines files in an '
            "S3-compatible bucket (needs pip install '.[s3]')"
        )
    )
    url: str = attrs.field(
        metadata=about(
            "otlp: the full address, ending in /v1/traces (spans) or /v1/logs (events); langfuse: its address; "
            "webhook: https://…; bucket: s3://…, as for store.media_url",
            must("a URL such as https://…", is_url),
        ),
        repr=False,
    )
    secret: str = attrs.field(
        default="",
        metadata=about(
            'otlp: a header, such as "Authorization=Bearer …"; langfuse: "public key:secret key"; webhook: its '
            "signing secret; bucket: none"
        ),
        repr=False,
    )
    fields: SinkFields = attrs.field(
        default="metadata", metadata=about('"metadata": only the request records; "full": also the kept bodies')
    )
    filter: SinkFilter = attrs.Factory(SinkFilter)

    def find_problems(self) -> Iterator[tuple[str, str]]:
        yield from load("config.sink_checks:find_sink_problems")(self)
