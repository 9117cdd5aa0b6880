"""Open a database by its URL. Only the driver of its kind is imported."""

from gateway.storage.database import Database


async def open_database(url: str) -> Database:
    """Open ``url`` (``sqlite:///path``, ``postgresql://...``) and upgrade it. Raises ``DatabaseStartupError``."""
    # ruff: noqa: PLC0415 - see above
    if is_postgres(url):
        from gateway.storage.postgres.database import open_postgres

        return await open_postgres(url)
    from gateway.storage.sqlite_database import open_sqlite

    return await open_sqlite(url)


def is_postgres(url: str) -> bool:
    """Return whether a database URL names a PostgreSQL server."""
    return url.startswith("postgresql://")
