"""Logging: structlog, one event a line, JSON or for people. A field not on the list below is never written.

Events are ``noun_verbed`` constants. Secrets do not get past the allow-list, whatever a caller of ``log`` passes.
"""

import logging
import sys
import time
from collections.abc import MutableMapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TextIO

import orjson
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
_LEVELS = {"exception": "error", "warn": "warning"}


def allow_known(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: fields that are not on the list are dropped, and named."""
    if ALLOWED.issuperset(event):
        return event
    unknown = event.keys() - ALLOWED
    for name in unknown:
        del event[name]
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


class LineWriter:
    """Where a house logger's finished lines go: one ``write`` each, whatever the level.

    Args:
        name: of the logger; structlog's ``add_logger_name`` asks for it.
        stream: they are written there.
    """

    __slots__ = ("_stream", "name")

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name = name
        self._stream = stream

    def info(self, line: str) -> None:
        """Write ``line``. Where that cannot be done, a full disk say, whoever has something to tell goes on."""
        stream = self._stream
        try:
            stream.write(line)
            stream.flush()
        except (OSError, ValueError):  # not ``suppress``: it would be more than the rest of what is done here
            return

    debug = warning = error = critical = info


def write_line(logger: LineWriter, method: str, event: MutableMapping[str, Any]) -> str:
    """A structlog chain in one step: what every line says, nothing that is not allowed, as one JSON object.

    What orjson has no words for is shown as Python does. So is whatever is not ASCII: a path may hold what moves a
    terminal's cursor, or ends a line for those who know more line ends than one.
    """
    event["level"] = _LEVELS.get(method, method)
    event["logger"] = logger.name
    now_us = time.time_ns() // 1_000
    event["timestamp"] = f"{_write_second(now_us // 1_000_000)}.{now_us % 1_000_000:06d}Z"
    if "exc_info" in event:
        structlog.processors.format_exc_info(logger, method, event)
    allow_known(logger, method, event)
    try:
        line = orjson.dumps(event, default=repr, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # a number beyond 64 bits, a lone surrogate
        return _write_escaped(logger, method, event)
    return line.replace(b"\x7f", b"\\u007f").decode() if line.isascii() else _write_escaped(logger, method, event)


@lru_cache(2)
def _write_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:19]


def _write_escaped(logger: LineWriter, method: str, event: MutableMapping[str, Any]) -> str:
    return f"{structlog.processors.JSONRenderer()(logger, method, event)!s}\n".replace("\x7f", "\\u007f")


class _LineLogger(structlog.BoundLoggerBase):
    """A logger for a chain that ends in a line: it makes no copy of an event's fields at every step."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, **event_kw: Any) -> None:
        told: Any = {**self._context, **event_kw} if self._context else event_kw
        told["event"] = event
        try:
            for processor in self._processors:
                told = processor(self._logger, method_name, told)
        except structlog.DropEvent:
            return
        getattr(self._logger, method_name)(told)


def configure_log(style: Literal["console", "json"]) -> None:
    """Set up structlog and the standard library's logging (aiohttp's), to standard error.

    For people all goes over one chain, the library's. In JSON, as it is written where there is much to write, the
    house's own lines do not take the way through the library's records: that costs several times the line.
    """
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if style == "json":
        foreign: list[Processor] = [
            structlog.processors.format_exc_info,
            allow_known,
            structlog.processors.JSONRenderer(),
        ]
        _use([write_line], lines=True)
    else:
        plain = structlog.dev.plain_traceback
        colours = sys.stderr.isatty()
        foreign = [
            allow_known,
            escape_controls,
            structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain, pad_event_to=22),
        ]
        through = structlog.stdlib.ProcessorFormatter.wrap_for_formatter
        _use([structlog.stdlib.filter_by_level, *shared, through], lines=False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(allow=())],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *foreign],
        ),
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    _spare_what_no_line_shows()
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _use(chain: list[Processor], *, lines: bool) -> None:
    """Every logger's chain from now on. In place: one that was used before keeps the very list it began with."""
    processors = structlog.get_config()["processors"]
    processors[:] = chain
    stream, filtering = sys.stderr, structlog.make_filtering_bound_logger(logging.INFO)
    structlog.configure(
        processors=processors,
        wrapper_class=type("LineLogger", (_LineLogger, filtering), {}) if lines else structlog.stdlib.BoundLogger,
        logger_factory=(lambda name: LineWriter(name, stream)) if lines else structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _spare_what_no_line_shows() -> None:
    """Thread, process and source line are not looked for; see Python's logging HOWTO, "Optimization"."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001
