"""Logging: structlog, one event a line, JSON or for people. A field not on the list below is never written.

Events are ``noun_verbed`` constants. Secrets do not get past the allow-list, whatever a caller of ``log`` passes.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog
from structlog.typing import Processor

ALLOWED = frozenset(
    {
        "account", "address", "attempts", "bytes", "came", "channel", "channels", "client_request_id", "code",
        "cooldown_s", "cost_nanos", "delivery_id", "ending", "error", "event", "exc_info", "exception", "failures",
        "files", "first_byte_ms", "interrupted", "job", "key", "level", "logger", "member", "method", "model", "models",
        "operation", "overrun_nanos", "path", "pid", "reason", "request_id", "restart_after_s", "rows", "running",
        "schema", "signal", "status", "timestamp", "tokens", "total_ms", "url", "usage_source", "version", "video_id",
        "went",
    },
)  # fmt: skip
"""Every field a log line may carry."""

_LAYOUT = "\n\t"


def allow_known(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: fields that are not on the list are dropped, and named."""
    unknown = event.keys() - ALLOWED
    for name in unknown:
        del event[name]
    if unknown:
        event["reason"] = f"fields not on the log's list: {', '.join(sorted(unknown))}"
    return event


def escape_controls(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor for a terminal: what a caller wrote must not move its cursor."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = "".join(
                char if char.isprintable() or char in _LAYOUT else ascii(char)[1:-1] for char in value
            )
    return event


def configure_log(style: Literal["console", "json"]) -> None:
    """Set up structlog and the standard library's logging (aiohttp's) over one chain, to standard error."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(allow=()),
    ]
    if style == "json":
        last: list[Processor] = [structlog.processors.format_exc_info, allow_known, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        colours = sys.stderr.isatty()
        last = [
            allow_known,
            escape_controls,
            structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain, pad_event_to=22),
        ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        ),
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    _spare_what_no_line_shows()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    _use(
        [
            structlog.stdlib.filter_by_level,
            *shared[:3],
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
    )


def _use(chain: list[Processor]) -> None:
    """Every logger's chain from now on. In place: one that was used before keeps the very list it began with."""
    processors = structlog.get_config()["processors"]
    processors[:] = chain
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _spare_what_no_line_shows() -> None:
    """Thread, process and source line are not looked for; see Python's logging HOWTO, "Optimization"."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001
