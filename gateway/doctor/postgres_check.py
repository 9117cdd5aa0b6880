"""The check of a database on a PostgreSQL server."""

import asyncio
from collections.abc import Iterator, Sequence

from gateway.doctor.finding import Finding
from gateway.storage.schema import REVISION


def check_server(url: str) -> Iterator[Finding]:
    """Check that the server answers, and that its database is neither of a newer version nor half upgraded.

    If the database has this version's schema, also check that the live nodes have the same configuration. A gateway may
    be running.
    """
    try:
        # The driver is an extra. Without it the settings already have a problem.
        from gateway.storage.postgres.address import describe_url, find_configurations, find_schema, find_unfinished  # noqa: PLC0415
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
    elif asyncio.run(find_unfinished(url)):
        fix = "Wait for the node that upgrades it. If there is none, start a node of this version"
        yield Finding("database", "warning", f"The upgrade of the database {name} is unfinished: schema {schema}", fix)
    else:
        content = f"schema {schema}" if schema else "empty"
        yield Finding("database", "ok", f"The database {name} answers ({content}); files of a server are not checked")
    if schema == REVISION:
        yield from _compare_nodes(asyncio.run(find_configurations(url)))


def _compare_nodes(nodes: Sequence[tuple[str, str]] | Exception) -> Iterator[Finding]:
    """Check that live nodes have the same configuration. Yield nothing for a database without nodes."""
    if isinstance(nodes, Exception) or not nodes:
        return
    digest_count = len({digest for _, digest in nodes})
    if digest_count == 1:
        yield Finding("nodes", "ok", f"{len(nodes)} live nodes have one configuration")
    else:
        fix = "Give every node the same file and environment, then: gateway reload at each"
        yield Finding("nodes", "warning", f"{len(nodes)} live nodes have {digest_count} different configurations", fix)
