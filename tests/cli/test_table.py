"""Tables: what is left out, wrapped, cut and coloured, whatever the width of the terminal."""

import io
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from gateway.cli.table import Column, draw, fill_columns, find_color, fit_columns, format_line, print_table
from tests.support.table_rows import table_rows

WORDS = st.lists(st.text("abc1日", min_size=1, max_size=30), min_size=1, max_size=6).map(" ".join)
ROWS = st.lists(
    st.fixed_dictionaries({"name": WORDS, "text": WORDS, "id": st.integers(0, 10**9)}), min_size=1, max_size=4
)
COLUMNS = (
    Column("ID", "id", align_right=True, drop=1),
    Column("NAME", "name", shrinks=True, width=8),
    Column("TEXT", "text", shrinks=True, width=12),
    Column("KIND", lambda _: "usual", hidden_value="usual"),
)


def render(rows: list[dict[str, Any]], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    filled, gap = fit_columns(fill_columns(COLUMNS, rows), width)
    draw(console, filled, gap)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@given(ROWS, st.integers(12, 120))
def test_a_table_fits_and_breaks_no_word(rows: list[dict[str, Any]], width: int) -> None:
    lines = render(rows, width)
    assert max(map(cell_len, lines)) <= width
    whole = {word for row in rows for value in row.values() for word in str(value).split()} | {"ID", "NAME", "TEXT"}
    for shown in " ".join(lines).replace(" …", "…").split():  # half of a wide character is a space
        assert shown in whole or (shown.endswith("…") and any(word.startswith(shown[:-1]) for word in whole))


@given(ROWS)
def test_with_room_for_all_nothing_is_left_out_or_cut(rows: list[dict[str, Any]]) -> None:
    lines = render(rows, 2_000)
    assert [line.split() for line in lines] == [
        ["ID", "NAME", "TEXT"],
        *([str(row["id"]), *row["name"].split(), *row["text"].split()] for row in rows),
    ]


def test_columns_are_left_out_before_texts_are_cut_below_their_least_width() -> None:
    rows = [{"id": 123456789, "name": "n" * 20, "text": "t" * 20}]
    assert render(rows, 60)[0].split() == ["ID", "NAME", "TEXT"]
    assert render(rows, 31)[1].split() == ["123456789", "n" * 7 + "…", "t" * 11 + "…"]
    assert render(rows, 30)[1].split() == ["n" * 12 + "…", "t" * 15 + "…"]


@table_rows(
    ("status", "color"),
    [
        ("healthy", "green"),
        ("healthy, 1/3 keys failing", "yellow"),
        ("cooling down 12 s", "red"),
        ("disabled", "yellow"),
        ("completed", "green"),
        ("failed upstream_error", "red"),
        ("interrupted", "red"),
        ("refused rate_limit_exceeded", "yellow"),
        ("blocked", "yellow"),
        ("client closed", ""),
        ("processing 40%", ""),
    ],
)
def test_a_status_has_the_color_of_what_it_means(status: str, color: str) -> None:
    assert find_color(status) == color


@pytest.mark.parametrize(("no_color", "red"), [("", True), ("1", False)])
def test_colors_are_for_terminals_that_want_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_color: str, *, red: bool
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("NO_COLOR", no_color)):
        monkeypatch.setenv(name, value)
    print_table((Column("STATUS", "status", status=True),), [{"status": "failing"}], "")
    assert ("\x1b[31m" in capsys.readouterr().out) is red


def test_without_rows_the_hint_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [], "Nothing here.")
    assert capsys.readouterr() == ("", "Nothing here.\n")


def test_rows_that_come_one_by_one_are_below_their_titles() -> None:
    columns = (
        Column("A", "a", width=4),
        Column("N", "n", width=3, align_right=True),
        Column("B", "b"),
        Column("C", "c", width=1),
    )
    row = {"a": "x", "n": 7, "b": "left out", "c": "last words"}
    assert click.unstyle(format_line(columns)) == "A      N C"
    assert format_line(columns, row) == "x      7 last words"
    assert format_line(columns, {**row, "a": "longer\x1b"}) == "longer\ufffd   7 last words"


@table_rows(("no_color", "color"), [(False, True), (True, False)])
def test_a_row_that_comes_alone_has_the_colors_of_the_list(*, no_color: bool, color: bool) -> None:
    columns = (Column("STATUS", "status", width=10, status=True), Column("N", "n", width=2))

    @click.command()
    @click.pass_context
    def command(ctx: click.Context) -> None:
        ctx.color = False if no_color else None
        click.echo(format_line(columns, {"status": "failed x", "n": 7}))

    line = "\x1b[31mfailed x\x1b[0m   7\n"
    assert CliRunner().invoke(command, color=True).stdout == (line if color else click.unstyle(line))
    assert CliRunner().invoke(command).stdout == click.unstyle(line)
