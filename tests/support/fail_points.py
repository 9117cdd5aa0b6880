"""A gateway that kills itself where a test says, in the middle of what it does with videos.

    python -m tests.support.fail_points POINT,POINT,… serve --data DATA …

A point is a verb, what it is about, and whether it has been done by then: ``create after``, ``advance queued
processing before``, ``finish completed after``, ``write after``. It is reached by the job whose name is that very
point, or begins with it: the ``X-Request-Id`` of its call, with dots for spaces. Whatever reaches one stops there, and
the log says ``held``; the last of the points is where the process ends, by ``kill -9``, once all the others are held.
What holds up everything else can only be the last.

Nothing waits here for a provider as long as elsewhere: see ``AppOptions.task_pace``.
"""

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import orjson

PACE = 0.02


class FailPoints:
    """Where the gateway stops, and where it ends."""

    def __init__(self, points: list[str]) -> None:
        *self._left, self._last = points

    async def reach(self, point: str, name: str) -> None:
        """A job has come to ``point``; returns where that is none of its own."""
        if not name.startswith(point):
            return
        if name == self._last and not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        if name in self._left:
            self._left.remove(name)
            sys.stderr.write(f"{orjson.dumps({'event': 'held', 'point': name}).decode()}\n")
            sys.stderr.flush()
            await asyncio.Event().wait()


Look = Callable[..., list[tuple[str, str]]]
"""Of a call's arguments: what it is about, and the name of the job."""


def surround(owner: type, verb: str, look: Look, points: FailPoints) -> None:
    """Have a method's calls reach their points, before it does anything and when it has done it."""
    method: Callable[..., Awaitable[Any]] = getattr(owner, verb)
    word = verb.partition("_")[0]

    @functools.wraps(method)
    async def surrounded(*args: Any, **kwargs: Any) -> Any:
        found = look(*args, **kwargs)
        for what, name in found:
            await points.reach(f"{word}{what} before", name)
        result = await method(*args, **kwargs)
        for what, name in found or _look_at_claimed(result):
            await points.reach(f"{word}{what} after", name)
        return result

    setattr(owner, verb, surrounded)


def _look_at_claimed(result: Any) -> list[tuple[str, str]]:
    """The jobs that were claimed; nobody knows of them before."""
    return [(f" {job.state}", read_name(job)) for job in result] if isinstance(result, list) else []


def read_name(job: Any) -> str:
    """A job's."""
    return (job.receipt.client_request_id or "").replace(".", " ")


_fetched: ContextVar[str] = ContextVar("fetched", default="")
"""Whose file it is that is being written."""


def place(points: FailPoints) -> None:
    """Put every point where it belongs."""
    from gateway.storage.file_draft import FileDraft  # noqa: PLC0415
    from gateway.storage.videos import VideoRepository  # noqa: PLC0415
    from gateway.storage.webhook_deliveries import WebhookDeliveryRepository  # noqa: PLC0415
    from gateway.videos.content import VideoContent  # noqa: PLC0415 - nothing of this before it is known what is served
    from gateway.videos.webhook_sender import WebhookSender  # noqa: PLC0415

    surround(VideoRepository, "create", lambda _, job, *_rest: [("", read_name(job))], points)
    surround(
        VideoRepository, "advance", lambda _, pairs: [(f" {a.state} {b.state}", read_name(b)) for a, b in pairs], points
    )
    surround(VideoRepository, "finish", lambda _, job, *_rest: [(f" {job.state}", read_name(job))], points)
    surround(VideoRepository, "drop", lambda _, job, _row: [("", read_name(job))], points)
    surround(VideoRepository, "claim_due", lambda *_: [], points)
    surround(VideoContent, "fetch", lambda _, _way, job: _remember(read_name(job)), points)
    surround(FileDraft, "write", lambda *_: [("", _fetched.get())], points)
    surround(FileDraft, "keep", lambda *_: [("", _fetched.get())], points)
    surround(WebhookSender, "send", lambda _, delivery: [("", _read_hook(delivery))], points)
    surround(WebhookDeliveryRepository, "note_delivery", lambda _, delivery: [("", _read_hook(delivery))], points)


def _remember(name: str) -> list[tuple[str, str]]:
    _fetched.set(name)
    return []


def _read_hook(delivery: Any) -> str:
    """Whose end it tells of: a test's hooks have it in their addresses."""
    return str(delivery.url).rpartition("/")[2].replace("-", " ")


def run(points: list[str], serve: list[str]) -> None:
    """The command ``gateway serve …``."""
    from gateway import options  # noqa: PLC0415

    options.AppOptions = partial(options.AppOptions, task_pace=PACE)  # type: ignore[misc, assignment]
    if points:
        place(FailPoints(points))

    from gateway.cli.main import main  # noqa: PLC0415

    main(serve)


if __name__ == "__main__":
    run([point for point in sys.argv[1].split(",") if point], sys.argv[2:])
