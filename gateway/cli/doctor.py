"""The ``doctor`` command, which finds problems of the gateway on this machine and suggests remedies."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import logging
from collections.abc import Sequence

import attrs
import click

from gateway.cli.context import CliContext, Json
from gateway.cli.options import exit_unless, local_command
from gateway.cli.output import print_answer
from gateway.cli.text import clean

_STATE_LABELS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM", "skipped": "skipped"}
_COLORS = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": None}
_LABEL_WIDTH = max(map(len, _STATE_LABELS.values()))


@click.command(short_help="Check folder, database, secrets, disk, clock and port.")
@local_command
def doctor(context: CliContext) -> None:
    """Check the data folder, the database, the secrets, the settings, the disk, the clock and the port.

    Every problem is printed with what to do. Nothing is changed, whether the gateway runs or not. Exits
    with 1 if there is a problem. For providers, use 'gateway check'; for amounts, 'gateway verify'.

    \b
    Examples:
      gateway doctor
      gateway doctor --data /var/lib/gateway --config /etc/gateway.toml --json
    """
    from gateway.doctor.examination import examine  # noqa: PLC0415 - imports the application
    from gateway.log import configure_log  # noqa: PLC0415

    configure_log("auto", logging.CRITICAL)  # findings are printed, so logging them would repeat them
    findings = [attrs.asdict(finding) for finding in examine(context.data, context.config, context.environ)]
    ok = all(finding["state"] != "problem" for finding in findings)
    print_answer(context, {"ok": ok, "findings": findings}, lambda _: _print_findings(findings))
    exit_unless(ok)


def _print_findings(findings: Sequence[Json]) -> None:
    for finding in findings:
        state = finding["state"]
        label = click.style(f"{_STATE_LABELS[state]:<{_LABEL_WIDTH}}", fg=_COLORS[state])
        click.echo(f"{label}  {finding['check']:<8}  {clean(finding['text'])}")
        if finding["fix"]:
            click.echo(f"{'':<{_LABEL_WIDTH}}  {'':<8}  {clean(finding['fix'])}")
