"""Amounts, counts and durations as people read them."""

from gateway.server.console import filters as wording
from tests.support.table_rows import table_rows


@table_rows(
    ("amount", "text"),
    [(0, "$0"), (12.4, "$12.40"), (1234.5, "$1,234.50"), (0.0031, "$0.0031"), (0.25, "$0.25"),
     (0.99996, "$1.00"), (0.5, "$0.50"), (0.6807, "$0.68"), (0.02, "$0.02"), (0.09999, "$0.10"),
     (0.00001, "<$0.0001"), (-3.0, "-$3.00"), (-0.00001, "-<$0.0001"), (None, "\N{EN DASH}")],
)  # fmt: skip
def test_dollars_are_as_exact_as_they_deserve(amount: float | None, text: str) -> None:
    assert wording.format_usd(amount) == text


@table_rows(
    ("number", "text"),
    [(0, "0"), (999, "999"), (9999, "9,999"), (12_400, "12.4k"), (999_949, "999.9k"), (999_960, "1M"),
     (3_100_000, "3.1M"), (2_000_000, "2M"), (5e9, "5G"), (7e12, "7.0T"), (2.5, "2.50"), (None, "\N{EN DASH}")],
)  # fmt: skip
def test_counts_are_read_at_a_glance(number: float | None, text: str) -> None:
    assert wording.format_count(number) == text


@table_rows(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (50 * 1024**2, "50 MB"), (1024**4, "1.0 TB")]
)
def test_bytes_go_in_steps_of_1024(size: int, text: str) -> None:
    assert wording.format_bytes(size) == text


@table_rows(
    ("ms", "text"),
    [(0, "0 ms"), (85.4, "85 ms"), (1200, "1.2 s"), (185_000, "3 min 5 s"), (180_000, "3 min"), (3_600_000, "1 h"),
     (9_000_000, "2 h 30 min"), (187_200_000, "2 d 4 h"), (None, "\N{EN DASH}")],
)  # fmt: skip
def test_durations_have_two_units_at_most(ms: float | None, text: str) -> None:
    assert wording.format_duration(ms) == text


def test_a_part_is_a_percentage() -> None:
    assert [wording.format_percent(part) for part in (0.994, 1, None)] == ["99.4 %", "100 %", "\N{EN DASH}"]


def test_a_moment_is_for_machines_too_and_carries_nothing_else() -> None:
    reported = wording.format_moment("2027-01-31T12:00:00Z")
    assert reported == '<time datetime="2027-01-31T12:00:00Z">2027-01-31 12:00:00 UTC</time>'
    assert "<script>" not in wording.format_moment('"><script>')


def test_a_name_is_one_piece_of_an_address() -> None:
    assert wording.format_segment("org/model a?b=c") == "org%2Fmodel%20a%3Fb%3Dc"
