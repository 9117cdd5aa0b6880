"""The ``backup``, ``restore`` and ``downgrade`` commands."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".
# ruff: noqa: PLC0415 - SQLAlchemy and the cipher are imported when needed, which keeps help texts fast.

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.context import CliContext, CliError, Json, load_file_config, open_folder
from gateway.cli.options import config_option, data_option, find_config, local_command
from gateway.cli.output import print_answer, print_json
from gateway.cli.text import format_bytes
from gateway.storage.data_folder import DATABASE, DataFolderLocked, find_database, is_used

if TYPE_CHECKING:
    from gateway.config.schema import Config

PASSPHRASE_VARIABLE = "GATEWAY_BACKUP_PASSPHRASE"  # noqa: S105 - the name of a variable


@click.command(short_help="Back up the data folder while the gateway runs.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--media", is_flag=True, help="Include stored images, videos and clients' files.")
@click.option(
    "--bodies", is_flag=True, help="Include kept prompts and answers, sealed; their keys are never in a backup."
)
@click.option("--encrypt", is_flag=True, help=f"Encrypt with a passphrase: asked for, or {PASSPHRASE_VARIABLE}.")
@local_command
def backup(context: CliContext, *, file: Path, media: bool, bodies: bool, encrypt: bool) -> None:
    """Write the data folder into FILE, a compressed tar file that must not exist yet.

    The backup has the database, the journal, the secret files and the configuration file. Anyone who reads it can use
    every provider key: keep it as safe as the data folder, or encrypt it. The gateway may run meanwhile; requests that
    were answered before the backup began are in it. A damaged database is not backed up. A database on a PostgreSQL
    server (store.url) is in the backup with all its rows. Media in a bucket (store.media_url) are not in it.

    \b
    Example:
      gateway backup /backups/monday.gwb --media --encrypt
    """
    from gateway.log import configure_log
    from gateway.storage.backup import BackupFailed, BackupSource, write_backup

    configure_log("auto", logging.WARNING)  # hides the messages of the database created for the copy
    config = load_file_config(context.config, context.environ).config
    server = _find_server(config)
    database = context.data / DATABASE if server else find_database(context.data, config.store.url)
    if not is_used(context.data) and not database.exists():
        raise CliError(f"No gateway here (looked in {context.data}). Use --data or GATEWAY_DATA")
    passphrase = _ask_passphrase(context.environ, is_new=True) if encrypt else None
    store = config.store
    locations = {"media_url": store.media_url, "bodies_url": store.bodies_url, "server": server}
    has_key = bool(store.master_key)
    source = BackupSource(
        context.data, database, context.config, media=media, bodies=bodies, master_key=has_key, **locations
    )
    try:
        manifest = write_backup(source, file, passphrase=passphrase)
    except BackupFailed as error:
        raise CliError(str(error)) from None
    except OSError as error:
        raise CliError(f"No backup was written: {error}") from None
    print_answer(context, dict(manifest), lambda _: _print_backup(file, manifest))


@click.command(short_help="Restore a backup into a new data folder.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@config_option
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the manifest of the backup as JSON.")
@click.pass_context
def restore(ctx: click.Context, *, file: Path, config_path: Path | None, data: Path, as_json: bool) -> None:
    """Restore the backup FILE as the data folder, which must be missing or empty.

    If store.url names a PostgreSQL server, the rows are restored into that database, which must be empty.
    Every file is checked before anything is put in its place. An older backup is brought up to date by the next
    'gateway serve'. Requests that were running when the backup was made are settled
    then as after a crash (ledger.on_crash). Do not run the original and the copy at the same time.

    \b
    Examples:
      gateway restore monday.gwb --data /var/lib/gateway
      gateway restore monday.gwb && gateway verify && gateway serve
    """
    from gateway.log import configure_log
    from gateway.storage.restore import RestoreRefused, is_encrypted, restore_backup

    configure_log("auto", logging.WARNING)  # hides the messages of migrations
    environ = ctx.find_root().obj
    server = _find_server(load_file_config(find_config(config_path), environ).config)
    try:
        passphrase = _ask_passphrase(environ, is_new=False) if is_encrypted(file) else ""
        manifest = restore_backup(file, data, passphrase=passphrase, server=server)
    except RestoreRefused as error:
        raise CliError(str(error)) from None
    except OSError as error:
        raise CliError(f"Nothing was restored: {error}") from None
    if as_json:
        print_json(manifest)
    else:
        _print_restored(data, manifest, server)


@click.command(short_help="Take the database back to an older version.")
@click.argument("version")
@local_command
def downgrade(context: CliContext, *, version: str) -> None:
    """Take the database back to what the older VERSION of the gateway opens, with all of today's rows.

    The gateway must be stopped. What the older version does not know is deleted, for instance alerts, linked
    identities and the requests-at-once limit; a copy of the database is kept beside it. Then install the older version.

    \b
    Examples:
      gateway downgrade 0.9.0
    """
    from gateway.storage.downgrade import DowngradeRefused, downgrade_database

    config = load_file_config(context.config, context.environ).config
    if config.store.is_postgres:
        advice = "Restore the backup that you made before the upgrade"
        raise CliError(f"The database of {context.data} is on a PostgreSQL server (store.url). {advice}")
    database = find_database(context.data, config.store.url)
    if not is_used(context.data) or not database.exists():
        raise CliError(f"No gateway here (looked in {context.data}). Use --data or GATEWAY_DATA")
    try:
        folder = open_folder(context.data)
    except DataFolderLocked as locked:
        raise CliError(f"{locked}. Stop it first") from None
    try:
        downgrade_result = downgrade_database(folder, database, version)
    except DowngradeRefused as error:
        raise CliError(str(error)) from None
    except OSError as error:
        raise CliError(f"Nothing was changed: {error}") from None
    finally:
        folder.close()
    report = {
        "schema": downgrade_result.after,
        "schema_before": downgrade_result.before,
        "copy": str(downgrade_result.copy),
        "version": version,
    }
    print_answer(context, report, lambda _: _print_downgrade(report))


def _find_server(config: "Config") -> str:
    """Return the URL of a PostgreSQL database; empty if it is a file. Raises ``CliError`` if an extra is missing."""
    if not config.store.is_postgres:
        return ""
    from gateway.config.extras import list_missing_extras

    if missing_extras := [problem for problem in list_missing_extras(config) if problem.startswith("store.url")]:
        raise CliError(missing_extras[0])
    return config.store.url


def _ask_passphrase(environ: Mapping[str, str], *, is_new: bool) -> str:
    if passphrase := environ.get(PASSPHRASE_VARIABLE):
        return passphrase
    hides_input = sys.stdin.isatty()  # only a terminal echoes input
    try:
        entered_passphrase: str = click.prompt(
            "Passphrase of the backup", hide_input=hides_input, confirmation_prompt=is_new, err=True
        )
    except click.Abort:
        if hides_input:
            raise
        click.echo(err=True)
        raise CliError(f"No terminal to ask for the passphrase of the backup: set {PASSPHRASE_VARIABLE}") from None
    return entered_passphrase


def _print_downgrade(report: Mapping[str, str]) -> None:
    click.echo(f"The database has schema {report['schema']} (it was {report['schema_before']}).")
    click.echo(f"The former database is {report['copy']}.")
    click.echo(f"Install version {report['version']} before you start the gateway: this one would upgrade it again.")


def _print_backup(file: Path, manifest: Mapping[str, Json]) -> None:
    members: Json = manifest["members"]
    content_size = format_bytes(sum(member["bytes"] for member in members.values()))
    click.echo(f"{file}: {format_bytes(file.stat().st_size)}, {len(members)} files of {content_size}")
    if manifest["media_store"] and not manifest["media"]:
        media_store = manifest["media_store"]
        click.echo(
            f"Images, videos and clients' files are in {media_store} and not in the backup: back them up there",
            err=True,
        )
    if manifest["bodies_store"]:
        click.echo(
            f"Kept prompts and answers are in {manifest['bodies_store']} and not in the backup: back up the folder "
            "bodies/segments there, and bodies/keys apart from it",
            err=True,
        )
    elif manifest["bodies"]:
        click.echo(
            "The keys of kept prompts and answers are not in the backup, because deleted ones could be read in it: "
            "copy the folder bodies/keys elsewhere",
            err=True,
        )
    if not manifest["master_key_file"]:
        click.echo(
            "The key that opens provider keys is the setting store.master_key: keep it, too, if it comes from the "
            "environment",
            err=True,
        )


def _print_restored(data: Path, manifest: Mapping[str, Json], server: str) -> None:
    from gateway.storage.backup import CONFIG_NAME

    click.echo(
        f"Restored into {data}: {len(manifest['members'])} files of version {manifest['version']}, "
        f"backed up at {manifest['created']}"
    )
    if CONFIG_NAME in manifest["members"]:
        click.echo(
            f"The configuration of then is {data / CONFIG_NAME} (--config); files that it names are not in a backup"
        )
    if "kept_bodies" in manifest:
        requests, damaged_count = manifest["kept_bodies"]["requests"], manifest["kept_bodies"]["damaged"]
        damage_text = f"; those of {damaged_count:,} are damaged or missing" if damaged_count else ""
        click.echo(f"Kept prompts and answers: of {requests:,} requests{damage_text}. They need the folder bodies/keys")
    if manifest.get("bodies_store"):
        click.echo(f"Kept prompts and answers were in {manifest['bodies_store']}: name it in store.bodies_url")
    if manifest.get("media_store"):  # missing in older backups
        media_text = f"are in {data} now: move them there" if manifest["media"] else "are not in the backup"
        click.echo(f"Images, videos and clients' files were in {manifest['media_store']} and {media_text}")
    if server:
        click.echo("The rows are in the database of store.url")
    elif manifest["database"]:
        click.echo(f"The database was {manifest['database']} and is {data / DATABASE} now: change store.url")
    click.echo(f"Check it: gateway verify --data {data}")
