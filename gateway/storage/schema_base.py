"""What all tables of the schema share: the metadata and the types of columns."""

from sqlalchemy import BigInteger, Integer, MetaData

metadata = MetaData()

BIG_INTEGER = BigInteger().with_variant(Integer, "sqlite")
"""The type of ids: SQLite assigns row ids only in a column of type INTEGER."""

INT = Integer().with_variant(BigInteger, "postgresql")
"""The type of numbers: INTEGER has 64 bits in SQLite, but only 32 in PostgreSQL."""
