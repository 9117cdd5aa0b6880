"""What every table of the schema is made with."""

from sqlalchemy import BigInteger, Integer, MetaData

metadata = MetaData()

BIG = BigInteger().with_variant(Integer, "sqlite")
"""Of an id: SQLite counts rows only in a column called INTEGER."""

INT = Integer().with_variant(BigInteger, "postgresql")
"""Of a number: SQLite's INTEGER has 64 bits, and PostgreSQL's would have 32."""
