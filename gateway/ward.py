"""The part of the roof from which the process is watched: what is under way, and how it is doing."""

from pathlib import Path

from aiohttp import web

from gateway.background import JobRunner
from gateway.books import Books
from gateway.monitoring import EventLoopLag, FolderUsage, LoopLagMeter, MonitoredParts, ProcessMonitor
from gateway.server.admin.active_requests import LIVE, ActiveRequestsFeed
from gateway.server.admin.health import VITALS
from gateway.server.context import ROOMS
from gateway.storage.integrity_worker import IntegrityWorker


def open_ward(app: web.Application, books: Books, folder: Path, jobs: JobRunner) -> None:
    """Watch what has been built; ``folder`` is the data folder."""
    rooms, lag = app[ROOMS], EventLoopLag()
    organs = MonitoredParts(
        lag=lag,
        running=rooms.running,
        load_balancer=rooms.switchboard,
        database=books.database,
        check_writable=books.check_writable,
        outbox=books.outbox,
        journal=books.journal,
        journal_path=folder / "requests.journal",
        media=FolderUsage(folder / "media"),
        video_content=FolderUsage(folder / "videos"),
        videos=rooms.videos,
    )
    app[VITALS] = ProcessMonitor(organs, rooms.clock)
    app[LIVE] = ActiveRequestsFeed(rooms.running)
    jobs.start("check_store", IntegrityWorker(books.database).run)
    jobs.start("measure_lag", LoopLagMeter(lag).run)
