"""Opens a database by its URL. Only the driver of its kind is imported."""

from pathlib import Path

from gateway.storage.database import Database


async def open_database(url: str, timeline: Path | None = None) -> Database:
    """Open ``url`` (``sqlite:///path``, ``postgresql://...``) and upgrade it. Raises ``DatabaseStartupError``.

    ``timeline`` is the file that keeps the newest timeline of a PostgreSQL server.
    """
    # ruff: noqa: PLC0415 - see above
    if is_postgres(url):
        from gateway.storage.postgres.database import open_postgres
        from gateway.storage.postgres.timeline import NewestTimeline

        return await open_postgres(url, NewestTimeline(timeline))
    from gateway.storage.sqlite_database import open_sqlite

    return await open_sqlite(url)


def is_postgres(url: str) -> bool:
    """Return whether a database URL names a PostgreSQL server."""
    return url.startswith("postgresql://")
