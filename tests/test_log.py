"""The log: one event a line, and nothing in it that is not on the list."""

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from gateway.log import ALLOWED_FIELDS, LineWriter, batch_lines, drop_unknown
from tests.support.table_rows import table_rows

SECRET = "sk-hunter2-hunter2-hunter2"
HEAD = """
import logging, sys
import structlog
from gateway.log import configure_log
configure_log(sys.argv[1])
log = structlog.stdlib.get_logger("gateway.test")
"""


def run(script: str, style: str = "json") -> list[str]:
    """The lines that a process with the gateway's log writes; the log of this process is pytest's."""
    done = subprocess.run([sys.executable, "-c", HEAD + script, style], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def run_json(script: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(script)]


def test_a_line_is_one_object_with_the_fields_that_are_allowed() -> None:
    (line,) = run_json("log.info('request_settled', status=200, model='m\\nx', cost_nanos=5, channel=None)")
    assert {"event", "level", "logger", "timestamp"} < line.keys()
    assert (line["event"], line["level"], line["logger"]) == ("request_settled", "info", "gateway.test")
    assert (line["status"], line["model"], line["cost_nanos"], line["channel"]) == (200, "m\nx", 5, None)
    assert line["timestamp"].endswith("Z")
    assert line.keys() <= ALLOWED_FIELDS


@table_rows("style", ["json", "console"])
def test_a_field_that_is_not_allowed_is_dropped_and_named(style: str) -> None:
    script = f"log.warning('key_shown', secret={SECRET!r}, api_key={SECRET!r}, headers={{'a': {SECRET!r}}}, status=1)"
    (line,) = run(script, style)
    assert "hunter2" not in line
    assert "api_key, headers, secret" in line
    assert "key_shown" in line


@table_rows("style", ["json", "console"])
def test_a_key_in_an_allowed_field_a_message_or_a_trace_is_masked(style: str) -> None:
    script = f"""
log.info('request_served', path='/v1/models/{SECRET}', client_request_id='{SECRET}', code=['{SECRET}'])
try:
    raise ValueError('{SECRET}')
except ValueError:
    log.exception('failed')
    logging.getLogger('aiohttp.server').exception('at /{SECRET}')
"""
    lines = "\n".join(run(script, style))
    assert "hunter2" not in lines
    assert lines.count("[masked]") == 6


@table_rows("style", ["json", "console"])
def test_what_the_standard_library_logs_takes_the_same_way(style: str) -> None:
    script = f"logging.getLogger('aiohttp.server').error('broken %s', 'pipe', extra={{'token': {SECRET!r}}})"
    (line,) = run(script, style)
    assert "hunter2" not in line
    assert "broken pipe" in line
    assert "aiohttp.server" in line


def test_every_line_goes_to_what_standard_error_is_then() -> None:
    """Also those of a logger that has written before."""
    script = """
import io
log.info("first")
true, sys.stderr = sys.stderr, io.StringIO()
log.info("second")
logging.getLogger("asyncio").error("third")
written, sys.stderr = sys.stderr.getvalue(), true
log.info("fourth", bytes=len(written.splitlines()))
"""
    assert [(line["event"], line.get("bytes")) for line in run_json(script)] == [("first", None), ("fourth", 2)]


def test_an_exception_is_on_its_line_whole() -> None:
    script = """
def fail():
    raise ValueError("the reason")
try:
    fail()
except ValueError:
    log.exception("job_failed", job="x")
    logging.getLogger("asyncio").exception("never retrieved")
"""
    for line in run_json(script):
        assert "ValueError: the reason" in line["exception"]
        assert "in fail" in line["exception"]


def test_an_exception_for_people_shows_no_values() -> None:
    script = f"""
def fail(secret):
    raise ValueError("the reason")
try:
    fail({SECRET!r}[:])
except ValueError:
    log.exception("job_failed")
"""
    written = "\n".join(run(script.replace(repr(SECRET), "'-'.join(['sk'] + ['hunter2'] * 3)"), "console"))
    assert "ValueError: the reason" in written
    assert "sk-hunter2" not in written


def test_events_below_info_are_not_written() -> None:
    assert (
        run("log.debug('x'); logging.getLogger('aiosqlite').debug('y'); logging.getLogger('alembic').info('z')") == []
    )


def test_configuring_twice_writes_once() -> None:
    assert len(run("configure_log('json'); log.info('gateway_started'); logging.getLogger('a').warning('b')")) == 2


def test_a_value_that_is_no_json_does_not_lose_the_line() -> None:
    (line,) = run_json("log.info('x', error=ValueError('why'), rows={1, 2}, path=b'\\xff')")
    assert "why" in line["error"]


def test_the_list_holds_no_name_of_a_secret() -> None:
    for word in ("secret", "token", "api_key", "authorization", "headers", "body", "prompt", "password", "digest"):
        assert word not in ALLOWED_FIELDS


def test_unknown_fields_are_dropped_and_named() -> None:
    event: dict[str, object] = {"event": "x", "status": 1, "b": 1, "a": 2}
    drop_unknown(event)
    assert event == {"event": "x", "status": 1, "reason": "fields not on the log's list: a, b"}


def test_known_fields_are_written_unchanged() -> None:
    (line,) = run_json("log.info('x', status=1, model='m')")
    assert (line["status"], line["model"]) == (1, "m")
    assert "reason" not in line


@table_rows("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_line_is_ascii_whatever_it_tells(encoding: str) -> None:
    reported = "caf\\u00e9 \\x9b31m \\u2028 \\u202e \\x7f \\U0001f600"
    script = f"sys.stderr.reconfigure(encoding={encoding!r})\nlog.info('request_served', path='{reported}')"
    (line,) = run(script)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["path"] == "caf\u00e9 \x9b31m \u2028 \u202e \x7f \U0001f600"


def test_auto_is_json_where_standard_error_is_no_terminal() -> None:
    (line,) = run("log.info('request_settled', status=200)", "auto")
    assert json.loads(line)["status"] == 200


def test_auto_is_for_people_on_a_terminal() -> None:
    master, terminal = os.openpty()
    script = HEAD + "log.warning('channel_tripped', channel='up0', error='no route')"
    subprocess.run([sys.executable, "-c", script, "auto"], stderr=terminal, check=True)
    os.close(terminal)
    line = os.read(master, 4096).decode()
    os.close(master)
    plain = re.sub(r"\x1b\[\d+m", "", line)
    assert plain != line, "no colors on a terminal"
    assert re.match(r"\S+Z \[warning \] channel_tripped +\[gateway\.test\] channel=up0 error=no route\r?\n", plain)


def test_a_field_never_begins_a_console_line_of_its_own() -> None:
    (line,) = run("log.info('request_settled', model='m\\n2026 [info    ] forged', path='\\x1b[2J')", "console")
    assert "m\\n2026" in line
    assert "\\x1b[2J" in line


class _Writes(io.StringIO):
    """A stream that keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        self.parts.append(text)
        return len(text)


async def test_the_lines_of_a_turn_are_one_write_and_an_error_or_the_end_waits_for_no_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, writer = _Writes(), LineWriter("test")
    monkeypatch.setattr(sys, "stderr", stream)
    with batch_lines(asyncio.get_running_loop()):
        writer.info("a\n")
        writer.warning("b\n")
        assert stream.parts == []
        await asyncio.sleep(0)
        assert stream.parts == ["a\nb\n"]
        writer.info("c\n")
        writer.error("d\n")
        assert stream.parts[1:] == ["c\nd\n"]
        await asyncio.to_thread(writer.info, "of another thread\n")
        assert stream.parts[2:] == ["of another thread\n"]
        writer.info("e\n")
    assert stream.parts[3:] == ["e\n"]
    writer.info("f\n")
    assert stream.parts[4:] == ["f\n"]
