"""Structured logging: one event per line, as JSON or for a console.

Event names are ``noun_verbed`` constants. Only the fields in ``ALLOWED_FIELDS`` are written: others might be secrets.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, TextIO

import orjson
import structlog

from gateway.wording import mask_keys

ALLOWED_FIELDS = frozenset(
    {
        "account", "address", "attempts", "bytes", "came", "channel", "channels", "client_request_id", "code",
        "cooldown_s", "cost_nanos", "delivery_id", "outcome", "error", "event", "exc_info", "exception", "failures",
        "files", "first_byte_ms", "interrupted", "job", "key", "level", "logger", "member", "method", "model",
        "models", "node", "operation", "overrun_nanos", "path", "pid", "provider", "reason", "request_id",
        "response_id", "restart_after_s", "rows", "running", "schema", "signal", "span_id", "status", "timestamp",
        "tokens", "total_ms", "trace_id", "url", "usage_source", "version", "video_id", "went",
    },
)  # fmt: skip
"""Every field a log line may carry."""

MASKED = "masked"
LogFormat = Literal["auto", "console", "json"]
_LAYOUT = "\n\t"
_LEVELS = {"exception": "error", "warn": "warning"}
_TINTS = {"debug": "\x1b[32m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
"""ANSI color of each level of the gateway's own events."""


def drop_unknown(event: MutableMapping[str, Any]) -> None:
    """Remove the fields that are not in ``ALLOWED_FIELDS`` and name them in ``reason``; call only if there are any."""
    unknown = event.keys() - ALLOWED_FIELDS
    for name in unknown:
        del event[name]
    event["reason"] = f"fields not on the log's list: {', '.join(sorted(unknown))}"


def _escape(value: str, keep: str = _LAYOUT) -> str:
    """Return ``value`` with unprintable characters, except those in ``keep``, as Python escapes."""
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in value)


class LineBatch:
    """The lines of one turn of the event loop. One ``write`` writes them all in the loop's next turn.

    ``thread`` is the thread of ``loop``; the lines of other threads are not collected.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self.lines: list[str] = []

    def write(self) -> None:
        """Write the collected lines; an error, such as a full disk, is ignored."""
        if not self.lines:  # an error has had them written
            return
        text = "".join(self.lines)
        self.lines.clear()
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


class LineWriter:
    """Writes the gateway's finished log lines to standard error.

    A line is written at once, or together with the others of its turn of the event loop (``batch_lines``). An error is
    always written at once: the process may be about to end. ``sys.stderr`` is looked up for every line: loggers are
    cached, and a test may replace the stream.

    ``name`` is the logger's name. ``masking`` is ``MASKED`` if the code that logs has already masked the API keys in
    all fields.
    """

    __slots__ = ("_masks_keys", "name")
    batch: ClassVar[LineBatch | None] = None

    def __init__(self, name: str, masking: str = "") -> None:
        self.name = name
        self._masks_keys = masking != MASKED

    def info(self, line: str) -> None:
        """Write ``line``, at once or with others; an error, such as a full disk, is ignored."""
        if self._masks_keys:
            line = mask_keys(line)
        batch = LineWriter.batch
        if batch is not None and batch.thread == threading.get_ident():
            batch.lines.append(line)
            if len(batch.lines) == 1:
                batch.loop.call_soon(batch.write)
            return
        stream = sys.stderr
        try:
            stream.write(line)
            stream.flush()
        except (OSError, ValueError):  # not ``suppress``: it costs more than the rest of this method
            return

    debug = warning = info

    def error(self, line: str) -> None:
        """Write ``line`` now, after the collected lines of this thread."""
        self.info(line)
        if LineWriter.batch is not None and LineWriter.batch.thread == threading.get_ident():
            LineWriter.batch.write()

    critical = error


@contextmanager
def batch_lines(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Write the lines of one turn of ``loop`` together, until the end of the block. Call in the loop's thread."""
    LineWriter.batch = batch = LineBatch(loop)
    try:
        yield
    finally:
        LineWriter.batch = None
        batch.write()


WriteLine = Callable[[LineWriter, str, MutableMapping[str, Any]], str]


