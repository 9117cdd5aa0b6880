"""The check of a database on a PostgreSQL server."""

import asyncio
from collections.abc import Iterator

from gateway.doctor.finding import Finding
from gateway.storage.schema import REVISION


def check_server(url: str) -> Iterator[Finding]:
    """Check that the server answers and which schema its database has; a gateway may use it meanwhile."""
    try:
        # Its driver is an extra: without it the settings have a problem already.
        from gateway.storage.postgres.address import describe_url, find_schema  # noqa: PLC0415
    except ModuleNotFoundError:
        yield Finding("database", "skipped", "PostgreSQL was not asked: the extra postgres is not installed")
        return
    name = describe_url(url)
    schema = asyncio.run(find_schema(url))
    if isinstance(schema, Exception):
        fix = "Start the server, or correct store.url"
        yield Finding("database", "problem", f"The database {name} cannot be used: {schema}", fix)
    elif schema > REVISION:
        fix = "Install the version that has upgraded it"
        yield Finding("database", "problem", f"The database {name} is of a newer version: schema {schema}", fix)
    else:
        found = f"schema {schema}" if schema else "empty"
        yield Finding("database", "ok", f"The database {name} answers ({found}); files of a server are not checked")
