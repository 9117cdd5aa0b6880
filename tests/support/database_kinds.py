"""Which kinds of database a test of storage runs on: every kind, if it has no mark."""

import pytest

KINDS = ("sqlite", "postgresql")
SQLITE_ONLY = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
POSTGRES_ONLY = pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