def write_line(logger: LineWriter, method: str, event: MutableMapping[str, Any]) -> str:
    """Render ``event`` as one line of JSON. This single step replaces structlog's whole processor chain.

    Fields outside ``ALLOWED_FIELDS`` are removed. Values that orjson cannot serialize are written as their ``repr``.
    Characters that are not ASCII are escaped: a path may contain terminal control characters or a Unicode line
    separator.
    """
    event["level"] = _LEVELS.get(method, method)
    event["logger"] = logger.name
    now_us = time.time_ns() // 1_000
    event["timestamp"] = f"{_write_second(now_us // 1_000_000)}.{now_us % 1_000_000:06d}Z"
    if "exc_info" in event:
        structlog.processors.format_exc_info(logger, method, event)
    if not ALLOWED_FIELDS.issuperset(event):
        drop_unknown(event)
    try:
        line = orjson.dumps(event, default=repr, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # a number beyond 64 bits, a lone surrogate
        return _write_escaped(logger, method, event)
    return line.replace(b"\x7f", b"\\u007f").decode() if line.isascii() else _write_escaped(logger, method, event)


class ConsoleRenderer:
    """Renders an event like structlog's ``ConsoleRenderer``, which takes six times as long per line."""

    def __init__(self, *, colors: bool) -> None:
        dim, bold, reset = ("\x1b[2m", "\x1b[1m", "\x1b[0m") if colors else ("", "", "")
        tints = _TINTS if colors else {}
        self._levels = {level: f"[{tints.get(level, '')}{level:<8}{reset}]" for level in _TINTS}
        self._time = dim, reset
        self._event = bold, reset
        self._logger = f"[{bold}", f"{reset}]"
        self._value = ("\x1b[36m", f"{reset}=\x1b[35m", reset) if colors else ("", "=", "")

    def __call__(self, logger: LineWriter, method: str, event: MutableMapping[str, Any]) -> str:
        now_us = time.time_ns() // 1_000
        if "exc_info" in event:
            structlog.processors.format_exc_info(logger, method, event)
        if not ALLOWED_FIELDS.issuperset(event):
            drop_unknown(event)
        name, trace = event.pop("event"), event.pop("exception", None)
        prefix, separator, suffix = self._value
        fields = "".join(
            [f" {prefix}{field}{separator}{_show(value)}{suffix}" for field, value in sorted(event.items())]
        )
        (dim, end), (bold, reset), (opens, closes) = self._time, self._event, self._logger
        time_text = f"{dim}{_write_second(now_us // 1_000_000)}.{now_us % 1_000_000:06d}Z{end}"
        level = self._levels[_LEVELS.get(method, method)]
        line = f"{time_text} {level} {bold}{_show(name):<22}{reset} {opens}{logger.name}{closes}{fields}\n"
        return line if trace is None else f"{line}{_escape(trace)}\n"


def _show(value: object) -> str:
    """Return a field's value on one line: a text itself, the ``repr`` of others; unprintable characters escaped."""
    text = value if isinstance(value, str) else repr(value)
    return text if text.isprintable() else _escape(text, keep="")


@lru_cache(2)
def _write_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:19]


def _write_escaped(logger: LineWriter, method: str, event: MutableMapping[str, Any]) -> str:
    return f"{structlog.processors.JSONRenderer()(logger, method, event)!s}\n".replace("\x7f", "\\u007f")


def add_processor(processor: structlog.typing.Processor) -> Callable[[], None]:
    """Pass every event from now on to ``processor`` before all others. Return a function that removes it again."""
    processors = structlog.get_config()["processors"]
    processors.insert(0, processor)
    return partial(processors.remove, processor)


class _LineLogger(structlog.BoundLoggerBase):
    """A bound logger that does not copy an event's fields at every step of the chain."""

    def info(self, event: str, **fields: Any) -> None:
        """Log ``event``. structlog's own method would call two functions and copy the fields of each request."""
        self._write("info", event, fields)

    def _proxy_to_logger(self, method_name: str, event: str | None = None, **event_kw: Any) -> None:
        self._write(method_name, event, event_kw)

    def _write(self, method: str, event: str | None, fields: Any) -> None:
        if self._context:
            fields = {**self._context, **fields}
        fields["event"] = event
        try:
            for processor in self._processors:
                fields = processor(self._logger, method, fields)
        except structlog.DropEvent:
            return
        getattr(self._logger, method)(fields)


def configure_log(style: LogFormat, level: int = logging.INFO) -> None:
    """Set up structlog and the standard library's logging (used by aiohttp) to write to standard error.

    The ``style`` "auto" is "console" if standard error is a terminal, and otherwise "json". ``level`` is the lowest
    level that is written; for libraries it is at least "info".
    """
    colors = sys.stderr.isatty()
    write = write_line if style == "json" or (style == "auto" and not colors) else ConsoleRenderer(colors=colors)
    _set_processors(write, level)
    handler = _LibraryHandler()
    handler.setFormatter(_LibraryFormatter(write))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))
    _skip_unused_record_fields()
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _drop_below(
    level: int, _logger: LineWriter, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Drop events below ``level``; a structlog processor.

    Raises ``DropEvent`` to drop one. The filter is a processor, because cached loggers would keep an earlier level.
    """
    if logging.getLevelNamesMapping()[_LEVELS.get(method, method).upper()] < level:
        raise structlog.DropEvent
    return event


class _LibraryHandler(logging.StreamHandler[TextIO]):
    """Writes records of the standard library's logging to the current ``sys.stderr``."""

    terminator = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _LibraryFormatter(logging.Formatter):
    """Formats a record of the standard library's logging like the gateway's own events."""

    def __init__(self, write: WriteLine) -> None:
        super().__init__()
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {"event": record.getMessage()}
        if record.exc_info:
            event["exc_info"] = record.exc_info
        return mask_keys(self._write(LineWriter(record.name), record.levelname.lower(), event))


def _set_processors(write: WriteLine, level: int) -> None:
    """Replace every logger's processors, in place: a logger used before keeps a reference to the list."""
    processors = structlog.get_config()["processors"]
    processors[:] = [write] if level <= logging.INFO else [partial(_drop_below, level), write]
    filtering_class = structlog.make_filtering_bound_logger(min(level, logging.INFO))
    structlog.configure(
        processors=processors,
        wrapper_class=type("LineLogger", (_LineLogger, filtering_class), {}),
        logger_factory=LineWriter,
        cache_logger_on_first_use=True,
    )


def _skip_unused_record_fields() -> None:
    """Keep ``logging`` from looking up thread, process and source line; see Python's logging HOWTO, "Optimization"."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001
