"""``[bodies]``: how the bodies of requests are kept; ``requests.keep_bodies`` says for which requests."""

import attrs

from gateway.deferred import defer_function
from gateway.domain.keep_rule import DEFAULT_REDACTED, BodyBounds, RedactedKind
from gateway.frozen import frozen
from gateway.parsing import about, between, must

_are_patterns = defer_function("formats.redaction.own_patterns:are_patterns")
_are_paths = defer_function("formats.redaction.left_out:are_paths")
_PATTERN_FORM = (
    r"patterns such as 'staff=EMP-\d{6}': bounded repetitions, no references, no look-around, 500 ways to match"
)
_PATH_FORM = "at most 100 paths of names with dots, such as 'metadata.patient' or 'messages.*.name'"
_DAY_MS = 24 * 3_600 * 1000


@frozen
class BodiesSection:
    """``[bodies]``: how long, how many and how large bodies of requests are kept, and what is replaced in them."""

    keep_days: int = attrs.field(default=7, metadata=about("days to keep bodies", between(1, 3_650)))
    max_gb: int = attrs.field(
        default=10, metadata=about("disk space for bodies; the oldest are deleted first", between(1, 100_000))
    )
    max_kb: int = attrs.field(
        default=256,
        metadata=about(
            "largest body to keep in full; of larger bodies, only the beginning and the end are kept",
            between(1, 16_384),
        ),
    )
    redact: tuple[RedactedKind, ...] = attrs.field(
        default=DEFAULT_REDACTED,
        metadata=about('what to redact before a body is kept; "phones" and "ips" can be added'),
    )
    patterns: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about("additional patterns to redact, such as 'staff=EMP-\\d{6}'", must(_PATTERN_FORM, _are_patterns)),
    )
    leave_out: tuple[str, ...] = attrs.field(
        default=(),
        metadata=about(
            "JSON fields to leave out, such as 'metadata.patient', 'messages.*.name'", must(_PATH_FORM, _are_paths)
        ),
    )
    media: bool = attrs.field(
        default=False,
        metadata=about("keep the images and audio in JSON, rather than only their type, size and SHA-256"),
    )

    def bounds(self) -> BodyBounds:
        return BodyBounds(self.max_gb * 1024**3, self.keep_days * _DAY_MS, self.max_kb * 1024)
