"""The gateway version that a schema needs, recorded in the database for versions older than the schema.

A migration writes the program's version into SQLite's ``user_version``, an integer in the file's header; PostgreSQL
stores it as the comment of a table.
"""

from collections.abc import Mapping

from gateway import __version__
from gateway.storage.schema import REVISION

RELEASES: Mapping[str, str] = {"0.6": "0006", "0.7": "0006", "0.8": "0023", "0.9": "0027"}
"""The schema of each older release that can be upgraded from, or downgraded to, oldest first.

``REVISION`` is this release's.
"""
_UPGRADES_OLDER = "0.8.0"
"""The last release with the migrations of schemas older than those of ``RELEASES``."""
_FACTOR = 1000
"""Base of the encoding: version 1.2.3 is 1_002_003."""


def write_user_version(version: str = __version__, dialect: str = "sqlite") -> str:
    """Return the statement that records ``version`` as the version needed by the schema."""
    major, minor, patch = (int(component) for component in (*version.split("."), "0", "0")[:3])
    number = (major * _FACTOR + minor) * _FACTOR + patch
    return (
        f"PRAGMA user_version = {number}" if dialect == "sqlite" else f"COMMENT ON TABLE alembic_version IS '{number}'"
    )


def read_user_version(dialect: str) -> str:
    """Return the statement that reads the value recorded by ``write_user_version``."""
    if dialect == "sqlite":
        return "PRAGMA user_version"
    return "SELECT obj_description('alembic_version'::regclass)"


def parse_user_version(number: int) -> str:
    """Return the version that a database records; empty if it records none."""
    major, minor, patch = number // _FACTOR**2, number // _FACTOR % _FACTOR, number % _FACTOR
    return f"{major}.{minor}.{patch}" if number > 0 else ""


def describe_newer(schema: str, version: str, dialect: str = "sqlite") -> str:
    """Describe a database too new for this version, and a remedy; ``version`` is empty if unknown."""
    needed_version = f"version {version} or newer" if version else "the version that wrote it"
    description = (
        f"of a newer version of the gateway: it has schema {schema}, and this one, {__version__}, knows {REVISION}. "
        f"Install {needed_version}"
    )
    if dialect != "sqlite":  # a database on a server is never taken back
        return description
    return f"{description}; that one can take the database back (gateway downgrade {__version__})"


def describe_older(schema: str) -> str:
    """Return the rest of a sentence "The database is …": too old for this version's migrations, and the remedy."""
    return (
        f"of a version before {next(iter(RELEASES))}: it has schema {schema}. "
        f"Install version {_UPGRADES_OLDER}, start it once, and then install {__version__}"
    )
