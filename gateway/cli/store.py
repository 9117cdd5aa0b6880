"""The ``store`` commands: copy the database, and list the requests that another one lacks."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".
# ruff: noqa: PLC0415 - SQLAlchemy is imported when needed, which keeps help texts fast.

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from gateway.cli.context import CliError, Json
from gateway.cli.options import GlobalOptions
from gateway.cli.output import print_json
from gateway.cli.table import Column, print_table
from gateway.cli.text import format_usd
from gateway.cli.times import parse_past
from gateway.domain.price import NANOS_PER_USD
from gateway.installation import format_install_command
from gateway.storage.data_folder import DATABASE

if TYPE_CHECKING:
    from gateway.storage.copying.missing_requests import MissingReport
    from gateway.storage.copying.places import StoreLocation
    from gateway.storage.copying.store_copy import CopyReport

_PROGRESS_INTERVAL_ROWS = 100_000
"""Number of copied rows between two progress lines."""
MISSING_COLUMNS = (
    Column("ACCOUNT", "account", shrinks=True, width=12),
    Column("KEY", "key", shrinks=True, width=12),
    Column("REQUESTS", "requests", align_right=True),
    Column("CHARGED", lambda row: format_usd(row["charged_nanos"] / NANOS_PER_USD), align_right=True),
)


@click.group(cls=GlobalOptions)
def store() -> None:
    """Move the database between SQLite and PostgreSQL, or compare two of them.

    \b
    Examples:
      gateway store copy --from /var/lib/gateway --to postgresql://gateway@db.example.com/gateway
      gateway store missing --from postgresql://gateway@db1/gateway --in postgresql://gateway@db2/gateway --since 2h
    """


@store.command(short_help="Copy the database between SQLite and PostgreSQL.")
@click.option("--from", "source", required=True, metavar="PLACE", help="Data folder or postgresql:// URL to read.")
@click.option("--to", "target", required=True, metavar="PLACE", help="Data folder or postgresql:// URL to fill.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def copy(source: str, target: str, *, as_json: bool) -> None:
    """Copy every table from a data folder to a PostgreSQL database, or back.

    The gateway must be stopped, and the target empty. Every table is compared after it was copied, by number of rows
    and checksum, and so are all charges; if anything differs or the command is interrupted, the target stays empty.
    The source is not changed. The secret files, the journal, images, videos and clients' files stay in the data folder.
    Keep passwords out of the command line: use PGPASSWORD or ~/.pgpass.

    \b
    Examples:
      gateway store copy --from /var/lib/gateway --to postgresql://gateway@db.example.com/gateway
      gateway store copy --from postgresql://gateway@db.example.com/gateway --to /var/lib/gateway
    """
    from gateway.log import configure_log
    from gateway.storage.copying.places import StoreLocation, copy_between
    from gateway.storage.copying.store_copy import CopyFailed

    configure_log("auto", logging.WARNING)
    source_store, target_store = StoreLocation(source), StoreLocation(target)
    progress = _Progress()
    try:
        report = asyncio.run(copy_between(source_store, target_store, progress.show))
    except CopyFailed as error:
        raise CliError(str(error)) from None
    except OSError as error:
        raise CliError(f"Nothing was copied: {error}") from None
    progress.finish()
    if as_json:
        print_json(_build_report(source_store, target_store, report))
    else:
        _print_report(source_store, target_store, report)


@store.command(short_help="List the requests that another database lacks.")
@click.option("--from", "source", required=True, metavar="URL", help="The database with the requests: postgresql://…")
@click.option("--in", "target", required=True, metavar="URL", help="The database that may lack them.")
@click.option(
    "--since", required=True, metavar="TIME", callback=parse_past, help="From then on: 24h, 2027-01-31T12:00 (UTC)."
)
@click.option(
    "--export", type=click.Path(path_type=Path), metavar="FILE", help="Write them to a new file as JSON lines."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def missing(source: str, target: str, since: str, export: Path | None, *, as_json: bool) -> None:
    """Count the requests of one database that another one lacks, with their charges, and export them.

    For two PostgreSQL servers that took writes at the same time. A request is recognized by its id, so --since may be
    well before the two parted. Nothing is changed, and gateways may run. A key is named as the first database has it.

    \b
    Examples:
      gateway store missing --from postgresql://gateway@db1/gateway --in postgresql://gateway@db2/gateway --since 2h
      gateway store missing --from postgresql://gateway@db1/gateway --in postgresql://gateway@db2/gateway \\
        --since 2027-01-31T12:00 --export missing.jsonl
    """
    from gateway.log import configure_log
    from gateway.storage.copying.store_copy import CopyFailed

    configure_log("auto", logging.WARNING)
    try:
        report = _find_missing_requests(source, target, since, export)
    except (CopyFailed, OSError) as error:
        raise CliError(str(error)) from None
    except ModuleNotFoundError as error:
        install = format_install_command("postgres")
        raise CliError(f"PostgreSQL requires the postgres extra ({error.name} is missing): {install}") from None
    if as_json:
        print_json(
            {
                "requests": report.requests,
                "charged_nanos": report.charged_nanos,
                "differing_requests": report.differing_count,
                "keys": [attrs.asdict(key) for key in report.keys],
            }
        )
    else:
        _print_missing_requests(report)


def _find_missing_requests(source: str, target: str, since: str, export: Path | None) -> "MissingReport":
    from gateway.errors import InvalidRequest
    from gateway.server.query import parse_moment
    from gateway.storage.copying.missing_requests import list_missing_requests

    try:
        since_ms = parse_moment({"since": since}, "since") or 0
    except InvalidRequest as error:
        raise CliError(str(error)) from None
    if export is None:
        return asyncio.run(list_missing_requests(source, target, since_ms, lambda _: None))
    with export.open("x") as file:
        return asyncio.run(
            list_missing_requests(source, target, since_ms, lambda row: print(json.dumps(row), file=file))
        )


def _print_missing_requests(report: "MissingReport") -> None:
    charged_usd = report.charged_nanos / NANOS_PER_USD
    print_table(MISSING_COLUMNS, [attrs.asdict(key) for key in report.keys], "No request is missing.")
    if report.keys:
        click.echo(
            f"Missing are {report.requests} requests, charged ${charged_usd:.9f} ({report.charged_nanos} nano-USD)"
        )
    if report.differing_count:
        click.echo(f"Requests that both have with different charges, not counted: {report.differing_count}", err=True)


class _Progress:
    """Prints the number of copied rows of each table to standard error."""

    def __init__(self) -> None:
        self._table, self._rows, self._shown_rows = "", 0, 0

    def show(self, table: str, rows: int) -> None:
        if table != self._table:
            self.finish()
            self._table, self._shown_rows = table, 0
        self._rows = rows
        if rows - self._shown_rows >= _PROGRESS_INTERVAL_ROWS:
            click.echo(f"{table}: {rows} rows so far", err=True)
            self._shown_rows = rows

    def finish(self) -> None:
        if self._table:
            click.echo(f"{self._table}: {self._rows} rows", err=True)


def _build_report(source: "StoreLocation", target: "StoreLocation", report: "CopyReport") -> Json:
    return {
        "from": source.describe(),
        "to": target.describe(),
        "tables": dict(report.rows),
        "rows": sum(report.rows.values()),
        "mended_rows": report.mended_count,
        "charged_nanos": report.charged_nanos,
        "ledger_agrees": report.agrees,
    }


def _print_report(source: "StoreLocation", target: "StoreLocation", report: "CopyReport") -> None:
    from gateway.storage.copying.places import list_missing_secrets

    charged_usd = report.charged_nanos / NANOS_PER_USD
    click.echo(f"Copied {sum(report.rows.values())} rows from {source.describe()} to {target.describe()}")
    click.echo(f"Both have the same rows, and the same charges of ${charged_usd:.6f}")
    if not report.agrees:
        click.echo("The ledger of the source does not agree, and so neither does the copy: gateway verify", err=True)
    if report.mended_count:
        text = "PostgreSQL stores no U+0000 in a text: it was left out. Rows"
        click.echo(f"{text}: {report.mended_count}", err=True)
    if target.is_server:
        folder = str(source.folder) if not source.is_server else "the one that is used now"
        click.echo("Secret files, journal, images, videos and clients' files stay in the data folder")
        click.echo(f"Start the gateway with store.url = {target.describe()} and the data folder {folder}")
        if not source.is_server:
            click.echo(f"{source.folder / DATABASE} is not used then: remove it once all is well")
        return
    if missing_secrets := list_missing_secrets(target.folder):
        click.echo(
            f"{target.folder} lacks {', '.join(missing_secrets)}: copy them from the data folder that the database was "
            "used with, and from there also requests.journal and the folders media and files",
            err=True,
        )
    click.echo(f"Start the gateway with the data folder {target.folder}, and without store.url")
