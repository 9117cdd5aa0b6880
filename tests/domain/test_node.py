"""What is read of other nodes' rows, which may hold anything that the database takes."""

from gateway.domain.node import parse_process
from tests.support.table_rows import table_rows


@table_rows(
    ("owner", "parsed"),
    [
        ("0123456789abcdef:7", ("0123456789abcdef", 7)), ("a:b:7", ("a:b", 7)), ("a:b", None), (":7", None), ("", None),
        ("a:", None), ("a:-1", None), ("a:²", None),
    ],
)  # fmt: skip
def test_an_owner_is_a_node_and_its_epoch(owner: str, parsed: tuple[str, int] | None) -> None:
    assert parse_process(owner) == parsed
