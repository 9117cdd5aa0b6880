"""The part of the roof from which the process is watched: what is under way, and how it is doing."""

from pathlib import Path

from aiohttp import web

from gateway.books import Books
from gateway.flow.vitals import Folder, Lag, Organs, Vitals
from gateway.jobs.check_store import CheckStore
from gateway.jobs.measure_lag import MeasureLag
from gateway.jobs.runner import JobRunner
from gateway.web.admin.health import VITALS
from gateway.web.admin.live import LIVE, LiveView
from gateway.web.keys import ROOMS


def open_ward(app: web.Application, books: Books, folder: Path, jobs: JobRunner) -> None:
    """Watch what has been built; ``folder`` is the data folder."""
    rooms, lag = app[ROOMS], Lag()
    organs = Organs(
        lag=lag,
        running=rooms.running,
        switchboard=rooms.switchboard,
        database=books.database,
        check_writable=books.check_writable,
        outbox=books.outbox,
        journal=books.journal,
        journal_path=folder / "requests.journal",
        media=Folder(folder / "media"),
        footage=Folder(folder / "videos"),
        videos=rooms.videos,
    )
    app[VITALS] = Vitals(organs, rooms.clock)
    app[LIVE] = LiveView(rooms.running)
    jobs.start("check_store", CheckStore(books.database).run)
    jobs.start("measure_lag", MeasureLag(lag).run)
